//! Gate: a controller does not act on a cache older than its own last write.
//!
//! In: writes it made, changes it was told. Out: whether a key may be reconciled, and which key may go on.
//! Holds: a key with a write its caches have not shown yet is not reconciled, for at most [`WAIT_MAX`]; at most
//! [`AWAITED_MAX`] writes are remembered. Past either bound the gate lets through: late is better than never.
//!
//! Pure: the time is passed in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ObjectKey;

/// How long a key is held back for a write that does not show up.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// How many unseen writes are remembered; further ones are not waited for.
pub(super) const AWAITED_MAX: usize = 10_000;

/// An object that was written, and the cache that has to show it.
pub(super) type Written = (Arc<str>, ObjectKey);

/// What the cache must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The object in this version or a later one, or gone.
    Version(u64),
    /// The object gone.
    Gone,
}

/// What the cache shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The object in this version.
    Version(u64),
    /// No object.
    Gone,
}

impl Awaited {
    fn is_shown_by(self, seen: Seen) -> bool {
        match (self, seen) {
            (_, Seen::Gone) => true,
            (Self::Version(awaited), Seen::Version(seen)) => seen >= awaited,
            (Self::Gone, Seen::Version(_)) => false,
        }
    }
}

#[derive(Debug)]
struct Wait {
    reconciling: ObjectKey,
    awaited: Awaited,
    until: Instant,
}

/// What is awaited, and who is held back for it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    waits: HashMap<Written, Wait>,
    /// The objects each key waits for; exactly the keys of `waits`, by who wrote them.
    by_key: HashMap<ObjectKey, HashSet<Written>>,
    /// Keys that were refused and want to be woken. Each has an entry in `by_key`.
    held: HashSet<ObjectKey>,
}

impl Gate {
    /// Remembers a write. Says whether it is waited for.
    pub(super) fn wrote(&mut self, reconciling: &ObjectKey, written: Written, awaited: Awaited, now: Instant) -> bool {
        if self.waits.len() >= AWAITED_MAX && !self.waits.contains_key(&written) {
            return false;
        }
        self.end(&written);
        self.by_key.entry(reconciling.clone()).or_default().insert(written.clone());
        self.waits.insert(written, Wait { reconciling: reconciling.clone(), awaited, until: now + WAIT_MAX });
        debug_assert!(self.is_consistent());
        true
    }

    /// Notes what the cache shows of an object. Returns the key that was held back and may now go on.
    pub(super) fn saw(&mut self, written: &Written, seen: Seen) -> Option<ObjectKey> {
        if !self.waits.get(written)?.awaited.is_shown_by(seen) {
            return None;
        }
        let freed = self.end(written);
        debug_assert!(self.is_consistent());
        freed
    }

    /// What the key waits for.
    pub(super) fn awaited_by(&self, key: &ObjectKey) -> Vec<(Written, Awaited)> {
        self.by_key.get(key).into_iter().flatten().map(|written| (written.clone(), self.waits[written].awaited)).collect()
    }

    /// Until when the key must be held back; `None` lets it through. Waits that took too long are given up.
    pub(super) fn held_until(&mut self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        let late: Vec<_> = self.by_key.get(key)?.iter().filter(|written| self.waits[*written].until <= now).cloned().collect();
        for written in &late {
            tracing::warn!(key = %key, cache = %written.0, object = %written.1, "a write did not show up in the cache in time, going on without");
            self.end(written);
        }
        let until = self.by_key.get(key)?.iter().map(|written| self.waits[written].until).max();
        if until.is_some() {
            self.held.insert(key.clone());
        }
        debug_assert!(self.is_consistent());
        until
    }

    fn end(&mut self, written: &Written) -> Option<ObjectKey> {
        let wait = self.waits.remove(written)?;
        let left = self.by_key.get_mut(&wait.reconciling)?;
        left.remove(written);
        if !left.is_empty() {
            return None;
        }
        self.by_key.remove(&wait.reconciling);
        self.held.take(&wait.reconciling)
    }

    fn is_consistent(&self) -> bool {
        self.waits.len() > 64
            || (self.by_key.values().map(HashSet::len).sum::<usize>() == self.waits.len()
                && self.waits.iter().all(|(written, wait)| self.by_key.get(&wait.reconciling).is_some_and(|set| set.contains(written)))
                && self.held.iter().all(|key| self.by_key.contains_key(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Written {
        ("Pod".into(), ObjectKey::namespaced("a", name))
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_held_until_its_last_write_shows_up() {
        let (mut gate, owner, now) = (Gate::default(), ObjectKey::namespaced("a", "owner"), Instant::now());
        assert!(gate.wrote(&owner, pod("x"), Awaited::Version(7), now));
        assert!(gate.wrote(&owner, pod("y"), Awaited::Gone, now));
        assert!(gate.held_until(&owner, now).is_some());
        assert_eq!(gate.saw(&pod("x"), Seen::Version(6)), None, "older than the write");
        assert_eq!(gate.saw(&pod("x"), Seen::Version(8)), None, "y is still there");
        assert_eq!(gate.saw(&pod("y"), Seen::Version(9)), None, "y is still there");
        assert_eq!(gate.saw(&pod("y"), Seen::Gone), Some(owner.clone()));
        assert_eq!(gate.held_until(&owner, now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_writer_is_held() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        gate.wrote(&ObjectKey::cluster("one"), pod("x"), Awaited::Version(7), now);
        assert_eq!(gate.held_until(&ObjectKey::cluster("two"), now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_object_is_not_waited_for() {
        let (mut gate, owner, now) = (Gate::default(), ObjectKey::cluster("owner"), Instant::now());
        gate.wrote(&owner, pod("x"), Awaited::Version(7), now);
        gate.saw(&pod("x"), Seen::Gone);
        assert_eq!(gate.held_until(&owner, now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn gate_gives_up_after_its_time() {
        let (mut gate, owner, now) = (Gate::default(), ObjectKey::cluster("owner"), Instant::now());
        gate.wrote(&owner, pod("x"), Awaited::Version(7), now);
        assert_eq!(gate.held_until(&owner, now), Some(now + WAIT_MAX));
        assert_eq!(gate.held_until(&owner, now + WAIT_MAX), None);
        assert_eq!(gate.saw(&pod("x"), Seen::Version(7)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn full_gate_lets_through() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for i in 0..AWAITED_MAX {
            gate.wrote(&ObjectKey::cluster(i.to_string()), pod(&i.to_string()), Awaited::Version(7), now);
        }
        assert!(!gate.wrote(&ObjectKey::cluster("late"), pod("late"), Awaited::Version(7), now));
        assert_eq!(gate.held_until(&ObjectKey::cluster("late"), now), None);
    }
}
