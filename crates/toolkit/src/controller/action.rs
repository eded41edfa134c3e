//! Action and Error: how a reconcile ends, and what the queue does next.
//!
//! In: the result of a reconciler. Out: forget, requeue after a delay, or back off.
//! Guarantees: exactly one thing follows each result.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{BoxError, one_line};

/// The result of a successful reconcile.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::prelude::*;
///
/// let done = Action::await_change();
/// let later = Action::requeue_after(Duration::from_secs(10)).reason("no DNS record yet");
/// assert_ne!(done, later);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an action has an effect only as the result of a reconcile"]
pub struct Action {
    pub(crate) requeue_after: Option<Duration>,
    pub(crate) reason: Option<Arc<str>>,
}

impl Action {
    /// The object is as desired; its next change brings it back. Its back-off is reset.
    pub fn await_change() -> Self {
        Self {
            requeue_after: None,
            reason: None,
        }
    }

    /// As [`await_change`](Self::await_change), and reconcile again after this time even if nothing
    /// changes. An earlier change replaces it.
    pub fn requeue_after(delay: Duration) -> Self {
        Self {
            requeue_after: Some(delay),
            reason: None,
        }
    }

    /// Why the object is requeued: the cause of the next reconcile.
    pub fn reason(self, reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..self
        }
    }
}

/// A reconcile that failed. Any error becomes one through `?`, and is retried with back-off.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::prelude::*;
///
/// fn parse(replicas: &str) -> Result<u32, Error> {
///     if replicas.starts_with('-') {
///         return Err(Error::permanent("negative replicas"));
///     }
///     Ok(replicas.parse()?)
/// }
/// assert!(parse("-1").is_err_and(|error| error.is_permanent()));
/// assert!(parse("x").is_err_and(|error| !error.is_permanent()));
/// ```
pub struct Error {
    source: BoxError,
    retry: Retry,
}

/// When a failed key is reconciled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    BackOff,
    After(Duration),
    Never,
}

impl Error {
    /// An error that is retried with back-off.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            retry: Retry::BackOff,
        }
    }

    /// An error that is retried after this time. The back-off of the key does not grow.
    pub fn retry_after(delay: Duration, source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            retry: Retry::After(delay),
        }
    }

    /// An error that a retry does not resolve: the key is reconciled again when the object changes.
    /// Counted in `controller_runtime_terminal_reconcile_errors_total`.
    pub fn permanent(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            retry: Retry::Never,
        }
    }

    /// Whether it is not retried.
    pub fn is_permanent(&self) -> bool {
        self.retry == Retry::Never
    }

    pub(super) fn when_retried(&self) -> Retry {
        self.retry
    }

    /// Whether the server rejected a write because the object had changed (409 Conflict): the cache
    /// was stale, which is no error of the reconciler.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.client_error(), Some(kube::Error::Api(status))
            if status.code == 409 && status.reason == "Conflict")
    }

    /// Whether the API server did not respond, which has nothing to do with the object.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(
            self.client_error(),
            Some(kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_))
        )
    }

    /// The error of the Kubernetes client that caused this one.
    fn client_error(&self) -> Option<&kube::Error> {
        // Reconcilers wrap the errors of the client in their own, so the whole chain is searched.
        let mut error: Option<&(dyn std::error::Error + 'static)> = Some(&*self.source);
        while let Some(current) = error {
            // WriteError has its source in a box, and a downcast sees the box.
            let boxed = current.downcast_ref::<Box<kube::Error>>();
            let found = boxed.map(|boxed| &**boxed).or(current.downcast_ref());
            if found.is_some() {
                return found;
            }
            error = current.source();
        }
        None
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(source: E) -> Self {
        Self {
            source: Box::new(source),
            retry: Retry::BackOff,
        }
    }
}

impl fmt::Display for Error {
    /// The whole chain of causes on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&*self.source))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self}, {:?})", self.retry)
    }
}
