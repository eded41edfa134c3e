//! ReplicaSets and ReplicationControllers.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{controller, finish, make_all_ready, make_ready, patch, pods, template, test_cluster};
use bellerophon_testkit::{TestCluster, wait_until};

fn set(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": template(name, "web:1"),
        },
    })
}

/// Waits for a status with these counts: replicas, ready, available.
async fn counts(
    cluster: &TestCluster,
    name: &str,
    replicas: i32,
    ready: i32,
    available: i32,
) -> ReplicaSet {
    let description = format!("{name} at {replicas}/{ready}/{available}");
    let sets = wait_until(
        &cluster.namespaced::<ReplicaSet>("default"),
        &description,
        |sets| {
            sets.iter().filter(|set| set.name_any() == name).any(|set| {
                set.status.as_ref().is_some_and(|status| {
                    (
                        status.replicas,
                        status.ready_replicas.unwrap_or(0),
                        status.available_replicas.unwrap_or(0),
                    ) == (replicas, ready, available)
                        && status.observed_generation == set.metadata.generation
                })
            })
        },
    )
    .await;
    sets.into_iter().find(|set| set.name_any() == name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn desired_replicas_are_maintained() {
    let cluster = test_cluster().await;
    cluster.apply(set("web", 3)).await;
    let first = pods(&cluster, 3).await;
    assert!(
        first
            .iter()
            .all(|pod| controller(pod) == Some("web") && pod.name_any().starts_with("web-"))
    );
    counts(&cluster, "web", 3, 0, 0).await;
    make_all_ready(&cluster).await;
    let updated = counts(&cluster, "web", 3, 3, 3).await;
    assert_eq!(updated.status.unwrap().fully_labeled_replicas, Some(3));

    cluster
        .namespaced::<Pod>("default")
        .delete(&first[0].name_any(), &DeleteParams::default())
        .await
        .unwrap();
    finish(&cluster, &first[1], "Failed").await;
    let second = pods(&cluster, 3).await;
    assert!(
        second
            .iter()
            .all(|pod| pod.uid() != first[0].uid() && pod.uid() != first[1].uid())
    );
    counts(&cluster, "web", 3, 1, 1).await;

    patch(
        &cluster.namespaced::<ReplicaSet>("default"),
        "web",
        json!({ "spec": { "replicas": 1 } }),
    )
    .await;
    let remaining = pods(&cluster, 1).await;
    assert_eq!(
        remaining[0].uid(),
        first[2].uid(),
        "pods that are not ready are deleted first"
    );
    counts(&cluster, "web", 1, 1, 1).await;
    let events = cluster
        .namespaced::<Event>("default")
        .list(&Default::default())
        .await
        .unwrap();
    for (reason, prefix) in [
        ("SuccessfulCreate", "Created pod: web-"),
        ("SuccessfulDelete", "Deleted pod: web-"),
    ] {
        let recorded = events.iter().any(|event| {
            event.reason.as_deref() == Some(reason)
                && event
                    .note
                    .as_ref()
                    .is_some_and(|note| note.starts_with(prefix))
                && event.reporting_controller.as_deref() == Some("replicaset-controller")
        });
        assert!(recorded, "{reason}");
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_adopted_and_released_by_their_labels() {
    let cluster = test_cluster().await;
    let orphan = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "orphan", "labels": { "app": "web" } },
        "spec": template("", "web:0")["spec"],
    });
    cluster.apply(orphan).await;
    cluster.apply(set("web", 2)).await;
    let two = pods(&cluster, 2).await;
    let adopted = wait_until(
        &cluster.namespaced::<Pod>("default"),
        "the orphan is adopted",
        |pods| {
            pods.iter()
                .any(|pod| pod.name_any() == "orphan" && controller(pod) == Some("web"))
        },
    )
    .await;
    assert_eq!(adopted.len(), 2);
    let other = two.iter().find(|pod| pod.name_any() != "orphan").unwrap();
    patch(
        &cluster.namespaced::<Pod>("default"),
        &other.name_any(),
        json!({ "metadata": { "labels": { "app": "debug" } } }),
    )
    .await;
    let three = pods(&cluster, 3).await;
    let released = three
        .iter()
        .find(|pod| pod.name_any() == other.name_any())
        .unwrap();
    assert_eq!(controller(released), None, "it is released");
    assert_eq!(
        three
            .iter()
            .filter(|pod| controller(*pod) == Some("web"))
            .count(),
        2
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_available_after_min_ready_seconds() {
    let cluster = test_cluster().await;
    let mut web = set("web", 1);
    web["spec"]["minReadySeconds"] = json!(60);
    cluster.apply(web).await;
    let pod = pods(&cluster, 1).await.remove(0);
    make_ready(&cluster, &pod).await;
    counts(&cluster, "web", 1, 1, 0).await;
    let before = super::now(&cluster);
    counts(&cluster, "web", 1, 1, 1).await;
    let waited = super::now(&cluster).duration_since(before);
    assert!((58..=62).contains(&waited.as_secs()), "{waited}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_between_writes_creates_no_surplus_pods() {
    let mut cluster = test_cluster().await;
    cluster.apply(set("web", 40)).await;
    for _ in 0..5 {
        wait_until(
            &cluster.namespaced::<Pod>("default"),
            "a first pod",
            |pods| !pods.is_empty(),
        )
        .await;
        cluster.restart_controllers().await;
    }
    pods(&cluster, 40).await;
    counts(&cluster, "web", 40, 0, 0).await;
    cluster.advance(Duration::from_secs(60)).await;
    pods(&cluster, 40).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn create_failure_is_a_condition_until_success() {
    let cluster = test_cluster().await;
    // Admission rejects pods whose service account does not exist.
    let mut web = set("web", 3);
    web["spec"]["template"]["spec"]["serviceAccountName"] = json!("missing");
    cluster.apply(web).await;
    wait_until(
        &cluster.namespaced::<ReplicaSet>("default"),
        "a failure",
        |sets| {
            let conditions = sets[0]
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone())
                .unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.type_ == "ReplicaFailure"
                    && condition.reason.as_deref() == Some("FailedCreate")
            })
        },
    )
    .await;
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "missing" },
        }))
        .await;
    pods(&cluster, 3).await;
    let recovered = counts(&cluster, "web", 3, 0, 0).await;
    assert_eq!(recovered.status.unwrap().conditions, None);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replication_controller_maintains_its_replicas() {
    let cluster = test_cluster().await;
    let web = json!({
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "app": "web" },
            "template": template("web", "web:1"),
        },
    });
    cluster.apply(web).await;
    pods(&cluster, 2).await;
    make_all_ready(&cluster).await;
    wait_until(
        &cluster.namespaced::<ReplicationController>("default"),
        "two ready",
        |all| {
            all[0]
                .status
                .as_ref()
                .is_some_and(|status| status.ready_replicas == Some(2) && status.replicas == 2)
        },
    )
    .await;
    patch(
        &cluster.namespaced::<ReplicationController>("default"),
        "web",
        json!({ "spec": { "replicas": 0 } }),
    )
    .await;
    pods(&cluster, 0).await;
    cluster.stop().await;
}
