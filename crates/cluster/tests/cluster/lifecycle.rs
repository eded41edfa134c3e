//! Start, stop and restart of the cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use bellerophon_testkit::{TestCluster, wait_until};

/// Whether the service account controller has seen a namespace.
fn has_account(all: &[ServiceAccount], namespace: &str) -> bool {
    all.iter().any(|account| {
        account.name_any() == "default" && account.namespace().as_deref() == Some(namespace)
    })
}

#[tokio::test(start_paused = true)]
async fn cluster_can_be_stopped_and_restarted() {
    let mut cluster = TestCluster::with_core_controllers().await;
    let accounts: Api<ServiceAccount> = cluster.all();
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});

    cluster.restart_controllers().await;
    cluster.apply(namespace("restarted")).await;
    wait_until(&accounts, "the restarted controllers work", |all| {
        has_account(all, "restarted")
    })
    .await;

    cluster.stop_controllers().await;
    cluster.apply(namespace("stopped")).await;
    cluster.advance(Duration::from_secs(60)).await;
    let all = accounts
        .list(&ListParams::default())
        .await
        .expect("the API server runs on");
    assert!(
        !has_account(&all.items, "stopped"),
        "stopped controllers do nothing"
    );

    cluster.start_controllers().await;
    wait_until(&accounts, "the controllers catch up", |all| {
        has_account(all, "stopped")
    })
    .await;
    cluster.stop().await;
}
