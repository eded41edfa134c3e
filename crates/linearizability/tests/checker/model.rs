//! The specification of a key, written a second time and independently of the checker: the set of
//! all states in which the key may be.
//!
//! Guarantees: a search that tries every order without a cache, for short histories.

use std::collections::BTreeSet;

use bellerophon_linearizability::{Key, Operation, Outcome, Request, Revision, Value};

/// A state of a key. A revision that no operation observed is a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    /// Value, creation and version, if the key exists.
    entry: Option<(Value, [Revision; 2], u64)>,
    /// The last change was not before the first and not after the second revision.
    last: [Revision; 2],
}

/// The state of a key that never existed.
pub(crate) fn initial() -> BTreeSet<State> {
    BTreeSet::from([State {
        entry: None,
        last: [0, 0],
    }])
}

/// All states after an operation. Empty if the operation cannot have its outcome.
pub(crate) fn step(states: &BTreeSet<State>, operation: &Operation) -> BTreeSet<State> {
    let mut after = BTreeSet::new();
    for state in states {
        if operation.outcome == Outcome::Unknown {
            after.insert(state.clone());
        }
        after.extend(state.after(operation));
    }
    after
}

fn narrowed(range: [Revision; 2], revision: Revision) -> Option<[Revision; 2]> {
    (range[0] <= revision && revision <= range[1]).then_some([revision; 2])
}

impl State {
    fn after(&self, operation: &Operation) -> Option<Self> {
        match (&operation.request, &operation.outcome) {
            (_, Outcome::Read { state, revision }) => {
                let after = match state {
                    None => self.absent()?,
                    Some(found) => {
                        let mut after = self.modified(found.mod_revision)?;
                        let (value, created, version) = after.entry.as_mut()?;
                        *created = narrowed(*created, found.create_revision)?;
                        let equal = *value == found.value && *version == found.version;
                        equal.then_some(after)?
                    }
                };
                (after.last[0] <= *revision).then_some(after)
            }
            (
                Request::Put { if_revision, .. } | Request::Delete { if_revision },
                Outcome::ConditionFailed { mod_revision },
            ) => {
                if *if_revision == Some(*mod_revision) {
                    return None;
                }
                self.modified(*mod_revision)
            }
            (_, Outcome::NothingDeleted { revision }) => {
                self.absent().filter(|after| after.last[0] <= *revision)
            }
            (Request::Put { value, if_revision }, outcome) => {
                let before = self.if_modified(*if_revision)?;
                let last = before.next(outcome)?;
                let entry = match before.entry {
                    Some((_, created, version)) => (value.clone(), created, version + 1),
                    None => (value.clone(), last, 1),
                };
                Some(Self {
                    entry: Some(entry),
                    last,
                })
            }
            (Request::Delete { if_revision }, outcome) => {
                let before = self.if_modified(*if_revision)?;
                before.entry.as_ref()?;
                Some(Self {
                    entry: None,
                    last: before.next(outcome)?,
                })
            }
            (Request::Get(_), _) => None,
        }
    }

    fn absent(&self) -> Option<Self> {
        self.entry.is_none().then(|| self.clone())
    }

    fn modified(&self, revision: Revision) -> Option<Self> {
        if revision == 0 {
            return self.absent();
        }
        let (value, created, version) = self.entry.clone()?;
        let last = narrowed(self.last, revision)?;
        let created = if version == 1 { last } else { created };
        Some(Self {
            entry: Some((value, created, version)),
            last,
        })
    }

    fn if_modified(&self, condition: Option<Revision>) -> Option<Self> {
        match condition {
            Some(revision) => self.modified(revision),
            None => Some(self.clone()),
        }
    }

    fn next(&self, outcome: &Outcome) -> Option<[Revision; 2]> {
        match outcome {
            Outcome::Written { revision } => (*revision > self.last[0]).then_some([*revision; 2]),
            _ => Some([self.last[0] + 1, Revision::MAX]),
        }
    }
}

/// The operations of one key that a checker of linearizability sees.
pub(crate) fn operations_of(operations: &[Operation], key: &Key) -> Vec<Operation> {
    let of_key = operations.iter().filter(|operation| operation.key == *key);
    of_key
        .filter(|operation| {
            operation.outcome != Outcome::Refused
                && !(operation.outcome == Outcome::Unknown
                    && matches!(operation.request, Request::Get(_)))
        })
        .cloned()
        .collect()
}

/// Whether any order of the operations of one key is legal. Tries all of them.
pub(crate) fn has_order(operations: &[Operation]) -> bool {
    order_exists(&initial(), &operations.iter().collect::<Vec<_>>())
}

fn order_exists(states: &BTreeSet<State>, rest: &[&Operation]) -> bool {
    if states.is_empty() {
        return false;
    }
    let completed = rest.iter().filter(|o| o.outcome != Outcome::Unknown);
    let Some(earliest_end) = completed.map(|o| o.finished).min() else {
        return true;
    };
    (0..rest.len()).any(|index| {
        let operation = rest[index];
        if operation.invoked > earliest_end {
            return false;
        }
        let mut others = rest.to_vec();
        others.remove(index);
        order_exists(&step(states, operation), &others)
    })
}
