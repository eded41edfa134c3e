//! The operator under test: started, stopped, killed and started again.

use futures_util::future::BoxFuture;
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::account::Account;

/// A run of an operator. It ends when its token is cancelled; an error fails the test.
pub type OperatorFuture = BoxFuture<'static, Result<(), String>>;

/// A running operator.
///
/// Dropping it aborts the operator, as a crash does.
///
/// # Example
/// ```
/// use bellerophon_testkit::{OperatorFuture, OperatorUnderTest, TestCluster};
/// use tokio_util::sync::CancellationToken;
///
/// /// An operator that does nothing.
/// fn run(_client: kube::Client, stop: CancellationToken) -> OperatorFuture {
///     Box::pin(async move {
///         stop.cancelled().await;
///         Ok(())
///     })
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("idle", &[]).await;
/// OperatorUnderTest::start(run, &account).kill().await;
/// OperatorUnderTest::start(run, &account).stop().await;
/// cluster.stop().await;
/// # }
/// ```
pub struct OperatorUnderTest {
    stop: CancellationToken,
    task: AbortOnDropHandle<Result<(), String>>,
}

impl OperatorUnderTest {
    /// Starts an operator with the client of an account.
    pub fn start(
        run: impl FnOnce(Client, CancellationToken) -> OperatorFuture,
        account: &Account,
    ) -> Self {
        let stop = CancellationToken::new();
        let task: JoinHandle<_> = tokio::spawn(run(account.client.clone(), stop.clone()));
        Self {
            stop,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Stops it gracefully: cancels its token and waits for it to end.
    ///
    /// # Panics
    /// It panicked or returned an error.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task
            .await
            .expect("the operator does not panic")
            .expect("the operator returns no error");
    }

    /// Aborts it at its next await point, as a crash does.
    pub async fn kill(self) {
        self.task.abort();
        // Joining the task drops its state, so that nothing of it runs afterwards.
        _ = self.task.await;
    }
}
