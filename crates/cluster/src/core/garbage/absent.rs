//! Absent owners: those that were looked for and not found, so that a thousand dependents of one owner ask once.
//!
//! Holds: at most [`REMEMBERED_MAX`] of them; when full the oldest is forgotten, which costs one more request. A uid is
//! never given twice, so what is absent stays so.

use std::collections::{HashSet, VecDeque};

use super::graph::Absent;

/// How many are remembered, as upstream.
const REMEMBERED_MAX: usize = 500;

#[derive(Debug, Default)]
pub(super) struct AbsentOwners {
    known: HashSet<Absent>,
    /// The same, oldest first.
    order: VecDeque<Absent>,
}

impl AbsentOwners {
    pub(super) fn insert(&mut self, owner: Absent) {
        if !self.known.insert(owner.clone()) {
            return;
        }
        self.order.push_back(owner);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        debug_assert_eq!(self.known.len(), self.order.len());
    }

    pub(super) fn contains(&self, owner: &Absent) -> bool {
        self.known.contains(owner)
    }
}

#[cfg(test)]
mod tests {
    use bellerophon::ObjectKey;

    use super::*;

    #[test]
    fn oldest_absent_owner_is_forgotten_first() {
        let owner = |i: usize| Absent {
            uid: i.to_string(),
            api_version: "v1".into(),
            kind: "Pod".into(),
            key: ObjectKey::cluster("a"),
        };
        let mut absent = AbsentOwners::default();
        (0..REMEMBERED_MAX + 2).for_each(|i| absent.insert(owner(i)));
        absent.insert(owner(REMEMBERED_MAX + 1));
        let known: Vec<bool> = [0, 1, 2, REMEMBERED_MAX + 1]
            .into_iter()
            .map(|i| absent.contains(&owner(i)))
            .collect();
        assert_eq!(known, [false, false, true, true]);
    }
}
