//! Taint eviction controller: deletes pods that do not tolerate the `NoExecute` taints of their
//! node.
//!
//! In: nodes with `NoExecute` taints, the pods on them, the time. Out: evictions.
//! Guarantees: a pod that tolerates all taints without a limit stays; `tolerationSeconds` count
//! from when the taint was added or the pod was scheduled, whichever was later; removing the taint
//! cancels the eviction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::index::Index;
use bellerophon::prelude::*;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::ResourceExt;

use super::super::kubelet::node_name;
use super::super::time::{after, remaining};
use crate::component::Component;
use crate::evict::Eviction;
use crate::index;
use crate::taints::{NO_EXECUTE, find_matching_toleration};

const WORKERS: usize = 4;
/// The maximum number of concurrent evictions per node.
const MAX_CONCURRENT_EVICTIONS: usize = 8;

/// When a pod is evicted from a node with these taints, to which it is exposed since then; `None`
/// if it tolerates them without a limit. Mirrors `processPodOnNode` and `getMinTolerationTime`.
pub(crate) fn eviction_time(pod: &Pod, taints: &[&Taint], since: Timestamp) -> Option<Timestamp> {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let mut min_toleration: Option<Duration> = None;
    for taint in taints {
        // Mirrors processPodOnNode: one taint without a toleration evicts the pod immediately.
        let Some(toleration) = find_matching_toleration(tolerations, taint) else {
            return Some(since);
        };
        if let Some(seconds) = toleration.toleration_seconds {
            let tolerated = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            min_toleration = Some(min_toleration.map_or(tolerated, |min| min.min(tolerated)));
        }
    }
    min_toleration.map(|tolerated| after(since, tolerated))
}

struct TaintEviction {
    clock: Clock,
    recorder: EventRecorder,
    pods_by_node: Index<Pod>,
    /// Since when a pod is exposed to `NoExecute` taints, by node and uid. Only nodes with such
    /// taints have an entry.
    exposed_since: Mutex<HashMap<String, HashMap<String, Timestamp>>>,
}

/// Adds the taint eviction controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let name = "taint-eviction-controller";
    let pods = index::pods(mgr);
    let eviction = TaintEviction {
        clock: mgr.clock(),
        recorder: Component::ControllerManager.recorder(mgr, name),
        pods_by_node: index::by_node_name(&pods),
        exposed_since: Mutex::default(),
    };
    let nodes = mgr.lister::<Node>();
    let is_on_tainted_node = move |pod: &Pod| {
        node_name(pod)
            .and_then(|node| nodes.get(&ObjectKey::cluster(node)))
            .is_some_and(|node| !no_execute_taints(&node).is_empty())
    };
    mgr.controller::<Node>()
        .predicate(Predicate::filter(|node| {
            !no_execute_taints(node).is_empty()
        }))
        .watches::<Pod>(|pod| node_name(pod).map(ObjectKey::cluster).into_iter().collect())
        .informer(&pods)
        .predicate(Predicate::filter(is_on_tainted_node))
        .name(name)
        .concurrency(WORKERS)
        .reconcile(eviction);
}

impl Reconciler<Node> for TaintEviction {
    async fn reconcile(&self, req: Request<Node>) -> Result<Action, Error> {
        let name = req.key().name();
        let taints = req.object().map(no_execute_taints).unwrap_or_default();
        if taints.is_empty() {
            self.exposed_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(name);
            return Ok(Action::await_change());
        }
        let now = req.now();
        let pods: Vec<_> = self
            .pods_by_node
            .get(name)
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect();
        let since = self.exposed_since(name, &pods, &taints, now);
        let evictions: Vec<_> = pods
            .into_iter()
            .zip(since)
            .filter_map(|(pod, since)| Some((eviction_time(&pod, &taints, since)?, pod)))
            .collect();
        let due: Vec<_> = evictions
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, pod)| pod.clone())
            .collect();
        stream::iter(due)
            .map(|pod| self.evict(req.client(), pod))
            .buffer_unordered(MAX_CONCURRENT_EVICTIONS)
            .try_collect::<()>()
            .await?;
        let next = evictions
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| *at > now)
            .min();
        Ok(match next {
            Some(at) => Action::requeue_after(remaining(now, at)).reason("a toleration ends"),
            None => Action::await_change(),
        })
    }
}

