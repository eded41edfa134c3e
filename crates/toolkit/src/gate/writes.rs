//! Read-your-writes gate: a controller does not act on a cache older than its own last write.
//!
//! In: writes of the controller, changes of its caches. Out: whether a key may be reconciled, and
//! which keys are freed.
//! Guarantees: a key with a write that its caches do not show yet is not reconciled, for at most
//! [`WAIT_MAX`]; at most [`AWAITED_MAX`] writes are awaited. Beyond either bound keys are
//! reconciled, because a late reconcile is better than none.
//!
//! Pure: the time is a parameter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ObjectKey;

/// How long a key is held back for a write that its caches do not show.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Writes that are awaited at most; further ones are not.
pub(super) const AWAITED_MAX: usize = 10_000;

/// The name of the cache that has to show a write, and the object that was written.
pub(super) type Written = (Arc<str>, ObjectKey);

/// The state that the cache must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The object in this version or a later one, or gone.
    Version(u64),
    /// The object gone.
    Gone,
}

/// The state of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The object in this version.
    Version(u64),
    /// No object, since this version if it is known.
    Gone {
        /// The version of the deletion.
        at: Option<u64>,
    },
}

impl Awaited {
    fn is_shown_by(self, seen: Seen) -> bool {
        match (self, seen) {
            (Self::Version(awaited), Seen::Version(seen)) => seen >= awaited,
            // A deletion before the write was that of another object of this name.
            (Self::Version(awaited), Seen::Gone { at }) => at.is_none_or(|at| at >= awaited),
            (Self::Gone, Seen::Gone { .. }) => true,
            (Self::Gone, Seen::Version(_)) => false,
        }
    }

    /// The awaited state after one more write. Responses may arrive in another order than the
    /// writes were made.
    fn and_then(self, later: Self) -> Self {
        match (self, later) {
            (Self::Version(one), Self::Version(other)) => Self::Version(one.max(other)),
            // After a deletion, or a creation that follows one, only the last write counts.
            _ => later,
        }
    }
}

#[derive(Debug)]
struct Wait {
    awaited: Awaited,
    until: Instant,
}

/// The awaited states, and the keys that are not reconciled until then.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The keys that wait for each object that was written. No map is empty.
    waits: HashMap<Written, BTreeMap<ObjectKey, Wait>>,
    /// The objects that each key waits for: exactly the pairs of `waits`.
    by_key: HashMap<ObjectKey, HashSet<Written>>,
    /// The number of those pairs.
    len: usize,
    /// Keys that were held back and are enqueued once they are freed. Each has an entry in
    /// `by_key`.
    held: HashSet<ObjectKey>,
}

impl Gate {
    /// Records a write. Returns whether it is awaited.
    pub(super) fn wrote(
        &mut self,
        reconciling: &ObjectKey,
        written: Written,
        awaited: Awaited,
        now: Instant,
    ) -> bool {
        let before = self
            .waits
            .get(&written)
            .and_then(|waits| waits.get(reconciling))
            .map(|wait| wait.awaited);
        // A write that is not awaited costs at most one reconcile on an old cache; refusing the
        // write would cost the work.
        if self.len >= AWAITED_MAX && before.is_none() {
            return false;
        }
        self.len += usize::from(before.is_none());
        let wait = Wait {
            awaited: before.map_or(awaited, |before| before.and_then(awaited)),
            until: now + WAIT_MAX,
        };
        self.by_key
            .entry(reconciling.clone())
            .or_default()
            .insert(written.clone());
        self.waits
            .entry(written)
            .or_default()
            .insert(reconciling.clone(), wait);
        debug_assert!(self.is_consistent());
        true
    }

