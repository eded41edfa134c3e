//! Linearizability checker for histories of a key-value store with revisions, conditional writes
//! and watches.
//!
//! In: a [`History`] of operations, lists, watches and the state at the end. Out: statistics, or
//! the first [`Violation`] with its evidence.
//! Guarantees: a legal history is never rejected. A search that reaches its step limit is a
//! violation, not a success.

mod check;
mod end; // acknowledged writes at the end
mod event_log; // the events of all revisions, and the state at each of them
mod evidence; // the smallest illegal history of a key
mod history; // operations, lists, watches
mod keys; // linearizability of each key
mod reads; // reads and lists at their revision
mod recorder; // histories of concurrent clients
mod register; // the sequential specification of one key
mod revisions; // revisions in real time
mod search; // Wing, Gong and Lowe's search
mod watches; // order and completeness of watches // all checks of a history

pub use check::{Options, Report, Violated, Violation, check, check_linearizability};
pub use end::EndState;
pub use event_log::Event;
pub use history::{
    Consistency, History, Key, KeyState, ListRead, Operation, Outcome, Request, Revision, Time,
    Value,
};
pub use recorder::{OperationId, Recorder};
pub use watches::{Watch, WatchRecord};
