//! The state of the queue: which keys are dirty, which are processed, which are delayed.
//!
//! In: adds, takes and dones, each with the time. Out: one key per take.
//! Guarantees: a key has one slot; it is processed by at most one worker; a key added while it is
//! processed is requeued once; a key has at most one delayed add, the earliest; order within a
//! priority is that of its flows.
//!
//! Names follow client-go's `workqueue.Typed`: `dirty`, `processing`, `queue` (here `ready`).
//! Pure: no lock, no clock, no waiting. `WorkQueue` adds those.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::cause::Causes;
use super::flow::Flow;
use super::ready::{Priority, Ready};
use super::sample::{QueueEntry, QueueSample};
use super::slots::{Hashed, Slot, SlotIndex, Slots};

/// Replaces delays beyond the range of the clock: 100 years.
const DELAY_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One add.
#[derive(Debug, Default)]
pub(super) struct Add {
    pub(super) delay: Duration,
    pub(super) priority: Priority,
    pub(super) flow: Flow,
    pub(super) causes: Causes,
}

/// A key handed out to a worker.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) slot: SlotIndex,
    pub(super) key: T,
    pub(super) priority: Priority,
    pub(super) failures: u32,
    pub(super) causes: Causes,
    /// The time since the key became ready; only in a queue with an observer.
    pub(super) waited: Option<Duration>,
}

/// The result of a done.
#[derive(Debug)]
pub(super) struct Done {
    /// The key was added while it was processed, so it is ready again.
    pub(super) requeued: bool,
    /// The time since the key was handed out; only in a queue with an observer.
    pub(super) worked: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct State<T> {
    slots: Slots<T>,
    /// Keys to hand out. Invariant: every one is dirty and none is processed.
    ready: Ready,
    /// Delayed keys by due time, then in order of their adds. Invariant: none is dirty.
    delayed: BTreeMap<(Instant, u64), SlotIndex>,
    /// The number of delayed adds so far; orders delayed keys with equal times.
    delayed_adds: u64,
    /// The number of keys handed out.
    pub(super) processing: usize,
    pub(super) adds_total: u64,
    pub(super) retries_total: u64,
    pub(super) shutting_down: bool,
    /// The queue has an observer: times are taken.
    measured: bool,
}

impl<T: Clone + Eq> State<T> {
    pub(super) fn new(measured: bool) -> Self {
        Self {
            slots: Slots::new(),
            ready: Ready::default(),
            delayed: BTreeMap::new(),
            delayed_adds: 0,
            processing: 0,
            adds_total: 0,
            retries_total: 0,
            shutting_down: false,
            measured,
        }
    }

    /// Marks a key as dirty, now or after a delay. Ignored while shutting down. Returns whether a
    /// waiting worker has to be notified: a key is ready, or the next due time is earlier.
    pub(super) fn add(&mut self, key: Hashed<T>, add: Add, now: impl FnOnce() -> Instant) -> bool {
        if self.shutting_down {
            return false;
        }
        let slot = self.slots.claim(key);
        let entry = &mut self.slots[slot];
        if !entry.dirty {
            entry.flow = add.flow;
        }
        entry.causes.merge(add.causes);
        let notify = if add.delay.is_zero() {
            let now = self.measured.then(now);
            self.mark_dirty(slot, add.priority, now)
        } else {
            self.retries_total += 1;
            let now = now();
            self.schedule(
                slot,
                add.priority,
                now.checked_add(add.delay)
                    .unwrap_or_else(|| now + DELAY_MAX),
            )
        };
        debug_assert!(self.is_consistent());
        notify
    }

    /// Rate-limited adds of the key since the last forget.
    pub(super) fn failures(&self, key: Hashed<&T>) -> u32 {
        self.slots
            .find(key)
            .map_or(0, |slot| self.slots[slot].failures)
    }

    /// Counts a failure of the key and returns the number before it.
    pub(super) fn count_failure(&mut self, key: Hashed<T>) -> u32 {
        let slot = self.slots.claim(key);
        let failures = &mut self.slots[slot].failures;
        let before = *failures;
        *failures = failures.saturating_add(1);
        before
    }

    /// Resets the back-off of the key.
    pub(super) fn forget(&mut self, key: Hashed<&T>) {
        if let Some(slot) = self.slots.find(key) {
            self.slots[slot].failures = 0;
            self.release_if_idle(slot);
        }
    }

    /// Hands out the next key, after adding the delayed keys that are due.
    pub(super) fn take(&mut self, now: impl Fn() -> Instant) -> Option<Taken<T>> {
        if !self.delayed.is_empty() {
            self.promote(now());
        }
        let slot = self.ready.pop(self.slots.as_mut_slice())?;
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot];
        entry.dirty = false;
        entry.processing = true;
        let waited = now
            .zip(entry.since)
            .map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        let taken = Taken {
            slot,
            key: entry.key.clone(),
            priority: entry.priority,
            failures: entry.failures,
            // Causes added while the key is processed belong to the next reconcile.
            causes: std::mem::take(&mut entry.causes),
            waited,
        };
        self.processing += 1;
        debug_assert!(self.is_consistent());
        Some(taken)
    }

