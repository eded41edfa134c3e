//! Running operators in this process.
//!
//! Inputs: operators, a client, options. Output: a handle to wait for readiness, failure and the
//! end.
//!
//! Guarantee: dropping the handle aborts the operators; `stop` ends them gracefully.

use bellerophon::{Manager, ManagerError};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use thiserror::Error;
use tokio::{sync::oneshot, task::JoinError};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{Operator, RunOptions, SetupError, manager};

/// The field manager that applies CRDs.
const FIELD_MANAGER: &str = "bellerophon";

/// Why operators could not be started, or ended without being stopped.
#[derive(Debug, Error)]
pub enum RunError {
    /// A CRD cannot be applied.
    #[error("cannot apply CRD {name}: {source}")]
    Define {
        /// The name of the CRD.
        name: String,
        /// The error of the request.
        source: Box<kube::Error>,
    },
    /// An operator cannot be set up.
    #[error("cannot set up the operators: {0}")]
    Setup(SetupError),
    /// A controller or another runnable failed.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// The operators ended before they were ready.
    #[error("the operators ended before they were ready")]
    Ended,
    /// A task panicked.
    #[error("the operators ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

/// Applies the CRDs of operators.
///
/// # Errors
/// The server refuses one.
pub async fn define(client: &Client, operators: &[Operator]) -> Result<(), RunError> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PatchParams::apply(FIELD_MANAGER).force();
    for crd in operators.iter().flat_map(|operator| (operator.crds)()) {
        let name = crd.name_any();
        api.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .map_err(|source| RunError::Define {
                name,
                source: Box::new(source),
            })?;
    }
    Ok(())
}

/// Runs operators until `stop` is cancelled. Their CRDs must exist.
///
/// # Errors
/// They cannot be set up, or a controller failed.
pub async fn run_until(
    stop: CancellationToken,
    client: Client,
    operators: &[Operator],
    options: RunOptions,
) -> Result<(), RunError> {
    let manager = manager(client, operators, options).map_err(RunError::Setup)?;
    Ok(manager.run(stop).await?)
}

/// Running operators.
pub struct Running {
    stop: CancellationToken,
    /// `None` once its result was returned.
    task: Option<AbortOnDropHandle<Result<(), ManagerError>>>,
    /// `None` once received.
    synced: Option<oneshot::Receiver<()>>,
}

impl Running {
    /// Starts a manager. The CRDs it needs must exist.
    pub fn start(manager: Manager) -> Self {
        let (sender, synced) = oneshot::channel();
        // The manager starts background work once caches are synced and the Lease is held.
        let manager = manager.background("start", |stop| async move {
            // The receiver is dropped if nobody waits for readiness.
            _ = sender.send(());
            stop.cancelled().await;
            Ok(())
        });
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(manager.run(stop.clone())));
        Self {
            stop,
            task: Some(task),
            synced: Some(synced),
        }
    }

    /// Waits until caches are synced and the Lease is held.
    ///
    /// # Errors
    /// The operators ended before.
    pub async fn ready(&mut self) -> Result<(), RunError> {
        if let Some(synced) = &mut self.synced
            && synced.await.is_err()
        {
            self.ended().await?;
            return Err(RunError::Ended);
        }
        self.synced = None;
        Ok(())
    }

    /// Waits until the operators end, which they do only if one of them fails or they are stopped.
    ///
    /// # Errors
    /// Why they ended. A second call returns `Ok`.
    pub async fn ended(&mut self) -> Result<(), RunError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        Ok(ended??)
    }

    /// Stops the operators and waits for running reconciles.
    ///
    /// # Errors
    /// One failed, or did not end within the grace period.
    pub async fn stop(mut self) -> Result<(), RunError> {
        self.stop.cancel();
        self.ended().await
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("ended", &self.task.is_none())
            .finish_non_exhaustive()
    }
}
