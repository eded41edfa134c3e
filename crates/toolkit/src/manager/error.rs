//! Errors of a Manager that could not start, or that ended without being stopped.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinError;

use crate::controller::ControllerError;
use crate::error::BoxError;
use crate::informer::{SetupError, SyncError};
use crate::leader::LeaderError;
#[cfg(feature = "webhooks")]
use crate::webhook::WebhookError;

/// Why a Manager could not start, or ended other than by being stopped.
///
/// Its `Debug` output is the chain of causes on one line, so that `main` may return it.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use bellerophon::prelude::*;
///
/// #[tokio::main]
/// async fn main() -> ExitCode {
///     let result = async { Manager::try_default().await?.run().await }.await;
///     match result {
///         Ok(()) => ExitCode::SUCCESS,
///         Err(ManagerError::Setup(mistakes)) => {
///             mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
///             ExitCode::from(2)
///         }
///         Err(error) => {
///             eprintln!("{error}");
///             ExitCode::FAILURE
///         }
///     }
/// }
/// ```
#[derive(Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// There is no usable configuration of a cluster.
    #[error("no cluster is configured: {0}; set KUBECONFIG, or run in a pod")]
    Config(#[source] BoxError),
    /// The setup has mistakes; each names the file and line.
    #[error("the setup has mistakes: {}", .0.join("; "))]
    Setup(Vec<String>),
    /// An address cannot be bound.
    #[error("cannot serve on {address}: {source}; choose another address")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A cache cannot be synced.
    #[error("a cache cannot be synced: {0}")]
    Sync(#[from] SyncError),
    /// Caches took too long.
    #[error("the caches of {} were not synced within {limit:?}", resources.join(", "))]
    SyncTimeout {
        /// The resources.
        resources: Vec<String>,
        /// The limit.
        limit: Duration,
    },
    /// A controller stopped with an error.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// A runnable failed.
    #[error("{name} failed: {source}")]
    Runnable {
        /// Its name.
        name: String,
        /// Why.
        source: BoxError,
    },
    /// The lease cannot be held.
    #[error(transparent)]
    Leader(#[from] LeaderError),
    /// Something did not end in time after the stop, and was aborted.
    #[error("not everything ended within {0:?} after the stop; the rest was aborted")]
    GracefulShutdown(Duration),
    /// A second signal came before everything had ended.
    #[error("interrupted again before everything had ended")]
    Interrupted,
    /// It ended before it was ready.
    #[error("the manager was stopped before it was ready")]
    Stopped,
    /// A task panicked, outside of any reconcile.
    #[error("a task ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

impl ManagerError {
    pub(super) fn config(error: impl Into<BoxError>) -> Self {
        Self::Config(error.into())
    }

    pub(super) fn setup(errors: &[SetupError]) -> Self {
        Self::Setup(errors.iter().map(ToString::to_string).collect())
    }
}

#[cfg(feature = "webhooks")]
impl From<WebhookError> for ManagerError {
    fn from(error: WebhookError) -> Self {
        let failed = |name: &str, source: BoxError| Self::Runnable {
            name: name.to_owned(),
            source,
        };
        match error {
            WebhookError::NoService => Self::Setup(vec![error.to_string()]),
            WebhookError::Bind { address, source } => Self::Bind { address, source },
            WebhookError::Tls(source) => failed("the webhook server", source.into()),
            WebhookError::Registration(source) => {
                failed("the registration of webhooks", source.into())
            }
        }
    }
}

impl fmt::Debug for ManagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