    /// Ends the processing of a key.
    pub(super) fn done(&mut self, slot: SlotIndex, now: impl FnOnce() -> Instant) -> Done {
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot];
        entry.processing = false;
        let worked = now
            .zip(entry.since)
            .map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        // Mirrors Done of client-go's workqueue: a key that became dirty meanwhile goes to the end
        // of its list.
        let requeued = entry.dirty;
        let priority = entry.priority;
        let flow = entry.flow;
        self.processing -= 1;
        if requeued {
            self.ready
                .push(slot, priority, flow, self.slots.as_mut_slice());
        } else {
            self.release_if_idle(slot);
        }
        debug_assert!(self.is_consistent());
        Done { requeued, worked }
    }

    /// Ignores further adds and drops delayed keys; ready keys are still handed out.
    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        for (_, slot) in std::mem::take(&mut self.delayed) {
            self.slots[slot].due = None;
            self.slots[slot].failures = 0;
            self.release_if_idle(slot);
        }
        debug_assert!(self.is_consistent());
    }

    /// The time of the next delayed key.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Marks every delayed key as dirty that is due.
    pub(super) fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry()
            && entry.key().0 <= now
        {
            let slot = entry.remove();
            self.slots[slot].due = None;
            let priority = self.slots[slot].priority;
            self.mark_dirty(slot, priority, self.measured.then_some(now));
        }
    }

    /// [`promote`](Self::promote) at the current time.
    pub(super) fn promote_if_delayed(&mut self) {
        if !self.delayed.is_empty() {
            self.promote(Instant::now());
        }
    }

    /// Whether no key is ready or processed.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.len() == 0 && self.processing == 0
    }

    pub(super) fn has_ready(&self) -> bool {
        self.ready.len() > 0
    }

    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn ready_in(&self, priority: Priority) -> usize {
        self.ready.len_of(priority)
    }

    pub(super) fn delayed_len(&self) -> usize {
        self.delayed.len()
    }

    /// The number of slots in use.
    #[cfg(test)]
    pub(super) fn keys_known(&self) -> usize {
        self.slots.len()
    }

    /// When each processed key was handed out; only in a queue with an observer.
    pub(super) fn processing_since(&self) -> impl Iterator<Item = Instant> {
        self.slots
            .used()
            .filter(|slot| slot.processing)
            .filter_map(|slot| slot.since)
    }

    /// At most `keys_max` keys of each state.
    pub(super) fn sample(&self, keys_max: usize) -> QueueSample<T> {
        let entry = |slot: &Slot<T>| QueueEntry {
            key: slot.key.clone(),
            causes: slot.causes.clone(),
            failures: slot.failures,
            since: slot.since,
            due: slot.due.map(|(at, _)| at),
        };
        let first = |holds: fn(&Slot<T>) -> bool| -> Vec<_> {
            let slots = self.slots.used().filter(|slot| holds(slot));
            slots.take(keys_max).map(entry).collect()
        };
        let mut ready = first(|slot| slot.dirty && !slot.processing);
        ready.sort_by_key(|entry| entry.since);
        let delayed = self.delayed.values().take(keys_max);
        QueueSample {
            ready,
            processing: first(|slot| slot.processing),
            delayed: delayed.map(|slot| entry(&self.slots[*slot])).collect(),
        }
    }

    fn mark_dirty(&mut self, slot: SlotIndex, priority: Priority, now: Option<Instant>) -> bool {
        let entry = &mut self.slots[slot];
        let due = entry.due.take();
        if let Some(due) = due {
            self.delayed.remove(&due);
        }
        let priority = if entry.dirty || due.is_some() {
            priority.max(entry.priority)
        } else {
            priority
        };
        // A key that is queued moves to the list of the higher priority, never to a lower one.
        let raised = entry.dirty && priority > entry.priority;
        if entry.dirty && !raised {
            return false;
        }
        if raised && !entry.processing {
            self.ready.unlink(slot, self.slots.as_mut_slice());
        }
        let entry = &mut self.slots[slot];
        entry.priority = priority;
        if !entry.dirty {
            entry.dirty = true;
            self.adds_total += 1;
            if !entry.processing {
                entry.since = now;
            }
        }
        // It is queued by `done`, so that no second worker gets it.
        if entry.processing {
            return false;
        }
        let flow = entry.flow;
        self.ready
            .push(slot, priority, flow, self.slots.as_mut_slice());
        true
    }

    fn schedule(&mut self, slot: SlotIndex, priority: Priority, at: Instant) -> bool {
        let entry = &mut self.slots[slot];
        if entry.dirty {
            // The key is reconciled earlier than the delay, and that reconcile requeues it if
            // needed.
            return self.mark_dirty(slot, priority, None);
        }
        entry.priority = if entry.due.is_some() {
            priority.max(entry.priority)
        } else {
            priority
        };
        if let Some(due) = entry.due {
            if due.0 <= at {
                return false;
            }
            self.delayed.remove(&due);
        }
        self.delayed_adds += 1;
        entry.due = Some((at, self.delayed_adds));
        self.delayed.insert((at, self.delayed_adds), slot);
        // Only an earlier due time matters to a worker that sleeps until the next one.
        self.next_due() == Some(at)
    }

    /// Releases the slot of a key that need not be remembered.
    fn release_if_idle(&mut self, slot: SlotIndex) {
        if !self.slots[slot].is_needed() {
            self.slots.release(slot);
        }
    }

    /// Checks every invariant of the fields. Large queues are not checked, so that tests stay fast.
    fn is_consistent(&self) -> bool {
        if self.slots.len() > 32 {
            return true;
        }
        let count =
            |holds: fn(&Slot<T>) -> bool| self.slots.used().filter(|slot| holds(slot)).count();
        self.slots.used().count() == self.slots.len()
            && count(|slot| slot.dirty && !slot.processing) == self.ready.len()
            && count(|slot| slot.processing) == self.processing
            && count(|slot| slot.due.is_some()) == self.delayed.len()
            && count(|slot| slot.dirty && slot.due.is_some()) == 0
            && count(|slot| !slot.is_needed()) == 0
    }
}
