//! Slots: what is known of each key, found by the key.
//!
//! In: keys. Out: slots, by a small number that stays the same for as long as the key is known.
//! Holds: a key has one slot; a slot that is given back is used again before the slab grows, by the same key if nobody else
//! needed it meanwhile: most keys come back, and then nothing has to be looked up twice.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::cause::Causes;
use super::places::Places;
use super::ready::{Line, Links, List, NONE, Priority};

/// A place in the slab.
pub(super) type SlotIndex = u32;

/// Everything the queue knows about one key.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// While the slot is idle, the key it was last used for.
    pub(super) key: T,
    /// The key's, so that its place is found when another key needs the slot.
    hash: u32,
    /// Rate-limited adds since the last forget.
    pub(super) failures: u32,
    /// In a list of ready keys, or in that of the idle slots.
    pub(super) links: Links,
    /// The priority of the next run.
    pub(super) priority: Priority,
    /// The line it stands in when ready.
    pub(super) line: Line,
    /// Needs work. Linked in a list of ready keys unless `running`.
    pub(super) dirty: bool,
    /// With a worker.
    pub(super) running: bool,
    /// Nothing is to be known of the key; linked in the list of idle slots.
    idle: bool,
    /// When it will become dirty by itself; never set while `dirty`.
    pub(super) due: Option<(Instant, u64)>,
    /// When it became dirty, or was handed out; only in a queue that is measured.
    pub(super) since: Option<Instant>,
    pub(super) causes: Causes,
}

/// A key and its hash, which is made before anybody is kept waiting.
#[derive(Clone, Debug)]
pub(super) struct Hashed<T> {
    pub(super) key: T,
    hash: u32,
}

/// Makes the hashes of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Hashes(RandomState);

impl Hashes {
    pub(super) fn of<T: Hash>(&self, key: T) -> Hashed<T> {
        let hash = self.0.hash_one(&key);
        Hashed {
            key,
            hash: (hash ^ (hash >> 32)) as u32,
        }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots<T> {
    /// The place of each key, idle or not. Every slot is here exactly once.
    places: Places,
    slab: Vec<Slot<T>>,
    /// In the order in which they became so; the last one is the first to be used again.
    idle: List,
    idle_len: usize,
}

impl<T: Eq> Slots<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Places::default(),
            slab: Vec::new(),
            idle: List::EMPTY,
            idle_len: 0,
        }
    }

    /// How many keys are known.
    pub(super) fn len(&self) -> usize {
        self.slab.len() - self.idle_len
    }

    pub(super) fn find(&self, Hashed { key, hash }: Hashed<&T>) -> Option<SlotIndex> {
        self.place_of(key, hash).filter(|slot| !self[*slot].idle)
    }

    /// The slot of a key, new or known. Something is to be known of it from now on.
    pub(super) fn claim(&mut self, Hashed { key, hash }: Hashed<T>) -> SlotIndex {
        if let Some(known) = self.place_of(&key, hash) {
            if self[known].idle {
                self.wake(known);
            }
            return known;
        }
        let slot = self.idle.last;
        if slot != NONE {
            self.wake(slot);
            self.places.remove(self[slot].hash, slot);
            let entry = &mut self[slot];
            (entry.key, entry.hash) = (key, hash);
            self.places.insert(hash, slot);
            return slot;
        }
        let slot =
            SlotIndex::try_from(self.slab.len()).expect("fewer than 4 billion keys fit in memory");
        self.slab.push(Slot::of(key, hash));
        self.places.insert(hash, slot);
        slot
    }

    /// Gives a slot back of which nothing is left to know.
    pub(super) fn release(&mut self, slot: SlotIndex) {
        let entry = &mut self[slot];
        debug_assert!(!entry.is_needed() && !entry.idle);
        entry.idle = true;
        entry.causes = Causes::default();
        self.idle.append(slot, &mut self.slab);
        self.idle_len += 1;
    }

    /// Takes a slot out of the list of idle ones.
    fn wake(&mut self, slot: SlotIndex) {
        self.idle.unlink(slot, &mut self.slab);
        self[slot].idle = false;
        self.idle_len -= 1;
    }

    fn place_of(&self, key: &T, hash: u32) -> Option<SlotIndex> {
        self.places.find(hash, |slot| self[slot].key == *key)
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Slot<T>] {
        &mut self.slab
    }

    /// Slots in use, in no order that means anything.
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
    fn of(key: T, hash: u32) -> Self {
        Self {
            key,
            hash,
            failures: 0,
            links: Links::default(),
            priority: Priority::Low,
            line: Line::default(),
            dirty: false,
            running: false,
            idle: false,
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
        let (mut slots, hashes) = (Slots::new(), Hashes::default());
        let (a, b) = (slots.claim(hashes.of("a")), slots.claim(hashes.of("b")));
        let find = |slots: &Slots<&str>, key: &'static str| slots.find(hashes.of(&key));
        assert_eq!(
            (
                slots.claim(hashes.of("a")),
                find(&slots, "b"),
                find(&slots, "c")
            ),
            (a, Some(b), None)
        );
        slots.release(a);
        assert_eq!((find(&slots, "a"), slots.len()), (None, 1));
        assert_eq!((slots.claim(hashes.of("c")), slots.len()), (a, 2));
        slots.release(b);
        slots.release(a);
        assert_eq!(
            (
                slots.claim(hashes.of("b")),
                slots.claim(hashes.of("c")),
                slots.len()
            ),
            (b, a, 2),
            "each has its own again"
        );
        slots.release(a);
        slots.release(b);
        let again: std::collections::BTreeSet<_> =
            ["d", "e"].map(|key| slots.claim(hashes.of(key))).into();
        assert_eq!((again, slots.used().count()), ([a, b].into(), 2));
    }

    /// Keys whose hashes share the 32 bits that are kept are told apart by the keys themselves.
    #[test]
    fn a_hundred_thousand_keys_each_have_their_slot() {
        let (mut slots, hashes) = (Slots::new(), Hashes::default());
        let found: Vec<_> = (0..100_000u32)
            .map(|key| slots.claim(hashes.of(key)))
            .collect();
        assert!((0..100_000).all(|key| slots.find(hashes.of(&key)) == Some(found[key as usize])));
        found
            .into_iter()
            .step_by(2)
            .for_each(|slot| slots.release(slot));
        assert!((0..100_000).all(|key| slots.find(hashes.of(&key)).is_some() == (key % 2 == 1)));
        let mut alike = Slots::new();
        let (one, two) = (
            alike.claim(Hashed { key: 1, hash: 7 }),
            alike.claim(Hashed { key: 2, hash: 7 }),
        );
        alike.release(one);
        assert_eq!(
            (
                alike.find(Hashed { key: &1, hash: 7 }),
                alike.find(Hashed { key: &2, hash: 7 })
            ),
            (None, Some(two))
        );
    }
}
