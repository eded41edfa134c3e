//! Namespaces, priority classes, APIServices, and the Service `default/kubernetes`.

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::{Params, SERVER_SERVICE_IP, SERVICE_RANGE};
use crate::aggregation::front_proxy;

/// In the order in which kube-apiserver makes them.
const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Group, version, priority of the group, priority of the version.
const API_SERVICES: [(&str, &str, u32, u32); 21] = [
    ("", "v1", 18_000, 1),
    ("apps", "v1", 17_800, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("autoscaling", "v2", 17_500, 30),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("resource.k8s.io", "v1", 16_200, 21),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
];

const LEASE_SECONDS: u32 = 3600;
/// How much of a digest names the server.
const IDENTITY_BYTES: usize = 13;

/// The four every cluster has.
pub(super) fn namespaces() -> Vec<Object> {
    let namespace = |name: &str| {
        Object::named(
            "v1",
            "Namespace",
            name,
            json!({"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        )
        .labelled("kubernetes.io/metadata.name", name)
    };
    NAMESPACES.into_iter().map(namespace).collect()
}

/// The two reserved for the system.
pub(super) fn priority_classes() -> Vec<Object> {
    [
        ("system-node-critical", 2_000_001_000_u32, "Used for system critical pods that must not be moved from their current node."),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .into_iter()
    .map(|(name, value, description)| {
        let body = json!({"value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority"});
        Object::named("scheduling.k8s.io/v1", "PriorityClass", name, body).first_generation()
    })
    .collect()
}

/// One per group and version that the server serves itself.
pub(super) fn api_services(now: Time) -> Vec<Object> {
    let service = |(group, version, group_priority, version_priority): (&str, &str, u32, u32)| {
        let mut spec = json!({"version": version, "groupPriorityMinimum": group_priority, "versionPriority": version_priority});
        if !group.is_empty() {
            spec["group"] = group.into();
        }
        let available = json!({
            "type": "Available", "status": "True", "lastTransitionTime": now, "reason": "Local",
            "message": "Local APIServices are always available",
        });
        let body = json!({"spec": spec, "status": {"conditions": [available]}});
        Object::named(
            "apiregistration.k8s.io/v1",
            "APIService",
            &format!("{version}.{group}"),
            body,
        )
        .labelled("kube-aggregator.kubernetes.io/automanaged", "onstart")
    };
    API_SERVICES.into_iter().map(service).collect()
}

/// The range of service addresses, and the server at the first of them.
pub(super) fn networking(params: &Params<'_>) -> Vec<Object> {
    let address = params.address.to_string();
    let port = params.port;
    let ready = json!({
        "type": "Ready", "status": "True", "lastTransitionTime": params.now, "reason": "",
        "message": "Kubernetes default Service CIDR is ready",
    });
    let range = json!({"spec": {"cidrs": [SERVICE_RANGE]}, "status": {"conditions": [ready]}});
    let parent = json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "kubernetes"}}});
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let endpoints = json!({"subsets": [{"addresses": [{"ip": address}], "ports": ports}]});
    let family = if params.address.is_ipv4() {
        "IPv4"
    } else {
        "IPv6"
    };
    let endpoint = json!({"addresses": [address], "conditions": {"ready": true}});
    let slice = json!({"addressType": family, "endpoints": [endpoint], "ports": ports});
    vec![
        Object::named("networking.k8s.io/v1", "ServiceCIDR", "kubernetes", range),
        Object::named(
            "networking.k8s.io/v1",
            "IPAddress",
            &SERVER_SERVICE_IP.to_string(),
            parent,
        )
        .labelled("ipaddress.kubernetes.io/ip-family", "IPv4")
        .labelled("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io"),
        Object::named("v1", "Service", "default/kubernetes", service(port))
            .labelled("component", "apiserver")
            .labelled("provider", "kubernetes"),
        Object::named("v1", "Endpoints", "default/kubernetes", endpoints)
            .labelled("endpointslice.kubernetes.io/skip-mirror", "true"),
        Object::named(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "default/kubernetes",
            slice,
        )
        .labelled("kubernetes.io/service-name", "kubernetes")
        .first_generation(),
    ]
}

/// How other API servers authenticate clients, and requests that this server passes on.
fn authentication(params: &Params<'_>) -> Value {
    let list = |name: &str| json!([name]).to_string();
    json!({"data": {
        "client-ca-file": params.client_ca_pem,
        "requestheader-allowed-names": list(front_proxy::COMMON_NAME),
        "requestheader-client-ca-file": params.front_proxy_ca_pem,
        "requestheader-extra-headers-prefix": list(front_proxy::EXTRA_HEADER_PREFIX),
        "requestheader-group-headers": list(front_proxy::GROUP_HEADER),
        "requestheader-uid-headers": list(front_proxy::UID_HEADER),
        "requestheader-username-headers": list(front_proxy::USER_HEADER),
    }})
}

fn service(port: u16) -> Value {
    json!({
        "spec": {
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
            "clusterIP": SERVER_SERVICE_IP, "clusterIPs": [SERVER_SERVICE_IP], "type": "ClusterIP", "sessionAffinity": "None",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    })
}

/// The objects that the server publishes about itself.
pub(super) fn settings(params: &Params<'_>) -> Vec<Object> {
    let now = params.now.to_string();
    let day = now.get(..10).unwrap_or_default();
    let time = now.trim_end_matches('Z');
    let print = digest(&SHA256, params.hostname.as_bytes());
    let identity: String = print
        .as_ref()
        .iter()
        .take(IDENTITY_BYTES)
        .map(|b| format!("{b:02x}"))
        .collect();
    let identity = format!("apiserver-{identity}");
    let holder = format!("{identity}_{}", params.entropy.uid());
    let lease = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": format!("{time}.000000Z")}});
    vec![
        Object::named(
            "v1",
            "ConfigMap",
            "kube-system/extension-apiserver-authentication",
            authentication(params),
        ),
        Object::named(
            "v1",
            "ConfigMap",
            "kube-system/kube-apiserver-legacy-service-account-token-tracking",
            json!({"data": {"since": day}}),
        ),
        Object::named(
            "coordination.k8s.io/v1",
            "Lease",
            &format!("kube-system/{identity}"),
            lease,
        )
        .labelled("apiserver.kubernetes.io/identity", "kube-apiserver")
        .labelled("kubernetes.io/hostname", params.hostname),
    ]
}
