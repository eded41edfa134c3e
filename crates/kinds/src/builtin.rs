//! The built-in kinds, by API group; each group is a cargo feature.

/// Implements `Kind` for types of one group and version, with a test named after the group.
macro_rules! kinds {
    ($group:ident, $version:path: $($kind:ident),* $(,)?) => {
        $(const _: () = {
            use $version::{$kind};

            impl crate::Kind for $kind {
                // A static in a function that is not inlined: this crate alone instantiates it.
                #[inline(never)]
                fn codec() -> &'static crate::KindCodec {
                    static CODEC: crate::KindCodec = crate::KindCodec::of::<$kind>();
                    &CODEC
                }
            }
        };)*

        #[cfg(test)]
        mod $group {
            use super::k8s;

            #[test]
            fn every_kind_round_trips_a_minimal_object() {
                $({
                    use $version::{$kind};
                    crate::tests::assert_round_trip::<$kind>();
                })*
            }
        }
    };
}

use k8s_openapi as k8s;

// Needed by the toolkit itself, to follow namespaces by their labels.
kinds!(namespaces, k8s::api::core::v1: Namespace);

#[cfg(feature = "admissionregistration")]
kinds!(
    admissionregistration,
    k8s::api::admissionregistration::v1:
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
);

#[cfg(feature = "apiextensions")]
kinds!(
    apiextensions,
    k8s::apiextensions_apiserver::pkg::apis::apiextensions::v1:
    CustomResourceDefinition,
);

#[cfg(feature = "apps")]
kinds!(
    apps,
    k8s::api::apps::v1:
    ControllerRevision,
    DaemonSet,
    Deployment,
    ReplicaSet,
    StatefulSet,
);

#[cfg(feature = "autoscaling")]
kinds!(autoscaling, k8s::api::autoscaling::v2: HorizontalPodAutoscaler);

#[cfg(feature = "batch")]
kinds!(batch, k8s::api::batch::v1: CronJob, Job);

#[cfg(feature = "certificates")]
kinds!(certificates, k8s::api::certificates::v1: CertificateSigningRequest);

#[cfg(feature = "coordination")]
kinds!(coordination, k8s::api::coordination::v1: Lease);

#[cfg(feature = "core")]
kinds!(
    core,
    k8s::api::core::v1:
    ConfigMap,
    Endpoints,
    Event,
    LimitRange,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodTemplate,
    ReplicationController,
    ResourceQuota,
    Secret,
    Service,
    ServiceAccount,
);

#[cfg(feature = "discovery")]
kinds!(discovery, k8s::api::discovery::v1: EndpointSlice);

#[cfg(feature = "events")]
kinds!(events, k8s::api::events::v1: Event);

#[cfg(feature = "networking")]
kinds!(networking, k8s::api::networking::v1: Ingress, IngressClass, NetworkPolicy);

#[cfg(feature = "node")]
kinds!(node, k8s::api::node::v1: RuntimeClass);

#[cfg(feature = "policy")]
kinds!(policy, k8s::api::policy::v1: PodDisruptionBudget);

#[cfg(feature = "rbac")]
kinds!(rbac, k8s::api::rbac::v1: ClusterRole, ClusterRoleBinding, Role, RoleBinding);

#[cfg(feature = "scheduling")]
kinds!(scheduling, k8s::api::scheduling::v1: PriorityClass);

#[cfg(feature = "storage")]
kinds!(storage, k8s::api::storage::v1: CSIDriver, CSINode, StorageClass, VolumeAttachment);

#[cfg(feature = "storage")]
k8s_openapi::k8s_if_ge_1_34! {
    kinds!(volume_attributes_classes, k8s::api::storage::v1: VolumeAttributesClass);
}
