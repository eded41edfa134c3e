//! Convergence checks: the same scenario with crashes, faults and failovers.
//!
//! Inputs: a function that sets up a Manager of an operator, how to set up a cluster for it, and
//! how to wait for the converged state. Output: a passed test, or a panic with the difference.
//!
//! Guarantees: every run has its own cluster; after convergence, nothing may be written for ten
//! minutes of virtual time.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use bellerophon::{
    ObjectKey,
    client::ReconcileClient,
    manager::{Manager, ManagerOptions},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::time::timeout;

use crate::{
    account::Account,
    external::crash_timeout,
    faults::Fault,
    operator_under_test::{LEASE_NAMESPACE, OperatorUnderTest},
    test_cluster::TestCluster,
};

/// Time for pending writes to finish: longer than any fault lasts and than a client backs off.
const SETTLE_TIME: Duration = Duration::from_secs(5 * 60);

/// How long nothing may be written after [`SETTLE_TIME`].
const QUIET_TIME: Duration = Duration::from_secs(10 * 60);

/// The identities of the two replicas in [`converges_after_failover`].
const REPLICAS: [&str; 2] = ["replica-0", "replica-1"];

/// The state that a run converged to.
#[derive(Debug, PartialEq, Eq)]
struct FinalState {
    /// The test's own description of the cluster.
    description: String,
    /// The number of objects created, by resource.
    created: BTreeMap<String, usize>,
}

