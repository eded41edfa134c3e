//! The queue's state: which keys need work, which are with a worker, which wait for a time.
//!
//! In: adds, takes and dones, each with the time. Out: one key per take.
//! Holds: a key has one slot; it is never with two workers; what is added while it runs brings it back once;
//! a key has at most one future, the earliest asked for; first come first served within a priority.
//!
//! Pure: no lock, no clock, no waiting. `WorkQueue` adds those.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use hashbrown::HashTable;
use tokio::time::Instant;

use super::cause::{Cause, Causes};
use super::ready::{Links, Priority, Ready};

/// A place in the slab.
pub(super) type SlotIndex = u32;

/// Everything the queue knows about one key.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// `None` only while the slot is free.
    key: Option<T>,
    hash: u64,
    links: Links,
    /// The priority of the next run.
    priority: Priority,
    /// Needs work. Linked in `ready` unless `running`.
    dirty: bool,
    /// With a worker.
    running: bool,
    /// Rate-limited adds since the last forget.
    failures: u32,
    /// When it will become dirty by itself; mirrored in `State::delayed`, never set while `dirty`.
    due: Option<(Instant, u64)>,
    /// When it became dirty, or was handed out; only in a queue that is measured.
    since: Option<Instant>,
    causes: Option<Box<Causes>>,
}

/// How one add differs from a plain one.
#[derive(Debug, Default)]
pub(super) struct Add {
    pub(super) delay: Duration,
    pub(super) priority: Priority,
    pub(super) cause: Option<Cause>,
}

