//! Absent owner cache: owners that were looked up and do not exist, so that many dependents of one
//! deleted owner cost one request.
//!
//! Guarantees: at most [`CAPACITY`] entries; when full, the oldest is evicted, which costs one more
//! request. A uid is never reused, so an absent owner stays absent.

use std::collections::{HashSet, VecDeque};

use super::graph::OwnerIdentity;

/// Number of cached owners, as upstream (NewReferenceCache(500)).
const CAPACITY: usize = 500;

#[derive(Debug, Default)]
pub(super) struct AbsentOwnerCache {
    /// Invariant: the same owners as in `order`.
    entries: HashSet<OwnerIdentity>,
    /// Oldest first.
    order: VecDeque<OwnerIdentity>,
}

impl AbsentOwnerCache {
    pub(super) fn insert(&mut self, owner: OwnerIdentity) {
        if !self.entries.insert(owner.clone()) {
            return;
        }
        self.order.push_back(owner);
        if self.order.len() > CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        debug_assert_eq!(self.entries.len(), self.order.len());
    }

    pub(super) fn contains(&self, owner: &OwnerIdentity) -> bool {
        self.entries.contains(owner)
    }
}

#[cfg(test)]
mod tests {
    use bellerophon::ObjectKey;

    use super::*;

    #[test]
    fn oldest_absent_owner_is_evicted_first() {
        let owner = |i: usize| OwnerIdentity {
            uid: i.to_string(),
            api_version: "v1".into(),
            kind: "Pod".into(),
            key: ObjectKey::cluster("a"),
        };
        let mut cache = AbsentOwnerCache::default();
        (0..CAPACITY + 2).for_each(|i| cache.insert(owner(i)));
        cache.insert(owner(CAPACITY + 1));
        let cached: Vec<bool> = [0, 1, 2, CAPACITY + 1]
            .into_iter()
            .map(|i| cache.contains(&owner(i)))
            .collect();
        assert_eq!(cached, [false, false, true, true]);
    }
}
