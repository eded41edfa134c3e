//! PodDisruptionBudgets and evictions.

use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{make_all_ready, make_ready, pods, template, test_cluster};
use bellerophon_testkit::{TestCluster, wait_until};

fn web(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": template("web", "web:1"),
        },
    })
}

fn pdb(more: Value) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "web" },
        "spec": spec,
    })
}

/// Waits for the counts of expected, desired and healthy pods and allowed disruptions.
async fn counts(cluster: &TestCluster, expected: i32, desired: i32, healthy: i32, allowed: i32) {
    let description =
        format!("{expected} expected, {desired} desired, {healthy} healthy, {allowed} allowed");
    wait_until(
        &cluster.namespaced::<PodDisruptionBudget>("default"),
        &description,
        |pdbs| {
            pdbs[0].status.as_ref().is_some_and(|status| {
                (
                    status.expected_pods,
                    status.desired_healthy,
                    status.current_healthy,
                    status.disruptions_allowed,
                ) == (Some(expected), Some(desired), Some(healthy), Some(allowed))
            })
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn evictions_are_granted_within_the_budget() {
    let cluster = test_cluster().await;
    cluster.apply(web(4)).await;
    cluster.apply(pdb(json!({ "maxUnavailable": "25%" }))).await;
    let four = pods(&cluster, 4).await;
    counts(&cluster, 4, 3, 0, 0).await;
    make_all_ready(&cluster).await;
    counts(&cluster, 4, 3, 4, 1).await;
    let pods_api = cluster.namespaced::<k8s_openapi::api::core::v1::Pod>("default");
    pods_api
        .evict(&four[0].name_any(), &Default::default())
        .await
        .expect("the first eviction is granted");
    let rejected = pods_api
        .evict(&four[1].name_any(), &Default::default())
        .await;
    assert!(
        matches!(rejected, Err(kube::Error::Api(status)) if status.code == 429),
        "the second eviction is rejected"
    );
    counts(&cluster, 4, 3, 3, 0).await;
    let next = pods(&cluster, 4)
        .await
        .into_iter()
        .find(|pod| four.iter().all(|old| old.uid() != pod.uid()))
        .unwrap();
    make_ready(&cluster, &next).await;
    counts(&cluster, 4, 3, 4, 1).await;
    pods_api
        .evict(&four[1].name_any(), &Default::default())
        .await
        .expect("the second eviction is granted");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_without_controller_allow_no_disruption() {
    let cluster = test_cluster().await;
    let mut lone = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "lone", "labels": { "app": "web" } },
    });
    lone["spec"] = template("", "web:1")["spec"].clone();
    cluster.apply(lone).await;
    make_all_ready(&cluster).await;
    cluster.apply(pdb(json!({ "maxUnavailable": 1 }))).await;
    cluster.advance(Duration::from_secs(5)).await;
    counts(&cluster, 0, 0, 1, 0).await;
    cluster
        .apply(pdb(json!({ "minAvailable": 0, "maxUnavailable": null })))
        .await;
    cluster.advance(Duration::from_secs(5)).await;
    cluster.stop().await;
}
