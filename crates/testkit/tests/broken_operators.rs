//! The convergence checks fail for operators with typical defects, and pass for a correct one.
//!
//! The operators of this file copy: for the ConfigMap `source` they create a ConfigMap with the
//! label `copy`, and annotate the source when they are done.

use std::time::Duration;

use bellerophon::{controller::BoxError, prelude::*};
use bellerophon_testkit::{
    Account, OperatorUnderTest, TestCluster, converges_after_any_crash, converges_after_failover,
    converges_under_any_fault, wait_until,
};
use futures_util::StreamExt as _;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap, rbac::v1::PolicyRule};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);
const DONE: &str = "example.dev/done";
const LEASE: &str = "copier";

fn allow(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// A cluster with the source and an account with all permissions that the operators need.
async fn setup() -> (TestCluster, Account) {
    let verbs = ["get", "list", "watch", "create", "patch"];
    setup_with(&[
        allow("", "configmaps", &verbs),
        allow("coordination.k8s.io", "leases", &["create"]),
    ])
    .await
}

async fn setup_with(rules: &[PolicyRule]) -> (TestCluster, Account) {
    let cluster = TestCluster::api_server_only().await;
    let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "source"}});
    cluster.apply(source).await;
    let account = cluster.service_account("copier", rules).await;
    (cluster, account)
}

fn is_done(source: &ConfigMap) -> bool {
    source.annotations().contains_key(DONE)
}

/// Waits until the source is annotated, and counts the copies a minute later.
async fn settled(cluster: &TestCluster) -> String {
    let config_maps = cluster.namespaced::<ConfigMap>("default");
    wait_until(&config_maps, "the source is done", |all| {
        all.iter().any(is_done)
    })
    .await;
    count_copies(cluster).await
}

/// Counts the copies after a minute.
async fn count_copies(cluster: &TestCluster) -> String {
    cluster.advance(Duration::from_secs(60)).await;
    let copies = cluster
        .namespaced::<ConfigMap>("default")
        .list(&ListParams::default().labels("copy"))
        .await
        .expect("a list");
    format!("{} copies", copies.items.len())
}

/// The requests of the operators in this file.
#[derive(Clone)]
struct Copier {
    config_maps: Api<ConfigMap>,
}

impl Copier {
    fn new(client: Client) -> Self {
        Self {
            config_maps: Api::default_namespaced(client),
        }
    }

    /// Applies the one copy: repeated calls have no effect.
    async fn apply_copy(&self) -> kube::Result<()> {
        let copy = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "copy", "labels": {"copy": "true"}},
        });
        let params = PatchParams::apply("copier");
        self.config_maps
            .patch("copy", &params, &Patch::Apply(&copy))
            .await?;
        Ok(())
    }

    /// Creates another copy under a generated name.
    async fn create_copy(&self) -> kube::Result<()> {
        let copy = json!({"metadata": {"generateName": "copy-", "labels": {"copy": "true"}}});
        let copy = serde_json::from_value(copy).expect("a ConfigMap");
        self.config_maps.create(&Default::default(), &copy).await?;
        Ok(())
    }

    async fn mark_done(&self, value: String) -> kube::Result<()> {
        self.patch_source(json!({"metadata": {"annotations": {DONE: value}}}))
            .await
    }

    async fn patch_source(&self, patch: Value) -> kube::Result<()> {
        let params = PatchParams::default();
        self.config_maps
            .patch("source", &params, &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    async fn is_done(&self) -> kube::Result<bool> {
        Ok(is_done(&self.config_maps.get("source").await?))
    }
}

/// Retries a request every second until it succeeds.
async fn retry<T, F>(request: impl Fn() -> F) -> T
where
    F: Future<Output = kube::Result<T>>,
{
    loop {
        match request().await {
            Ok(value) => return value,
            Err(_) => sleep(SECOND).await,
        }
    }
}

/// A Manager that runs a copier until it is stopped.
fn run<F>(
    client: Client,
    options: ManagerOptions,
    work: impl FnOnce(Copier) -> F + Send + 'static,
) -> Manager
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let copier = Copier::new(client.clone());
    let mut mgr = Manager::new(client, options);
    mgr.add("copier", async move |stop: CancellationToken| {
        match stop.run_until_cancelled(work(copier)).await {
            Some(Ok(())) => stop.cancelled().await,
            Some(Err(error)) => return Err(error),
            None => {}
        }
        Ok(())
    });
    mgr
}

/// Idempotent writes in the right order, with retries.
fn correct(client: Client, options: ManagerOptions) -> Manager {
    run(client, options, async |copier: Copier| {
        retry(|| copier.apply_copy()).await;
        retry(|| copier.mark_done("true".to_owned())).await;
        Ok(())
    })
}

