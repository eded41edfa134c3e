//! Shared scheduler state: cache, scheduling queue and assumed pods.
//!
//! In: objects from the event handlers, results of scheduling and binding cycles. Out: the state
//! that the next scheduling cycle reads.
//! Guarantees: the lock is never held across an await; an assumed pod counts on its node until the
//! API server confirms the binding or the binding fails.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cache::Cache;
use super::diagnosis::UnschedulableReasons;
use super::pod_info::{PendingPod, PodInfo, SCHEDULER_NAME};
use super::queue::SchedulingQueue;
use super::scheduling_cycle::FitError;

/// The state of the scheduler.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) cache: Cache,
    pub(crate) queue: SchedulingQueue,
    /// Pods that were assigned a node, until an informer event confirms the binding.
    assumed: HashSet<String>,
}

impl State {
    /// Assigns a pod to a node before the binding is written. Mirrors `assume`.
    pub(crate) fn assume_pod(&mut self, pending: &PendingPod, node: &str) {
        // The nomination reserved resources that the assumed pod uses from now on.
        self.cache.delete_nominated_pod(&pending.info.uid);
        self.cache.add_pod(&pending.info, node);
        // Until the informer confirms the binding, older events of the pod must not move it back
        // into the queue.
        self.assumed.insert(pending.info.uid.clone());
        self.queue
            .record_event(UnschedulableReasons::RESOLVED_BY_POD_ADD);
    }

    /// Undoes [`State::assume_pod`] after a failed binding and retries the pod. Mirrors
    /// `handleBindingCycleError`: forgetting an assumed pod counts as its deletion.
    pub(crate) fn forget_assumed_pod(&mut self, uid: &str, now: Instant) {
        if self.assumed.remove(uid) {
            self.cache.remove_pod(uid);
            self.queue
                .record_event(UnschedulableReasons::RESOLVED_BY_POD_DELETE);
        }
        self.queue.retry(uid, now);
    }

    /// Puts a pod without a feasible node back into the queue, and nominates it to the node of its
    /// preemption victims.
    pub(crate) fn handle_fit_error(
        &mut self,
        pending: &PendingPod,
        error: &FitError,
        now: Instant,
    ) {
        let nominated_node = match &error.preemption {
            Some(preemption) => Some(preemption.node.clone()),
            None => pending
                .nominated_node
                .clone()
                .filter(|_| error.keeps_nomination()),
        };
        match &nominated_node {
            Some(node) => self.cache.add_nominated_pod(&pending.info, node),
            None => self.cache.delete_nominated_pod(&pending.info.uid),
        }
        self.queue
            .add_unschedulable(&pending.info.uid, error.reasons, nominated_node, now);
    }

    /// Adds or updates a pod in the cache or in the queue.
    pub(super) fn update_pod(&mut self, pod: &Pod, now: Instant) {
        let uid = pod.uid().unwrap_or_default();
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .filter(|name| !name.is_empty());
        match node {
            // Pods with a terminal phase use no resources.
            _ if is_terminated(pod) => self.delete_pod(&uid),
            Some(node) => {
                self.assumed.remove(&uid);
                self.queue.delete(&uid);
                self.cache.delete_nominated_pod(&uid);
                self.cache.add_pod(&Arc::new(PodInfo::of(pod)), node);
                self.queue
                    .record_event(UnschedulableReasons::RESOLVED_BY_POD_ADD);
            }
            // A terminating pod without a node is deleted by the pod garbage collector.
            None if is_terminating(pod) || !is_responsible_for(pod) => self.delete_pod(&uid),
            // The event is older than the binding.
            None if self.assumed.contains(&uid) => {}
            None => self.queue.add_or_update(PendingPod::of(pod), now),
        }
    }

    /// Removes a pod that terminated or was deleted.
    pub(super) fn delete_pod(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.queue.delete(uid);
        self.cache.delete_nominated_pod(uid);
        if self.cache.remove_pod(uid) {
            self.queue
                .record_event(UnschedulableReasons::RESOLVED_BY_POD_DELETE);
        }
    }

    /// Handles the update that confirms an assumed pod; returns whether this was one.
    pub(super) fn confirm_assumed_pod(&mut self, pod: &Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let is_assigned = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        if is_assigned && !is_terminating(pod) && !is_terminated(pod) && self.assumed.remove(uid) {
            // The cache has the pod already; adding it again would only cost time.
            self.queue.delete(uid);
            return true;
        }
        false
    }
}

/// The state of the scheduler, shared with event handlers and binding cycles.
#[derive(Default)]
pub(crate) struct SharedState {
    state: Mutex<State>,
    /// Notified after every update.
    pub(crate) changed: Notify,
}

impl SharedState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and notifies the scheduler.
    pub(crate) fn update(&self, update: impl FnOnce(&mut State)) {
        // The guard is a temporary of this statement; the scheduler task can lock as soon as it is
        // notified.
        update(&mut self.lock());
        self.changed.notify_one();
    }
}

/// Whether the pod has a deletion timestamp.
pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the phase of the pod is terminal.
pub(super) fn is_terminated(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

/// Whether the pod names this scheduler. Mirrors `responsibleForPod`.
pub(super) fn is_responsible_for(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        .is_none_or(|name| name == SCHEDULER_NAME)
}
