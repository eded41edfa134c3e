//! Scheduling queue: which pod is scheduled next, and when unschedulable pods are tried again.
//!
//! In: pods without a node, results of their scheduling cycles, cluster events. Out: one pod at a
//! time, the highest priority first. Mirrors `PriorityQueue` with its active queue, back-off queue
//! and unschedulable pods.
//! Guarantees: an unschedulable pod is tried again only after an event that can resolve one of its
//! reasons, or after 5 minutes; attempts of a pod are separated by a back-off of 1 s, doubled up to
//! 10 s. One entry per pod without a node.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::diagnosis::UnschedulableReasons;
use super::pod_info::PendingPod;

/// Upstream `podInitialBackoffSeconds`.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Upstream `podMaxBackoffSeconds`.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Upstream `podMaxInUnschedulablePodsDuration`.
const MAX_IN_UNSCHEDULABLE: Duration = Duration::from_secs(300);

#[derive(Debug)]
enum State {
    /// In the active queue, with its sequence number.
    Active(u64),
    /// In the back-off queue until then.
    BackingOff(Instant),
    /// Waits for an event that can resolve one of the reasons, at most until then.
    Unschedulable {
        reasons: UnschedulableReasons,
        until: Instant,
    },
    /// Waits for the removal of its scheduling gates.
    Gated,
    /// Popped; its scheduling or binding cycle has not ended.
    InFlight,
}

#[derive(Debug)]
struct Entry {
    pending: Arc<PendingPod>,
    state: State,
    attempts: u32,
    last_attempt: Option<Instant>,
    /// The pod was updated while it was in flight.
    updated_in_flight: bool,
}

/// Pods without a node, by uid.
#[derive(Debug, Default)]
pub(crate) struct SchedulingQueue {
    entries: HashMap<String, Entry>,
    /// The active queue: by priority, then by sequence number.
    active: BTreeSet<(Reverse<i32>, u64, String)>,
    /// When pods of the back-off queue and unschedulable pods become active.
    deadlines: BTreeSet<(Instant, String)>,
    unschedulable: HashSet<String>,
    /// The reasons resolved by events since the unschedulable pods were last checked.
    resolved: UnschedulableReasons,
    last_sequence: u64,
}

impl SchedulingQueue {
    /// Adds a pod, or replaces it after an update of its spec or labels.
    pub(crate) fn add_or_update(&mut self, pending: PendingPod, now: Instant) {
        let uid = pending.info.uid.clone();
        let mut attempts = 0;
        let mut last_attempt = None;
        if let Some(entry) = self.entries.get_mut(&uid) {
            if matches!(entry.state, State::InFlight) {
                // The running cycle used the old version; its end decides where the pod goes.
                entry.pending = Arc::new(pending);
                entry.updated_in_flight = true;
                return;
            }
            attempts = entry.attempts;
            last_attempt = entry.last_attempt;
        }
        self.delete(&uid);
        let gated = pending.gated;
        // An update may make the pod schedulable, so it leaves the unschedulable pods; the back-off
        // of earlier attempts still applies.
        let entry = Entry {
            pending: Arc::new(pending),
            state: State::Gated,
            attempts,
            last_attempt,
            updated_in_flight: false,
        };
        self.entries.insert(uid.clone(), entry);
        if !gated {
            self.move_to_active_or_backoff(&uid, now);
        }
    }

