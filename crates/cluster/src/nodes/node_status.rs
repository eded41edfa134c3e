//! Node objects and leases of nodes.
//!
//! In: a simulated node, its current Node object, the time. Out: the Node to create, the status to
//! report, the lease to create.
//! Guarantees: fields set by others, such as extended resources, are not part of the comparison
//! that decides whether a status has changed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeSpec, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference, Time};
use kube::api::ObjectMeta;

use bellerophon_process_runtime::Capabilities;

use super::runtime_handlers::{Handler, RUNTIME_LABEL};
use super::simulated_node::SimulatedNode;

/// The kubelet version that simulated nodes report.
const KUBELET_VERSION: &str = "v1.36.4";

/// The port of a kubelet's HTTP server, unless it has a socket with another one.
pub(crate) const KUBELET_PORT: u16 = 10250;

/// How often the status is reported although nothing changed (upstream
/// `nodeStatusReportFrequency`).
pub(crate) const STATUS_REPORT_INTERVAL: Duration = Duration::from_secs(300);

/// How often the lease is renewed.
pub(crate) const LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Upstream `nodeLeaseDurationSeconds`.
const LEASE_DURATION_SECONDS: i32 = 40;

/// The namespace of node leases.
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Capacity and allocatable of a simulated node.
pub(crate) const CAPACITY: [(&str, &str); 4] = [
    ("cpu", "32"),
    ("ephemeral-storage", "512Gi"),
    ("memory", "256Gi"),
    ("pods", "110"),
];

/// The conditions of a healthy node: type, status, reason, message.
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

/// What a node reports about its container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeInfo {
    version: &'static str,
    kernel_version: &'static str,
    os_image: &'static str,
    /// Conditions besides those of every node.
    conditions: Vec<RuntimeCondition>,
    /// The default of its handlers; `None` if it has none to choose from.
    default_handler: Option<Handler>,
}

/// A condition of a container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuntimeCondition {
    type_: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl RuntimeInfo {
    pub(crate) fn simulated() -> Self {
        Self {
            version: "sim://0.1.0",
            kernel_version: "6.12.0-sim",
            os_image: "Bellerophon simulated node",
            conditions: Vec::new(),
            default_handler: None,
        }
    }

    /// The runtime of local processes.
    pub(crate) fn process(capabilities: &Capabilities) -> Self {
        let tier = match &capabilities.tier.reason {
            None => RuntimeCondition {
                type_: "PodIsolation",
                status: "True",
                reason: "TierA",
                message: "pods have their own network, mounts and process IDs".to_owned(),
            },
            Some(reason) => RuntimeCondition {
                type_: "PodIsolation",
                status: "False",
                reason: "TierB",
                message: reason.clone(),
            },
        };
        let limits = match &capabilities.limits {
            Ok(()) => RuntimeCondition {
                type_: "ResourceLimits",
                status: "True",
                reason: "CgroupDelegated",
                message: "limits of containers are enforced".to_owned(),
            },
            Err(reason) => RuntimeCondition {
                type_: "ResourceLimits",
                status: "False",
                reason: "NoCgroup",
                message: reason.clone(),
            },
        };
        Self {
            version: concat!("process://", env!("CARGO_PKG_VERSION")),
            kernel_version: "",
            os_image: "Bellerophon node with local processes",
            conditions: vec![tier, limits],
            default_handler: Some(Handler::Process),
        }
    }

    /// The handlers, of which the default has no name.
    fn handlers(&self) -> Option<Vec<NodeRuntimeHandler>> {
        self.default_handler?;
        let names = Handler::ALL.map(Handler::name);
        let names = [""].into_iter().chain(names);
        let handlers = names.map(|name| NodeRuntimeHandler {
            name: Some(name.to_owned()),
            ..NodeRuntimeHandler::default()
        });
        Some(handlers.collect())
    }
}

