//! Operators at work in this process.
//!
//! In: operators, a client, options. Out: a handle that tells when their caches are synced and why they ended.
//! Holds: dropping the handle ends them at once; stopping it ends them in order.

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

/// Who defines kinds.
const DEFINER: &str = "bellerophon";

/// Why operators could not be started, or ended by themselves.
#[derive(Debug, Error)]
pub enum RunError {
    /// A kind cannot be defined.
    #[error("cannot define {name}: {source}")]
    Define {
        /// The name of the definition.
        name: String,
        /// What the server said.
        source: Box<kube::Error>,
    },
    /// An operator cannot be set up.
    #[error("cannot set up the operators: {0}")]
    Setup(SetupError),
    /// A part failed.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// They ended before they were ready.
    #[error("the operators ended before they were ready")]
    Ended,
    /// A task panicked.
    #[error("the operators ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

/// Makes the kinds of operators known to a server, or renews them.
///
/// # Errors
/// The server refuses one.
pub async fn define(client: &Client, operators: &[Operator]) -> Result<(), RunError> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PatchParams::apply(DEFINER).force();
    for definition in operators
        .iter()
        .flat_map(|operator| (operator.definitions)())
    {
        let applied = api
            .patch(&definition.name_any(), &params, &Patch::Apply(&definition))
            .await;
        applied.map_err(|source| RunError::Define {
            name: definition.name_any(),
            source: Box::new(source),
        })?;
    }
    Ok(())
}

/// Runs operators until they are told to stop. The kinds they need are defined.
///
/// # Errors
/// They cannot be set up, or a part failed.
pub async fn run_until(
    stop: CancellationToken,
    client: Client,
    operators: &[Operator],
    options: RunOptions,
) -> Result<(), RunError> {
    let manager = manager(client, operators, options).map_err(RunError::Setup)?;
    Ok(manager.run(stop).await?)
}

/// Operators at work.
pub struct Running {
    stop: CancellationToken,
    /// `None` once somebody was told how it ended.
    task: Option<AbortOnDropHandle<Result<(), ManagerError>>>,
    /// `None` once it came.
    synced: Option<oneshot::Receiver<()>>,
}

impl Running {
    /// Starts what a manager runs. The kinds it needs are defined.
    pub fn start(manager: Manager) -> Self {
        let (tell, synced) = oneshot::channel();
        // Background work starts when caches are synced and the lease is held.
        let manager = manager.background("start", |stop| async move {
            // Nobody may be waiting.
            _ = tell.send(());
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

    /// Waits until they work: caches synced, lease held.
    ///
    /// # Errors
    /// They ended first.
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

    /// Waits until they end by themselves, which they do only when one of them fails.
    ///
    /// # Errors
    /// Why they ended; told once.
    pub async fn ended(&mut self) -> Result<(), RunError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        Ok(ended??)
    }

    /// Stops them and waits for what they have begun.
    ///
    /// # Errors
    /// One had failed, or did not end in time.
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