impl TaintEviction {
    /// Since when each pod is exposed to the node's taints. Taints that users add may lack
    /// `timeAdded`; then the time of the first observation counts.
    fn exposed_since(
        &self,
        node: &str,
        pods: &[Arc<Pod>],
        taints: &[&Taint],
        now: Timestamp,
    ) -> Vec<Timestamp> {
        // The latest taint counts; taints without timeAdded are ignored if another has one.
        let tainted_at = taints
            .iter()
            .map(|taint| taint.time_added.as_ref().map(|time| time.0))
            .max()
            .flatten();
        let mut by_node = self
            .exposed_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let by_uid = by_node.entry(node.to_owned()).or_default();
        let updated: HashMap<_, _> = pods
            .iter()
            .map(|pod| {
                let uid = pod.uid().unwrap_or_default();
                let since = by_uid
                    .get(&uid)
                    .copied()
                    .unwrap_or_else(|| match tainted_at {
                        // Neither happened after now, whatever the objects claim.
                        Some(tainted_at) => scheduled_at(pod)
                            .unwrap_or(tainted_at)
                            .max(tainted_at)
                            .min(now),
                        None => now,
                    });
                (uid, since)
            })
            .collect();
        // Replacing the map drops the pods that have left the node.
        *by_uid = updated;
        pods.iter()
            .map(|pod| {
                by_uid
                    .get(pod.metadata.uid.as_deref().unwrap_or_default())
                    .copied()
                    .unwrap_or(now)
            })
            .collect()
    }

    async fn evict(&self, client: &ReconcileClient, pod: Arc<Pod>) -> Result<(), WriteError> {
        let message = format!("Marking for deletion Pod {}", ObjectKey::from_object(&*pod));
        let reason = "TaintManagerEviction";
        let event = Event::normal(reason, reason, message);
        self.recorder.event(&*pod, event);
        let disruption = Some((
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint".to_owned(),
        ));
        let eviction = Eviction {
            disruption,
            ..Eviction::default()
        };
        eviction.apply(client, self.clock, &pod).await
    }
}

fn no_execute_taints(node: &Node) -> Vec<&Taint> {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == NO_EXECUTE)
        .collect()
}

/// When the `PodScheduled` condition last changed.
fn scheduled_at(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")?
        .last_transition_time
        .as_ref()
        .map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_evicted_when_their_toleration_ends() {
        let taint = |key: &str| Taint {
            key: key.into(),
            effect: NO_EXECUTE.into(),
            ..Taint::default()
        };
        let a = taint("a");
        let b = taint("b");
        let since = Timestamp::from_second(100).unwrap();
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        for (case, tolerations, taints, expected) in [
            ("no toleration", json!([]), vec![&a], at(100)),
            (
                "toleration without a limit",
                json!([{"key": "a", "operator": "Exists"}]),
                vec![&a],
                None,
            ),
            (
                "one of two taints tolerated",
                json!([{"key": "a", "operator": "Exists"}]),
                vec![&a, &b],
                at(100),
            ),
            (
                "tolerationSeconds",
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 300}]),
                vec![&a],
                at(400),
            ),
            (
                "shortest tolerationSeconds",
                json!([
                    {"key": "a", "operator": "Exists", "tolerationSeconds": 300},
                    {"key": "b", "operator": "Exists", "tolerationSeconds": 30},
                ]),
                vec![&a, &b],
                at(130),
            ),
            (
                "zero tolerationSeconds",
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 0}]),
                vec![&a],
                at(100),
            ),
        ] {
            let pod: Pod = serde_json::from_value(
                json!({"spec": {"containers": [], "tolerations": tolerations}}),
            )
            .unwrap();
            assert_eq!(eviction_time(&pod, &taints, since), expected, "{case}");
        }
    }
}