/// Checks that an operator converges to the same state after a crash at any point.
///
/// `setup` returns a new cluster, the operator's account and the objects to reconcile; `settled`
/// waits for the desired state and describes it. The operator first runs undisturbed. Then, in a
/// new cluster for each write, it is killed directly after its first write, its second, and so on,
/// and started again. Every run must end in the state of the first one, create as many objects,
/// make no forbidden request, and write nothing for ten minutes of virtual time afterwards.
/// Returns the number of crashes.
///
/// # Panics
/// A run ends in another state, makes a forbidden request, or keeps writing.
///
/// # Example
/// ```
/// use bellerophon::{client::ReconcileClient, prelude::*};
/// use bellerophon_testkit::{TestCluster, converges_after_any_crash, wait_until};
/// use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::PolicyRule};
/// use kube::Client;
/// use tokio_util::sync::CancellationToken;
///
/// /// An operator that applies one ConfigMap when it starts.
/// fn operator(client: Client, options: ManagerOptions) -> Manager {
///     let mut mgr = Manager::new(client.clone(), options);
///     mgr.add("example", async move |stop: CancellationToken| {
///         let mut one = ConfigMap::default();
///         one.metadata.name = Some("one".into());
///         one.metadata.namespace = Some("default".into());
///         ReconcileClient::new(client, "example").apply(&one).await?;
///         stop.cancelled().await;
///         Ok(())
///     });
///     mgr
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let rule = PolicyRule {
///     api_groups: Some(vec![String::new()]),
///     resources: Some(vec!["configmaps".into()]),
///     verbs: vec!["create".into(), "patch".into()],
///     ..PolicyRule::default()
/// };
/// let setup = async || {
///     let cluster = TestCluster::api_server_only().await;
///     let account = cluster.service_account("example", &[rule.clone()]).await;
///     (cluster, account)
/// };
/// let settled = async |cluster: &TestCluster| {
///     let config_maps = cluster.namespaced::<ConfigMap>("default");
///     let all = wait_until(&config_maps, "it exists", |all| !all.is_empty()).await;
///     format!("{} ConfigMaps", all.len())
/// };
/// let crashes = converges_after_any_crash(operator, setup, settled).await;
/// assert_eq!(crashes, 1);
/// # }
/// ```
pub async fn converges_after_any_crash(
    operator: impl Fn(Client, ManagerOptions) -> Manager,
    setup: impl AsyncFn() -> (TestCluster, Account),
    settled: impl AsyncFn(&TestCluster) -> String,
) -> usize {
    let start = |account: &Account| OperatorUnderTest::start(&operator, account);
    // The number of writes is that of the undisturbed run, so each of them is followed by a crash
    // once.
    let (expected, writes) = undisturbed(start, &setup, &settled).await;
    for crash in 1..=writes {
        let (cluster, account) = setup().await;
        let first = start(&account);
        wait_for_crash(&account, crash).await;
        first.kill().await;
        let second = start(&account);
        let actual = final_state(cluster, account, vec![second], &settled).await;
        assert_eq!(
            actual, expected,
            "another final state after a crash that followed write {crash}"
        );
    }
    writes
}

/// Checks that an operator converges although it crashes all the time.
///
/// As [`converges_after_any_crash`], in one run: the operator is killed after one write and after
/// two writes, in turn, and started again. It takes as long as two runs, and reaches states that
/// follow several crashes. Returns the number of crashes.
///
/// # Panics
/// The run ends in another state, makes a forbidden request, or keeps writing; or the operator
/// makes no progress.
pub async fn converges_while_crashing(
    operator: impl Fn(Client, ManagerOptions) -> Manager,
    setup: impl AsyncFn() -> (TestCluster, Account),
    settled: impl AsyncFn(&TestCluster) -> String,
) -> usize {
    let start = |account: &Account| OperatorUnderTest::start(&operator, account);
    let (expected, _) = undisturbed(start, &setup, &settled).await;
    let (cluster, account) = setup().await;
    let mut crashes = 0;
    let mut running = start(&account);
    // After each single write, an operator could never record a response that it has to record.
    let mut counts = [1, 2].into_iter().cycle();
    let description = {
        let mut description = pin!(settled(&cluster));
        loop {
            let seen = *account.write_count.borrow();
            let count = counts.next().expect("a cycle has no end");
            tokio::select! {
                description = &mut description => break description,
                () = account.wait_for_writes(seen + count) => {}
            }
            running.kill().await;
            crashes += 1;
            running = start(&account);
        }
    };
    let actual = stable_state(cluster, account, vec![running], description).await;
    assert_eq!(
        actual, expected,
        "another final state after {crashes} crashes"
    );
    crashes
}

/// Checks that an operator converges to the same state under every [`Fault`].
///
/// As [`converges_after_any_crash`], with one fault injected from start to end instead of a crash.
///
/// # Panics
/// A run ends in another state, makes a forbidden request, or keeps writing.
pub async fn converges_under_any_fault(
    operator: impl Fn(Client, ManagerOptions) -> Manager,
    setup: impl AsyncFn() -> (TestCluster, Account),
    settled: impl AsyncFn(&TestCluster) -> String,
) {
    let start = |account: &Account| OperatorUnderTest::start(&operator, account);
    let (expected, _) = undisturbed(start, &setup, &settled).await;
    for fault in Fault::ALL {
        let (cluster, account) = setup().await;
        // Injected after the setup, whose requests are the test's own.
        account.inject(Some(fault));
        let operator = start(&account);
        let actual = final_state(cluster, account, vec![operator], &settled).await;
        assert_eq!(
            actual, expected,
            "another final state under the fault {fault:?}"
        );
    }
}

/// Checks that a standby replica completes the work of a leader that crashed at any point.
///
/// As [`converges_after_any_crash`], with two replicas that compete for a Lease in `default`.
/// The options of `operator` have the Lease and the identity of the replica. The replica that holds
/// the Lease is killed after each write and not started again. Returns the number of failovers.
///
/// # Panics
/// A run ends in another state, makes a forbidden request, or keeps writing; or no replica holds
/// the Lease.
pub async fn converges_after_failover(
    operator: impl Fn(Client, ManagerOptions) -> Manager,
    lease: &str,
    setup: impl AsyncFn() -> (TestCluster, Account),
    settled: impl AsyncFn(&TestCluster) -> String,
) -> usize {
    let start = |account: &Account, identity| {
        OperatorUnderTest::start_replica(&operator, account, lease, identity)
    };
    let single = |account: &Account| start(account, REPLICAS[0]);
    let (expected, writes) = undisturbed(single, &setup, &settled).await;
    for crash in 1..=writes {
        let (cluster, account) = setup().await;
        let mut replicas: Vec<_> = REPLICAS
            .map(|identity| (identity, start(&account, identity)))
            .into();
        wait_for_crash(&account, crash).await;
        // Read from the Lease: which replica wins the election is not fixed by their order.
        let holder = holder_of(&cluster, lease).await;
        let leader = replicas
            .iter()
            .position(|(identity, _)| *identity == holder)
            .expect("the holder is one of the replicas");
        replicas.swap_remove(leader).1.kill().await;
        let standby = replicas.into_iter().map(|(_, replica)| replica).collect();
        let actual = final_state(cluster, account, standby, &settled).await;
        assert_eq!(
            actual, expected,
            "another final state after a failover that followed write {crash}"
        );
    }
    writes
}

/// Waits for the write that a crash follows. In real time the number of status updates varies, so a
/// run may converge before.
async fn wait_for_crash(account: &Account, write: usize) {
    match crash_timeout() {
        Some(time) => _ = timeout(time, account.wait_for_writes(write)).await,
        None => account.wait_for_writes(write).await,
    }
}

/// The identity that holds a Lease.
async fn holder_of(cluster: &TestCluster, lease: &str) -> String {
    let client = ReconcileClient::new(cluster.client.clone(), "test");
    let key = ObjectKey::namespaced(LEASE_NAMESPACE, lease);
    let found = client.get::<Lease>(&key).await;
    found
        .expect("the server returns Leases")
        .unwrap_or_else(|| panic!("cannot read the lease {lease}: it does not exist"))
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone())
        .expect("the lease has a holder")
}

