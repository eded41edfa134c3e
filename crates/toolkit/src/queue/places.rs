//! Places: where the slot of a key is, by the hash of the key.
//!
//! In: hashes with numbers of slots. Out: the number that belongs to a hash and passes a test.
//! Holds: what was put in is found until it is taken out; looking costs one line of memory as a rule, which is why this is no
//! general table: with a full backlog each further line is a trip to main memory while every other thread waits.
//!
//! Open addressing with linear probing. The place of a hash grows with the hash, so that a table twice as large is filled from front to back.

/// A hash and the number of a slot, in one word; 0 is no place at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u64);

impl Place {
    const EMPTY: Self = Self(0);

    fn new(hash: u32, slot: u32) -> Self {
        Self(u64::from(hash) << 32 | (u64::from(slot) + 1))
    }

    fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn slot(self) -> u32 {
        (self.0 as u32).wrapping_sub(1)
    }
}

/// The places of all slots in use.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// As many as a power of two, of which at most three quarters are in use; or none at all.
    places: Vec<Place>,
    len: usize,
}

/// The smallest table that is not empty.
const SMALLEST: usize = 16;

impl Places {
    /// The slot with this hash for which the test holds.
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.look(hash, |place| place.hash() == hash && is_it(place.slot()))
            .map(|at| self.places[at].slot())
    }

    /// Remembers a slot that is not in here.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        if self.len * 4 >= self.places.len() * 3 {
            self.grow();
        }
        self.put(Place::new(hash, slot));
        self.len += 1;
    }

    /// Forgets a slot that is in here.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let wanted = Place::new(hash, slot);
        let Some(mut hole) = self.look(hash, |place| place == wanted) else {
            return;
        };
        // Those behind it come nearer to their home, up to the first who is at home or the end of the row.
        let mask = self.places.len() - 1;
        let mut next = (hole + 1) & mask;
        while self.places[next] != Place::EMPTY {
            let home = self.home(self.places[next].hash());
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole] = Place::EMPTY;
        self.len -= 1;
    }

    /// Where a hash would like to be.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.places.len() as u64) >> 32) as usize
    }

    /// Where the first place is, from the home of a hash up to the end of the row, for which the test holds.
    fn look(&self, hash: u32, is_it: impl Fn(Place) -> bool) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = self.home(hash);
        // There is always an empty one.
        while self.places[at] != Place::EMPTY {
            if is_it(self.places[at]) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn put(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = self.home(place.hash());
        while self.places[at] != Place::EMPTY {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }

    fn grow(&mut self) {
        let larger = (self.places.len() * 2).max(SMALLEST);
        let before = std::mem::replace(&mut self.places, vec![Place::EMPTY; larger]);
        before
            .into_iter()
            .filter(|place| *place != Place::EMPTY)
            .for_each(|place| self.put(place));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is put in and taken out, in a row that wraps around the end too, is what a plain map holds.
        #[test]
        fn places_are_found_until_they_are_taken_out(steps in prop::collection::vec((0..24u32, any::<bool>()), 0..300)) {
            let hash = |slot: u32| (u32::MAX - 40).wrapping_add(slot % 3 * 20) | (slot % 2);
            let (mut places, mut known) = (Places::default(), HashMap::new());
            for (slot, put) in steps {
                match (put, known.contains_key(&slot)) {
                    (true, false) => {
                        places.insert(hash(slot), slot);
                        known.insert(slot, hash(slot));
                    }
                    (false, true) => {
                        places.remove(hash(slot), slot);
                        known.remove(&slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(places.len, known.len());
                for slot in 0..24 {
                    prop_assert_eq!(places.find(hash(slot), |found| found == slot).is_some(), known.contains_key(&slot));
                }
            }
        }
    }
}
