//! The common setup of an operator's tests: CRDs, a service account with the operator's
//! permissions, and a Manager that runs it.

use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon_operator::{Operator, WEBHOOKS, lease_permissions, manager, permissions_of};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;

use crate::{account::Account, operator_under_test::OperatorUnderTest, test_cluster::TestCluster};

/// An operator, ready to be installed and run in a [`TestCluster`].
///
/// # Example
/// ```
/// use bellerophon_operator::{Operator, Placement, RoleAggregation};
/// use bellerophon_testkit::{OperatorFixture, TestCluster};
///
/// /// An operator without CRDs, permissions and controllers.
/// const IDLE: Operator = Operator {
///     name: "idle",
///     summary: "does nothing",
///     crds: Vec::new,
///     permissions: Vec::new,
///     admission_policies: Vec::new,
///     role_aggregation: RoleAggregation::EditAndView,
///     placement: Placement::Deployment,
///     feature_switches: &[],
///     webhooks: None,
///     setup: |_mgr, _switches| {},
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
    pub(crate) operator: Operator,
    feature_switches: &'static [&'static str],
}

impl OperatorFixture {
    /// The fixture of an operator, with all feature switches off.
    pub const fn new(operator: Operator) -> Self {
        Self {
            operator,
            feature_switches: &[],
        }
    }

    /// The same operator with these feature switches on.
    #[must_use]
    pub const fn with_feature_switches(self, on: &'static [&'static str]) -> Self {
        Self {
            feature_switches: on,
            ..self
        }
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

    pub(crate) async fn install_with(
        &self,
        cluster: &TestCluster,
        rules: &[PolicyRule],
    ) -> Account {
        cluster.install_crds((self.operator.crds)()).await;
        cluster.service_account(self.operator.name, rules).await
    }

    /// A Manager that runs the operator, without its webhooks.
    pub fn manager(&self, client: Client, options: ManagerOptions) -> Manager {
        let switches = self.feature_switches.iter().copied().collect();
        manager(client, &[self.operator], &switches, options)
    }

    /// A Manager that runs the operator and serves its webhooks.
    pub(crate) fn manager_with_webhooks(&self, client: Client, options: ManagerOptions) -> Manager {
        let switches = self.feature_switches.iter().copied();
        let switches = switches.chain([WEBHOOKS]).collect();
        manager(client, &[self.operator], &switches, options)
    }

    /// Starts the operator without leader election.
    pub fn start(&self, account: &Account) -> OperatorUnderTest {
        OperatorUnderTest::start(|client, options| self.manager(client, options), account)
    }
}