/// The final state of a run without crashes and faults, and the number of its writes.
async fn undisturbed(
    start: impl Fn(&Account) -> OperatorUnderTest,
    setup: &impl AsyncFn() -> (TestCluster, Account),
    settled: &impl AsyncFn(&TestCluster) -> String,
) -> (FinalState, usize) {
    let (cluster, account) = setup().await;
    let operator = start(&account);
    let write_count = account.write_count.clone();
    let state = final_state(cluster, account, vec![operator], settled).await;
    let writes = *write_count.borrow();
    (state, writes)
}

/// Waits for convergence, checks that the state is stable, and stops operators and cluster.
async fn final_state(
    cluster: TestCluster,
    account: Account,
    operators: Vec<OperatorUnderTest>,
    settled: &impl AsyncFn(&TestCluster) -> String,
) -> FinalState {
    let description = settled(&cluster).await;
    stable_state(cluster, account, operators, description).await
}

/// Checks that the state is stable, and stops operators and cluster.
async fn stable_state(
    cluster: TestCluster,
    account: Account,
    operators: Vec<OperatorUnderTest>,
    description: String,
) -> FinalState {
    // Before the operators are stopped: an operator that keeps writing would otherwise pass.
    check_quiet(&cluster, &account).await;
    let forbidden = account.requests.forbidden();
    assert!(forbidden.is_empty(), "forbidden requests: {forbidden:?}");
    for operator in operators {
        operator.stop().await;
    }
    cluster.stop().await;
    let mut created = BTreeMap::new();
    for request in account.requests.all() {
        // Counted over the whole run: an object that was created twice and deleted once leaves no
        // other trace.
        if request.is_create() {
            *created.entry(request.resource).or_default() += 1;
        }
    }
    FinalState {
        description,
        created,
    }
}

/// Checks that nothing is written for [`QUIET_TIME`].
async fn check_quiet(cluster: &TestCluster, account: &Account) {
    cluster.advance(SETTLE_TIME).await;
    let before = account.requests.writes().len();
    cluster.advance(QUIET_TIME).await;
    let writes = account.requests.writes();
    assert_eq!(
        writes.len(),
        before,
        "writes after convergence: {:?}",
        &writes[before..]
    );
}
