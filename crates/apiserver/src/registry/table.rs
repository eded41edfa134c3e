//! The kinds of Kubernetes 1.36, one row each.
//! Guarantees: groups are in the order of `/apis`, versions with the preferred one first, rows in
//! the order of discovery.

use bellerophon_resources::kinds::{
    self, Review, Strategy, access, admission, api_service, autoscaling, classes, component_status,
    config_map, devices, disruption, endpoint_slice, endpoints, event, flow_control, ingress,
    lease, limit_range, namespace, network_policy, node, persistent_volume,
    persistent_volume_claim, resource_quota,
    row::{CREATE, Row, SubresourceRow, row},
    secret, selectable, service, service_account, service_range, signing_request, storage,
};

use super::DEFINITION;

const ALL: &[&str] = &["all"];
const API_EXTENSIONS: &[&str] = &["api-extensions"];
const PROXY_VERBS: &[&str] = &["create", "delete", "get", "patch", "update"];
const CONNECT_VERBS: &[&str] = &["create", "get"];
const SCALE: SubresourceRow = SubresourceRow::new("scale", "Scale").from("autoscaling", "v1");

/// A kind of the core group.
const fn core(kind: &'static str, plural: &'static str, strategy: &'static Strategy) -> Row {
    row("", "v1", kind, plural, strategy)
}

/// A kind of a group whose only version is v1.
const fn v1(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    strategy: &'static Strategy,
) -> Row {
    row(group, "v1", kind, plural, strategy)
}

