//! Notices: what informers tell the scheduler, written on one board.
//!
//! In: changes of pods, nodes, namespaces and volumes. Out: ledger and queue, as they are now.
//! Holds: the board is never locked across an await; a decision that is not yet told back by the server is known as such.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon::{EventHandler, ObjectKey, Tombstone, TraceBus, TraceEvent};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cycle::Refused;
use super::ledger::Ledger;
use super::pod_info::{Pending, PodInfo, SCHEDULER};
use super::queue::Queue;
use super::refusal::Refusal;
use super::resources::Resources;

/// What is known, and who waits.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) queue: Queue,
    /// Pods that were given a node, and of which the server has not told so yet.
    assumed: HashSet<String>,
}

impl State {
    /// A pod goes to a node, as far as the scheduler is concerned.
    pub(crate) fn assume(&mut self, pending: &Pending, node: &str) {
        self.ledger.withdraw(&pending.info.uid);
        self.ledger.place(&pending.info, node);
        self.assumed.insert(pending.info.uid.clone());
        self.queue.happened(Refusal::MENDED_BY_POD);
    }

    /// The server refused to bind the pod.
    pub(crate) fn take_back(&mut self, uid: &str, now: Instant) {
        if self.assumed.remove(uid) {
            self.ledger.remove(uid);
            self.queue.happened(Refusal::MENDED_BY_END);
        }
        self.queue.again(uid, now);
    }

    /// No node takes the pod.
    pub(crate) fn refused(&mut self, pending: &Pending, refused: &Refused, now: Instant) {
        let nominated = match &refused.preemption {
            Some(preemption) => Some(preemption.node.clone()),
            // Room is being made for it already.
            None => pending
                .nominated
                .clone()
                .filter(|_| refused.keeps_nomination()),
        };
        match &nominated {
            Some(node) => self.ledger.nominate(&pending.info, node),
            None => self.ledger.withdraw(&pending.info.uid),
        }
        self.queue
            .refused(&pending.info.uid, refused.blockers, nominated, now);
    }

    /// A pod as it is now.
    fn set_pod(&mut self, pod: &Pod, now: Instant) {
        let uid = pod.uid().unwrap_or_default();
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .filter(|name| !name.is_empty());
        match node {
            _ if is_over(pod) => self.forget(&uid),
            Some(node) => {
                self.assumed.remove(&uid);
                self.queue.remove(&uid);
                self.ledger.withdraw(&uid);
                self.ledger.place(&Arc::new(PodInfo::of(pod)), node);
                self.queue.happened(Refusal::MENDED_BY_POD);
            }
            None if pod.metadata.deletion_timestamp.is_some() || !is_ours(pod) => self.forget(&uid),
            // The server may tell late that the pod has no node yet.
            None if self.assumed.contains(&uid) => {}
            None => self.queue.set(Pending::of(pod), now),
        }
    }

    /// A pod is over or gone.
    fn forget(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.queue.remove(uid);
        self.ledger.withdraw(uid);
        if self.ledger.remove(uid) {
            self.queue.happened(Refusal::MENDED_BY_END);
        }
    }

    /// The server confirms what was assumed; says whether it did.
    fn confirms(&mut self, pod: &Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let placed = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        if placed
            && pod.metadata.deletion_timestamp.is_none()
            && !is_over(pod)
            && self.assumed.remove(uid)
        {
            self.queue.remove(uid);
            return true;
        }
        false
    }
}

/// The scheduler's state, shared with those who change it.
#[derive(Default)]
pub(crate) struct Board {
    state: Mutex<State>,
    /// Told when there may be something to decide.
    pub(crate) changed: Notify,
}

impl Board {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }
}

/// Writes on the board what an informer tells.
#[derive(Clone)]
pub(crate) struct Notices {
    pub(crate) board: Arc<Board>,
    pub(crate) trace: TraceBus,
}

