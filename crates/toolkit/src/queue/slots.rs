//! Slots: the state of each key, in a slab with a hash index.
//!
//! In: keys. Out: slots, by an index that is stable while the key is known.
//! Guarantees: a key has one slot; a released slot is reused before the slab grows. It keeps its
//! key until then, so a key that returns finds its slot with one lookup.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::cause::Causes;
use super::flow::Flow;
use super::ready::{Links, List, NONE, Priority};
use super::slot_table::SlotTable;

/// A position in the slab.
pub(super) type SlotIndex = u32;

/// The state of one key.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// While the slot is idle, the key it was last used for.
    pub(super) key: T,
    /// The hash of `key`, to remove it from the table when the slot is reused.
    hash: u32,
    /// Rate-limited adds since the last forget.
    pub(super) failures: u32,
    /// Links in a list of ready keys or in the list of idle slots.
    pub(super) links: Links,
    /// The priority of the next reconcile.
    pub(super) priority: Priority,
    /// The flow of the next reconcile.
    pub(super) flow: Flow,
    /// Needs to be processed. Linked in a list of ready keys unless `processing`.
    pub(super) dirty: bool,
    /// Handed out to a worker.
    pub(super) processing: bool,
    /// Nothing is known of the key. Linked in the list of idle slots.
    idle: bool,
    /// When it becomes dirty after a delay; `None` while `dirty`.
    pub(super) due: Option<(Instant, u64)>,
    /// When it became dirty or was handed out; only in a queue with an observer.
    pub(super) since: Option<Instant>,
    pub(super) causes: Causes,
}

/// A key and its hash, which is computed before the lock is taken.
#[derive(Clone, Debug)]
pub(super) struct Hashed<T> {
    pub(super) key: T,
    hash: u32,
}

/// Hashes the keys of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyHasher(RandomState);

impl KeyHasher {
    pub(super) fn hash<T: Hash>(&self, key: T) -> Hashed<T> {
        let hash = self.0.hash_one(&key);
        Hashed {
            key,
            // Folded to the 32 bits that share a word with the slot index in the table.
            hash: (hash ^ (hash >> 32)) as u32,
        }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// Invariant: every slot is in the table exactly once, idle or not.
    table: SlotTable,
    slab: Vec<Slot<T>>,
    /// Idle slots in the order of their release; the last one is reused first.
    idle: List,
    idle_len: usize,
}

impl<T: Eq> Slots<T> {
    pub(super) fn new() -> Self {
        Self {
            table: SlotTable::default(),
            slab: Vec::new(),
            idle: List::EMPTY,
            idle_len: 0,
        }
    }

    /// The number of known keys.
    pub(super) fn len(&self) -> usize {
        self.slab.len() - self.idle_len
    }

    pub(super) fn find(&self, Hashed { key, hash }: Hashed<&T>) -> Option<SlotIndex> {
        self.lookup(key, hash).filter(|slot| !self[*slot].idle)
    }

    /// The slot of a key, which is not idle from now on.
    pub(super) fn claim(&mut self, Hashed { key, hash }: Hashed<T>) -> SlotIndex {
        if let Some(known) = self.lookup(&key, hash) {
            if self[known].idle {
                self.reuse(known);
            }
            return known;
        }
        // The slot released last: it is most likely still in the cache of the processor.
        let slot = self.idle.last;
        if slot != NONE {
            self.reuse(slot);
            self.table.remove(self[slot].hash, slot);
            let entry = &mut self[slot];
            entry.key = key;
            entry.hash = hash;
            self.table.insert(hash, slot);
            return slot;
        }
        let slot =
            SlotIndex::try_from(self.slab.len()).expect("fewer than 4 billion keys fit in memory");
        self.slab.push(Slot::new(key, hash));
        self.table.insert(hash, slot);
        slot
    }

    /// Makes a slot idle that is no longer needed.
    pub(super) fn release(&mut self, slot: SlotIndex) {
        let entry = &mut self[slot];
        debug_assert!(!entry.is_needed());
        debug_assert!(!entry.idle);
        entry.idle = true;
        // An idle slot keeps its key but no allocation of causes.
        entry.causes = Causes::default();
        self.idle.append(slot, &mut self.slab);
        self.idle_len += 1;
    }

