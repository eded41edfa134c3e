//! All checks of a history.
//!
//! In: a history. Out: a [`Report`], or the first [`Violation`].

use crate::{
    end,
    event_log::EventLog,
    history::{History, Operation},
    keys, reads,
    report::{Options, Report, Violation},
    revisions, watches,
};

/// Checks a history.
///
/// # Errors
/// The first violated guarantee. [`Violated::SearchLimit`](crate::Violated::SearchLimit) means that no answer was found within
/// the bounds, which callers treat as a failure.
pub fn check(history: &History, options: &Options) -> Result<Report, Violation> {
    let mut report = Report {
        operations: history.operations.len(),
        ..Report::default()
    };
    let log = EventLog::collect(history)?;
    revisions::check(history)?;
    keys::check(history, &log, options, &mut report)?;
    reads::check(history, &log, &mut report)?;
    watches::check(history, &log, &mut report)?;
    end::check(history, &log)?;
    Ok(report)
}

/// Checks only that each key is linearizable. Other clients' reads and watches do not bound writes
/// of unknown outcome.
///
/// # Errors
/// As [`check`].
pub fn check_linearizability(
    operations: &[Operation],
    options: &Options,
) -> Result<Report, Violation> {
    let history = History {
        operations: operations.to_vec(),
        ..History::default()
    };
    let mut report = Report {
        operations: operations.len(),
        ..Report::default()
    };
    keys::check(&history, &EventLog::default(), options, &mut report)?;
    Ok(report)
}