/// What a worker gets.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) slot: SlotIndex,
    pub(super) key: T,
    pub(super) priority: Priority,
    pub(super) failures: u32,
    pub(super) causes: Option<Box<Causes>>,
    /// How long the key was waiting, in a queue that is measured.
    pub(super) waited: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct State<T> {
    /// Slot of each known key, by hash. Every slot in use is here exactly once.
    table: HashTable<SlotIndex>,
    slots: Vec<Slot<T>>,
    free: Vec<SlotIndex>,
    hasher: RandomState,
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

impl<T: Clone + Eq + Hash> State<T> {
    pub(super) fn new(measured: bool) -> Self {
        Self {
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hasher: RandomState::new(),
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
    pub(super) fn add(&mut self, key: T, add: Add, now: impl FnOnce() -> Instant) -> bool {
        if self.shutting_down {
            return false;
        }
        let slot = self.slot_of(key);
        if let Some(cause) = add.cause {
            self.slots[slot as usize].causes.get_or_insert_default().add(cause);
        }
        let news = if add.delay.is_zero() {
            let now = self.measured.then(now);
            self.mark_dirty(slot, add.priority, now)
        } else {
            self.retries_total += 1;
            self.schedule(slot, add.priority, now() + add.delay)
        };
        debug_assert!(self.is_consistent());
        news
    }

    /// How often the key was added with a rate limit since it was last forgotten.
    pub(super) fn failures(&self, key: &T) -> u32 {
        self.find(key).map_or(0, |slot| self.slots[slot as usize].failures)
    }

    /// Counts one more failure of the key and returns how many there were before.
    pub(super) fn count_failure(&mut self, key: &T) -> u32 {
        let slot = self.slot_of(key.clone());
        let failures = &mut self.slots[slot as usize].failures;
        let before = *failures;
        *failures = failures.saturating_add(1);
        before
    }

    /// Starts the key's back-off afresh.
    pub(super) fn forget(&mut self, key: &T) {
        if let Some(slot) = self.find(key) {
            self.slots[slot as usize].failures = 0;
            self.release_if_idle(slot);
        }
    }

    /// Hands out the next key, after making those dirty whose time has come.
    pub(super) fn take(&mut self, now: impl Fn() -> Instant) -> Option<Taken<T>> {
        if !self.delayed.is_empty() {
            self.promote(now());
        }
        let slot = self.ready.pop(&mut self.slots)?;
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot as usize];
        entry.dirty = false;
        entry.running = true;
        let waited = now.zip(entry.since).map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        let taken = Taken {
            slot,
            key: entry.key.clone().expect("a slot in use has a key"),
            priority: entry.priority,
            failures: entry.failures,
            causes: entry.causes.take(),
            waited,
        };
        self.running += 1;
        debug_assert!(self.is_consistent());
        Some(taken)
    }

    /// Takes a key back from its worker. Says whether it came back into the queue, and how long the worker had it.
    pub(super) fn done(&mut self, slot: SlotIndex, now: impl FnOnce() -> Instant) -> (bool, Option<Duration>) {
        let now = self.measured.then(now);
        let entry = &mut self.slots[slot as usize];
        entry.running = false;
        let worked = now.zip(entry.since).map(|(now, since)| now.saturating_duration_since(since));
        entry.since = now;
        let again = entry.dirty;
        self.running -= 1;
        if again {
            self.ready.push(slot, entry.priority, &mut self.slots);
        } else {
            self.release_if_idle(slot);
        }
        debug_assert!(self.is_consistent());
        (again, worked)
    }

    /// Refuses further adds and forgets what waits for a time; what is ready is still handed out.
    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        for (_, slot) in std::mem::take(&mut self.delayed) {
            self.slots[slot as usize].due = None;
            self.slots[slot as usize].failures = 0;
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
            self.slots[slot as usize].due = None;
            let priority = self.slots[slot as usize].priority;
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
        self.table.len()
    }

    /// Since when each running key is with its worker; only in a queue that is measured.
    pub(super) fn running_since(&self) -> impl Iterator<Item = Instant> {
        self.slots.iter().filter(|slot| slot.running).filter_map(|slot| slot.since)
    }

    fn find(&self, key: &T) -> Option<SlotIndex> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |&slot| self.slots[slot as usize].key.as_ref() == Some(key)).copied()
    }

    fn slot_of(&mut self, key: T) -> SlotIndex {
        let hash = self.hasher.hash_one(&key);
        if let Some(&slot) = self.table.find(hash, |&slot| self.slots[slot as usize].key.as_ref() == Some(&key)) {
            return slot;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot::free());
                SlotIndex::try_from(self.slots.len() - 1).expect("fewer than 4 billion keys fit in memory")
            }
        };
        let entry = &mut self.slots[slot as usize];
        entry.key = Some(key);
        entry.hash = hash;
        let slots = &self.slots;
        self.table.insert_unique(hash, slot, |&slot| slots[slot as usize].hash);
        slot
    }

    fn mark_dirty(&mut self, slot: SlotIndex, priority: Priority, now: Option<Instant>) -> bool {
        let entry = &mut self.slots[slot as usize];
        let waited = entry.due.take();
        if let Some(due) = waited {
            self.delayed.remove(&due);
        }
        let priority = if entry.dirty || waited.is_some() { priority.max(entry.priority) } else { priority };
        let raised = entry.dirty && priority > entry.priority;
        if entry.dirty && !raised {
            return false;
        }
        if raised && !entry.running {
            self.ready.unlink(slot, &mut self.slots);
        }
        let entry = &mut self.slots[slot as usize];
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
        self.ready.push(slot, priority, &mut self.slots);
        true
    }

    fn schedule(&mut self, slot: SlotIndex, priority: Priority, at: Instant) -> bool {
        let entry = &mut self.slots[slot as usize];
        if entry.dirty {
            // It runs sooner than asked for, and that run decides anew.
            return self.mark_dirty(slot, priority, None);
        }
        entry.priority = if entry.due.is_some() { priority.max(entry.priority) } else { priority };
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

    fn release_if_idle(&mut self, slot: SlotIndex) {
        let entry = &mut self.slots[slot as usize];
        if entry.dirty || entry.running || entry.due.is_some() || entry.failures > 0 {
            return;
        }
        let hash = entry.hash;
        *entry = Slot::free();
        if let Ok(found) = self.table.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        self.free.push(slot);
    }

    /// Every relation written on the fields. Looks at small queues only, so that large tests stay fast.
    fn is_consistent(&self) -> bool {
        if self.slots.len() > 32 {
            return true;
        }
        let used = || self.slots.iter().filter(|slot| slot.key.is_some());
        self.table.len() == used().count()
            && self.table.len() + self.free.len() == self.slots.len()
            && used().filter(|slot| slot.dirty && !slot.running).count() == self.ready.len()
            && used().filter(|slot| slot.running).count() == self.running
            && used().filter(|slot| slot.due.is_some()).count() == self.delayed.len()
            && used().all(|slot| !(slot.dirty && slot.due.is_some()))
            && used().all(|slot| slot.dirty || slot.running || slot.due.is_some() || slot.failures > 0)
    }
}

impl<T> Slot<T> {
    fn free() -> Self {
        Self {
            key: None,
            hash: 0,
            links: Links::default(),
            priority: Priority::Low,
            dirty: false,
            running: false,
            failures: 0,
            due: None,
            since: None,
            causes: None,
        }
    }
}

impl<T> AsMut<Links> for Slot<T> {
    fn as_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}
