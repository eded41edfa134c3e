//! ReplicaSets and ReplicationControllers.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{controller, finish, make_all_ready, make_ready, patch, pods, template, world};
use bellerophon_testkit::{World, until};

fn set(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": template(name, "web:1") },
    })
}

/// Waits for a status with these numbers: replicas, ready, available.
async fn counts(
    world: &World,
    name: &str,
    replicas: i32,
    ready: i32,
    available: i32,
) -> ReplicaSet {
    let wanted = format!("{name} at {replicas}/{ready}/{available}");
    let sets = until(&world.within::<ReplicaSet>("default"), &wanted, |sets| {
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
    })
    .await;
    sets.into_iter().find(|set| set.name_any() == name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn set_keeps_its_number_of_pods() {
    let world = world().await;
    world.apply(set("web", 3)).await;
    let first = pods(&world, 3).await;
    assert!(
        first
            .iter()
            .all(|pod| controller(pod) == Some("web") && pod.name_any().starts_with("web-"))
    );
    counts(&world, "web", 3, 0, 0).await;
    make_all_ready(&world).await;
    let told = counts(&world, "web", 3, 3, 3).await;
    assert_eq!(told.status.unwrap().fully_labeled_replicas, Some(3));

    world
        .within::<Pod>("default")
        .delete(&first[0].name_any(), &DeleteParams::default())
        .await
        .unwrap();
    finish(&world, &first[1], "Failed").await;
    let second = pods(&world, 3).await;
    assert!(
        second
            .iter()
            .all(|pod| pod.uid() != first[0].uid() && pod.uid() != first[1].uid())
    );
    counts(&world, "web", 3, 1, 1).await;

    patch(
        &world.within::<ReplicaSet>("default"),
        "web",
        json!({ "spec": { "replicas": 1 } }),
    )
    .await;
    let left = pods(&world, 1).await;
    assert_eq!(
        left[0].uid(),
        first[2].uid(),
        "those that are not ready go first"
    );
    counts(&world, "web", 1, 1, 1).await;
    let events = world
        .within::<Event>("default")
        .list(&Default::default())
        .await
        .unwrap();
    for (reason, begins) in [
        ("SuccessfulCreate", "Created pod: web-"),
        ("SuccessfulDelete", "Deleted pod: web-"),
    ] {
        let told = events.iter().any(|event| {
            event.reason.as_deref() == Some(reason)
                && event
                    .note
                    .as_ref()
                    .is_some_and(|note| note.starts_with(begins))
                && event.reporting_controller.as_deref() == Some("replicaset-controller")
        });
        assert!(told, "{reason}");
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_adopted_and_released_by_their_labels() {
    let world = world().await;
    let orphan = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "orphan", "labels": { "app": "web" } }, "spec": template("", "web:0")["spec"] });
    world.apply(orphan).await;
    world.apply(set("web", 2)).await;
    let two = pods(&world, 2).await;
    let adopted = until(
        &world.within::<Pod>("default"),
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
        &world.within::<Pod>("default"),
        &other.name_any(),
        json!({ "metadata": { "labels": { "app": "debug" } } }),
    )
    .await;
    let three = pods(&world, 3).await;
    let released = three
        .iter()
        .find(|pod| pod.name_any() == other.name_any())
        .unwrap();
    assert_eq!(controller(released), None, "it is on its own now");
    assert_eq!(
        three
            .iter()
            .filter(|pod| controller(*pod) == Some("web"))
            .count(),
        2
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_count_as_available_after_their_time() {
    let world = world().await;
    let mut web = set("web", 1);
    web["spec"]["minReadySeconds"] = json!(60);
    world.apply(web).await;
    let pod = pods(&world, 1).await.remove(0);
    make_ready(&world, &pod).await;
    counts(&world, "web", 1, 1, 0).await;
    let before = super::now(&world);
    counts(&world, "web", 1, 1, 1).await;
    let waited = super::now(&world).duration_since(before);
    assert!((58..=62).contains(&waited.as_secs()), "{waited}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_between_writes_leaves_no_pod_too_many() {
    let mut world = world().await;
    world.apply(set("web", 40)).await;
    for _ in 0..5 {
        until(&world.within::<Pod>("default"), "a first pod", |pods| {
            !pods.is_empty()
        })
        .await;
        world.restart().await;
    }
    pods(&world, 40).await;
    counts(&world, "web", 40, 0, 0).await;
    world.pass(Duration::from_secs(60)).await;
    pods(&world, 40).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn refusal_is_told_in_the_status_and_ends() {
    let world = world().await;
    // No pod is admitted before the service account of its namespace is there; this one never comes.
    let mut web = set("web", 3);
    web["spec"]["template"]["spec"]["serviceAccountName"] = json!("missing");
    world.apply(web).await;
    until(
        &world.within::<ReplicaSet>("default"),
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
    world.apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "missing" } })).await;
    pods(&world, 3).await;
    let healed = counts(&world, "web", 3, 0, 0).await;
    assert_eq!(healed.status.unwrap().conditions, None);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replication_controller_does_the_same() {
    let world = world().await;
    let web = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": { "name": "web" },
        "spec": { "replicas": 2, "selector": { "app": "web" }, "template": template("web", "web:1") },
    });
    world.apply(web).await;
    pods(&world, 2).await;
    make_all_ready(&world).await;
    until(
        &world.within::<ReplicationController>("default"),
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
        &world.within::<ReplicationController>("default"),
        "web",
        json!({ "spec": { "replicas": 0 } }),
    )
    .await;
    pods(&world, 0).await;
    world.stop().await;
}
