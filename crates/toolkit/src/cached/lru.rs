//! Decoded LRU: which compact objects stay decoded.
//! In: objects as they are decoded. Out: evictions of those not read lately.
//! Guarantees: at most `max` objects stay decoded, apart from those being admitted right now; the
//! locks of objects and of the ring are never held together.
//!
//! Full: always, in a large cache. The second-chance (CLOCK) algorithm approximates LRU: a new
//! object replaces one that was not read since the hand last passed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::compact::Compact;
use crate::locks::{Locks, Os};

/// The decoded objects of one cache.
pub(crate) struct DecodedLru<L: Locks = Os> {
    max: AtomicUsize,
    ring: L::Mutex<Ring<L>>,
}

struct Ring<L: Locks> {
    /// At most `max`. Each stays decoded while it is here.
    objects: Vec<Arc<Compact<L>>>,
    /// Where the search for a victim continues.
    hand: usize,
}

impl<L: Locks> DecodedLru<L> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max: AtomicUsize::new(max),
            ring: L::mutex(Ring {
                objects: Vec::new(),
                hand: 0,
            }),
        }
    }

    /// How many objects stay decoded at most.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the limit of an LRU that is still empty.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Lets an object that was just decoded stay so, and evicts another one if the ring is full.
    pub(super) fn admit(&self, object: &Arc<Compact<L>>) {
        // The guard is a temporary of this statement, so the victim is evicted and freed without
        // it.
        let victim = L::lock(&self.ring).admit(object, self.max());
        drop(victim.and_then(|victim| victim.evict()));
    }
}

impl<L: Locks> Ring<L> {
    /// The object to evict.
    fn admit(&mut self, object: &Arc<Compact<L>>, max: usize) -> Option<Arc<Compact<L>>> {
        if max == 0 {
            return Some(object.clone());
        }
        if self.objects.len() < max {
            self.objects.push(object.clone());
            return None;
        }
        // One round at most: if all are in use, the one at the hand is evicted.
        for _ in 0..max {
            if !self.objects[self.hand].was_used() {
                break;
            }
            self.hand = (self.hand + 1) % max;
        }
        let victim = std::mem::replace(&mut self.objects[self.hand], object.clone());
        self.hand = (self.hand + 1) % max;
        Some(victim)
    }
}
