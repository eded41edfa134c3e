//! Whether a cache holds what the server has, and if not, why not.
//! In: what each feed achieved or suffered. Out: one answer for the informer, to ask or to wait for.
//! Holds: a reason that waiting does not mend ends the waiting.

use tokio::sync::watch;

use crate::source::SourceError;

/// Why a cache is not synced, and will not be unless somebody acts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The server refuses to list or watch.
    #[error("cannot list {what}: {message}; grant list and watch on it")]
    Forbidden {
        /// The resource, and its namespace if it is limited to one.
        what: String,
        /// What the server said.
        message: String,
    },
    /// The server does not know who asks.
    #[error("cannot list {what}: {message}; renew the credentials")]
    Unauthorized {
        /// The resource, and its namespace if it is limited to one.
        what: String,
        /// What the server said.
        message: String,
    },
    /// The server does not serve this resource.
    #[error(
        "cannot list {what}: the server has no such kind; install its CustomResourceDefinition or name a served version"
    )]
    NoSuchKind {
        /// The resource, and its namespace if it is limited to one.
        what: String,
    },
    /// The informer stopped, or the handler was removed, before the cache was complete.
    #[error("{what} are no longer watched; their informer was stopped")]
    Stopped {
        /// The resource.
        what: String,
    },
}

impl SyncError {
    /// `None` for errors that time alone may mend.
    pub(crate) fn from_source(
        what: &str,
        namespace: Option<&str>,
        error: &SourceError,
    ) -> Option<Self> {
        let what = namespace.map_or_else(
            || what.to_owned(),
            |namespace| format!("{what} in namespace {namespace}"),
        );
        match error {
            SourceError::Forbidden(message) => Some(Self::Forbidden {
                what,
                message: message.clone(),
            }),
            SourceError::Unauthorized(message) => Some(Self::Unauthorized {
                what,
                message: message.clone(),
            }),
            SourceError::NoSuchKind(_) => Some(Self::NoSuchKind { what }),
            _ => None,
        }
    }
}

/// The state of an informer as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Every feed has listed.
    pub(crate) synced: bool,
    /// The first lasting problem of a feed that has not listed.
    pub(crate) problem: Option<SyncError>,
    /// It ran and does no longer.
    pub(crate) stopped: bool,
}

impl Status {
    /// Waits until the caches are synced or cannot be.
    pub(crate) async fn settled(
        what: &str,
        status: &mut watch::Receiver<Self>,
    ) -> Result<(), SyncError> {
        let stopped = || SyncError::Stopped {
            what: what.to_owned(),
        };
        let status = status
            .wait_for(|status| status.synced || status.stopped || status.problem.is_some())
            .await;
        match status.as_deref() {
            Ok(Self {
                stopped: false,
                synced: true,
                ..
            }) => Ok(()),
            Ok(Self {
                stopped: false,
                problem: Some(problem),
                ..
            }) => Err(problem.clone()),
            _ => Err(stopped()),
        }
    }
}
