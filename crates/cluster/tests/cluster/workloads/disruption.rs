//! Disruption budgets, and evictions that are granted by them.

use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{make_all_ready, make_ready, pods, template, world};
use bellerophon_testkit::{World, until};

fn web(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template("web", "web:1") },
    })
}

fn budget(more: Value) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" }, "spec": spec })
}

/// Waits for so many expected, desired and healthy pods, and allowed disruptions.
async fn counts(world: &World, expected: i32, desired: i32, healthy: i32, allowed: i32) {
    let wanted =
        format!("{expected} expected, {desired} desired, {healthy} healthy, {allowed} allowed");
    until(
        &world.within::<PodDisruptionBudget>("default"),
        &wanted,
        |budgets| {
            budgets[0].status.as_ref().is_some_and(|status| {
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
async fn evictions_are_granted_as_far_as_the_budget_goes() {
    let world = world().await;
    world.apply(web(4)).await;
    world
        .apply(budget(json!({ "maxUnavailable": "25%" })))
        .await;
    let four = pods(&world, 4).await;
    counts(&world, 4, 3, 0, 0).await;
    make_all_ready(&world).await;
    counts(&world, 4, 3, 4, 1).await;
    let pods_api = world.within::<k8s_openapi::api::core::v1::Pod>("default");
    pods_api
        .evict(&four[0].name_any(), &Default::default())
        .await
        .expect("the first is granted");
    let refused = pods_api
        .evict(&four[1].name_any(), &Default::default())
        .await;
    assert!(
        matches!(refused, Err(kube::Error::Api(status)) if status.code == 429),
        "the second must wait"
    );
    counts(&world, 4, 3, 3, 0).await;
    let next = pods(&world, 4)
        .await
        .into_iter()
        .find(|pod| four.iter().all(|known| known.uid() != pod.uid()))
        .unwrap();
    make_ready(&world, &next).await;
    counts(&world, 4, 3, 4, 1).await;
    pods_api
        .evict(&four[1].name_any(), &Default::default())
        .await
        .expect("now it may go");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_counted_allows_nothing() {
    let world = world().await;
    let mut lone = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "lone", "labels": { "app": "web" } } });
    lone["spec"] = template("", "web:1")["spec"].clone();
    world.apply(lone).await;
    make_all_ready(&world).await;
    world.apply(budget(json!({ "maxUnavailable": 1 }))).await;
    world.pass(Duration::from_secs(5)).await;
    counts(&world, 0, 0, 1, 0).await;
    world
        .apply(budget(json!({ "minAvailable": 0, "maxUnavailable": null })))
        .await;
    world.pass(Duration::from_secs(5)).await;
    world.stop().await;
}