    /// Records what a cache shows of an object. Returns the keys that were held back and are freed
    /// now.
    pub(super) fn saw(&mut self, written: &Written, seen: Seen) -> Vec<ObjectKey> {
        let shown =
            |(key, wait): (&ObjectKey, &Wait)| wait.awaited.is_shown_by(seen).then(|| key.clone());
        let shown: Vec<_> = self
            .waits
            .get(written)
            .into_iter()
            .flatten()
            .filter_map(shown)
            .collect();
        let freed = shown
            .into_iter()
            .filter_map(|key| self.end(written, &key))
            .collect();
        debug_assert!(self.is_consistent());
        freed
    }

    /// The writes that the key waits for.
    pub(super) fn awaited_by(&self, key: &ObjectKey) -> Vec<Written> {
        self.by_key
            .get(key)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Records what a cache shows of an object, for one key. A write is not awaited if `seen` is
    /// `None`, because versions cannot be compared. Returns whether the key still waits for it.
    pub(super) fn looked(
        &mut self,
        key: &ObjectKey,
        written: &Written,
        seen: Option<Seen>,
    ) -> bool {
        let Some(wait) = self.waits.get(written).and_then(|waits| waits.get(key)) else {
            return false;
        };
        let is_shown = seen.is_none_or(|seen| wait.awaited.is_shown_by(seen));
        if is_shown {
            self.end(written, key);
        }
        debug_assert!(self.is_consistent());
        !is_shown
    }

    /// Until when the key must be held back; `None` if it may be reconciled. Waits that took too
    /// long are ended.
    pub(super) fn held_until(&mut self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        let late: Vec<_> = self
            .by_key
            .get(key)?
            .iter()
            .filter(|written| self.waits[*written][key].until <= now)
            .cloned()
            .collect();
        for written in &late {
            tracing::warn!(
                %key,
                cache = %written.0,
                object = %written.1,
                "the cache does not show a write in time, reconciling nevertheless"
            );
            self.end(written, key);
        }
        let until = self
            .by_key
            .get(key)?
            .iter()
            .map(|written| self.waits[written][key].until)
            .max();
        if until.is_some() {
            self.held.insert(key.clone());
        }
        debug_assert!(self.is_consistent());
        until
    }

    fn end(&mut self, written: &Written, key: &ObjectKey) -> Option<ObjectKey> {
        let waits = self.waits.get_mut(written)?;
        waits.remove(key)?;
        if waits.is_empty() {
            self.waits.remove(written);
        }
        self.len -= 1;
        let left = self.by_key.get_mut(key)?;
        left.remove(written);
        if !left.is_empty() {
            return None;
        }
        self.by_key.remove(key);
        // A key that was not held back has not been taken from the queue, so nothing has to enqueue
        // it.
        self.held.take(key)
    }

    fn is_consistent(&self) -> bool {
        let pairs = || {
            self.waits
                .iter()
                .flat_map(|(written, waits)| waits.keys().map(move |key| (written, key)))
        };
        // Looking at every pair after every write would make debug builds quadratic.
        self.len > 64
            || (pairs().count() == self.len
                && self.by_key.values().map(HashSet::len).sum::<usize>() == self.len
                && pairs().all(|(written, key)| {
                    self.by_key
                        .get(key)
                        .is_some_and(|set| set.contains(written))
                })
                && self.held.iter().all(|key| self.by_key.contains_key(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Written {
        ("Pod".into(), ObjectKey::namespaced("a", name))
    }

    fn owner() -> ObjectKey {
        ObjectKey::namespaced("a", "owner")
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_held_until_the_cache_shows_its_last_write() {
        let mut gate = Gate::default();
        let now = Instant::now();
        assert!(gate.wrote(&owner(), pod("x"), Awaited::Version(7), now));
        assert!(gate.wrote(&owner(), pod("y"), Awaited::Gone, now));
        assert!(gate.held_until(&owner(), now).is_some());
        let none: [ObjectKey; 0] = [];
        let freed = gate.saw(&pod("x"), Seen::Version(6));
        assert_eq!(freed, none, "older than the write");
        let freed = gate.saw(&pod("x"), Seen::Version(8));
        assert_eq!(freed, none, "y still exists");
        let freed = gate.saw(&pod("y"), Seen::Version(9));
        assert_eq!(freed, none, "y still exists");
        let freed = gate.saw(&pod("y"), Seen::Gone { at: None });
        assert_eq!(freed, [owner()]);
        assert_eq!(gate.held_until(&owner(), now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_writer_is_held() {
        let mut gate = Gate::default();
        let now = Instant::now();
        gate.wrote(&owner(), pod("x"), Awaited::Version(7), now);
        assert_eq!(gate.held_until(&ObjectKey::cluster("other"), now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_after_the_write_frees_the_key() {
        let mut gate = Gate::default();
        let now = Instant::now();
        gate.wrote(&owner(), pod("x"), Awaited::Version(7), now);
        gate.saw(&pod("x"), Seen::Gone { at: Some(8) });
        assert_eq!(gate.held_until(&owner(), now), None);
    }

    /// The second write used to replace the first one, so that its writer was freed too early.
    #[tokio::test(start_paused = true)]
    async fn two_writers_of_one_object_each_wait_for_their_write() {
        let mut gate = Gate::default();
        let now = Instant::now();
        let one = ObjectKey::cluster("one");
        let two = ObjectKey::cluster("two");
        gate.wrote(&one, pod("x"), Awaited::Version(7), now);
        gate.wrote(&two, pod("x"), Awaited::Version(9), now);
        assert!(gate.held_until(&one, now).is_some());
        assert!(gate.held_until(&two, now).is_some());
        assert_eq!(gate.saw(&pod("x"), Seen::Version(8)), [one]);
        assert_eq!(gate.saw(&pod("x"), Seen::Version(9)), [two]);
    }

    /// The event of the deletion used to free the key before the cache had the new object.
    #[tokio::test(start_paused = true)]
    async fn recreated_object_is_awaited_past_its_deletion() {
        let mut gate = Gate::default();
        let now = Instant::now();
        gate.wrote(&owner(), pod("x"), Awaited::Gone, now);
        gate.wrote(&owner(), pod("x"), Awaited::Version(9), now);
        gate.saw(&pod("x"), Seen::Gone { at: Some(8) });
        assert!(
            gate.held_until(&owner(), now).is_some(),
            "the new object is not cached yet"
        );
        assert_eq!(gate.saw(&pod("x"), Seen::Version(9)), [owner()]);
    }

    #[tokio::test(start_paused = true)]
    async fn responses_in_another_order_wait_for_the_newest_version() {
        let mut gate = Gate::default();
        let now = Instant::now();
        gate.wrote(&owner(), pod("x"), Awaited::Version(9), now);
        gate.wrote(&owner(), pod("x"), Awaited::Version(7), now);
        gate.saw(&pod("x"), Seen::Version(8));
        assert!(gate.held_until(&owner(), now).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_freed_after_the_longest_wait() {
        let mut gate = Gate::default();
        let now = Instant::now();
        gate.wrote(&owner(), pod("x"), Awaited::Version(7), now);
        assert_eq!(gate.held_until(&owner(), now), Some(now + WAIT_MAX));
        assert_eq!(gate.held_until(&owner(), now + WAIT_MAX), None);
        assert!(gate.saw(&pod("x"), Seen::Version(7)).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn full_gate_holds_no_further_key() {
        let mut gate = Gate::default();
        let now = Instant::now();
        for i in 0..AWAITED_MAX {
            let name = i.to_string();
            let key = ObjectKey::cluster(&name);
            gate.wrote(&key, pod(&name), Awaited::Version(7), now);
        }
        let late = ObjectKey::cluster("late");
        assert!(!gate.wrote(&late, pod("late"), Awaited::Version(7), now));
        assert_eq!(gate.held_until(&late, now), None);
    }
}
