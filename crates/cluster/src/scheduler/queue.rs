//! Scheduling queue: which pod is next, and when those that found no node are tried again.
//!
//! In: pods without a node, what became of them, events. Out: one pod at a time, the most important first.
//! Holds: a pod that found no node is tried again only after something happened that could help, or after five minutes;
//! one that failed often waits a little longer each time. One entry for each pod without a node.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::pod_info::Pending;
use super::refusal::Refusal;

/// How long a pod waits after its first failure, and at most.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// After this time a pod is tried again whatever happened.
const FLUSH_AFTER: Duration = Duration::from_secs(300);

#[derive(Debug)]
enum State {
    /// In line.
    Active(u64),
    /// Waits until then, whatever happens.
    BackingOff(Instant),
    /// Waits for something to happen that could help, until then at the latest.
    Refused { blockers: Refusal, until: Instant },
    /// Waits for its gates to be opened.
    Gated,
    /// With the scheduler.
    Taken,
}

#[derive(Debug)]
struct Entry {
    pending: Arc<Pending>,
    state: State,
    attempts: u32,
    tried: Option<Instant>,
    /// It changed while it was with the scheduler.
    changed: bool,
}

/// Pods without a node, by uid.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<String, Entry>,
    /// Those in line.
    active: BTreeSet<(Reverse<i32>, u64, String)>,
    /// When those that wait for a time are due.
    times: BTreeSet<(Instant, String)>,
    refused: HashSet<String>,
    /// What happened since the refused ones were last looked through.
    happened: Refusal,
    next_turn: u64,
}

impl Queue {
    /// A pod is there, or changed in what it asks for.
    pub(crate) fn set(&mut self, pending: Pending, now: Instant) {
        let uid = pending.info.uid.clone();
        let known = self.entries.get_mut(&uid);
        if let Some(entry) = known
            && matches!(entry.state, State::Taken)
        {
            (entry.pending, entry.changed) = (Arc::new(pending), true);
            return;
        }
        let attempts = known_attempts(self.entries.get(&uid));
        self.remove(&uid);
        let gated = pending.gated;
        let entry = Entry {
            pending: Arc::new(pending),
            state: State::Gated,
            attempts: attempts.0,
            tried: attempts.1,
            changed: false,
        };
        self.entries.insert(uid.clone(), entry);
        if !gated {
            self.activate(&uid, now);
        }
    }

    /// The pod has a node, or is gone.
    pub(crate) fn remove(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.unlink(uid, &entry);
        }
    }

    /// Something happened that can mend this.
    pub(crate) fn happened(&mut self, mends: Refusal) {
        if !self.refused.is_empty() {
            self.happened = self.happened.and(mends);
        }
    }

    /// The next pod, for the scheduler to decide on.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Arc<Pending>> {
        self.settle(now);
        let (_, _, uid) = self.active.pop_first()?;
        let entry = self
            .entries
            .get_mut(&uid)
            .expect("those in line have an entry");
        (entry.state, entry.tried, entry.changed) = (State::Taken, Some(now), false);
        entry.attempts += 1;
        Some(entry.pending.clone())
    }

    /// The pod found no node.
    pub(crate) fn refused(
        &mut self,
        uid: &str,
        blockers: Refusal,
        nominated: Option<String>,
        now: Instant,
    ) {
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        if entry.pending.nominated != nominated {
            Arc::make_mut(&mut entry.pending).nominated = nominated;
        }
        if entry.changed {
            return self.again(uid, now);
        }
        let until = now + FLUSH_AFTER;
        entry.state = State::Refused { blockers, until };
        self.refused.insert(uid.to_owned());
        self.times.insert((until, uid.to_owned()));
    }

    /// The pod is to be tried again soon: it has a node, but could not be bound.
    pub(crate) fn again(&mut self, uid: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(uid)
            && matches!(entry.state, State::Taken)
        {
            if entry.pending.gated {
                entry.state = State::Gated;
            } else {
                self.activate(uid, now);
            }
        }
    }

    /// Whether a pod could be taken now.
    pub(crate) fn is_in_line(&self, now: Instant) -> bool {
        !self.active.is_empty()
            || !self.happened.is_none()
            || self.next_time().is_some_and(|at| at <= now)
    }

    /// When a pod is due that waits for a time.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.times.first().map(|(at, _)| *at)
    }

    /// Puts in line who is due, or can be helped by what happened.
    fn settle(&mut self, now: Instant) {
        let happened = std::mem::take(&mut self.happened);
        if !happened.is_none() {
            let helped = |uid: &&String| matches!(self.entries.get(*uid), Some(Entry { state: State::Refused { blockers, .. }, .. }) if blockers.meets(happened));
            let mut helped: Vec<_> = self.refused.iter().filter(helped).cloned().collect();
            // In the order they were first tried, not that of a hash.
            helped.sort_by_key(|uid| self.entries.get(uid).map(|entry| entry.tried));
            helped.iter().for_each(|uid| self.activate(uid, now));
        }
        while let Some((at, uid)) = self.times.first().cloned() {
            if at > now {
                break;
            }
            self.enqueue(&uid);
        }
    }

    /// Puts a pod in line, or has it wait for the rest of its back-off first.
    fn activate(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let due = entry
            .tried
            .map(|tried| tried + backoff(entry.attempts))
            .filter(|due| *due > now);
        match due {
            None => self.enqueue(uid),
            Some(due) => {
                self.relink(uid, State::BackingOff(due));
                self.times.insert((due, uid.to_owned()));
            }
        }
    }

    fn enqueue(&mut self, uid: &str) {
        self.next_turn += 1;
        let turn = self.next_turn;
        if let Some(priority) = self.relink(uid, State::Active(turn)) {
            self.active
                .insert((Reverse(priority), turn, uid.to_owned()));
        }
    }

    fn relink(&mut self, uid: &str, state: State) -> Option<i32> {
        let mut entry = self.entries.remove(uid)?;
        self.unlink(uid, &entry);
        entry.state = state;
        let priority = entry.pending.info.priority;
        self.entries.insert(uid.to_owned(), entry);
        Some(priority)
    }

    fn unlink(&mut self, uid: &str, entry: &Entry) {
        match entry.state {
            State::Active(turn) => {
                _ = self.active.remove(&(
                    Reverse(entry.pending.info.priority),
                    turn,
                    uid.to_owned(),
                ))
            }
            State::BackingOff(until) => _ = self.times.remove(&(until, uid.to_owned())),
            State::Refused { until, .. } => {
                self.refused.remove(uid);
                self.times.remove(&(until, uid.to_owned()));
            }
            State::Gated | State::Taken => {}
        }
    }
}

fn known_attempts(entry: Option<&Entry>) -> (u32, Option<Instant>) {
    entry.map_or((0, None), |entry| (entry.attempts, entry.tried))
}

/// How long a pod waits that was tried so often.
fn backoff(attempts: u32) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    if attempts == 0 {
        Duration::ZERO
    } else {
        doubled.min(BACKOFF_MAX)
    }
}
