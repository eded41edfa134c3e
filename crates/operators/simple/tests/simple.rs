//! The BellerophonSimple operator on a test cluster, with exactly its permissions, in virtual time.

use std::time::Duration;

use bellerophon::{
    conditions::is_status_condition_true,
    manager::{Manager, ManagerOptions},
};
use bellerophon_simple::{BellerophonSimple, OPERATOR};
use bellerophon_testkit::{
    Account, Fault, OperatorFixture, TestCluster, converges_after_any_crash,
    converges_after_failover, converges_under_any_fault, wait_until,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

const FIXTURE: OperatorFixture = OperatorFixture::new(OPERATOR);

fn operator(client: Client, options: ManagerOptions) -> Manager {
    FIXTURE.manager(client, options)
}

fn shero(horse: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "stable.simple-bellerophon.io/v444beta989", "kind": "BellerophonSimple",
        "metadata": {"name": "philonoe"},
        "spec": {"winged_horse_name": horse, "image": "horse:1", "replicas": replicas},
    })
}

async fn wait_until_ready(cluster: &TestCluster, replicas: i32) {
    let sheroes = cluster.namespaced::<BellerophonSimple>("default");
    wait_until(&sheroes, "the BellerophonSimple is ready", |all| {
        let Some(status) = all.first().and_then(|shero| shero.status.clone()) else {
            return false;
        };
        status.replicas == replicas
            && status.observed_generation == all[0].metadata.generation
            && is_status_condition_true(&status.conditions, "Ready")
            && !is_status_condition_true(&status.conditions, "Progressing")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn horse_name_and_scale_reach_every_pod() {
    let cluster = TestCluster::with_nodes(1).await;
    let account = FIXTURE.install(&cluster).await;
    let operator = FIXTURE.start(&account);
    cluster.apply(shero("pegasus", 2)).await;
    wait_until_ready(&cluster, 2).await;
    let scale = json!({"spec": {"replicas": 3}});
    let sheroes = cluster.namespaced::<BellerophonSimple>("default");
    sheroes
        .patch_scale("philonoe", &PatchParams::default(), &Patch::Merge(&scale))
        .await
        .expect("the scale is accepted");
    wait_until_ready(&cluster, 3).await;
    cluster.apply(shero("arion", 3)).await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "every pod has the new horse name", |pods| {
        let has_name = |pod: &Pod| {
            let env = &json!(pod)["spec"]["containers"][0]["env"];
            env[0]["value"] == "arion"
        };
        pods.len() == 3 && pods.iter().all(has_name)
    })
    .await;
    wait_until_ready(&cluster, 3).await;
    cluster.advance(Duration::from_secs(600)).await;
    assert_eq!(account.requests.forbidden(), []);
    let unused = account.requests.unused_permissions(&FIXTURE.permissions());
    assert!(unused.is_empty(), "{unused:?}");
    cluster.delete(shero("arion", 3)).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    wait_until(&deployments, "the Deployment is collected", |all| {
        all.is_empty()
    })
    .await;
    operator.stop().await;
    cluster.stop().await;
}

/// An apply used to take over a Deployment that the cache did not have yet.
#[tokio::test(start_paused = true)]
async fn deployment_that_the_cache_does_not_have_yet_is_not_taken_over() {
    let cluster = TestCluster::with_nodes(1).await;
    let account = FIXTURE.install(&cluster).await;
    account.inject(Some(Fault::StaleCache));
    let operator = FIXTURE.start(&account);
    cluster.advance(Duration::from_secs(10)).await;
    cluster.apply(shero("pegasus", 2)).await;
    // The object is reconciled a second before the Deployment is in the cache.
    cluster.advance(Duration::from_secs(1)).await;
    let labels = json!({"shero": "philonoe"});
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "philonoe"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    cluster.apply(theirs).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    let created = deployments.get("philonoe").await.expect("it exists");
    cluster.advance(Duration::from_secs(600)).await;
    cluster.delete(shero("pegasus", 2)).await;
    cluster.advance(Duration::from_secs(600)).await;
    let found = deployments.get("philonoe").await.expect("it still exists");
    assert_eq!(found.owner_references(), []);
    assert_eq!(found.metadata.generation, created.metadata.generation);
    operator.stop().await;
    cluster.stop().await;
}

/// A cluster with one node, the operator's account with a Lease, and an object to reconcile.
async fn cluster_with_shero() -> (TestCluster, Account) {
    let cluster = TestCluster::with_nodes(1).await;
    let account = FIXTURE.install_with_leader_election(&cluster).await;
    cluster.apply(shero("pegasus", 2)).await;
    (cluster, account)
}

/// Waits for convergence and describes the state.
async fn settled(cluster: &TestCluster) -> String {
    wait_until_ready(cluster, 2).await;
    let pods = cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("a list");
    format!("{} pods", pods.items.len())
}

#[tokio::test(start_paused = true)]
async fn converges_after_a_crash_at_any_write() {
    let crashes = converges_after_any_crash(operator, cluster_with_shero, settled).await;
    assert!(crashes >= 2, "{crashes} crashes");
}

#[tokio::test(start_paused = true)]
async fn converges_under_every_fault() {
    converges_under_any_fault(operator, cluster_with_shero, settled).await;
}

#[tokio::test(start_paused = true)]
async fn standby_replica_completes_the_work_of_the_leader() {
    let lease = OPERATOR.name;
    let failovers = converges_after_failover(operator, lease, cluster_with_shero, settled).await;
    assert!(failovers >= 2, "{failovers} failovers");
}