    /// Removes a slot from the list of idle slots.
    fn reuse(&mut self, slot: SlotIndex) {
        self.idle.unlink(slot, &mut self.slab);
        self[slot].idle = false;
        self.idle_len -= 1;
    }

    fn lookup(&self, key: &T, hash: u32) -> Option<SlotIndex> {
        self.table.find(hash, |slot| self[slot].key == *key)
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Slot<T>] {
        &mut self.slab
    }

    /// Slots that are not idle, in an unspecified order.
    pub(super) fn used(&self) -> impl Iterator<Item = &Slot<T>> {
        self.slab.iter().filter(|slot| !slot.idle)
    }
}

impl<T> Index<SlotIndex> for Slots<T> {
    type Output = Slot<T>;

    fn index(&self, slot: SlotIndex) -> &Slot<T> {
        &self.slab[slot as usize]
    }
}

impl<T> IndexMut<SlotIndex> for Slots<T> {
    fn index_mut(&mut self, slot: SlotIndex) -> &mut Slot<T> {
        &mut self.slab[slot as usize]
    }
}

impl<T> Slot<T> {
    fn new(key: T, hash: u32) -> Self {
        Self {
            key,
            hash,
            failures: 0,
            links: Links::default(),
            priority: Priority::Low,
            flow: Flow::default(),
            dirty: false,
            processing: false,
            idle: false,
            due: None,
            since: None,
            causes: Causes::default(),
        }
    }

    /// Whether anything has to be remembered of the key.
    pub(super) fn is_needed(&self) -> bool {
        self.dirty || self.processing || self.due.is_some() || self.failures > 0
    }
}

impl<T> AsMut<Links> for Slot<T> {
    fn as_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn slots_are_found_by_key_and_reused() {
        let mut slots = Slots::new();
        let hasher = KeyHasher::default();
        let claim = |slots: &mut Slots<_>, key: &'static str| slots.claim(hasher.hash(key));
        let find = |slots: &Slots<_>, key: &'static str| slots.find(hasher.hash(&key));
        let a = claim(&mut slots, "a");
        let b = claim(&mut slots, "b");
        assert_eq!(claim(&mut slots, "a"), a);
        assert_eq!(find(&slots, "b"), Some(b));
        assert_eq!(find(&slots, "c"), None);
        slots.release(a);
        assert_eq!(find(&slots, "a"), None);
        assert_eq!(slots.len(), 1);
        assert_eq!(claim(&mut slots, "c"), a);
        assert_eq!(slots.len(), 2);
        slots.release(b);
        slots.release(a);
        assert_eq!(claim(&mut slots, "b"), b, "a returning key finds its slot");
        assert_eq!(claim(&mut slots, "c"), a, "a returning key finds its slot");
        assert_eq!(slots.len(), 2);
        slots.release(a);
        slots.release(b);
        let reused = BTreeSet::from(["d", "e"].map(|key| claim(&mut slots, key)));
        assert_eq!(reused, [a, b].into());
        assert_eq!(slots.used().count(), 2);
    }

    #[test]
    fn a_hundred_thousand_keys_each_have_their_slot() {
        let mut slots = Slots::new();
        let hasher = KeyHasher::default();
        let claimed: Vec<_> = (0..100_000u32)
            .map(|key| slots.claim(hasher.hash(key)))
            .collect();
        for (key, slot) in (0..).zip(&claimed) {
            assert_eq!(slots.find(hasher.hash(&key)), Some(*slot));
        }
        for slot in claimed.into_iter().step_by(2) {
            slots.release(slot);
        }
        for key in 0..100_000 {
            let is_known = slots.find(hasher.hash(&key)).is_some();
            assert_eq!(is_known, key % 2 == 1, "{key}");
        }
    }

    #[test]
    fn keys_with_equal_hashes_have_different_slots() {
        let mut slots = Slots::new();
        let one = slots.claim(Hashed { key: 1, hash: 7 });
        let two = slots.claim(Hashed { key: 2, hash: 7 });
        slots.release(one);
        assert_eq!(slots.find(Hashed { key: &1, hash: 7 }), None);
        assert_eq!(slots.find(Hashed { key: &2, hash: 7 }), Some(two));
    }
}
