//! Pod garbage collector: deletes pods that no kubelet will delete.
//!
//! In: all pods, all nodes, the time. Out: pods marked as failed and deleted with a grace period of
//! zero.
//! Guarantees: a node counts as deleted only after it was missing for 40 seconds and the API server
//! confirms it; terminated pods are deleted oldest first, and only those above the threshold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::client::ReconcileClient;
use bellerophon::clock::Clock;
use bellerophon::informer::Lister;
use bellerophon::manager::Manager;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::super::kubelet::node_name;
use super::super::time::after;
use super::health::ready_status;
use crate::component::Component;
use crate::evict::Eviction;
use crate::index;

/// Upstream `gcCheckPeriod`.
const CHECK_PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing before its pods are orphaned (upstream `quarantineTime`).
const QUARANTINE_TIME: Duration = Duration::from_secs(40);
/// How many terminated pods are kept (upstream `terminatedPodGCThreshold`).
const TERMINATED_POD_THRESHOLD: usize = 12_500;
/// The maximum number of concurrent deletes.
const MAX_CONCURRENT_DELETES: usize = 8;
/// Taint of a node that an administrator confirmed to be shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// More pods have terminated than are kept (`gcTerminated`).
    Terminated,
    /// It is terminating and was never scheduled (`gcUnscheduledTerminating`).
    UnscheduledTerminating,
    /// It is terminating and its node is out of service (`gcTerminating`).
    OutOfService,
    /// Its node was deleted (`gcOrphaned`).
    Orphaned,
}

/// The pods to delete. `deleted` are the names of deleted nodes.
pub(crate) fn plan<'a>(
    pods: &'a [Arc<Pod>],
    nodes: &BTreeMap<String, Arc<Node>>,
    deleted: &BTreeSet<String>,
    terminated_threshold: usize,
) -> Vec<(Reason, &'a Arc<Pod>)> {
    let mut terminated: Vec<_> = pods.iter().filter(|pod| is_terminated(pod)).collect();
    let excess = terminated.len().saturating_sub(terminated_threshold);
    if excess > 0 {
        // Mirrors byEvictionAndCreationTimestamp: evicted pods first.
        terminated.sort_by_key(|pod| (!is_evicted(pod), pod.creation_timestamp(), pod.name_any()));
    }
    let mut plan: Vec<_> = terminated
        .into_iter()
        .take(excess)
        .map(|pod| (Reason::Terminated, pod))
        .collect();
    plan.extend(pods.iter().filter_map(|pod| {
        let is_terminating = pod.metadata.deletion_timestamp.is_some();
        match node_name(pod) {
            None => is_terminating.then_some((Reason::UnscheduledTerminating, pod)),
            Some(node) if deleted.contains(node) => Some((Reason::Orphaned, pod)),
            Some(node) => {
                let node = nodes.get(node);
                let is_out_of_service = node.is_some_and(|node| is_out_of_service(node));
                (is_terminating && is_out_of_service).then_some((Reason::OutOfService, pod))
            }
        }
    }));
    plan
}

fn is_terminated(pod: &Pod) -> bool {
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
    ready_status(node) != "True" && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Adds the pod garbage collector.
pub(crate) fn setup(mgr: &mut Manager) {
    let name = "pod-garbage-collector";
    let collector = PodGarbageCollector {
        client: Component::ControllerManager.client(mgr, name),
        clock: mgr.clock(),
        pods: index::pods(mgr).lister(),
        nodes: mgr.lister(),
        quarantine: Quarantine::default(),
    };
    let run = async move |stop: CancellationToken| {
        collector.run(stop).await;
        Ok(())
    };
    mgr.add(name, run);
}

struct PodGarbageCollector {
    client: ReconcileClient,
    clock: Clock,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    quarantine: Quarantine,
}

impl PodGarbageCollector {
    /// Collects in intervals until cancelled.
    async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(CHECK_PERIOD);
        // A pass may take longer than the period.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if stop.run_until_cancelled(self.collect()).await.is_none() {
                return;
            }
        }
    }

    /// Mirrors `gc`.
    async fn collect(&mut self) {
        let pods = self.pods.list();
        let nodes: BTreeMap<_, _> = self
            .nodes
            .list()
            .into_iter()
            .map(|node| (node.name_any(), node))
            .collect();
        let missing = self.quarantine.update(&pods, &nodes, self.clock.now());
        let deleted = discover_deleted_nodes(&self.client, missing).await;
        let plan = plan(&pods, &nodes, &deleted, TERMINATED_POD_THRESHOLD);
        stream::iter(plan)
            .for_each_concurrent(MAX_CONCURRENT_DELETES, |(reason, pod)| {
                mark_failed_and_delete(&self.client, self.clock, reason, pod)
            })
            .await;
    }
}

