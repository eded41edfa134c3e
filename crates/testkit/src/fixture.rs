//! The common setup of an operator's tests: CRDs, a service account with the operator's
//! permissions, and runs with and without leader election.

use std::collections::BTreeSet;

use bellerophon::{Entropy, LeaderOptions, ManagerOptions};
use bellerophon_operator::{Operator, RunOptions, lease_permissions, permissions_of, run_until};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::{
    account::Account,
    operator_under_test::{OperatorFuture, OperatorUnderTest},
    test_cluster::TestCluster,
};

/// The seed of every run, so that a failing test is repeatable.
const SEED: u64 = 3;

/// The namespace of the Lease of [`OperatorFixture::run_replica`].
const LEASE_NAMESPACE: &str = "default";

/// An operator, ready to be installed and run in a [`TestCluster`].
///
/// # Example
/// ```
/// use bellerophon_operator::{Operator, Placement};
/// use bellerophon_testkit::{OperatorFixture, TestCluster};
///
/// /// An operator without CRDs, permissions and controllers.
/// const IDLE: Operator = Operator {
///     name: "idle",
///     summary: "does nothing",
///     crds: Vec::new,
///     permissions: Vec::new,
///     admission_policies: Vec::new,
///     placement: Placement::Deployment,
///     feature_switches: &[],
///     controllers: |_| Ok(Vec::new()),
/// };
/// const FIXTURE: OperatorFixture = OperatorFixture::new(IDLE);
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::api_server_only().await;
/// let account = FIXTURE.install(&cluster).await;
/// let operator = FIXTURE.start(&account);
/// operator.stop().await;
/// cluster.stop().await;
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OperatorFixture {
    operator: Operator,
}

impl OperatorFixture {
    /// The fixture of an operator.
    pub const fn new(operator: Operator) -> Self {
        Self { operator }
    }

    /// The permissions of the operator, including the one to record Events.
    pub fn permissions(&self) -> Vec<PolicyRule> {
        permissions_of(&self.operator)
    }

    /// Creates the operator's CRDs, and a service account with the operator's permissions.
    ///
    /// # Panics
    /// The server refuses one.
    pub async fn install(&self, cluster: &TestCluster) -> Account {
        self.install_with(cluster, &self.permissions()).await
    }

    /// As [`install`](Self::install), with the permissions for leader election too.
    ///
    /// # Panics
    /// The server refuses one.
    pub async fn install_with_leader_election(&self, cluster: &TestCluster) -> Account {
        let mut rules = self.permissions();
        rules.extend(lease_permissions(&self.operator));
        self.install_with(cluster, &rules).await
    }

    async fn install_with(&self, cluster: &TestCluster, rules: &[PolicyRule]) -> Account {
        cluster.install_crds((self.operator.crds)()).await;
        cluster.service_account(self.operator.name, rules).await
    }

    /// Starts the operator without leader election.
    pub fn start(&self, account: &Account) -> OperatorUnderTest {
        OperatorUnderTest::start(|client, stop| self.run(client, stop), account)
    }

    /// Runs the operator without leader election.
    pub fn run(&self, client: Client, stop: CancellationToken) -> OperatorFuture {
        self.run_with(options(None), client, stop)
    }

    /// Runs the operator without leader election, with these feature switches on.
    pub fn run_with_feature_switches(
        &self,
        feature_switches: &[&str],
        client: Client,
        stop: CancellationToken,
    ) -> OperatorFuture {
        let enabled: BTreeSet<String> = feature_switches
            .iter()
            .copied()
            .map(str::to_owned)
            .collect();
        let options = RunOptions {
            feature_switches: enabled,
            ..options(None)
        };
        self.run_with(options, client, stop)
    }

    /// Runs a replica that competes for the Lease of the operator's name in `default`.
    pub fn run_replica(
        &self,
        identity: &str,
        client: Client,
        stop: CancellationToken,
    ) -> OperatorFuture {
        let leader = LeaderOptions::new(LEASE_NAMESPACE, self.operator.name, identity);
        self.run_with(options(Some(leader)), client, stop)
    }

    fn run_with(
        &self,
        options: RunOptions,
        client: Client,
        stop: CancellationToken,
    ) -> OperatorFuture {
        let operator = self.operator;
        Box::pin(async move {
            run_until(stop, client, &[operator], options)
                .await
                .map_err(|error| error.to_string())
        })
    }
}

fn options(leader: Option<LeaderOptions>) -> RunOptions {
    RunOptions {
        manager: ManagerOptions {
            entropy: Entropy::seeded(SEED),
            leader,
            ..ManagerOptions::default()
        },
        ..RunOptions::default()
    }
}
