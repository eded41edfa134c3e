//! Pod garbage collection: takes away pods that nobody else does.
//!
//! In: all pods, all nodes, the time. Out: forced deletes.
//! Holds: a node counts as gone only after a while, and only if the server says so too; terminated pods go oldest first,
//! and only those too many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bellerophon::WallClock;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use kube::{Client, ResourceExt};
use tokio::time::{MissedTickBehavior, interval};

use super::super::kubelet::node_name;
use super::super::time::after;
use super::health::readiness;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::evict::Eviction;

/// How often pods are looked through.
const EVERY: Duration = Duration::from_secs(20);
/// How long a node must be missing before its pods are taken away.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many terminated pods are kept.
const TERMINATED_MAX: usize = 12_500;
/// How many pods are taken away at once.
const AT_ONCE: usize = 8;
/// Somebody has seen that the machine is off for good.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Why a pod is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// More pods are over than are kept.
    Terminated,
    /// It is to go, and never had a node.
    Unscheduled,
    /// It is to go, and its node is out of service.
    OutOfService,
    /// Its node is gone.
    Orphaned,
}

/// The pods to take away. `gone` are the nodes that are known to be gone.
pub(crate) fn plan<'a>(
    pods: &'a [Arc<Pod>],
    nodes: &BTreeMap<String, Arc<Node>>,
    gone: &BTreeSet<String>,
    terminated_max: usize,
) -> Vec<(Why, &'a Arc<Pod>)> {
    let mut terminated: Vec<_> = pods.iter().filter(|pod| is_over(pod)).collect();
    let too_many = terminated.len().saturating_sub(terminated_max);
    if too_many > 0 {
        terminated.sort_by_key(|pod| (!is_evicted(pod), pod.creation_timestamp(), pod.name_any()));
    }
    let mut plan: Vec<_> = terminated
        .into_iter()
        .take(too_many)
        .map(|pod| (Why::Terminated, pod))
        .collect();
    plan.extend(pods.iter().filter_map(|pod| {
        let going = pod.metadata.deletion_timestamp.is_some();
        match node_name(pod) {
            None => going.then_some((Why::Unscheduled, pod)),
            Some(node) if gone.contains(node) => Some((Why::Orphaned, pod)),
            Some(node) => (going && nodes.get(node).is_some_and(|node| is_out_of_service(node)))
                .then_some((Why::OutOfService, pod)),
        }
    }));
    plan
}

fn is_over(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

fn is_evicted(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.reason.as_deref())
        == Some("Evicted")
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    readiness(node) != "True" && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// The loop that looks through all pods now and then.
pub(crate) fn work(ctx: &Context) -> Loop {
    let (pods, nodes) = (ctx.pods().lister(), ctx.informer::<Node>().lister());
    let (client, clock) = (ctx.client(Component::ControllerManager), ctx.clock);
    Loop::background("pod-garbage-collector", move |stop| async move {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quarantine = Quarantine::default();
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            let pods = pods.list();
            let nodes: BTreeMap<_, _> = nodes
                .list()
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect();
            let suspects = quarantine.pass(&pods, &nodes, clock.now());
            let collect = async {
                let gone = confirmed(&client, suspects).await;
                let plan = plan(&pods, &nodes, &gone, TERMINATED_MAX);
                stream::iter(plan)
                    .for_each_concurrent(AT_ONCE, |(why, pod)| take_away(&client, clock, why, pod))
                    .await;
            };
            if stop.run_until_cancelled(collect).await.is_none() {
                break;
            }
        }
        Ok(())
    })
}

/// Nodes that pods name and nobody knows, with the time they were first missed. At most one a pod.
#[derive(Debug, Default)]
struct Quarantine(BTreeMap<String, Timestamp>);

