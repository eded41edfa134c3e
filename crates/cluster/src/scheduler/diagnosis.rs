//! Diagnosis: why nodes cannot run a pod, and which cluster events can resolve it.
//!
//! In: the results of the filters. Out: the messages of kube-scheduler, and a bit set that the
//! scheduling queue compares with cluster events (queueing hints).
//! Guarantees: the reasons of a node are one integer, so rejecting a node allocates nothing.

use super::cache::NodeInfo;
use super::pod_info::PodInfo;

/// A set of reasons why a node, or every node, cannot run a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnschedulableReasons(u32);

impl UnschedulableReasons {
    pub(crate) const NODE_UNSCHEDULABLE: Self = Self(1);
    pub(crate) const UNTOLERATED_TAINT: Self = Self(1 << 1);
    pub(crate) const NODE_AFFINITY: Self = Self(1 << 2);
    pub(crate) const HOST_PORTS: Self = Self(1 << 3);
    pub(crate) const TOO_MANY_PODS: Self = Self(1 << 4);
    pub(crate) const INSUFFICIENT_CPU: Self = Self(1 << 5);
    pub(crate) const INSUFFICIENT_MEMORY: Self = Self(1 << 6);
    pub(crate) const INSUFFICIENT_EPHEMERAL_STORAGE: Self = Self(1 << 7);
    pub(crate) const INSUFFICIENT_EXTENDED_RESOURCE: Self = Self(1 << 8);
    pub(crate) const VOLUME_NODE_AFFINITY: Self = Self(1 << 9);
    pub(crate) const TOPOLOGY_SPREAD: Self = Self(1 << 10);
    pub(crate) const TOPOLOGY_SPREAD_MISSING_LABEL: Self = Self(1 << 11);
    pub(crate) const POD_AFFINITY: Self = Self(1 << 12);
    pub(crate) const POD_ANTI_AFFINITY: Self = Self(1 << 13);
    pub(crate) const EXISTING_PODS_ANTI_AFFINITY: Self = Self(1 << 14);
    /// The pod's claims are missing, terminating or unbound. Applies to every node.
    pub(crate) const UNBOUND_VOLUMES: Self = Self(1 << 15);
    /// The pod requests more than the node's allocatable. Set together with another reason.
    pub(crate) const EXCEEDS_ALLOCATABLE: Self = Self(1 << 16);

    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u32::MAX);

    const RESOURCES: Self = Self(
        Self::TOO_MANY_PODS.0
            | Self::INSUFFICIENT_CPU.0
            | Self::INSUFFICIENT_MEMORY.0
            | Self::INSUFFICIENT_EPHEMERAL_STORAGE.0
            | Self::INSUFFICIENT_EXTENDED_RESOURCE.0
            | Self::EXCEEDS_ALLOCATABLE.0,
    );

    // Queueing hints: the reasons that a cluster event can resolve, named after the action types
    // of the scheduler framework.

    /// `UpdateNodeAllocatable`.
    pub(crate) const RESOLVED_BY_NODE_ALLOCATABLE: Self = Self::RESOURCES;
    /// `UpdateNodeLabel`.
    pub(crate) const RESOLVED_BY_NODE_LABEL: Self = Self(
        Self::NODE_AFFINITY.0
            | Self::VOLUME_NODE_AFFINITY.0
            | Self::TOPOLOGY_SPREAD.0
            | Self::TOPOLOGY_SPREAD_MISSING_LABEL.0
            | Self::POD_AFFINITY.0
            | Self::POD_ANTI_AFFINITY.0
            | Self::EXISTING_PODS_ANTI_AFFINITY.0,
    );
    /// `UpdateNodeTaint`.
    pub(crate) const RESOLVED_BY_NODE_TAINT: Self =
        Self(Self::NODE_UNSCHEDULABLE.0 | Self::UNTOLERATED_TAINT.0 | Self::TOPOLOGY_SPREAD.0);
    /// Deletion or termination of an assigned pod.
    pub(crate) const RESOLVED_BY_POD_DELETE: Self = Self(
        Self::RESOURCES.0
            | Self::HOST_PORTS.0
            | Self::TOPOLOGY_SPREAD.0
            | Self::POD_ANTI_AFFINITY.0
            | Self::EXISTING_PODS_ANTI_AFFINITY.0,
    );
    /// Addition of an assigned pod, or a change of its labels.
    pub(crate) const RESOLVED_BY_POD_ADD: Self =
        Self(Self::POD_AFFINITY.0 | Self::TOPOLOGY_SPREAD.0);

    /// Reasons that preemption cannot resolve (upstream `UnschedulableAndUnresolvable`).
    const UNRESOLVABLE: Self = Self(
        Self::NODE_UNSCHEDULABLE.0
            | Self::UNTOLERATED_TAINT.0
            | Self::NODE_AFFINITY.0
            | Self::VOLUME_NODE_AFFINITY.0
            | Self::TOPOLOGY_SPREAD_MISSING_LABEL.0
            | Self::POD_AFFINITY.0
            | Self::UNBOUND_VOLUMES.0
            | Self::EXCEEDS_ALLOCATABLE.0,
    );

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// `self` if the condition holds, otherwise no reasons.
    pub(crate) fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Whether removing pods of lower priority can make the node feasible.
    pub(crate) fn is_resolvable_by_preemption(self) -> bool {
        !self.intersects(Self::UNRESOLVABLE)
    }

    /// The messages for a node.
    pub(crate) fn messages(self, pod: &PodInfo, node: &NodeInfo) -> Vec<String> {
        let mut messages: Vec<_> = MESSAGES
            .iter()
            .filter(|(reason, _)| self.intersects(*reason))
            .map(|(_, message)| (*message).to_owned())
            .collect();
        if self.intersects(Self::INSUFFICIENT_EXTENDED_RESOURCE) {
            let insufficient = pod
                .requests
                .extended
                .iter()
                .filter(|(name, request)| lacks_extended_resource(node, name, *request));
            messages.extend(insufficient.map(|(name, _)| format!("Insufficient {name}")));
        }
        messages
    }
}