/// Every kind this server has built in.
pub(crate) static ROWS: &[Row] = &[
    core("Binding", "bindings", &kinds::binding::BINDING).verbs(CREATE),
    core(
        "ComponentStatus",
        "componentstatuses",
        &component_status::COMPONENT_STATUS,
    )
    .cluster_wide()
    .verbs(&["get", "list"])
    .short(&["cs"])
    .error_name("componentstatus")
    .deprecated("v1 ComponentStatus is deprecated in v1.19+"),
    core("ConfigMap", "configmaps", &config_map::CONFIG_MAP).short(&["cm"]),
    core("Endpoints", "endpoints", &endpoints::ENDPOINTS)
        .short(&["ep"])
        .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    core("Event", "events", &event::EVENT)
        .short(&["ev"])
        .selectable(selectable::EVENT)
        .selectable_elsewhere(selectable::EVENTS_EVENT),
    core("LimitRange", "limitranges", &limit_range::LIMIT_RANGE).short(&["limits"]),
    core("Namespace", "namespaces", &namespace::NAMESPACE)
        .cluster_wide()
        .verbs(&[
            "create", "delete", "get", "list", "patch", "update", "watch",
        ])
        .short(&["ns"])
        .subresources(&[
            SubresourceRow::of("finalize", "Namespace", &["update"]),
            SubresourceRow::new("status", "Namespace"),
        ])
        .selectable(selectable::NAMESPACE),
    core("Node", "nodes", &node::NODE)
        .cluster_wide()
        .short(&["no"])
        .subresources(&[
            SubresourceRow::of("proxy", "NodeProxyOptions", PROXY_VERBS),
            SubresourceRow::new("status", "Node"),
        ])
        .selectable(selectable::NODE),
    core(
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        &persistent_volume_claim::PERSISTENT_VOLUME_CLAIM,
    )
    .short(&["pvc"])
    .subresources(&[SubresourceRow::new("status", "PersistentVolumeClaim")]),
    core(
        "PersistentVolume",
        "persistentvolumes",
        &persistent_volume::PERSISTENT_VOLUME,
    )
    .cluster_wide()
    .short(&["pv"])
    .subresources(&[SubresourceRow::new("status", "PersistentVolume")]),
    core("Pod", "pods", &kinds::pod::POD)
        .short(&["po"])
        .category(ALL)
        .subresources(&[
            SubresourceRow::of("attach", "PodAttachOptions", CONNECT_VERBS),
            SubresourceRow::of("binding", "Binding", CREATE),
            SubresourceRow::new("ephemeralcontainers", "Pod"),
            SubresourceRow::of("eviction", "Eviction", CREATE).from("policy", "v1"),
            SubresourceRow::of("exec", "PodExecOptions", CONNECT_VERBS),
            SubresourceRow::of("log", "Pod", &["get"]),
            SubresourceRow::of("portforward", "PodPortForwardOptions", CONNECT_VERBS),
            SubresourceRow::of("proxy", "PodProxyOptions", PROXY_VERBS),
            SubresourceRow::new("resize", "Pod"),
            SubresourceRow::new("status", "Pod"),
        ])
        .selectable(selectable::POD),
    core(
        "PodTemplate",
        "podtemplates",
        &kinds::workload::POD_TEMPLATE,
    ),
    core(
        "ReplicationController",
        "replicationcontrollers",
        &kinds::workload::REPLICATION_CONTROLLER,
    )
    .short(&["rc"])
    .category(ALL)
    .subresources(&[
        SCALE,
        SubresourceRow::new("status", "ReplicationController"),
    ])
    .selectable(selectable::REPLICATION_CONTROLLER),
    core(
        "ResourceQuota",
        "resourcequotas",
        &resource_quota::RESOURCE_QUOTA,
    )
    .short(&["quota"])
    .subresources(&[SubresourceRow::new("status", "ResourceQuota")]),
    core("Secret", "secrets", &secret::SECRET).selectable(selectable::SECRET),
    core(
        "ServiceAccount",
        "serviceaccounts",
        &service_account::SERVICE_ACCOUNT,
    )
    .short(&["sa"])
    .subresources(&[
        SubresourceRow::of("token", "TokenRequest", CREATE).from("authentication.k8s.io", "v1")
    ]),
    core("Service", "services", &service::SERVICE)
        .short(&["svc"])
        .category(ALL)
        .subresources(&[
            SubresourceRow::of("proxy", "ServiceProxyOptions", PROXY_VERBS),
            SubresourceRow::new("status", "Service"),
        ])
        .selectable(selectable::SERVICE),
    v1(
        "apiregistration.k8s.io",
        "APIService",
        "apiservices",
        &api_service::API_SERVICE,
    )
    .cluster_wide()
    .category(API_EXTENSIONS)
    .subresources(&[SubresourceRow::new("status", "APIService")]),
    v1(
        "apps",
        "ControllerRevision",
        "controllerrevisions",
        &kinds::workload::CONTROLLER_REVISION,
    ),
    v1(
        "apps",
        "DaemonSet",
        "daemonsets",
        &kinds::workload::DAEMON_SET,
    )
    .short(&["ds"])
    .category(ALL)
    .subresources(&[SubresourceRow::new("status", "DaemonSet")]),
    v1(
        "apps",
        "Deployment",
        "deployments",
        &kinds::workload::DEPLOYMENT,
    )
    .short(&["deploy"])
    .category(ALL)
    .subresources(&[SCALE, SubresourceRow::new("status", "Deployment")]),
    v1(
        "apps",
        "ReplicaSet",
        "replicasets",
        &kinds::workload::REPLICA_SET,
    )
    .short(&["rs"])
    .category(ALL)
    .subresources(&[SCALE, SubresourceRow::new("status", "ReplicaSet")]),
    v1(
        "apps",
        "StatefulSet",
        "statefulsets",
        &kinds::workload::STATEFUL_SET,
    )
    .short(&["sts"])
    .category(ALL)
    .subresources(&[SCALE, SubresourceRow::new("status", "StatefulSet")]),
    v1("events.k8s.io", "Event", "events", &event::EVENTS_EVENT)
        .short(&["ev"])
        .selectable(selectable::EVENTS_EVENT)
        .selectable_elsewhere(selectable::EVENT)
        .stored_as(&event::STORED_AS_CORE),
    v1(
        "authentication.k8s.io",
        "SelfSubjectReview",
        "selfsubjectreviews",
        &Strategy::reviewing(Review::Own),
    )
    .cluster_wide()
    .verbs(CREATE),
    v1(
        "authentication.k8s.io",
        "TokenReview",
        "tokenreviews",
        &Strategy::reviewing(Review::Token),
    )
    .cluster_wide()
    .verbs(CREATE),
    v1(
        "authorization.k8s.io",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        &Strategy::reviewing(Review::LocalAccess),
    )
    .verbs(CREATE),
    v1(
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        &Strategy::reviewing(Review::OwnAccess),
    )
    .cluster_wide()
    .verbs(CREATE),
    v1(
        "authorization.k8s.io",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        &Strategy::reviewing(Review::OwnRules),
    )
    .cluster_wide()
    .verbs(CREATE),
    v1(
        "authorization.k8s.io",
        "SubjectAccessReview",
        "subjectaccessreviews",
        &Strategy::reviewing(Review::Access),
    )
    .cluster_wide()
    .verbs(CREATE),
    row(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        &autoscaling::AUTOSCALER,
    )
    .short(&["hpa"])
    .category(ALL)
    .subresources(&[SubresourceRow::new("status", "HorizontalPodAutoscaler")]),
    row(
        "autoscaling",
        "v1",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        &autoscaling::AUTOSCALER_V1,
    )
    .stored_as(&autoscaling::STORED_AS_V2)
    .short(&["hpa"])
    .category(ALL)
    .subresources(&[SubresourceRow::new("status", "HorizontalPodAutoscaler")]),
    v1("batch", "CronJob", "cronjobs", &kinds::workload::CRON_JOB)
        .short(&["cj"])
        .category(ALL)
        .subresources(&[SubresourceRow::new("status", "CronJob")]),
    v1("batch", "Job", "jobs", &kinds::workload::JOB)
        .category(ALL)
        .subresources(&[SubresourceRow::new("status", "Job")])
        .selectable(selectable::JOB),
    v1(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        &signing_request::SIGNING_REQUEST,
    )
    .cluster_wide()
    .short(&["csr"])
    .subresources(&[
        SubresourceRow::new("approval", "CertificateSigningRequest"),
        SubresourceRow::new("status", "CertificateSigningRequest"),
    ])
    .selectable(selectable::SIGNING_REQUEST),
    v1(
        "networking.k8s.io",
        "IngressClass",
        "ingressclasses",
        &ingress::INGRESS_CLASS,
    )
    .cluster_wide(),
    v1(
        "networking.k8s.io",
        "Ingress",
        "ingresses",
        &ingress::INGRESS,
    )
    .short(&["ing"])
    .subresources(&[SubresourceRow::new("status", "Ingress")]),
    v1(
        "networking.k8s.io",
        "IPAddress",
        "ipaddresses",
        &service_range::IP_ADDRESS,
    )
    .cluster_wide()
    .short(&["ip"]),
    v1(
        "networking.k8s.io",
        "NetworkPolicy",
        "networkpolicies",
        &network_policy::NETWORK_POLICY,
    )
    .short(&["netpol"]),
    v1(
        "networking.k8s.io",
        "ServiceCIDR",
        "servicecidrs",
        &service_range::SERVICE_CIDR,
    )
    .cluster_wide()
    .subresources(&[SubresourceRow::new("status", "ServiceCIDR")]),
    v1(
        "policy",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        &disruption::DISRUPTION_BUDGET,
    )
    .short(&["pdb"])
    .subresources(&[SubresourceRow::new("status", "PodDisruptionBudget")]),
    v1(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        "clusterrolebindings",
        &access::CLUSTER_ROLE_BINDING,
    )
    .cluster_wide(),
    v1(
        "rbac.authorization.k8s.io",
        "ClusterRole",
        "clusterroles",
        &access::CLUSTER_ROLE,
    )
    .cluster_wide(),
    v1(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        "rolebindings",
        &access::ROLE_BINDING,
    ),
    v1("rbac.authorization.k8s.io", "Role", "roles", &access::ROLE),
    v1(
        "storage.k8s.io",
        "CSIDriver",
        "csidrivers",
        &storage::CSI_DRIVER,
    )
    .cluster_wide(),
    v1("storage.k8s.io", "CSINode", "csinodes", &storage::CSI_NODE).cluster_wide(),
    v1(
        "storage.k8s.io",
        "CSIStorageCapacity",
        "csistoragecapacities",
        &storage::CSI_STORAGE_CAPACITY,
    ),
    v1(
        "storage.k8s.io",
        "StorageClass",
        "storageclasses",
        &storage::STORAGE_CLASS,
    )
    .cluster_wide()
    .short(&["sc"]),
    v1(
        "storage.k8s.io",
        "VolumeAttachment",
        "volumeattachments",
        &storage::VOLUME_ATTACHMENT,
    )
    .cluster_wide()
    .subresources(&[SubresourceRow::new("status", "VolumeAttachment")]),
    v1(
        "storage.k8s.io",
        "VolumeAttributesClass",
        "volumeattributesclasses",
        &storage::VOLUME_ATTRIBUTES_CLASS,
    )
    .cluster_wide()
    .short(&["vac"]),
    v1(
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
        &admission::MUTATING_POLICY,
    )
    .cluster_wide()
    .category(API_EXTENSIONS),
    v1(
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
        &admission::MUTATING_POLICY_BINDING,
    )
    .cluster_wide()
    .category(API_EXTENSIONS),
    v1(
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        &admission::MUTATING_WEBHOOKS,
    )
    .cluster_wide()
    .category(API_EXTENSIONS),
    v1(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        &admission::VALIDATING_POLICY,
    )
    .cluster_wide()
    .category(API_EXTENSIONS)
    .subresources(&[SubresourceRow::new("status", "ValidatingAdmissionPolicy")]),
    v1(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        &admission::VALIDATING_POLICY_BINDING,
    )
    .cluster_wide()
    .category(API_EXTENSIONS),
    v1(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        &admission::VALIDATING_WEBHOOKS,
    )
    .cluster_wide()
    .category(API_EXTENSIONS),
    v1(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        &DEFINITION,
    )
    .cluster_wide()
    .short(&["crd", "crds"])
    .category(API_EXTENSIONS)
    .subresources(&[SubresourceRow::new("status", "CustomResourceDefinition")]),
    v1(
        "scheduling.k8s.io",
        "PriorityClass",
        "priorityclasses",
        &classes::PRIORITY_CLASS,
    )
    .cluster_wide()
    .short(&["pc"]),
    v1("coordination.k8s.io", "Lease", "leases", &lease::LEASE),
    v1(
        "node.k8s.io",
        "RuntimeClass",
        "runtimeclasses",
        &classes::RUNTIME_CLASS,
    )
    .cluster_wide(),
    v1(
        "discovery.k8s.io",
        "EndpointSlice",
        "endpointslices",
        &endpoint_slice::ENDPOINT_SLICE,
    ),
    v1(
        "resource.k8s.io",
        "DeviceClass",
        "deviceclasses",
        &devices::DEVICE_CLASS,
    )
    .cluster_wide(),
    v1(
        "resource.k8s.io",
        "ResourceClaim",
        "resourceclaims",
        &devices::RESOURCE_CLAIM,
    )
    .subresources(&[SubresourceRow::new("status", "ResourceClaim")]),
    v1(
        "resource.k8s.io",
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        &devices::RESOURCE_CLAIM_TEMPLATE,
    ),
    v1(
        "resource.k8s.io",
        "ResourceSlice",
        "resourceslices",
        &devices::RESOURCE_SLICE,
    )
    .cluster_wide()
    .selectable(selectable::RESOURCE_SLICE),
    v1(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        "flowschemas",
        &flow_control::FLOW_SCHEMA,
    )
    .cluster_wide()
    .subresources(&[SubresourceRow::new("status", "FlowSchema")]),
    v1(
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        &flow_control::PRIORITY_LEVEL,
    )
    .cluster_wide()
    .subresources(&[SubresourceRow::new("status", "PriorityLevelConfiguration")]),
];

