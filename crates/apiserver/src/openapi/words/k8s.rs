//! The descriptions that the `k8s-openapi` crate carries in its schemas, by type and field.
//! Holds: read once per process, when first asked for; kinds that the chosen Kubernetes version lacks stay without words.

use std::{collections::HashMap, sync::LazyLock};

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission,
        apps::v1 as apps,
        authentication::v1 as authentication,
        authorization::v1 as authorization,
        autoscaling::{v1 as autoscaling, v2 as autoscaling_v2},
        batch::v1 as batch,
        certificates::v1 as certificates,
        coordination::v1 as coordination,
        core::v1 as core,
        discovery::v1 as discovery,
        events::v1 as events,
        flowcontrol::v1 as flow,
        networking::v1 as networking,
        node::v1 as node,
        policy::v1 as policy,
        rbac::v1 as rbac,
        scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    apimachinery::pkg::{apis::meta::v1 as meta, version},
    kube_aggregator::pkg::apis::apiregistration::v1 as registration,
    schemars::SchemaGenerator,
};
use serde_json::Value;

/// What is said of a type and of its fields.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) about: Option<Box<str>>,
    pub(super) fields: HashMap<Box<str>, Box<str>>,
}

/// By the published name of the type.
pub(super) static WORDS: LazyLock<HashMap<String, Words>> = LazyLock::new(|| {
    let mut generator = SchemaGenerator::default();
    visit(&mut generator);
    generator
        .take_definitions(false)
        .into_iter()
        .map(|(name, schema)| (name, Words::of(&schema)))
        .collect()
});

impl Words {
    fn of(schema: &Value) -> Self {
        let about = |schema: &Value| schema["description"].as_str().map(Box::from);
        let properties = schema["properties"].as_object().into_iter().flatten();
        let fields = properties
            .filter_map(|(name, schema)| Some((Box::from(name.as_str()), about(schema)?)))
            .collect();
        Self {
            about: about(schema),
            fields,
        }
    }
}

/// Shows the generator every kind that is served; it goes on to all types these hold.
fn visit(generator: &mut SchemaGenerator) {
    macro_rules! visit {
        ($($package:ident: $($kind:ident $(<$of:ident>)?)+;)+) => {
            $($(generator.subschema_for::<$package::$kind $(<$of>)?>();)+)+
        };
    }
    visit! {
        admission: MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration;
        apps: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet;
        authentication: SelfSubjectReview TokenRequest TokenReview;
        authorization: LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview;
        autoscaling: HorizontalPodAutoscaler Scale;
        autoscaling_v2: HorizontalPodAutoscaler;
        batch: CronJob Job;
        certificates: CertificateSigningRequest;
        coordination: Lease;
        core: Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod
            PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount;
        discovery: EndpointSlice;
        events: Event;
        extensions: CustomResourceDefinition;
        flow: FlowSchema PriorityLevelConfiguration;
        meta: APIGroup APIGroupList APIResourceList APIVersions DeleteOptions Patch Status WatchEvent<Value>;
        networking: IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR;
        node: RuntimeClass;
        policy: Eviction PodDisruptionBudget;
        rbac: ClusterRole ClusterRoleBinding Role RoleBinding;
        registration: APIService;
        scheduling: PriorityClass;
        storage: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment;
        version: Info;
    }
    k8s_openapi::k8s_if_ge_1_34! {
        use k8s_openapi::api::resource::v1 as resource;
        visit! {
            resource: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice;
            storage: VolumeAttributesClass;
        }
    }
    k8s_openapi::k8s_if_ge_1_36! {
        visit! {
            admission: MutatingAdmissionPolicy MutatingAdmissionPolicyBinding;
        }
    }
}