/// Whether a node has less left of an extended resource than is requested.
pub(crate) fn lacks_extended_resource(node: &NodeInfo, name: &str, request: i64) -> bool {
    request > 0 && request > node.allocatable.extended(name) - node.requested.extended(name)
}

/// The messages of kube-scheduler's filter plugins.
const MESSAGES: [(UnschedulableReasons, &str); 14] = [
    (
        UnschedulableReasons::NODE_UNSCHEDULABLE,
        "node(s) were unschedulable",
    ),
    (
        UnschedulableReasons::UNTOLERATED_TAINT,
        "node(s) had untolerated taint(s)",
    ),
    (
        UnschedulableReasons::NODE_AFFINITY,
        "node(s) didn't match Pod's node affinity/selector",
    ),
    (
        UnschedulableReasons::HOST_PORTS,
        "node(s) didn't have free ports for the requested pod ports",
    ),
    (UnschedulableReasons::TOO_MANY_PODS, "Too many pods"),
    (UnschedulableReasons::INSUFFICIENT_CPU, "Insufficient cpu"),
    (
        UnschedulableReasons::INSUFFICIENT_MEMORY,
        "Insufficient memory",
    ),
    (
        UnschedulableReasons::INSUFFICIENT_EPHEMERAL_STORAGE,
        "Insufficient ephemeral-storage",
    ),
    (
        UnschedulableReasons::VOLUME_NODE_AFFINITY,
        "node(s) didn't match PersistentVolume's node affinity",
    ),
    (
        UnschedulableReasons::TOPOLOGY_SPREAD,
        "node(s) didn't match pod topology spread constraints",
    ),
    (
        UnschedulableReasons::TOPOLOGY_SPREAD_MISSING_LABEL,
        "node(s) didn't match pod topology spread constraints (missing required label)",
    ),
    (
        UnschedulableReasons::POD_AFFINITY,
        "node(s) didn't match pod affinity rules",
    ),
    (
        UnschedulableReasons::POD_ANTI_AFFINITY,
        "node(s) didn't match pod anti-affinity rules",
    ),
    (
        UnschedulableReasons::EXISTING_PODS_ANTI_AFFINITY,
        "node(s) didn't satisfy existing pods anti-affinity rules",
    ),
];

/// The message for all nodes, with the number of nodes per reason. Mirrors `FitError.Error`.
pub(crate) fn fit_error_message(
    nodes: usize,
    messages: impl IntoIterator<Item = String>,
) -> String {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for message in messages {
        *counts.entry(message).or_default() += 1;
    }
    let mut reasons: Vec<_> = counts
        .into_iter()
        .map(|(message, count)| format!("{count} {message}"))
        .collect();
    // kube-scheduler sorts the strings, so 10 comes before 2.
    reasons.sort();
    let reasons = reasons.join(", ");
    if reasons.is_empty() {
        format!("0/{nodes} nodes are available:")
    } else {
        format!("0/{nodes} nodes are available: {reasons}.")
    }
}
