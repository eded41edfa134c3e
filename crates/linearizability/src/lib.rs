//! Linearizability checker for histories of a key-value store with revisions, conditional writes
//! and watches.
//!
//! In: a [`History`] of operations, lists, watches and the state at the end. Out: statistics, or
//! the first [`Violation`] with its evidence.
//! Guarantees: a legal history is never rejected. A search that reaches its step limit is a
//! violation, not a success.

mod check; // all checks of a history
mod end; // acknowledged writes at the end
mod event_log; // the events of all revisions, and the state at each of them
mod evidence; // the smallest illegal history of a key
mod history; // operations, lists, watches
mod keys; // linearizability of each key
mod reads; // reads and lists at their revision
mod recorder; // histories of concurrent clients
mod register; // the sequential specification of one key
mod report; // bounds and results
mod revisions; // revisions in real time
mod search; // Wing, Gong and Lowe's search
mod watches; // order and completeness of watches

pub use check::{check, check_linearizability};
pub use history::{
    Consistency, EndState, Event, History, Key, KeyState, ListRead, Operation, Outcome, Request,
    Revision, Time, Value, Watch, WatchRecord,
};
pub use recorder::{OperationId, Recorder};
pub use report::{Options, Report, Violated, Violation};