    /// Removes a pod that was assigned or deleted.
    pub(crate) fn delete(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.unlink(uid, &entry);
        }
    }

    /// Records a cluster event by the reasons it can resolve. The next [`SchedulingQueue::pop`]
    /// moves the pods that wait for it, as `MoveAllToActiveOrBackoffQueue` does with queueing
    /// hints.
    pub(crate) fn record_event(&mut self, resolves: UnschedulableReasons) {
        // Most events arrive while no pod waits.
        if !self.unschedulable.is_empty() {
            self.resolved = self.resolved.union(resolves);
        }
    }

    /// Takes the next pod for a scheduling cycle.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arc<PendingPod>> {
        self.move_due_pods(now);
        let (_, _, uid) = self.active.pop_first()?;
        let entry = self
            .entries
            .get_mut(&uid)
            .expect("a pod of the active queue has an entry");
        entry.state = State::InFlight;
        entry.last_attempt = Some(now);
        entry.updated_in_flight = false;
        // Counted at the start of the attempt, as upstream: the back-off begins when the cycle
        // does.
        entry.attempts += 1;
        Some(entry.pending.clone())
    }

    /// Puts a pod back whose scheduling cycle found no node. Mirrors
    /// `AddUnschedulableIfNotPresent`.
    pub(crate) fn add_unschedulable(
        &mut self,
        uid: &str,
        reasons: UnschedulableReasons,
        nominated_node: Option<String>,
        now: Instant,
    ) {
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        if entry.pending.nominated_node != nominated_node {
            Arc::make_mut(&mut entry.pending).nominated_node = nominated_node;
        }
        if entry.updated_in_flight {
            // The update may have resolved the reasons.
            return self.retry(uid, now);
        }
        // Mirrors flushUnschedulablePodsLeftover: the safety net for events that no queueing hint
        // covers.
        let until = now + MAX_IN_UNSCHEDULABLE;
        entry.state = State::Unschedulable { reasons, until };
        self.unschedulable.insert(uid.to_owned());
        self.deadlines.insert((until, uid.to_owned()));
    }

    /// Puts a pod back whose binding failed, to be retried after its back-off.
    pub(crate) fn retry(&mut self, uid: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(uid)
            && matches!(entry.state, State::InFlight)
        {
            if entry.pending.gated {
                // A gate was added while the pod was in flight.
                entry.state = State::Gated;
            } else {
                self.move_to_active_or_backoff(uid, now);
            }
        }
    }

    /// Whether [`SchedulingQueue::pop`] may return a pod now.
    pub(crate) fn has_ready_pods(&self, now: Instant) -> bool {
        !self.active.is_empty()
            || !self.resolved.is_empty()
            || self.next_deadline().is_some_and(|at| at <= now)
    }

    /// When the next back-off or unschedulable timeout ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Moves unschedulable pods that an event may help, then pods whose deadline has passed
    /// (`flushBackoffQCompleted` and `flushUnschedulablePodsLeftover`).
    fn move_due_pods(&mut self, now: Instant) {
        let resolved = std::mem::take(&mut self.resolved);
        if !resolved.is_empty() {
            let is_helped = |uid: &&String| {
                self.entries.get(*uid).is_some_and(|entry| {
                    matches!(
                        entry.state,
                        State::Unschedulable { reasons, .. } if reasons.intersects(resolved)
                    )
                })
            };
            let mut helped: Vec<_> = self
                .unschedulable
                .iter()
                .filter(is_helped)
                .cloned()
                .collect();
            // The hash set has no order; the order of the attempts is reproducible.
            helped.sort_by_key(|uid| self.entries.get(uid).map(|entry| entry.last_attempt));
            for uid in &helped {
                self.move_to_active_or_backoff(uid, now);
            }
        }
        while let Some((at, uid)) = self.deadlines.first().cloned() {
            if at > now {
                break;
            }
            self.move_to_active(&uid);
        }
    }

    /// Moves a pod to the active queue, or to the back-off queue if its back-off has not ended.
    fn move_to_active_or_backoff(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let backoff_end = entry
            .last_attempt
            .map(|last_attempt| last_attempt + backoff_duration(entry.attempts))
            .filter(|end| *end > now);
        match backoff_end {
            None => self.move_to_active(uid),
            Some(end) => {
                self.set_state(uid, State::BackingOff(end));
                self.deadlines.insert((end, uid.to_owned()));
            }
        }
    }

    fn move_to_active(&mut self, uid: &str) {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        if let Some(priority) = self.set_state(uid, State::Active(sequence)) {
            self.active
                .insert((Reverse(priority), sequence, uid.to_owned()));
        }
    }

    /// Changes the state of a pod and removes it from the queue of its previous state; returns its
    /// priority.
    fn set_state(&mut self, uid: &str, state: State) -> Option<i32> {
        let mut entry = self.entries.remove(uid)?;
        self.unlink(uid, &entry);
        entry.state = state;
        let priority = entry.pending.info.priority;
        self.entries.insert(uid.to_owned(), entry);
        Some(priority)
    }

    /// Removes a pod from the queue of its state.
    fn unlink(&mut self, uid: &str, entry: &Entry) {
        match entry.state {
            State::Active(sequence) => {
                let priority = Reverse(entry.pending.info.priority);
                self.active.remove(&(priority, sequence, uid.to_owned()));
            }
            State::BackingOff(until) => {
                self.deadlines.remove(&(until, uid.to_owned()));
            }
            State::Unschedulable { until, .. } => {
                self.unschedulable.remove(uid);
                self.deadlines.remove(&(until, uid.to_owned()));
            }
            State::Gated | State::InFlight => {}
        }
    }
}

/// Mirrors `calculateBackoffDuration`.
fn backoff_duration(attempts: u32) -> Duration {
    let doubled = INITIAL_BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    if attempts == 0 {
        Duration::ZERO
    } else {
        doubled.min(MAX_BACKOFF)
    }
}