/// The Node object that a kubelet registers. Mirrors `initialNode`.
pub(crate) fn initial_node(simulated: &SimulatedNode, now: Timestamp) -> Node {
    let zone = simulated.zone();
    let labels = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", &simulated.name),
        ("kubernetes.io/os", "linux"),
        ("topology.kubernetes.io/region", "sim"),
        ("topology.kubernetes.io/zone", zone),
    ];
    let handler = simulated.runtime.default_handler;
    let handler = handler.map(|handler| (RUNTIME_LABEL.to_owned(), handler.name().to_owned()));
    let mut labels = string_map(&labels);
    labels.extend(handler);
    let annotations = [(
        "volumes.kubernetes.io/controller-managed-attach-detach",
        "true",
    )];
    Node {
        metadata: ObjectMeta {
            name: Some(simulated.name.clone()),
            labels: Some(labels),
            annotations: Some(string_map(&annotations)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(simulated.pod_cidr()),
            pod_cidrs: Some(vec![simulated.pod_cidr()]),
            provider_id: Some(format!("sim://{}", simulated.name)),
            ..NodeSpec::default()
        }),
        status: Some(node_status(simulated, None, now)),
    }
}

/// The status of a healthy node. Conditions with an unchanged status keep their transition time.
pub(crate) fn node_status(
    simulated: &SimulatedNode,
    current: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let current_condition = |type_: &str| current.and_then(|current| condition(current, type_));
    let runtime = &simulated.runtime;
    let of_runtime = runtime.conditions.iter().map(|condition| {
        let message = condition.message.as_str();
        (condition.type_, condition.status, condition.reason, message)
    });
    let conditions = of_runtime.chain(CONDITIONS);
    let conditions = conditions.map(|(type_, status, reason, message)| {
        let last_transition = current_condition(type_)
            .filter(|current| current.status == status)
            .and_then(|current| current.last_transition_time.clone());
        NodeCondition {
            type_: type_.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(last_transition.unwrap_or(Time(now))),
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
            address("InternalIP", simulated.host_ip().to_string()),
            address("Hostname", simulated.name.clone()),
        ]),
        allocatable: Some(capacity.clone()),
        capacity: Some(capacity),
        conditions: Some(conditions.collect()),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: simulated.kubelet_port.into(),
            }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: "amd64".into(),
            boot_id: simulated.boot_id.clone(),
            container_runtime_version: runtime.version.into(),
            kernel_version: runtime.kernel_version.into(),
            kube_proxy_version: String::new(),
            kubelet_version: KUBELET_VERSION.into(),
            machine_id: simulated.name.clone(),
            operating_system: "linux".into(),
            os_image: runtime.os_image.into(),
            system_uuid: simulated.name.clone(),
            swap: None,
        }),
        runtime_handlers: runtime.handlers(),
        ..NodeStatus::default()
    }
}

/// Whether the reported status differs from the current one, times aside. Mirrors
/// `nodeStatusHasChanged`.
pub(crate) fn node_status_has_changed(current: &NodeStatus, reported: &NodeStatus) -> bool {
    type ResourceList = Option<BTreeMap<String, Quantity>>;
    let is_current = |reported: &NodeCondition| {
        condition(current, &reported.type_).is_some_and(|current| {
            current.status == reported.status && current.reason == reported.reason
        })
    };
    // Others may add extended resources.
    let contains = |current: &ResourceList, reported: &ResourceList| {
        reported.iter().flatten().all(|(name, quantity)| {
            current.as_ref().and_then(|current| current.get(name)) == Some(quantity)
        })
    };
    let unchanged = reported.conditions.iter().flatten().all(is_current)
        && contains(&current.capacity, &reported.capacity)
        && contains(&current.allocatable, &reported.allocatable)
        && current.addresses == reported.addresses
        && boot_id(current) == boot_id(reported);
    !unchanged
}

fn boot_id(status: &NodeStatus) -> Option<&str> {
    status.node_info.as_ref().map(|info| info.boot_id.as_str())
}

/// The lease of a node, owned by its Node object.
pub(crate) fn new_lease(node: &Node, now: Timestamp) -> Lease {
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
            lease_duration_seconds: Some(LEASE_DURATION_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

/// The condition of that type.
pub(crate) fn condition<'a>(status: &'a NodeStatus, type_: &str) -> Option<&'a NodeCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

fn string_map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}
