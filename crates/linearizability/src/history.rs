//! What clients requested and received: the input of the checker.
//!
//! Guarantees: times are values of one counter or monotonic clock. An operation precedes another
//! one if it finished before the other one was invoked.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// A key of the store.
pub type Key = Arc<str>;

/// A value of the store. Values of puts should be unique: the checker then bounds writes whose
/// outcome is unknown by the first read or event with their value.
pub type Value = Arc<[u8]>;

/// A revision of the store. Revision 0 is the empty store; each change adds one.
pub type Revision = u64;

/// A point in time, of a counter or a monotonic clock.
pub type Time = u64;

/// All that clients did and saw. The store is empty at the beginning.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Reads and writes of single keys.
    pub operations: Vec<Operation>,
    /// Pages of lists.
    pub lists: Vec<ListRead>,
    /// Watches, each with all of its reconnects.
    pub watches: Vec<Watch>,
    /// The state after all operations, read when no fault was active.
    pub end: Option<EndState>,
}

/// A request for one key, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key.
    pub key: Key,
    /// What the client requested.
    pub request: Request,
    /// What the client received.
    pub outcome: Outcome,
    /// When the request was sent.
    pub invoked: Time,
    /// When the response was received. Without meaning if the outcome is unknown.
    pub finished: Time,
}

/// A request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read.
    Get(Consistency),
    /// A write of a value, if the condition holds.
    Put {
        /// The value.
        value: Value,
        /// The modification revision that the key must have; 0: the key must not exist.
        if_revision: Option<Revision>,
    },
    /// A deletion, if the condition holds.
    Delete {
        /// The modification revision that the key must have.
        if_revision: Option<Revision>,
    },
}

/// What a read promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The read returns the newest state at some time between request and response.
    Linearizable,
    /// The read returns the state at any revision.
    Stale,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response to a read.
    Read {
        /// The key, if it exists.
        state: Option<KeyState>,
        /// The revision of the store.
        revision: Revision,
    },
    /// The value was written, or the key deleted, at this revision.
    Written {
        /// The revision of the change.
        revision: Revision,
    },
    /// The key to be deleted did not exist at this revision of the store.
    NothingDeleted {
        /// The revision of the store.
        revision: Revision,
    },
    /// The condition of a write did not hold.
    ConditionFailed {
        /// The modification revision of the key; 0 if it did not exist.
        mod_revision: Revision,
    },
    /// The request certainly had no effect.
    Refused,
    /// The request may take effect at any time after its invocation, or never.
    Unknown,
}

/// A key that exists.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyState {
    /// The value.
    pub value: Value,
    /// The revision of the put that created the key.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// The number of puts since the key was created.
    pub version: u64,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct ListRead {
    /// Keys with this prefix are listed.
    pub prefix: String,
    /// Keys before this one are left out.
    pub start: String,
    /// The revision of the page.
    pub revision: Revision,
    /// Whether the page is the newest state, or that of a fixed revision.
    pub consistency: Consistency,
    /// The items, in order of their keys.
    pub items: Vec<(Key, KeyState)>,
    /// Whether keys follow after the last item.
    pub is_truncated: bool,
    /// When the request was sent.
    pub invoked: Time,
    /// When the response was received.
    pub finished: Time,
}

impl Operation {
    /// Whether the operation may have changed the key, though no response confirms it.
    pub(crate) fn is_open_write(&self) -> bool {
        self.outcome == Outcome::Unknown && !matches!(self.request, Request::Get(_))
    }

    /// Whether the operation is a part of the linearizable history: failed reads, stale reads and
    /// refused writes are not.
    pub(crate) fn is_linearizable(&self) -> bool {
        !matches!(
            (&self.request, &self.outcome),
            (_, Outcome::Refused)
                | (Request::Get(Consistency::Stale), _)
                | (Request::Get(_), Outcome::Unknown)
        )
    }
}

impl fmt::Debug for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} (created at {}, modified at {}, version {})",
            String::from_utf8_lossy(&self.value),
            self.create_revision,
            self.mod_revision,
            self.version
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, ", self.invoked)?;
        match self.outcome {
            Outcome::Unknown => f.write_str("open] ")?,
            _ => write!(f, "{}] ", self.finished)?,
        }
        match &self.request {
            Request::Get(consistency) => write!(f, "get {} ({consistency:?})", self.key)?,
            Request::Put { value, if_revision } => {
                let value = String::from_utf8_lossy(value);
                write!(f, "put {} = {value:?}", self.key)?;
                write_condition(f, *if_revision)?;
            }
            Request::Delete { if_revision } => {
                write!(f, "delete {}", self.key)?;
                write_condition(f, *if_revision)?;
            }
        }
        write!(f, " → {:?}", self.outcome)
    }
}

fn write_condition(f: &mut fmt::Formatter<'_>, condition: Option<Revision>) -> fmt::Result {
    condition.map_or(Ok(()), |revision| write!(f, " if revision {revision}"))
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// The key after the change; none if it was deleted.
    pub state: Option<KeyState>,
    /// The revision of the change.
    pub revision: Revision,
    /// When the event was received.
    pub received: Time,
}

/// All that one watcher received.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Keys with this prefix are watched.
    pub prefix: String,
    /// The records in the order in which they were received.
    pub records: Vec<WatchRecord>,
}

/// A record of a watch.
#[derive(Clone, Debug)]
pub enum WatchRecord {
    /// The watch was started or resumed: the store delivers all later changes.
    Started {
        /// The first event has a larger revision.
        after: Revision,
    },
    /// A change.
    Event(Event),
    /// All changes up to this revision have been delivered.
    Progress {
        /// The revision.
        revision: Revision,
    },
}

/// The state after all operations.
#[derive(Clone, Debug, Default)]
pub struct EndState {
    /// The revision of the store.
    pub revision: Revision,
    /// All keys.
    pub keys: BTreeMap<Key, KeyState>,
}
