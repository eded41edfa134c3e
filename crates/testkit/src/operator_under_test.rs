//! The operator under test: started, stopped, killed and started again.
//!
//! Input: a function that sets up a Manager for a client. Output: a handle of its run.
//!
//! Guarantee: runs with equal seeds send the same requests at the same virtual times.

use std::time::Duration;

use bellerophon::{
    leader::LeaderElectionOptions,
    manager::{Manager, ManagerError, ManagerOptions},
    testing,
};
use kube::Client;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::account::Account;

/// The seed of every run, so that a failing test is repeatable.
const SEED: u64 = 3;

/// The namespace of the Leases of replicas.
pub(crate) const LEASE_NAMESPACE: &str = "default";

/// A running operator.
///
/// Dropping it aborts the operator, as a crash does.
///
/// # Example
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon_testkit::{OperatorUnderTest, TestCluster};
/// use kube::Client;
///
/// /// An operator without controllers.
/// fn idle(client: Client, options: ManagerOptions) -> Manager {
///     Manager::new(client, options)
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("idle", &[]).await;
/// OperatorUnderTest::start(idle, &account).kill().await;
/// OperatorUnderTest::start(idle, &account).stop().await;
/// cluster.stop().await;
/// # }
/// ```
pub struct OperatorUnderTest {
    stop: CancellationToken,
    task: AbortOnDropHandle<Result<(), ManagerError>>,
}

impl OperatorUnderTest {
    /// Starts an operator with the client of an account and
    /// [its options](Account::manager_options).
    pub fn start(
        operator: impl FnOnce(Client, ManagerOptions) -> Manager,
        account: &Account,
    ) -> Self {
        Self::run(operator(account.client.clone(), account.manager_options()))
    }

    /// Starts a replica that competes for a Lease in `default`, which lasts 75 s.
    pub fn start_replica(
        operator: impl FnOnce(Client, ManagerOptions) -> Manager,
        account: &Account,
        lease: &str,
        identity: &str,
    ) -> Self {
        // Default timing would spend most of a test on renewals: 450 in 15 minutes of virtual time.
        let election = LeaderElectionOptions {
            lease_namespace: LEASE_NAMESPACE.to_owned(),
            identity: Some(identity.to_owned()),
            lease_duration: Duration::from_secs(75),
            renew_deadline: Duration::from_secs(50),
            retry_period: Duration::from_secs(10),
            ..LeaderElectionOptions::new(lease)
        };
        let options = ManagerOptions {
            identity: Some(identity.to_owned()),
            leader_election: Some(election),
            ..account.manager_options()
        };
        Self::run(operator(account.client.clone(), options))
    }

    fn run(mgr: Manager) -> Self {
        let stop = CancellationToken::new();
        // Not `run`, which listens for signals of the test process.
        let run = mgr.run_until(stop.clone().cancelled_owned());
        Self {
            stop,
            task: AbortOnDropHandle::new(tokio::spawn(run)),
        }
    }

    /// Stops it gracefully and waits for it to end.
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

impl Account {
    /// Options of a Manager that runs as this account: seeded randomness, the clock of the test
    /// cluster, the trace on, no address bound.
    pub fn manager_options(&self) -> ManagerOptions {
        ManagerOptions {
            identity: Some(self.name.clone()),
            clock: self.clock,
            ..testing::options(SEED)
        }
    }
}
