//! Slots: what is known of each key, found by the key.
//!
//! In: keys. Out: slots, by a small number that stays the same for as long as the key is known.
//! Holds: a key has one slot; a slot that is given back is used again before the slab grows.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tokio::time::Instant;

use super::cause::Causes;
use super::ready::{Line, Links, NONE, Priority};

/// A place in the slab.
pub(super) type SlotIndex = u32;

/// Everything the queue knows about one key.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// `None` only while the slot is free.
    pub(super) key: Option<T>,
    /// The key's, so that the slot is found again when it is given back.
    hash: u32,
    /// Rate-limited adds since the last forget.
    pub(super) failures: u32,
    /// In a list of ready keys, or, by `next`, in the list of free slots.
    pub(super) links: Links,
    /// The priority of the next run.
    pub(super) priority: Priority,
    /// The line it stands in when ready.
    pub(super) line: Line,
    /// Needs work. Linked in a list of ready keys unless `running`.
    pub(super) dirty: bool,
    /// With a worker.
    pub(super) running: bool,
    /// When it will become dirty by itself; never set while `dirty`.
    pub(super) due: Option<(Instant, u64)>,
    /// When it became dirty, or was handed out; only in a queue that is measured.
    pub(super) since: Option<Instant>,
    pub(super) causes: Causes,
}

/// A slot and enough of its key's hash to pass most others over, and to move it in the table, without looking there.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    slot: SlotIndex,
}

impl Place {
    /// The table wants all 64 bits well mixed; 32 tell millions of keys apart.
    fn wide(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// The place of each known key. Every slot in use is here exactly once.
    table: HashTable<Place>,
    slab: Vec<Slot<T>>,
    /// The first free slot; each leads to the next.
    free: SlotIndex,
    hasher: RandomState,
}

impl<T: Eq + Hash> Slots<T> {
    pub(super) fn new() -> Self {
        Self { table: HashTable::new(), slab: Vec::new(), free: NONE, hasher: RandomState::default() }
    }

    /// How many keys are known.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn find(&self, key: &T) -> Option<SlotIndex> {
        let hash = self.hash(key);
        let same = |place: &Place| place.hash == hash && self.slab[place.slot as usize].key.as_ref() == Some(key);
        self.table.find(Place::wide(hash), same).map(|place| place.slot)
    }

    /// The slot of a key, new or known.
    pub(super) fn claim(&mut self, key: T) -> SlotIndex {
        let hash = self.hash(&key);
        let slab = &mut self.slab;
        let same = |place: &Place| place.hash == hash && slab[place.slot as usize].key.as_ref() == Some(&key);
        let vacant = match self.table.entry(Place::wide(hash), same, |place| Place::wide(place.hash)) {
            Entry::Occupied(known) => return known.get().slot,
            Entry::Vacant(vacant) => vacant,
        };
        let slot = match self.free {
            NONE => {
                slab.push(Slot::of(key, hash));
                SlotIndex::try_from(slab.len() - 1).expect("fewer than 4 billion keys fit in memory")
            }
            free => {
                let entry = &mut slab[free as usize];
                self.free = entry.links.next;
                (entry.key, entry.hash) = (Some(key), hash);
                free
            }
        };
        vacant.insert(Place { hash, slot });
        slot
    }

    /// Gives a slot back of which nothing is left to know.
    pub(super) fn release(&mut self, slot: SlotIndex) {
        let entry = &mut self.slab[slot as usize];
        debug_assert!(!entry.is_needed());
        (entry.key, entry.causes) = (None, Causes::default());
        entry.links.next = self.free;
        self.free = slot;
        if let Ok(found) = self.table.find_entry(Place::wide(entry.hash), |place| place.slot == slot) {
            found.remove();
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Slot<T>] {
        &mut self.slab
    }

    /// Slots in use, in no order that means anything.
    pub(super) fn used(&self) -> impl Iterator<Item = &Slot<T>> {
        self.slab.iter().filter(|slot| slot.key.is_some())
    }

    fn hash(&self, key: &T) -> u32 {
        let hash = self.hasher.hash_one(key);
        (hash ^ (hash >> 32)) as u32
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
    fn of(key: T, hash: u32) -> Self {
        Self {
            key: Some(key),
            hash,
            failures: 0,
            links: Links::default(),
            priority: Priority::Low,
            line: Line::default(),
            dirty: false,
            running: false,
            due: None,
            since: None,
            causes: Causes::default(),
        }
    }

    /// Whether there is anything to know about the key.
    pub(super) fn is_needed(&self) -> bool {
        self.dirty || self.running || self.due.is_some() || self.failures > 0
    }
}

impl<T> AsMut<Links> for Slot<T> {
    fn as_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_key_and_used_again() {
        let mut slots = Slots::new();
        let (a, b) = (slots.claim("a"), slots.claim("b"));
        assert_eq!((slots.claim("a"), slots.find(&"b"), slots.find(&"c")), (a, Some(b), None));
        slots.release(a);
        assert_eq!((slots.find(&"a"), slots.claim("c"), slots.len()), (None, a, 2));
        slots.release(b);
        slots.release(a);
        let again: std::collections::BTreeSet<_> = ["d", "e"].map(|key| slots.claim(key)).into();
        assert_eq!((again, slots.used().count()), ([a, b].into(), 2));
    }

    /// Keys whose hashes share the 32 bits that are kept are told apart by the keys themselves.
    #[test]
    fn a_hundred_thousand_keys_each_have_their_slot() {
        let mut slots = Slots::new();
        let found: Vec<_> = (0..100_000u32).map(|key| slots.claim(key)).collect();
        assert!((0..100_000).all(|key| slots.find(&key) == Some(found[key as usize])));
        found.into_iter().step_by(2).for_each(|slot| slots.release(slot));
        assert!((0..100_000).all(|key| slots.find(&key).is_some() == (key % 2 == 1)));
    }
}
