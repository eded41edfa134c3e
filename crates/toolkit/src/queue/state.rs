//! The queue's state: which keys need work, which are with a worker, which wait for a time.
//!
//! In: adds, takes and dones, each with the time. Out: one key per take.
//! Holds: a key has one slot; it is never with two workers; what is added while it runs brings it back once;
//! a key has at most one future, the earliest asked for; first come first served within a priority.
//!
//! Pure: no lock, no clock, no waiting. `WorkQueue` adds those.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::cause::Causes;
use super::ready::{Line, Priority, Ready};
use super::slots::{Hashed, Slot, SlotIndex, Slots};

/// Stands for delays so long that the clock cannot tell: a hundred years.
const DELAY_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How one add differs from a plain one.
#[derive(Debug, Default)]
pub(super) struct Add {
    pub(super) delay: Duration,
    pub(super) priority: Priority,
    pub(super) line: Line,
    pub(super) causes: Causes,
}

/// What a worker gets.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) slot: SlotIndex,
    pub(super) key: T,
    pub(super) priority: Priority,
    pub(super) failures: u32,
    pub(super) causes: Causes,
    /// How long the key was waiting, in a queue that is measured.
    pub(super) waited: Option<Duration>,
}

/// What comes of a key that a worker gives back.
#[derive(Debug)]
pub(super) struct Done {
    /// It came back into the queue.
    pub(super) again: bool,
    /// How long the worker had it, in a queue that is measured.
    pub(super) worked: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct State<T> {
    slots: Slots<T>,
    /// Keys to hand out. Every one is dirty and none is running.
    ready: Ready,
    /// Keys that become dirty by themselves, earliest first, in order of asking among equals.
    delayed: BTreeMap<(Instant, u64), SlotIndex>,
    asked: u64,
    pub(super) running: usize,
    pub(super) adds_total: u64,
    pub(super) retries_total: u64,
    pub(super) shutting_down: bool,
    measured: bool,
}

impl<T: Clone + Eq> State<T> {
    pub(super) fn new(measured: bool) -> Self {
        Self {
            slots: Slots::new(),
            ready: Ready::default(),
            delayed: BTreeMap::new(),
            asked: 0,
            running: 0,
            adds_total: 0,
            retries_total: 0,
            shutting_down: false,
            measured,
        }
    }

    /// Marks a key as needing work, now or after a delay. Ignored while shutting down. Says whether a taker may have something new to do.
    pub(super) fn add(&mut self, key: Hashed<T>, add: Add, now: impl FnOnce() -> Instant) -> bool {
        if self.shutting_down {
            return false;
        }
        let slot = self.slots.claim(key);
        let entry = &mut self.slots[slot];
        if !entry.dirty {
            entry.line = add.line;
        }
        entry.causes.merge(add.causes);
        let news = if add.delay.is_zero() {
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
        news
    }

    /// How often the key was added with a rate limit since it was last forgotten.
    pub(super) fn failures(&self, key: Hashed<&T>) -> u32 {
        self.slots
            .find(key)
            .map_or(0, |slot| self.slots[slot].failures)
    }

    /// Counts one more failure of the key and returns how many there were before.
    pub(super) fn count_failure(&mut self, key: Hashed<T>) -> u32 {
        let slot = self.slots.claim(key);
        let failures = &mut self.slots[slot].failures;
        let before = *failures;
        *failures = failures.saturating_add(1);
        before
    }

    /// Starts the key's back-off afresh.
    pub(super) fn forget(&mut self, key: Hashed<&T>) {
        if let Some(slot) = self.slots.find(key) {
            self.slots[slot].failures = 0;
            self.release_if_idle(slot);
        }
    }

    /// Hands out the next key, after making those dirty whose time has come.
    pub(super) fn take(&mut self, now: impl Fn() -> Instant) -> Option<Taken<T>> {
        if !self.delayed.is_empty() {
            self.promote(now());
        }
        let slot = self.ready.pop(self.slots.as_mut_slice())?;
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot];
        entry.dirty = false;
        entry.running = true;
        let waited = now
            .zip(entry.since)
            .map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        let taken = Taken {
            slot,
            key: entry.key.clone(),
            priority: entry.priority,
            failures: entry.failures,
            causes: std::mem::take(&mut entry.causes),
            waited,
        };
        self.running += 1;
        debug_assert!(self.is_consistent());
        Some(taken)
    }