/// The row of a resource in a version of a group.
#[cfg(test)]
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|r| r.group == group && r.version == version && r.plural == plural)
}

/// The row of a kind in a version of a group.
#[cfg(test)]
pub(crate) fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|r| r.group == group && r.version == version && r.kind == kind)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bellerophon_apimachinery::time::Time;
    use bellerophon_codec::object::{Object, ObjectMeta};
    use bellerophon_resources::print::{ListMeta, TableOptions, printer, table};
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for row in ROWS {
            assert!(
                seen.insert((row.group, row.version, row.plural)),
                "{} {}",
                row.group,
                row.plural
            );
            assert!(
                find(row.group, row.version, row.plural).is_some()
                    && find_kind(row.group, row.version, row.kind).is_some()
            );
        }
    }

    #[test]
    fn rows_of_a_version_are_adjacent_in_order_of_groups() {
        let mut versions: Vec<(&str, &str)> = ROWS.iter().map(|r| (r.group, r.version)).collect();
        versions.dedup();
        let mut once = versions.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(versions.len(), once.len());
        let groups: Vec<&str> = versions.iter().map(|v| v.0).collect();
        assert_eq!(
            groups[..6],
            [
                "",
                "apiregistration.k8s.io",
                "apps",
                "events.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io"
            ]
        );
        assert_eq!(
            versions[6..8],
            [("autoscaling", "v2"), ("autoscaling", "v1")]
        );
        assert_eq!(
            groups[groups.len() - 2..],
            ["resource.k8s.io", "flowcontrol.apiserver.k8s.io"]
        );
    }

    #[test]
    fn objects_are_selected_by_the_fields_of_every_kind_they_are_read_as() {
        for row in ROWS {
            let known = |label: &str| {
                row.selectable
                    .iter()
                    .chain(row.selectable_elsewhere)
                    .any(|field| field.label == label)
            };
            for other in ROWS.iter().filter(|other| other.storage() == row.storage()) {
                assert!(
                    other.selectable.iter().all(|field| known(field.label)),
                    "{} {}",
                    row.api_version(),
                    row.kind
                );
            }
        }
    }

    #[test]
    fn rows_that_share_storage_name_a_row() {
        for row in ROWS.iter().filter(|r| r.verbs.contains(&"watch")) {
            let (group, plural) = row.storage();
            let (_, version) = row.storage_version();
            assert!(
                find(group, version, plural).is_some_and(|r| r.stored_as.is_none()),
                "{} {}",
                row.group,
                row.kind
            );
        }
    }

    #[test]
    fn every_listed_kind_but_five_has_a_printer() {
        let default = printer("", "Unknown");
        let listed = ROWS.iter().filter(|row| row.verbs.contains(&"list"));
        let mut plain: Vec<&str> = listed
            .filter(|row| std::ptr::eq(printer(row.group, row.kind), default))
            .map(|row| row.kind)
            .collect();
        plain.sort_unstable();
        assert_eq!(
            plain,
            [
                "CSIStorageCapacity",
                "ClusterRole",
                "CustomResourceDefinition",
                "LimitRange",
                "Role"
            ]
        );
    }

    #[test]
    fn even_an_empty_object_fills_every_column() {
        let empty = Object::from_map(Map::new()).expect("no metadata");
        let now = Time::parse("2026-01-02T03:04:05Z").expect("a time");
        for row in ROWS {
            let table = table(
                printer(row.group, row.kind),
                [&empty],
                now,
                &ListMeta::default(),
                TableOptions::default(),
            );
            let length = |value: &Value| value.as_array().map_or(0, Vec::len);
            let undescribed = usize::from(row.kind == "IPAddress");
            assert_eq!(
                length(&table["rows"][0]["cells"]),
                length(&table["columnDefinitions"]) + undescribed,
                "{}",
                row.kind
            );
        }
    }

    fn check(resource: (&str, &str), body: Value, label: &str, expected: Result<&str, &str>) {
        let row = find(resource.0, "v1", resource.1).expect("a row of the table");
        let meta = ObjectMeta {
            name: "a".into(),
            namespace: "n".into(),
            ..ObjectMeta::default()
        };
        let body = body.as_object().expect("written as an object").clone();
        let object = Object {
            api_version: row.api_version(),
            kind: row.kind.into(),
            meta,
            body,
        };
        let value = || {
            row.selectable
                .iter()
                .find(|f| f.label == label)
                .map_or_else(|| object.meta.name.clone(), |f| f.of(&object))
        };
        let got = row.validate_selectable(label).map(|()| value());
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{label}");
    }

    #[test]
    fn selectors_see_the_fields_kubernetes_shows_them() {
        check(("", "configmaps"), json!({}), "metadata.name", Ok("a"));
        check(
            ("", "pods"),
            json!({"spec": {"nodeName": "n1"}}),
            "spec.host",
            Ok("n1"),
        );
        check(("", "pods"), json!({}), "spec.hostNetwork", Ok("false"));
        check(
            ("", "events"),
            json!({"reportingComponent": "x", "source": {}}),
            "source",
            Ok("x"),
        );
        check(
            ("batch", "jobs"),
            json!({"status": {"succeeded": 2}}),
            "status.successful",
            Ok("2"),
        );
    }

    #[test]
    fn unknown_fields_have_the_messages_of_the_kind() {
        let usual = "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
        check(("", "configmaps"), json!({}), "data.a", Err(usual));
        check(
            ("", "nodes"),
            json!({}),
            "metadata.namespace",
            Err("field label not supported: metadata.namespace"),
        );
        check(
            ("batch", "jobs"),
            json!({}),
            "x",
            Err("field label \"x\" not supported for Job"),
        );
        let slice = "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: x";
        check(
            ("resource.k8s.io", "resourceslices"),
            json!({}),
            "x",
            Err(slice),
        );
    }
}
