//! The events of all revisions, collected from acknowledged writes, reads and watches.
//!
//! In: a history. Out: the change of each known revision, and the state at a revision.
//! Guarantees: two different changes at one revision are a violation. The state is known up to the
//! first revision that no operation observed.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    history::{
        History, Key, KeyState, Operation, Outcome, Request, Revision, Time, Value, WatchRecord,
    },
    report::{Violated, Violation},
};

/// The change of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) key: Key,
    /// None for a deletion.
    pub(crate) value: Option<Value>,
}

/// The known changes.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    changes: BTreeMap<Revision, Change>,
    /// The first response or event that proves that a value was written.
    observed: HashMap<(Key, Value), (Revision, Time)>,
    /// Deletions that a response confirms.
    confirmed_deletes: HashSet<Revision>,
}

impl EventLog {
    /// Collects the changes that a history proves.
    pub(crate) fn collect(history: &History) -> Result<Self, Violation> {
        let mut log = Self::default();
        for operation in &history.operations {
            log.add_operation(operation)?;
        }
        for list in &history.lists {
            for (key, state) in &list.items {
                log.observe(key, state, list.finished)?;
            }
        }
        for record in history.watches.iter().flat_map(|watch| &watch.records) {
            if let WatchRecord::Event(event) = record {
                match &event.state {
                    Some(state) => log.observe(&event.key, state, event.received)?,
                    None => log.add(event.revision, &event.key, None)?,
                }
            }
        }
        for (key, state) in history.end.iter().flat_map(|end| &end.keys) {
            log.observe(key, state, Time::MAX)?;
        }
        log.require_origins(&history.operations)?;
        Ok(log)
    }

    /// The last revision up to which every change is known.
    pub(crate) fn complete_through(&self) -> Revision {
        let pairs = self.changes.keys().zip(1..);
        pairs
            .take_while(|(revision, expected)| **revision == *expected)
            .count() as Revision
    }

    /// The known changes after a revision, up to and including another one.
    pub(crate) fn between(
        &self,
        after: Revision,
        through: Revision,
    ) -> impl Iterator<Item = (Revision, &Change)> {
        let range = (after + 1)..(through + 1).max(after + 1);
        self.changes
            .range(range)
            .map(|(revision, change)| (*revision, change))
    }

    /// When and at which revision a value of a key was seen first.
    pub(crate) fn observation(&self, key: &Key, value: &Value) -> Option<(Revision, Time)> {
        self.observed.get(&(key.clone(), value.clone())).copied()
    }

    /// Whether a deletion of the key is known that no response confirms.
    pub(crate) fn has_unconfirmed_delete(&self, key: &Key) -> bool {
        self.changes.iter().any(|(revision, change)| {
            change.key == *key
                && change.value.is_none()
                && !self.confirmed_deletes.contains(revision)
        })
    }

    fn add_operation(&mut self, operation: &Operation) -> Result<(), Violation> {
        let key = &operation.key;
        match (&operation.request, &operation.outcome) {
            (Request::Put { value, .. }, Outcome::Written { revision }) => {
                self.add(*revision, key, Some(value))
            }
            (Request::Delete { .. }, Outcome::Written { revision }) => {
                self.confirmed_deletes.insert(*revision);
                self.add(*revision, key, None)
            }
            (
                Request::Get(_),
                Outcome::Read {
                    state: Some(state), ..
                },
            ) => self.observe(key, state, operation.finished),
            _ => Ok(()),
        }
    }

    fn observe(&mut self, key: &Key, state: &KeyState, seen: Time) -> Result<(), Violation> {
        let first = self
            .observed
            .entry((key.clone(), state.value.clone()))
            .or_insert((state.mod_revision, seen));
        first.1 = first.1.min(seen);
        self.add(state.mod_revision, key, Some(&state.value))
    }

    fn add(
        &mut self,
        revision: Revision,
        key: &Key,
        value: Option<&Value>,
    ) -> Result<(), Violation> {
        let change = Change {
            key: key.clone(),
            value: value.cloned(),
        };
        let known = self
            .changes
            .entry(revision)
            .or_insert_with(|| change.clone());
        if *known == change {
            return Ok(());
        }
        Err(Violation::new(
            Violated::UniqueRevisions,
            format!("revision {revision} is {known:?} and also {change:?}"),
        ))
    }

    /// Each put must have been requested.
    fn require_origins(&self, operations: &[Operation]) -> Result<(), Violation> {
        let requested: HashSet<(&Key, &Value)> = operations
            .iter()
            .filter(|operation| operation.outcome != Outcome::Refused)
            .filter_map(|operation| match &operation.request {
                Request::Put { value, .. } => Some((&operation.key, value)),
                _ => None,
            })
            .collect();
        for (revision, change) in &self.changes {
            let Some(value) = &change.value else { continue };
            if !requested.contains(&(&change.key, value)) {
                return Err(Violation::new(
                    Violated::Origin,
                    format!("revision {revision} is {change:?}, which no client requested"),
                ));
            }
        }
        Ok(())
    }
}

/// The state of all keys, advanced change by change.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) keys: BTreeMap<Key, KeyState>,
    at: Revision,
}

impl Replay {
    /// Applies all changes up to a revision.
    pub(crate) fn advance(&mut self, log: &EventLog, through: Revision) {
        for (revision, change) in log.between(self.at, through) {
            self.apply(revision, change);
        }
        self.at = self.at.max(through);
    }

    fn apply(&mut self, revision: Revision, change: &Change) {
        let Some(value) = &change.value else {
            self.keys.remove(&change.key);
            return;
        };
        let before = self.keys.get(&change.key);
        let state = KeyState {
            value: value.clone(),
            create_revision: before.map_or(revision, |state| state.create_revision),
            mod_revision: revision,
            version: before.map_or(1, |state| state.version + 1),
        };
        self.keys.insert(change.key.clone(), state);
    }
}
