//! What can happen in a history.

use std::time::Duration;

use bellerophon::Entropy;
use kube::api::PropagationPolicy;

use super::workload::{NAMESPACES, WORKLOADS, Wanted, Workload};

/// One thing that happens. One that is not possible at its time, such as scaling what is not there, does nothing.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Apply(Workload, Wanted),
    /// By the scale subresource where there is one.
    Scale(Workload, u64),
    Delete(Workload, PropagationPolicy),
    /// A service and a disruption budget for the pods of a workload.
    Serve(Workload),
    StopServing(Workload),
    /// One of the pods of a namespace, chosen by that number, is deleted; without grace if so.
    DeletePod(&'static str, u64, Haste),
    /// One pod no longer matches its selector.
    RelabelPod(&'static str, u64),
    DeleteNamespace(&'static str),
    PowerOff(String),
    Partition(String),
    Restore(String),
    Reboot(String),
    /// All loops stop in order; the server goes on.
    Pause,
    /// All loops end in the middle of what they do.
    Crash,
    /// They start again.
    Resume,
    Restart,
    Pass(Duration),
}

/// How a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    Graceful,
    AtOnce,
}

impl Step {
    /// Draws one.
    pub(super) fn draw(entropy: &Entropy, nodes: usize) -> Self {
        let below = |bound: u64| entropy.below(bound);
        let one_of = |length: usize| {
            usize::try_from(entropy.below(length as u64)).expect("it is below a usize")
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
                let broken = workload.may_break() && below(6) == 0;
                Self::Apply(
                    workload,
                    Wanted {
                        count: 1 + below(5),
                        version: below(4),
                        broken,
                    },
                )
            }
            30..38 => Self::Scale(workload, below(7)),
            38..48 => {
                let how = [
                    PropagationPolicy::Background,
                    PropagationPolicy::Foreground,
                    PropagationPolicy::Orphan,
                ][one_of(3)]
                .clone();
                Self::Delete(workload, how)
            }
            48..54 => Self::Serve(workload),
            54..56 => Self::StopServing(workload),
            56..60 => Self::DeletePod(
                namespace,
                below(1000),
                if below(3) == 0 {
                    Haste::AtOnce
                } else {
                    Haste::Graceful
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