impl Notices {
    /// A pod without a node is about to be decided on.
    fn record(&self, pod: &Pod) {
        let waits = pod
            .spec
            .as_ref()
            .is_none_or(|spec| spec.node_name.is_none());
        if waits && is_ours(pod) && !going(pod) && !is_over(pod) {
            self.trace.record(|| TraceEvent::Enqueued {
                controller: SCHEDULER.into(),
                key: ObjectKey::of(pod),
                because_kind: "Pod".into(),
                because_key: ObjectKey::of(pod),
                because_version: pod.resource_version(),
            });
        }
    }
}

impl EventHandler<Pod> for Notices {
    fn on_add(&self, pod: &Arc<Pod>, _: bool) {
        self.record(pod);
        self.board
            .change(|state| state.set_pod(pod, Instant::now()));
    }

    fn on_update(&self, old: &Arc<Pod>, new: &Arc<Pod>) {
        let same = old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
            && going(old) == going(new)
            && is_over(old) == is_over(new);
        // Most updates are of the status, which is no concern of the scheduler's.
        if !same {
            self.record(new);
            self.board.change(|state| {
                if !state.confirms(new) {
                    state.set_pod(new, Instant::now());
                }
            });
        }
    }

    fn on_delete(&self, last: Tombstone<Pod>) {
        if let Some(uid) = last.object.and_then(|pod| pod.uid()) {
            self.board.change(|state| state.forget(&uid));
        }
    }
}

impl EventHandler<Node> for Notices {
    fn on_add(&self, node: &Arc<Node>, _: bool) {
        self.board.change(|state| {
            state.ledger.set_node(node.clone());
            state.queue.happened(Refusal::ANY);
        });
    }

    fn on_update(&self, old: &Arc<Node>, new: &Arc<Node>) {
        let mends = mended(old, new);
        self.board.change(|state| {
            state.ledger.set_node(new.clone());
            state.queue.happened(mends);
        });
    }

    fn on_delete(&self, last: Tombstone<Node>) {
        self.board.change(|state| {
            state.ledger.remove_node(last.key.name());
            // Where there are fewer places, the others may be spread well enough.
            state.queue.happened(Refusal::SPREAD);
        });
    }
}

impl EventHandler<Namespace> for Notices {
    fn on_add(&self, namespace: &Arc<Namespace>, _: bool) {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        self.board.change(|state| {
            state
                .ledger
                .set_namespace(namespace.name_any(), Some(labels))
        });
    }

    fn on_update(&self, _: &Arc<Namespace>, new: &Arc<Namespace>) {
        self.on_add(new, false);
    }

    fn on_delete(&self, last: Tombstone<Namespace>) {
        self.board
            .change(|state| state.ledger.set_namespace(last.key.name().to_owned(), None));
    }
}

macro_rules! volumes_matter {
    ($($kind:ty),*) => {$(
        impl EventHandler<$kind> for Notices {
            fn on_add(&self, _: &Arc<$kind>, _: bool) {
                self.board.change(|state| state.queue.happened(Refusal::VOLUMES.and(Refusal::VOLUME_AFFINITY)));
            }

            fn on_update(&self, _: &Arc<$kind>, new: &Arc<$kind>) {
                self.on_add(new, false);
            }

            fn on_delete(&self, _: Tombstone<$kind>) {}
        }
    )*};
}

volumes_matter!(PersistentVolume, PersistentVolumeClaim);

fn going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether nothing of the pod runs any more.
fn is_over(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

fn is_ours(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        .is_none_or(|name| name == SCHEDULER)
}

/// What a change of a node can mend.
fn mended(old: &Node, new: &Node) -> Refusal {
    let allocatable = |node: &Node| {
        Resources::of(
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.as_ref()),
        )
    };
    let keeps_off = |node: &Node| {
        node.spec
            .as_ref()
            .map(|spec| (spec.taints.clone(), spec.unschedulable))
    };
    let when = |changed: bool, mends: Refusal| if changed { mends } else { Refusal::NONE };
    when(
        allocatable(old) != allocatable(new),
        Refusal::MENDED_BY_ROOM,
    )
    .and(when(
        old.metadata.labels != new.metadata.labels,
        Refusal::MENDED_BY_LABELS,
    ))
    .and(when(
        keeps_off(old) != keeps_off(new),
        Refusal::MENDED_BY_TAINTS,
    ))
}
