//! Actions of a history.

use std::time::Duration;

use bellerophon::clock::Rng;
use kube::api::PropagationPolicy;

use super::workload::{NAMESPACES, WORKLOADS, Workload, WorkloadSpec};

/// One action. An action that is not possible, such as scaling an object that does not exist, does
/// nothing.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Apply(Workload, WorkloadSpec),
    /// Through the scale subresource where it exists.
    Scale(Workload, u64),
    Delete(Workload, PropagationPolicy),
    /// Creates a Service and a PodDisruptionBudget for the pods of a workload.
    Expose(Workload),
    Unexpose(Workload),
    /// Deletes the pod of a namespace with this index.
    DeletePod(&'static str, u64, DeleteMode),
    /// Changes the labels of a pod so that its selector no longer matches.
    RelabelPod(&'static str, u64),
    DeleteNamespace(&'static str),
    PowerOff(String),
    Partition(String),
    Restore(String),
    Reboot(String),
    /// Stops the controllers; the API server keeps running.
    Pause,
    /// Aborts the controllers.
    Crash,
    /// Starts the controllers again.
    Resume,
    Restart,
    Pass(Duration),
}

/// Grace period of a pod deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeleteMode {
    Graceful,
    /// Grace period 0.
    Force,
}

impl Action {
    /// Generates a random action.
    pub(super) fn random(rng: &Rng, nodes: usize) -> Self {
        let below = |bound: u64| rng.below(bound);
        let one_of = |length: usize| {
            usize::try_from(rng.below(length as u64)).expect("the result is below a usize")
        };
        let namespace = NAMESPACES[one_of(NAMESPACES.len())];
        let (kind, name) = WORKLOADS[one_of(WORKLOADS.len())];
        let workload = Workload {
            namespace,
            kind,
            name,
        };
        let node = format!("node-{}", one_of(nodes) + 1);
        match below(100) {
            0..30 => {
                let broken = workload.can_recover_from_broken_template() && below(6) == 0;
                Self::Apply(
                    workload,
                    WorkloadSpec {
                        count: 1 + below(5),
                        version: below(4),
                        broken,
                    },
                )
            }
            30..38 => Self::Scale(workload, below(7)),
            38..48 => {
                let policy = [
                    PropagationPolicy::Background,
                    PropagationPolicy::Foreground,
                    PropagationPolicy::Orphan,
                ][one_of(3)]
                .clone();
                Self::Delete(workload, policy)
            }
            48..54 => Self::Expose(workload),
            54..56 => Self::Unexpose(workload),
            56..60 => Self::DeletePod(
                namespace,
                below(1000),
                if below(3) == 0 {
                    DeleteMode::Force
                } else {
                    DeleteMode::Graceful
                },
            ),
            60..62 => Self::RelabelPod(namespace, below(1000)),
            62..63 => Self::DeleteNamespace(namespace),
            63..66 => Self::PowerOff(node),
            66..69 => Self::Partition(node),
            69..74 => Self::Restore(node),
            74..77 => Self::Reboot(node),
            77..78 => Self::Pause,
            78..79 => Self::Crash,
            79..82 => Self::Resume,
            82..84 => Self::Restart,
            _ => Self::Pass(
                [10, 500, 2_000, 15_000, 60_000, 400_000].map(Duration::from_millis)[one_of(6)],
            ),
        }
    }
}
