//! Warm: which compact objects stay decoded.
//! In: objects as they are decoded. Out: the word to forget, for those not read lately.
//! Holds: no more stay decoded than was asked for, but for those being admitted right now; locks of objects and of the
//! ring are never held together.
//!
//! Full: always, in a large cache. A new object then takes the place of one that was not read since the hand of the
//! clock last passed it.

use std::sync::Arc;

use super::compact::Compact;
use crate::locks::{Locks, Os};

/// The decoded objects of one cache.
pub(crate) struct Warm<K, L: Locks = Os> {
    max: usize,
    ring: L::Mutex<Ring<K, L>>,
}

struct Ring<K, L: Locks> {
    /// At most `max`. Each stays decoded while it is here.
    objects: Vec<Arc<Compact<K, L>>>,
    /// Where the search for a place goes on.
    hand: usize,
}

impl<K, L: Locks> Warm<K, L> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            ring: L::mutex(Ring {
                objects: Vec::new(),
                hand: 0,
            }),
        }
    }

    /// How many objects stay decoded at most.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Lets an object that was just decoded stay so; another one makes room.
    pub(super) fn admit(&self, object: &Arc<Compact<K, L>>) {
        let leaver = L::lock(&self.ring).admit(object, self.max);
        drop(leaver.and_then(|leaver| leaver.cool()));
    }
}

impl<K, L: Locks> Ring<K, L> {
    /// Who has to leave.
    fn admit(&mut self, object: &Arc<Compact<K, L>>, max: usize) -> Option<Arc<Compact<K, L>>> {
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