/// Marks the source as done before it creates the copy, and trusts the mark after a restart.
fn loses_a_write(client: Client, options: ManagerOptions) -> Manager {
    run(client, options, async |copier: Copier| {
        if !retry(|| copier.is_done()).await {
            retry(|| copier.mark_done("true".to_owned())).await;
            sleep(SECOND).await;
            retry(|| copier.apply_copy()).await;
        }
        Ok(())
    })
}

/// Creates a copy under a generated name every second until its cache has one.
fn trusts_its_cache(client: Client, options: ManagerOptions) -> Manager {
    run(client, options, async |copier: Copier| {
        let params = WatchParams::default().labels("copy");
        let mut events = copier.config_maps.watch(&params, "0").await?.boxed();
        let mut is_cached = false;
        let mut resync = interval(SECOND);
        while !is_cached {
            tokio::select! {
                Some(Ok(WatchEvent::Added(_))) = events.next() => is_cached = true,
                _ = resync.tick() => copier.create_copy().await?,
            }
        }
        Ok(())
    })
}

/// Ignores that it may not create the copy.
fn ignores_forbidden(client: Client, options: ManagerOptions) -> Manager {
    run(client, options, async |copier: Copier| {
        _ = copier.create_copy().await;
        retry(|| copier.mark_done("true".to_owned())).await;
        Ok(())
    })
}

/// Writes another value every minute.
fn keeps_writing(client: Client, options: ManagerOptions) -> Manager {
    run(client, options, async |copier: Copier| {
        retry(|| copier.apply_copy()).await;
        let mut minutes = interval(Duration::from_secs(60));
        for count in 0_u32.. {
            minutes.tick().await;
            retry(|| copier.mark_done(count.to_string())).await;
        }
        Ok(())
    })
}

/// Never marks the source as done.
fn does_nothing(client: Client, options: ManagerOptions) -> Manager {
    Manager::new(client, without_lease(options))
}

/// The same options without leader election.
fn without_lease(options: ManagerOptions) -> ManagerOptions {
    ManagerOptions {
        leader_election: None,
        ..options
    }
}

/// Replica 0 holds the Lease and works; the other replica never takes over.
fn never_takes_over(client: Client, options: ManagerOptions) -> Manager {
    let identity = options.identity.clone().expect("a replica has an identity");
    if identity != "replica-0" {
        return does_nothing(client, options);
    }
    let leases = Api::<Lease>::default_namespaced(client.clone());
    run(
        client,
        without_lease(options),
        async move |copier: Copier| {
            let lease = json!({"metadata": {"name": LEASE}, "spec": {"holderIdentity": identity}});
            let lease = serde_json::from_value(lease).expect("a Lease");
            leases.create(&Default::default(), &lease).await?;
            retry(|| copier.mark_done("true".to_owned())).await;
            sleep(SECOND).await;
            retry(|| copier.apply_copy()).await;
            Ok(())
        },
    )
}

#[tokio::test(start_paused = true)]
async fn correct_operator_passes() {
    let crashes = converges_after_any_crash(correct, setup, settled).await;
    assert_eq!(crashes, 2);
    converges_under_any_fault(correct, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "another final state after a crash that followed write 1")]
async fn write_lost_by_a_crash_is_found() {
    converges_after_any_crash(loses_a_write, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "another final state under the fault StaleCache")]
async fn duplicate_created_from_a_stale_cache_is_found() {
    converges_under_any_fault(trusts_its_cache, setup, count_copies).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "another final state after a crash")]
async fn duplicate_created_after_a_crash_is_found() {
    let create_at_start = |client, options| {
        run(client, options, async |copier: Copier| {
            retry(|| copier.create_copy()).await;
            Ok(())
        })
    };
    converges_after_any_crash(create_at_start, setup, count_copies).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "forbidden requests")]
async fn missing_permission_is_found() {
    let setup = async || setup_with(&[allow("", "configmaps", &["get", "patch"])]).await;
    converges_after_any_crash(ignores_forbidden, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "writes after convergence")]
async fn operator_that_keeps_writing_is_found() {
    converges_after_any_crash(keeps_writing, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "condition not met within 3600s: the source is done")]
async fn operator_that_never_converges_is_found() {
    converges_under_any_fault(does_nothing, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "another final state after a failover that followed write 1")]
async fn standby_that_never_takes_over_is_found() {
    converges_after_failover(never_takes_over, LEASE, setup, settled).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "cannot read the lease copier")]
async fn operator_without_a_lease_is_found() {
    let operator = |client, options| correct(client, without_lease(options));
    converges_after_failover(operator, LEASE, setup, settled).await;
}

#[tokio::test(start_paused = true)]
async fn unused_permission_is_reported() {
    let rules = [
        allow("", "configmaps", &["create", "patch"]),
        allow("", "secrets", &["list"]),
    ];
    let (cluster, account) = setup_with(&rules).await;
    let operator = OperatorUnderTest::start(correct, &account);
    settled(&cluster).await;
    let unused = account.requests.unused_permissions(&rules);
    assert_eq!(unused, ["list /secrets"]);
    operator.stop().await;
    cluster.stop().await;
}
