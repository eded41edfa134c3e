//! Warm: which compact objects stay decoded.
//! In: objects as they are decoded. Out: the word to forget, for those not read lately.
//! Holds: no more stay decoded than was asked for, but for those being admitted right now; locks of objects and of the
//! ring are never held together.
//!
//! Full: always, in a large cache. A new object then takes the place of one that was not read since the hand of the
//! clock last passed it.

use std::sync::{Arc, Mutex, PoisonError};

use super::compact::Compact;

/// The decoded objects of one cache.
pub(crate) struct Warm<K> {
    max: usize,
    ring: Mutex<Ring<K>>,
}

struct Ring<K> {
    /// At most `max`. Each stays decoded while it is here.
    objects: Vec<Arc<Compact<K>>>,
    /// Where the search for a place goes on.
    hand: usize,
}

impl<K> Warm<K> {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, ring: Mutex::new(Ring { objects: Vec::new(), hand: 0 }) }
    }

    /// How many objects stay decoded at most.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Lets an object that was just decoded stay so; another one makes room.
    pub(super) fn admit(&self, object: &Arc<Compact<K>>) {
        let leaver = self.ring.lock().unwrap_or_else(PoisonError::into_inner).admit(object, self.max);
        drop(leaver.and_then(|leaver| leaver.cool()));
    }
}

impl<K> Ring<K> {
    /// Who has to leave.
    fn admit(&mut self, object: &Arc<Compact<K>>, max: usize) -> Option<Arc<Compact<K>>> {
        if max == 0 {
            return Some(object.clone());
        }
        if self.objects.len() < max {
            self.objects.push(object.clone());
            return None;
        }
        // One round at most: if all are in use, the one whose turn it is leaves.
        for _ in 0..max {
            if !self.objects[self.hand].was_used() {
                break;
            }
            self.hand = (self.hand + 1) % max;
        }
        let leaver = std::mem::replace(&mut self.objects[self.hand], object.clone());
        self.hand = (self.hand + 1) % max;
        Some(leaver)
    }
}