impl Quarantine {
    /// Notes who is missing now; returns those who are for long enough.
    fn pass(
        &mut self,
        pods: &[Arc<Pod>],
        nodes: &BTreeMap<String, Arc<Node>>,
        now: Timestamp,
    ) -> Vec<String> {
        let missing: BTreeSet<_> = pods
            .iter()
            .filter_map(|pod| node_name(pod))
            .filter(|node| !nodes.contains_key(*node))
            .collect();
        self.0.retain(|node, _| missing.contains(node.as_str()));
        for node in missing {
            self.0.entry(node.to_owned()).or_insert(now);
        }
        self.0
            .iter()
            .filter(|(_, since)| after(**since, QUARANTINE) <= now)
            .map(|(node, _)| node.clone())
            .collect()
    }
}

/// Those of the nodes that the server does not know either.
async fn confirmed(client: &Client, suspects: Vec<String>) -> BTreeSet<String> {
    let nodes = Api::<Node>::all(client.clone());
    let mut gone = BTreeSet::new();
    for suspect in suspects {
        match nodes.get_metadata_opt(&suspect).await {
            Ok(None) => _ = gone.insert(suspect),
            Ok(Some(_)) => {}
            Err(error) => {
                tracing::warn!(node = suspect, %error, "cannot tell whether a node is gone, asked again soon")
            }
        }
    }
    gone
}

async fn take_away(client: &Client, clock: WallClock, why: Why, pod: &Arc<Pod>) {
    let disruption = (why == Why::Orphaned)
        .then(|| ("DeletionByPodGC", "PodGC: node no longer exists".to_owned()));
    let eviction = Eviction {
        disruption,
        mark_failed: true,
        force: true,
    };
    if let Err(error) = eviction.apply(client, clock, pod).await {
        tracing::warn!(pod = pod.name_any(), namespace = pod.namespace(), ?why, %error, "cannot take a pod away, tried again soon");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_nobody_else_takes_are_taken() {
        let pod = |name: &str, node: &str, phase: &str, going: bool| -> Arc<Pod> {
            let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase}});
            if going {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let node = |name: &str, taint: &str| -> (String, Arc<Node>) {
            let node = json!({"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
            (
                name.to_owned(),
                Arc::new(serde_json::from_value(node).unwrap()),
            )
        };
        let pods = [
            pod("runs", "here", "Running", false),
            pod("going", "here", "Running", true),
            pod("never-bound", "", "Pending", true),
            pod("pending", "", "Pending", false),
            pod("orphan", "lost", "Running", false),
            pod("broken-node", "broken", "Running", true),
            pod("done-1", "here", "Succeeded", false),
            pod("done-2", "here", "Failed", false),
        ];
        let nodes = [node("here", "x"), node("broken", OUT_OF_SERVICE)].into();
        let gone = ["lost".to_owned()].into();
        let got: Vec<_> = plan(&pods, &nodes, &gone, 1)
            .into_iter()
            .map(|(why, pod)| (why, pod.name_any()))
            .collect();
        let wanted = [
            (Why::Terminated, "done-1"),
            (Why::Unscheduled, "never-bound"),
            (Why::Orphaned, "orphan"),
            (Why::OutOfService, "broken-node"),
        ];
        assert_eq!(got, wanted.map(|(why, name)| (why, name.to_owned())));
    }

    #[test]
    fn node_is_missed_for_a_while_first() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pod: Arc<Pod> = Arc::new(
            serde_json::from_value(json!({"spec": {"containers": [], "nodeName": "lost"}}))
                .unwrap(),
        );
        let pods = [pod];
        let mut quarantine = Quarantine::default();
        for (second, known, gone) in [
            (0, false, false),
            (20, false, false),
            (30, true, false),
            (40, false, false),
            (80, false, true),
        ] {
            let nodes = if known {
                [("lost".to_owned(), Arc::new(Node::default()))].into()
            } else {
                BTreeMap::new()
            };
            assert_eq!(
                !quarantine.pass(&pods, &nodes, at(second)).is_empty(),
                gone,
                "second {second}"
            );
        }
    }
}
