//! A Manager in its own task.

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Manager, ManagerError};

/// A started [`Manager`]. Dropping it aborts everything the Manager runs.
///
/// ```no_run
/// # use bellerophon::manager::{Manager, ManagerError};
/// # async fn example(mgr: Manager) -> Result<(), ManagerError> {
/// let mut running = mgr.start();
/// running.ready().await?;
/// running.stop().await
/// # }
/// ```
pub struct RunningManager {
    stop: CancellationToken,
    /// `None` once its result was returned.
    task: Option<AbortOnDropHandle<Result<(), ManagerError>>>,
    /// `None` once it was received.
    ready: Option<oneshot::Receiver<()>>,
}

impl RunningManager {
    pub(super) fn new(manager: Manager) -> Self {
        let stop = CancellationToken::new();
        let (sender, ready) = oneshot::channel();
        let run = manager.run_with(stop.clone(), Some(sender));
        Self {
            stop,
            task: Some(AbortOnDropHandle::new(tokio::spawn(run))),
            ready: Some(ready),
        }
    }

    /// Waits until the caches are synced, the lease is held and controllers run.
    ///
    /// # Errors
    /// The Manager ended first.
    pub async fn ready(&mut self) -> Result<(), ManagerError> {
        self.wait_ready().await
    }

    fn wait_ready(&mut self) -> BoxFuture<'_, Result<(), ManagerError>> {
        Box::pin(async move {
            if let Some(ready) = &mut self.ready
                && ready.await.is_err()
            {
                // The reason is the error of the Manager; `Stopped` only if there is none.
                self.ended().await?;
                return Err(ManagerError::Stopped);
            }
            self.ready = None;
            Ok(())
        })
    }

    /// Waits until the Manager ends by itself, which it does only if a part fails.
    ///
    /// # Errors
    /// Why it ended; returned once.
    pub async fn ended(&mut self) -> Result<(), ManagerError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        ended?
    }

    /// Stops the Manager and waits for what it runs.
    ///
    /// # Errors
    /// A part had failed, or did not end in time.
    pub async fn stop(mut self) -> Result<(), ManagerError> {
        self.stop.cancel();
        self.ended().await
    }
}

impl std::fmt::Debug for RunningManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningManager")
            .field("ended", &self.task.is_none())
            .finish_non_exhaustive()
    }
}
