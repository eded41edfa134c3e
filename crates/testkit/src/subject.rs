//! What is tested: an operator that is started, killed at a chosen point, and started again.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::account::Account;

/// How an operator is run: with a client, until a token is cancelled. Errors fail the test.
pub type Run = fn(kube::Client, CancellationToken) -> BoxFuture<'static, Result<(), String>>;

/// A running operator.
pub struct Subject {
    stop: CancellationToken,
    task: AbortOnDropHandle<Result<(), String>>,
}

impl Subject {
    /// Starts it with an account.
    pub fn start(run: Run, account: &Account) -> Self {
        let stop = CancellationToken::new();
        let task: JoinHandle<_> = tokio::spawn(run(account.client.clone(), stop.clone()));
        Self {
            stop,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Stops it in order.
    ///
    /// # Panics
    /// It failed.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task
            .await
            .expect("it does not panic")
            .expect("it ends well");
    }

    /// Ends it at once, as a power cut does.
    pub async fn kill(self) {
        self.task.abort();
        // What it was doing is dropped when the task is joined.
        _ = self.task.await;
    }
}
