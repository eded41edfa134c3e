//! Outcome: what a reconcile ends with, and what the queue does about it.
//!
//! In: the reconciler's answer. Out: forget, wait, or back off.
//! Holds: exactly one thing follows each answer; an error never hides a wish to be called again.

use std::fmt;
use std::time::Duration;

/// A reconcile that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is as wanted; the next change brings it back. Its back-off starts afresh.
    Done,
    /// As `Done`, and come back after this time even if nothing changes. An earlier change replaces it.
    RequeueAfter(Duration),
}

/// A reconcile that failed. Any error becomes one through `?`, and is retried with back-off.
pub struct Failure {
    source: Box<dyn std::error::Error + Send + Sync>,
    permanent: bool,
}

/// What a reconciler answers.
pub type ReconcileResult = Result<Outcome, Failure>;

impl Failure {
    /// A failure that trying again does not mend: not retried until the object changes, counted in `controller_runtime_terminal_reconcile_errors_total`.
    pub fn permanent(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            source: source.into(),
            permanent: true,
        }
    }

    /// A failure from words or a boxed error, retried with back-off.
    pub fn retry(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            source: source.into(),
            permanent: false,
        }
    }

    /// Whether it is not retried.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(source: E) -> Self {
        Self {
            source: Box::new(source),
            permanent: false,
        }
    }
}

impl fmt::Display for Failure {
    /// The whole chain of causes on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        let mut cause = self.source.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Failure({self}{})",
            if self.permanent { ", permanent" } else { "" }
        )
    }
}