/// Nodes that pods are bound to and that are not in the cache, with the time since when. At most
/// one per pod.
#[derive(Debug, Default)]
struct Quarantine(BTreeMap<String, Timestamp>);

impl Quarantine {
    /// Records which nodes are missing now; returns those whose quarantine has ended.
    fn update(
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
        // A node that came back starts a new quarantine when it is missing again.
        self.0.retain(|node, _| missing.contains(node.as_str()));
        for node in missing {
            self.0.entry(node.to_owned()).or_insert(now);
        }
        self.0
            .iter()
            .filter(|(_, since)| after(**since, QUARANTINE_TIME) <= now)
            .map(|(node, _)| node.clone())
            .collect()
    }
}

/// The missing nodes that do not exist in the API server either. Mirrors `discoverDeletedNodes`.
async fn discover_deleted_nodes(
    client: &ReconcileClient,
    missing: Vec<String>,
) -> BTreeSet<String> {
    let mut deleted = BTreeSet::new();
    for node in missing {
        let key = ObjectKey::cluster(&node);
        match client.get::<PartialObjectMeta<Node>>(&key).await {
            Ok(None) => {
                deleted.insert(node);
            }
            Ok(Some(_)) => {}
            Err(error) => {
                tracing::warn!(node, %error, "cannot get a missing node, retrying");
            }
        }
    }
    deleted
}

/// Mirrors `markFailedAndDeletePodWithCondition`.
async fn mark_failed_and_delete(
    client: &ReconcileClient,
    clock: Clock,
    reason: Reason,
    pod: &Arc<Pod>,
) {
    let disruption = (reason == Reason::Orphaned)
        .then(|| ("DeletionByPodGC", "PodGC: node no longer exists".to_owned()));
    let eviction = Eviction {
        disruption,
        mark_failed: true,
        force: true,
    };
    if let Err(error) = eviction.apply(client, clock, pod).await {
        tracing::warn!(
            pod = pod.name_any(),
            namespace = pod.namespace(),
            ?reason,
            %error,
            "cannot delete a pod, retrying"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_without_a_kubelet_are_deleted() {
        let pod = |name: &str, node: &str, phase: &str, terminating: bool| -> Arc<Pod> {
            let mut pod = json!({
                "metadata": {"name": name},
                "spec": {"containers": [], "nodeName": node},
                "status": {"phase": phase},
            });
            if terminating {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let node = |name: &str, taint: &str| -> (String, Arc<Node>) {
            let node = json!({
                "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            });
            (
                name.to_owned(),
                Arc::new(serde_json::from_value(node).unwrap()),
            )
        };
        let pods = [
            pod("running", "existing", "Running", false),
            pod("terminating", "existing", "Running", true),
            pod("unscheduled", "", "Pending", true),
            pod("pending", "", "Pending", false),
            pod("orphaned", "deleted", "Running", false),
            pod("out-of-service", "shut-down", "Running", true),
            pod("a-succeeded", "existing", "Succeeded", false),
            pod("b-failed", "existing", "Failed", false),
        ];
        let nodes = [node("existing", "x"), node("shut-down", OUT_OF_SERVICE)].into();
        let deleted = ["deleted".to_owned()].into();
        let plan: Vec<_> = plan(&pods, &nodes, &deleted, 1)
            .into_iter()
            .map(|(reason, pod)| (reason, pod.name_any()))
            .collect();
        let expected = [
            (Reason::Terminated, "a-succeeded"),
            (Reason::UnscheduledTerminating, "unscheduled"),
            (Reason::Orphaned, "orphaned"),
            (Reason::OutOfService, "out-of-service"),
        ];
        assert_eq!(
            plan,
            expected.map(|(reason, name)| (reason, name.to_owned()))
        );
    }

    #[test]
    fn missing_node_is_quarantined_first() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pod: Arc<Pod> = Arc::new(
            serde_json::from_value(json!({"spec": {"containers": [], "nodeName": "missing"}}))
                .unwrap(),
        );
        let pods = [pod];
        let mut quarantine = Quarantine::default();
        for (second, exists, expected) in [
            (0, false, false),
            (20, false, false),
            (30, true, false),
            (40, false, false),
            (80, false, true),
        ] {
            let nodes = if exists {
                [("missing".to_owned(), Arc::new(Node::default()))].into()
            } else {
                BTreeMap::new()
            };
            assert_eq!(
                !quarantine.update(&pods, &nodes, at(second)).is_empty(),
                expected,
                "second {second}"
            );
        }
    }
}
