//! Refusals: why a node does not take a pod, and what could change that.
//!
//! In: what filters found. Out: the sentences people know, and a mask that says which events are worth another try.
//! Holds: a refusal is a number, so that refusing a thousand nodes costs no memory.

use super::ledger::NodeInfo;
use super::pod_info::PodInfo;

/// Reasons, several at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal(u32);

impl Refusal {
    pub(crate) const UNSCHEDULABLE: Self = Self(1);
    pub(crate) const NODE_NAME: Self = Self(1 << 1);
    pub(crate) const TAINTS: Self = Self(1 << 2);
    pub(crate) const NODE_AFFINITY: Self = Self(1 << 3);
    pub(crate) const PORTS: Self = Self(1 << 4);
    pub(crate) const TOO_MANY_PODS: Self = Self(1 << 5);
    pub(crate) const CPU: Self = Self(1 << 6);
    pub(crate) const MEMORY: Self = Self(1 << 7);
    pub(crate) const EPHEMERAL: Self = Self(1 << 8);
    pub(crate) const EXTENDED: Self = Self(1 << 9);
    pub(crate) const VOLUME_AFFINITY: Self = Self(1 << 10);
    pub(crate) const SPREAD: Self = Self(1 << 11);
    pub(crate) const SPREAD_LABEL: Self = Self(1 << 12);
    pub(crate) const AFFINITY: Self = Self(1 << 13);
    pub(crate) const ANTI_AFFINITY: Self = Self(1 << 14);
    pub(crate) const EXISTING_ANTI_AFFINITY: Self = Self(1 << 15);
    /// The pod's volumes are not ready; no node is to blame.
    pub(crate) const VOLUMES: Self = Self(1 << 16);
    /// It asks for more than the node has even when empty. Goes with another reason.
    pub(crate) const OVERSIZED: Self = Self(1 << 17);

    /// Nothing is wrong.
    pub(crate) const NONE: Self = Self(0);
    /// Whatever it is.
    pub(crate) const ANY: Self = Self(u32::MAX);

    const RESOURCES: Self = Self(
        Self::TOO_MANY_PODS.0
            | Self::CPU.0
            | Self::MEMORY.0
            | Self::EPHEMERAL.0
            | Self::EXTENDED.0
            | Self::OVERSIZED.0,
    );

    /// What more room on a node can mend.
    pub(crate) const MENDED_BY_ROOM: Self = Self::RESOURCES;
    /// What other labels of a node can mend.
    pub(crate) const MENDED_BY_LABELS: Self = Self(
        Self::NODE_AFFINITY.0
            | Self::VOLUME_AFFINITY.0
            | Self::SPREAD.0
            | Self::SPREAD_LABEL.0
            | Self::AFFINITY.0
            | Self::ANTI_AFFINITY.0
            | Self::EXISTING_ANTI_AFFINITY.0,
    );
    /// What other taints of a node can mend.
    pub(crate) const MENDED_BY_TAINTS: Self =
        Self(Self::UNSCHEDULABLE.0 | Self::TAINTS.0 | Self::SPREAD.0);
    /// What the end of a pod can mend.
    pub(crate) const MENDED_BY_END: Self = Self(
        Self::RESOURCES.0
            | Self::PORTS.0
            | Self::SPREAD.0
            | Self::ANTI_AFFINITY.0
            | Self::EXISTING_ANTI_AFFINITY.0,
    );
    /// What another pod on a node, or other labels of one, can mend.
    pub(crate) const MENDED_BY_POD: Self = Self(Self::AFFINITY.0 | Self::SPREAD.0);

    /// What no end of other pods can mend.
    const UNRESOLVABLE: Self = Self(
        Self::UNSCHEDULABLE.0
            | Self::NODE_NAME.0
            | Self::TAINTS.0
            | Self::NODE_AFFINITY.0
            | Self::VOLUME_AFFINITY.0
            | Self::SPREAD_LABEL.0
            | Self::AFFINITY.0
            | Self::VOLUMES.0
            | Self::OVERSIZED.0,
    );

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the end of other pods could help.
    pub(crate) fn is_resolvable(self) -> bool {
        !self.meets(Self::UNRESOLVABLE)
    }

    /// The sentences for this node.
    pub(crate) fn sentences(self, pod: &PodInfo, node: &NodeInfo) -> Vec<String> {
        let said = SENTENCES
            .iter()
            .filter(|(reason, _)| self.meets(*reason))
            .map(|(_, text)| (*text).to_owned());
        let mut all: Vec<_> = said.collect();
        if self.meets(Self::EXTENDED) {
            let short = pod
                .requests
                .extended
                .iter()
                .filter(|(name, asked)| is_short(node, name, *asked));
            all.extend(short.map(|(name, _)| format!("Insufficient {name}")));
        }
        all
    }
}

/// Whether a node has too little left of a resource with a name of its own.
pub(crate) fn is_short(node: &NodeInfo, name: &str, asked: i64) -> bool {
    asked > 0 && asked > node.allocatable.extended(name) - node.requested.extended(name)
}

const SENTENCES: [(Refusal, &str); 15] = [
    (Refusal::UNSCHEDULABLE, "node(s) were unschedulable"),
    (
        Refusal::NODE_NAME,
        "node(s) didn't match the requested node name",
    ),
    (Refusal::TAINTS, "node(s) had untolerated taint(s)"),
    (
        Refusal::NODE_AFFINITY,
        "node(s) didn't match Pod's node affinity/selector",
    ),
    (
        Refusal::PORTS,
        "node(s) didn't have free ports for the requested pod ports",
    ),
    (Refusal::TOO_MANY_PODS, "Too many pods"),
    (Refusal::CPU, "Insufficient cpu"),
    (Refusal::MEMORY, "Insufficient memory"),
    (Refusal::EPHEMERAL, "Insufficient ephemeral-storage"),
    (
        Refusal::VOLUME_AFFINITY,
        "node(s) didn't match PersistentVolume's node affinity",
    ),
    (
        Refusal::SPREAD,
        "node(s) didn't match pod topology spread constraints",
    ),
    (
        Refusal::SPREAD_LABEL,
        "node(s) didn't match pod topology spread constraints (missing required label)",
    ),
    (Refusal::AFFINITY, "node(s) didn't match pod affinity rules"),
    (
        Refusal::ANTI_AFFINITY,
        "node(s) didn't match pod anti-affinity rules",
    ),
    (
        Refusal::EXISTING_ANTI_AFFINITY,
        "node(s) didn't satisfy existing pods anti-affinity rules",
    ),
];

/// One sentence for so many nodes, from what each of them says.
pub(crate) fn histogram(nodes: usize, sentences: impl IntoIterator<Item = String>) -> String {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    sentences
        .into_iter()
        .for_each(|sentence| *counts.entry(sentence).or_default() += 1);
    let mut said: Vec<_> = counts
        .into_iter()
        .map(|(sentence, count)| format!("{count} {sentence}"))
        .collect();
    // By text, as people are used to, so that 10 comes before 2.
    said.sort();
    let all = said.join(", ");
    if all.is_empty() {
        format!("0/{nodes} nodes are available:")
    } else {
        format!("0/{nodes} nodes are available: {all}.")
    }
}
