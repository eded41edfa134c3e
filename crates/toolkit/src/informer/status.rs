//! The sync status of a cache, with the reason if it is not synced.
//! In: the state of each reflector. Out: the state of the informer.
//! Guarantees: an error that a retry does not resolve ends the waiting.

use tokio::sync::watch;

use crate::list_watch::ListWatchError;

/// Why a cache is not synced, and a retry does not help.
///
/// ```
/// use bellerophon::informer::{SharedInformer, SyncError};
/// use k8s_openapi::api::core::v1::Secret;
///
/// /// Whether secrets may be read. Without the permission, the feature that needs them is off.
/// async fn may_read(secrets: &SharedInformer<Secret>) -> Result<bool, SyncError> {
///     match secrets.wait_for_cache_sync().await {
///         Ok(()) => Ok(true),
///         Err(SyncError::Forbidden { .. }) => Ok(false),
///         Err(error) => Err(error),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The account may not list or watch.
    #[error("cannot list {resource}: {message}; grant list and watch on it")]
    Forbidden {
        /// The resource, and its namespace if it is limited to one.
        resource: String,
        /// The message of the server.
        message: String,
    },
    /// The account is not authenticated.
    #[error("cannot list {resource}: {message}; renew the credentials")]
    Unauthorized {
        /// The resource, and its namespace if it is limited to one.
        resource: String,
        /// The message of the server.
        message: String,
    },
    /// The server does not serve this resource.
    #[error(
        "cannot list {resource}: the server does not serve it; install its CustomResourceDefinition or use a served version"
    )]
    NotServed {
        /// The resource, and its namespace if it is limited to one.
        resource: String,
    },
    /// The informer stopped, or the handler was removed, before the cache was synced.
    #[error("{resource} are no longer watched: their informer stopped")]
    Stopped {
        /// The resource.
        resource: String,
    },
}

impl SyncError {
    /// `None` for errors that a retry may resolve.
    pub(crate) fn from_list_watch(
        resource: &str,
        namespace: Option<&str>,
        error: &ListWatchError,
    ) -> Option<Self> {
        let resource = namespace.map_or_else(
            || resource.to_owned(),
            |namespace| format!("{resource} in namespace {namespace}"),
        );
        match error {
            ListWatchError::Forbidden(message) => Some(Self::Forbidden {
                resource,
                message: message.clone(),
            }),
            ListWatchError::Unauthorized(message) => Some(Self::Unauthorized {
                resource,
                message: message.clone(),
            }),
            // Network errors and a busy server are left out: waiting for them is what the retry is
            // for.
            ListWatchError::NotFound(_) => Some(Self::NotServed { resource }),
            _ => None,
        }
    }
}

/// The state of an informer as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Every reflector has listed.
    pub(crate) synced: bool,
    /// The first lasting problem of a reflector that has not listed.
    pub(crate) problem: Option<SyncError>,
    /// It ran and stopped.
    pub(crate) stopped: bool,
}

impl Status {
    /// Waits until the caches are synced or cannot be.
    pub(crate) async fn settled(
        resource: &str,
        status: &mut watch::Receiver<Self>,
    ) -> Result<(), SyncError> {
        let stopped = || SyncError::Stopped {
            resource: resource.to_owned(),
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
