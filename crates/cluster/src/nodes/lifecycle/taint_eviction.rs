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

use bellerophon::{
    Controller, EventRecorder, EventType, Lister, Note, ObjectKey, Outcome, Predicate,
    ReconcileResult, Request, WallClock,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{Client, ResourceExt};

use super::super::kubelet::node_name;
use super::super::time::after;
use super::super::time::remaining;
use crate::component::Component;
use crate::context::Context;
use crate::evict::Eviction;
use crate::index;
use crate::tolerate::{NO_EXECUTE, tolerating};

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
        let Some(toleration) = tolerating(tolerations, taint) else {
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
    client: Client,
    clock: WallClock,
    recorder: EventRecorder,
    pods: Lister<Pod>,
    /// Since when a pod is exposed to `NoExecute` taints, by node and uid. Only nodes with such
    /// taints have an entry.
    exposed_since: Mutex<HashMap<String, HashMap<String, Timestamp>>>,
}

/// Builds the taint eviction controller.
pub(crate) fn controller(ctx: &Context) -> Controller {
    let nodes = ctx.informer::<Node>();
    let pods = ctx.pods();
    index::by_node(&pods);
    let eviction = Arc::new(TaintEviction {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
        recorder: ctx.recorder(Component::ControllerManager, "taint-eviction-controller"),
        pods: pods.lister(),
        exposed_since: Mutex::default(),
    });
    let lister = nodes.lister();
    let on_tainted_node = Predicate::concerns(move |pod: &Pod| {
        node_name(pod)
            .and_then(|node| lister.get(&ObjectKey::cluster(node)))
            .is_some_and(|node| !no_execute_taints(&node).is_empty())
    });
    Controller::of(&nodes)
        .with_options(ctx.options("taint-eviction-controller", WORKERS))
        .with_predicate(Predicate::concerns(|node: &Node| {
            !no_execute_taints(node).is_empty()
        }))
        .watches_if(&pods, on_tainted_node, |pod| {
            node_name(pod).map(ObjectKey::cluster).into_iter().collect()
        })
        .reconcile_with(move |request| eviction.clone().reconcile(request))
}

impl TaintEviction {
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let taints = request
            .object
            .as_deref()
            .map(no_execute_taints)
            .unwrap_or_default();
        if taints.is_empty() {
            self.exposed_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(request.key.name());
            return Ok(Outcome::Done);
        }
        let now = self.clock.now();
        let pods: Vec<_> = self
            .pods
            .by_index(index::BY_NODE, request.key.name())?
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect();
        let since = self.exposed_since(request.key.name(), &pods, &taints, now);
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
            .map(|pod| self.evict(pod))
            .buffer_unordered(MAX_CONCURRENT_EVICTIONS)
            .try_collect::<()>()
            .await?;
        let next = evictions
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| *at > now)
            .min();
        Ok(next.map_or(Outcome::Done, |at| {
            Outcome::RequeueAfter(remaining(now, at))
        }))
    }

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
                        Some(tainted_at) => tainted_at.max(scheduled_at(pod).unwrap_or(tainted_at)),
                        None => now,
                    });
                (uid, since)
            })
            .collect();
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

    async fn evict(&self, pod: Arc<Pod>) -> Result<(), kube::Error> {
        let message = format!("Marking for deletion Pod {}", ObjectKey::of(&*pod));
        let reason = "TaintManagerEviction".to_owned();
        self.recorder.event(
            &*pod,
            Note {
                type_: EventType::Normal,
                action: reason.clone(),
                reason,
                note: message,
            },
        );
        let because = Some((
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint".to_owned(),
        ));
        Eviction {
            because,
            ..Eviction::default()
        }
        .apply(&self.client, self.clock, &pod)
        .await
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
