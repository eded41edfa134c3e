//! Bounds and results of a check.

use std::fmt;

use crate::history::Operation;

/// Steps of the search per key. A step takes about a microsecond and 200 bytes, so a search is
/// bounded by seconds and 200 MB; legal histories of this store need about one step per operation.
const STEPS_MAX: u64 = 1_000_000;

/// Operations that the message of a violation has at most.
const OPERATIONS_SHOWN: usize = 60;

/// Bounds of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps of the search per key. A search that needs more is a violation.
    pub steps_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps_max: STEPS_MAX,
        }
    }
}

/// What was checked. A caller that expects reads or events to be covered compares the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations of the history.
    pub operations: usize,
    /// Keys with operations.
    pub keys: usize,
    /// Steps of all searches.
    pub steps: u64,
    /// Reads and lists that were compared with the state at their revision.
    pub reads: usize,
    /// Reads and lists at revisions for which not all changes are known.
    pub unchecked_reads: usize,
    /// Events of watches.
    pub events: usize,
}

/// The guarantee that a history violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violated {
    /// Each key is linearizable.
    Linearizability,
    /// The search for a linearization ended at its step limit: the result is unknown.
    SearchLimit,
    /// Each revision has one change.
    UniqueRevisions,
    /// Each change was requested by a client.
    Origin,
    /// Revisions increase in real time.
    RevisionOrder,
    /// Reads and lists return the state at their revision.
    ReadAtRevision,
    /// Events are ordered and delivered once.
    WatchOrder,
    /// No event is missing.
    WatchGap,
    /// Events match the prefix.
    WatchFilter,
    /// Events carry the state of their key.
    WatchState,
    /// Acknowledged writes are not lost.
    AcknowledgedWrites,
    /// The state at the end is the result of all changes.
    EndState,
}

/// A violated guarantee, with the operations that show it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The guarantee.
    pub violated: Violated,
    /// What is wrong.
    pub message: String,
    /// The operations that cannot be explained together, in order of their invocation.
    pub operations: Vec<Operation>,
}

impl Violation {
    pub(crate) fn new(violated: Violated, message: String) -> Self {
        Self::with_operations(violated, message, Vec::new())
    }

    pub(crate) fn with_operations(
        violated: Violated,
        message: String,
        operations: Vec<Operation>,
    ) -> Self {
        Self {
            violated,
            message,
            operations,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} violated: {}", self.violated, self.message)?;
        let hidden = self.operations.len().saturating_sub(OPERATIONS_SHOWN);
        if hidden > 0 {
            write!(f, "\n  ({hidden} earlier operations)")?;
        }
        for operation in &self.operations[hidden..] {
            write!(f, "\n  {operation}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}
