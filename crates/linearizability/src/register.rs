//! The sequential specification of one key: a register with revisions and conditional writes.
//!
//! In: a state and a call. Out: the state afterwards, or none if the call cannot have this outcome
//! in this state.
//! Guarantees: a write of unknown revision leaves a lower bound, which the next observation
//! replaces by the observed revision.

use crate::history::Revision;

/// A number for a value: equal values have equal numbers.
pub(crate) type ValueId = u32;

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Register {
    current: Option<Entry>,
    /// The revision of the last change.
    last: Known,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    value: ValueId,
    created: Known,
    version: u64,
}

/// What is known of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Exactly(Revision),
    AtLeast(Revision),
}

/// An operation, as the specification sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get {
        found: Option<Found>,
        revision: Revision,
    },
    /// A put that took effect. Without a revision if no operation observed it.
    Put {
        value: ValueId,
        condition: Option<Revision>,
        revision: Option<Revision>,
    },
    /// A delete that took effect.
    Delete {
        condition: Option<Revision>,
        revision: Option<Revision>,
    },
    /// A delete of a key that does not exist.
    DeleteNothing { revision: Revision },
    /// A write whose condition did not hold.
    ConditionFailed {
        condition: Option<Revision>,
        mod_revision: Revision,
    },
}

/// A key that a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) value: ValueId,
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
    pub(crate) version: u64,
}

impl Known {
    fn minimum(self) -> Revision {
        match self {
            Self::Exactly(revision) | Self::AtLeast(revision) => revision,
        }
    }

    /// What is known after the revision was observed.
    fn observe(self, observed: Revision) -> Option<Self> {
        let is_possible = match self {
            Self::Exactly(revision) => revision == observed,
            Self::AtLeast(revision) => revision <= observed,
        };
        is_possible.then_some(Self::Exactly(observed))
    }

    /// The revision of the next change.
    fn next(self, revision: Option<Revision>) -> Option<Self> {
        match revision {
            Some(revision) => (revision > self.minimum()).then_some(Self::Exactly(revision)),
            None => Some(Self::AtLeast(self.minimum() + 1)),
        }
    }
}

impl Register {
    /// A key that never existed.
    pub(crate) fn new() -> Self {
        Self {
            current: None,
            last: Known::Exactly(0),
        }
    }

    /// The state after a call, or none if the call cannot have its outcome in this state.
    pub(crate) fn step(&self, call: &Call) -> Option<Self> {
        match call {
            Call::Get { found, revision } => {
                let state = match found {
                    Some(found) => self.found(found)?,
                    None => self.absent()?,
                };
                (state.last.minimum() <= *revision).then_some(state)
            }
            Call::Put {
                value,
                condition,
                revision,
            } => self.meeting(*condition)?.put(*value, *revision),
            Call::Delete {
                condition,
                revision,
            } => self.meeting(*condition)?.delete(*revision),
            Call::DeleteNothing { revision } => self
                .absent()
                .filter(|state| state.last.minimum() <= *revision),
            Call::ConditionFailed {
                condition,
                mod_revision,
            } => self
                .modified_at(*mod_revision)
                .filter(|_| *condition != Some(*mod_revision)),
        }
    }

    fn absent(&self) -> Option<Self> {
        self.current.is_none().then(|| self.clone())
    }

    fn found(&self, found: &Found) -> Option<Self> {
        let mut state = self.modified_at(found.modified)?;
        let entry = state.current.as_mut()?;
        entry.created = entry.created.observe(found.created)?;
        (entry.value == found.value && entry.version == found.version).then_some(state)
    }

    /// The state if the key was modified last at a revision, or does not exist for revision 0.
    fn modified_at(&self, revision: Revision) -> Option<Self> {
        if revision == 0 {
            return self.absent();
        }
        let mut state = self.clone();
        state.last = state.last.observe(revision)?;
        let entry = state.current.as_mut()?;
        if entry.version == 1 {
            entry.created = state.last;
        }
        Some(state)
    }

    fn meeting(&self, condition: Option<Revision>) -> Option<Self> {
        condition.map_or_else(|| Some(self.clone()), |revision| self.modified_at(revision))
    }

    fn put(&self, value: ValueId, revision: Option<Revision>) -> Option<Self> {
        let last = self.last.next(revision)?;
        let entry = match &self.current {
            Some(entry) => Entry {
                value,
                created: entry.created,
                version: entry.version + 1,
            },
            None => Entry {
                value,
                created: last,
                version: 1,
            },
        };
        Some(Self {
            current: Some(entry),
            last,
        })
    }

    fn delete(&self, revision: Option<Revision>) -> Option<Self> {
        self.current.as_ref()?;
        Some(Self {
            current: None,
            last: self.last.next(revision)?,
        })
    }
}
