//! Register: what a kubelet says of its node.
//!
//! In: a machine, its Node as it is known, the time. Out: the Node to create, or what to change of its status.
//! Holds: a status that says everything already is written again only to show that the kubelet is alive; what others
//! added, such as extended resources, stays.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference, Time};
use kube::api::ObjectMeta;

use super::machines::Machine;

/// The Kubernetes version that simulated kubelets are.
const KUBELET_VERSION: &str = "v1.36.4";

/// How often a node's whole status is written although nothing changed.
pub(crate) const STATUS_EVERY: Duration = Duration::from_secs(300);

/// How often a node's lease is renewed.
pub(crate) const LEASE_EVERY: Duration = Duration::from_secs(10);

/// How long a lease holds.
const LEASE_SECONDS: i32 = 40;

/// Where leases of nodes are.
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What a machine has to offer.
const CAPACITY: [(&str, &str); 4] = [
    ("cpu", "32"),
    ("ephemeral-storage", "512Gi"),
    ("memory", "256Gi"),
    ("pods", "110"),
];

/// Condition, status when all is well, reason, message.
const CONDITIONS: [(&str, &str, &str, &str); 4] = [
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    (
        "DiskPressure",
        "False",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    (
        "PIDPressure",
        "False",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
    (
        "Ready",
        "True",
        "KubeletReady",
        "kubelet is posting ready status",
    ),
];

/// The Node a kubelet registers.
pub(crate) fn node(machine: &Machine, now: Timestamp) -> Node {
    let zone = machine.zone();
    let labels = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", &machine.name),
        ("kubernetes.io/os", "linux"),
        ("topology.kubernetes.io/region", "sim"),
        ("topology.kubernetes.io/zone", zone),
    ];
    let annotations = [(
        "volumes.kubernetes.io/controller-managed-attach-detach",
        "true",
    )];
    Node {
        metadata: ObjectMeta {
            name: Some(machine.name.clone()),
            labels: Some(texts(&labels)),
            annotations: Some(texts(&annotations)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(machine.pod_cidr()),
            pod_cidrs: Some(vec![machine.pod_cidr()]),
            provider_id: Some(format!("sim://{}", machine.name)),
            ..NodeSpec::default()
        }),
        status: Some(status(machine, None, now)),
    }
}

/// The whole status of a node that is well. Conditions that hold already keep their time.
pub(crate) fn status(machine: &Machine, known: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let of_type = |type_: &str| known.and_then(|known| condition(known, type_));
    let conditions = CONDITIONS.map(|(type_, status, reason, message)| {
        let since = of_type(type_)
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        NodeCondition {
            type_: type_.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        }
    });
    let capacity: BTreeMap<_, _> = CAPACITY
        .map(|(name, quantity)| (name.to_owned(), Quantity(quantity.into())))
        .into();
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.into(),
        address,
    };
    NodeStatus {
        addresses: Some(vec![
            address("InternalIP", machine.host_ip().to_string()),
            address("Hostname", machine.name.clone()),
        ]),
        allocatable: Some(capacity.clone()),
        capacity: Some(capacity),
        conditions: Some(conditions.into()),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: 10250 }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: "amd64".into(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: "sim://0.1.0".into(),
            kernel_version: "6.12.0-sim".into(),
            kube_proxy_version: String::new(),
            kubelet_version: KUBELET_VERSION.into(),
            machine_id: machine.name.clone(),
            operating_system: "linux".into(),
            os_image: "Bellerophon simulated node".into(),
            system_uuid: machine.name.clone(),
            swap: None,
        }),
        ..NodeStatus::default()
    }
}

/// Whether a Node says what its kubelet would say, times aside.
pub(crate) fn says_it_all(known: &NodeStatus, wanted: &NodeStatus) -> bool {
    let same = |wanted: &NodeCondition| {
        condition(known, &wanted.type_)
            .is_some_and(|known| known.status == wanted.status && known.reason == wanted.reason)
    };
    let within = |known: &Option<BTreeMap<String, Quantity>>,
                  wanted: &Option<BTreeMap<String, Quantity>>| {
        wanted.iter().flatten().all(|(name, quantity)| {
            known.as_ref().and_then(|known| known.get(name)) == Some(quantity)
        })
    };
    wanted.conditions.iter().flatten().all(same)
        && within(&known.capacity, &wanted.capacity)
        && within(&known.allocatable, &wanted.allocatable)
        && known.addresses == wanted.addresses
        && known.node_info.as_ref().map(|info| &info.boot_id)
            == wanted.node_info.as_ref().map(|info| &info.boot_id)
}

/// The lease through which a kubelet says that it is alive.
pub(crate) fn lease(node: &Node, now: Timestamp) -> Lease {
    let name = node.metadata.name.clone();
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: name.clone(),
            namespace: Some(LEASE_NAMESPACE.into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: name,
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

/// A condition of a node by its type.
pub(crate) fn condition<'a>(status: &'a NodeStatus, type_: &str) -> Option<&'a NodeCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}