    /// Takes a key back from its worker.
    pub(super) fn done(&mut self, slot: SlotIndex, now: impl FnOnce() -> Instant) -> Done {
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot];
        entry.running = false;
        let worked = now
            .zip(entry.since)
            .map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        let (again, priority, line) = (entry.dirty, entry.priority, entry.line);
        self.running -= 1;
        if again {
            self.ready
                .push(slot, priority, line, self.slots.as_mut_slice());
        } else {
            self.release_if_idle(slot);
        }
        debug_assert!(self.is_consistent());
        Done { again, worked }
    }

    /// Refuses further adds and forgets what waits for a time; what is ready is still handed out.
    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        for (_, slot) in std::mem::take(&mut self.delayed) {
            self.slots[slot].due = None;
            self.slots[slot].failures = 0;
            self.release_if_idle(slot);
        }
        debug_assert!(self.is_consistent());
    }

    /// When the next delayed key becomes ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Makes every key dirty whose time has come.
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

    /// As [`promote`](Self::promote), at this moment.
    pub(super) fn promote_if_delayed(&mut self) {
        if !self.delayed.is_empty() {
            self.promote(Instant::now());
        }
    }

    /// Whether nothing is ready and nothing is with a worker.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.len() == 0 && self.running == 0
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

    /// How many keys take up room.
    #[cfg(test)]
    pub(super) fn keys_known(&self) -> usize {
        self.slots.len()
    }

    /// Since when each running key is with its worker; only in a queue that is measured.
    pub(super) fn running_since(&self) -> impl Iterator<Item = Instant> {
        self.slots
            .used()
            .filter(|slot| slot.running)
            .filter_map(|slot| slot.since)
    }

    fn mark_dirty(&mut self, slot: SlotIndex, priority: Priority, now: Option<Instant>) -> bool {
        let entry = &mut self.slots[slot];
        let waited = entry.due.take();
        if let Some(due) = waited {
            self.delayed.remove(&due);
        }
        let priority = if entry.dirty || waited.is_some() {
            priority.max(entry.priority)
        } else {
            priority
        };
        let raised = entry.dirty && priority > entry.priority;
        if entry.dirty && !raised {
            return false;
        }
        if raised && !entry.running {
            self.ready.unlink(slot, self.slots.as_mut_slice());
        }
        let entry = &mut self.slots[slot];
        entry.priority = priority;
        if !entry.dirty {
            entry.dirty = true;
            self.adds_total += 1;
            if !entry.running {
                entry.since = now;
            }
        }
        if entry.running {
            return false;
        }
        let line = entry.line;
        self.ready
            .push(slot, priority, line, self.slots.as_mut_slice());
        true
    }

    fn schedule(&mut self, slot: SlotIndex, priority: Priority, at: Instant) -> bool {
        let entry = &mut self.slots[slot];
        if entry.dirty {
            // It runs sooner than asked for, and that run decides anew.
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
        self.asked += 1;
        entry.due = Some((at, self.asked));
        self.delayed.insert((at, self.asked), slot);
        self.next_due() == Some(at)
    }

    /// Forgets a key of which nothing is left to know.
    fn release_if_idle(&mut self, slot: SlotIndex) {
        if !self.slots[slot].is_needed() {
            self.slots.release(slot);
        }
    }

    /// Every relation written on the fields. Looks at small queues only, so that large tests stay fast.
    fn is_consistent(&self) -> bool {
        if self.slots.len() > 32 {
            return true;
        }
        let count =
            |holds: fn(&Slot<T>) -> bool| self.slots.used().filter(|slot| holds(slot)).count();
        self.slots.used().count() == self.slots.len()
            && count(|slot| slot.dirty && !slot.running) == self.ready.len()
            && count(|slot| slot.running) == self.running
            && count(|slot| slot.due.is_some()) == self.delayed.len()
            && count(|slot| slot.dirty && slot.due.is_some()) == 0
            && count(|slot| !slot.is_needed()) == 0
    }
}
