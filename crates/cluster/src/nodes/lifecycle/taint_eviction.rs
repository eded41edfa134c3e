//! Taint eviction: pods leave nodes whose taints they do not bear, or not for ever.
//!
//! In: nodes with `NoExecute` taints, the pods there, the time. Out: evictions.
//! Holds: a pod that bears all of the taints for ever stays; the time it bears them is counted from when the taint came,
//! or the pod, whichever was later; taints that go save the pods that are still there.

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
use crate::taints::{NO_EXECUTE, find_matching_toleration};

const WORKERS: usize = 4;
/// How many pods of one node are evicted at once.
const AT_ONCE: usize = 8;

/// What taints mean for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Stays,
    Leaves(Timestamp),
}

/// When a pod leaves a node with these taints, of which it knows since then.
pub(crate) fn verdict(pod: &Pod, taints: &[&Taint], since: Timestamp) -> Verdict {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let mut shortest: Option<Duration> = None;
    for taint in taints {
        let Some(toleration) = find_matching_toleration(tolerations, taint) else {
            return Verdict::Leaves(since);
        };
        if let Some(seconds) = toleration.toleration_seconds {
            let borne = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            shortest = Some(shortest.map_or(borne, |known| known.min(borne)));
        }
    }
    shortest.map_or(Verdict::Stays, |borne| Verdict::Leaves(after(since, borne)))
}

struct Evictions {
    client: Client,
    clock: WallClock,
    recorder: EventRecorder,
    pods: Lister<Pod>,
    /// Since when a pod is under taints, by node and uid; only of nodes that have such taints.
    since: Mutex<HashMap<String, HashMap<String, Timestamp>>>,
}

/// The controller that evicts pods from tainted nodes.
pub(crate) fn controller(ctx: &Context) -> Controller {
    let (nodes, pods) = (ctx.informer::<Node>(), ctx.pods());
    index::add_node_name_index(&pods);
    let evictions = Arc::new(Evictions {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
        recorder: ctx.recorder(Component::ControllerManager, "taint-eviction-controller"),
        pods: pods.lister(),
        since: Mutex::default(),
    });
    let lister = nodes.lister();
    let under_taints = Predicate::concerns(move |pod: &Pod| {
        node_name(pod)
            .and_then(|node| lister.get(&ObjectKey::cluster(node)))
            .is_some_and(|node| !no_execute(&node).is_empty())
    });
    Controller::of(&nodes)
        .with_options(ctx.options("taint-eviction-controller", WORKERS))
        .with_predicate(Predicate::concerns(|node: &Node| {
            !no_execute(node).is_empty()
        }))
        .watches_if(&pods, under_taints, |pod| {
            node_name(pod).map(ObjectKey::cluster).into_iter().collect()
        })
        .reconcile_with(move |request| evictions.clone().reconcile(request))
}

impl Evictions {
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let taints = request
            .object
            .as_deref()
            .map(no_execute)
            .unwrap_or_default();
        if taints.is_empty() {
            self.since
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(request.key.name());
            return Ok(Outcome::Done);
        }
        let now = self.clock.now();
        let pods: Vec<_> = self
            .pods
            .by_index(index::NODE_NAME_INDEX, request.key.name())?
            .into_iter()
            .filter(|pod| is_there(pod))
            .collect();
        let since = self.under_since(request.key.name(), &pods, &taints, now);
        let verdicts: Vec<_> = pods
            .into_iter()
            .zip(since)
            .map(|(pod, since)| (verdict(&pod, &taints, since), pod))
            .collect();
        let is_due = |verdict: &Verdict| matches!(verdict, Verdict::Leaves(at) if *at <= now);
        let due: Vec<_> = verdicts
            .iter()
            .filter(|(verdict, _)| is_due(verdict))
            .map(|(_, pod)| pod.clone())
            .collect();
        stream::iter(due)
            .map(|pod| self.evict(pod))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let next = verdicts.iter().filter_map(|(verdict, _)| match verdict {
            Verdict::Leaves(at) if *at > now => Some(*at),
            _ => None,
        });
        Ok(next.min().map_or(Outcome::Done, |at| {
            Outcome::RequeueAfter(remaining(now, at))
        }))
    }

    /// Since when each pod is under the node's taints. Taints put there by hand do not say so themselves.
    fn under_since(
        &self,
        node: &str,
        pods: &[Arc<Pod>],
        taints: &[&Taint],
        now: Timestamp,
    ) -> Vec<Timestamp> {
        let tainted = taints
            .iter()
            .map(|taint| taint.time_added.as_ref().map(|time| time.0))
            .max()
            .flatten();
        let mut all = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(node.to_owned()).or_default();
        let fresh: HashMap<_, _> = pods
            .iter()
            .map(|pod| {
                let uid = pod.uid().unwrap_or_default();
                let first = known.get(&uid).copied().unwrap_or_else(|| match tainted {
                    Some(tainted) => tainted.max(bound_at(pod).unwrap_or(tainted)),
                    None => now,
                });
                (uid, first)
            })
            .collect();
        *known = fresh;
        pods.iter()
            .map(|pod| {
                known
                    .get(pod.metadata.uid.as_deref().unwrap_or_default())
                    .copied()
                    .unwrap_or(now)
            })
            .collect()
    }

    async fn evict(&self, pod: Arc<Pod>) -> Result<(), kube::Error> {
        let note = format!("Marking for deletion Pod {}", ObjectKey::of(&*pod));
        let reason = "TaintManagerEviction".to_owned();
        self.recorder.event(
            &*pod,
            Note {
                type_: EventType::Normal,
                action: reason.clone(),
                reason,
                note,
            },
        );
        let disruption = Some((
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint".to_owned(),
        ));
        Eviction {
            disruption,
            ..Eviction::default()
        }
        .apply(&self.client, self.clock, &pod)
        .await
    }
}

fn no_execute(node: &Node) -> Vec<&Taint> {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == NO_EXECUTE)
        .collect()
}

/// Whether a pod is neither on its way out nor over.
fn is_there(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

fn bound_at(pod: &Pod) -> Option<Timestamp> {
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
    fn pods_leave_when_they_bear_it_no_longer() {
        let taint = |key: &str| Taint {
            key: key.into(),
            effect: NO_EXECUTE.into(),
            ..Taint::default()
        };
        let (a, b) = (taint("a"), taint("b"));
        let since = Timestamp::from_second(100).unwrap();
        let leaves = |second| Verdict::Leaves(Timestamp::from_second(second).unwrap());
        for (why, tolerations, taints, wanted) in [
            ("bears nothing", json!([]), vec![&a], leaves(100)),
            (
                "bears it for ever",
                json!([{"key": "a", "operator": "Exists"}]),
                vec![&a],
                Verdict::Stays,
            ),
            (
                "bears one of two",
                json!([{"key": "a", "operator": "Exists"}]),
                vec![&a, &b],
                leaves(100),
            ),
            (
                "for a time",
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 300}]),
                vec![&a],
                leaves(400),
            ),
            (
                "the shorter time counts",
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 300}, {"key": "b", "operator": "Exists", "tolerationSeconds": 30}]),
                vec![&a, &b],
                leaves(130),
            ),
            (
                "not at all",
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 0}]),
                vec![&a],
                leaves(100),
            ),
        ] {
            let pod: Pod = serde_json::from_value(
                json!({"spec": {"containers": [], "tolerations": tolerations}}),
            )
            .unwrap();
            assert_eq!(verdict(&pod, &taints, since), wanted, "{why}");
        }
    }
}
