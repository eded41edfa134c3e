//! StatefulSets.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{finish, image, is_active, make_all_ready, patch, pods, template, world};
use bellerophon_testkit::{World, until};

fn set(replicas: i32, image: &str, more: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "replicas": replicas, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } }, "template": template("db", image),
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
            }],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    set
}

fn names<K: ResourceExt>(objects: &[K]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

async fn claims(world: &World) -> Vec<String> {
    names(
        &world
            .within::<PersistentVolumeClaim>("default")
            .list(&Default::default())
            .await
            .unwrap()
            .items,
    )
}

/// Makes members ready one after the other, and notes in which order they come.
async fn bring_up(world: &World, count: usize) -> Vec<String> {
    let mut order = Vec::new();
    for there in 1..=count {
        let now = pods(world, there).await;
        order.extend(
            names(&now)
                .into_iter()
                .filter(|name| !order.contains(name))
                .collect::<Vec<_>>(),
        );
        world.pass(Duration::from_secs(5)).await;
        assert_eq!(pods(world, there).await.len(), there, "the next one waits");
        make_all_ready(world).await;
    }
    order
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_in_order_with_their_storage() {
    let world = world().await;
    world.apply(set(3, "db:1", json!({}))).await;
    assert_eq!(bring_up(&world, 3).await, ["db-0", "db-1", "db-2"]);
    assert_eq!(
        claims(&world).await,
        ["data-db-0", "data-db-1", "data-db-2"]
    );
    let told = until(
        &world.within::<StatefulSet>("default"),
        "three available",
        |sets| {
            sets[0].status.as_ref().is_some_and(|status| {
                status.available_replicas == Some(3) && status.ready_replicas == Some(3)
            })
        },
    )
    .await;
    let status = told[0].status.clone().unwrap();
    assert_eq!(status.replicas, 3);
    assert_eq!(status.current_replicas, Some(3));
    assert_eq!(status.updated_replicas, Some(3));
    assert_eq!(status.current_revision, status.update_revision);

    // A member that ends comes back under its name, with its storage.
    let first = world.within::<Pod>("default").get("db-1").await.unwrap();
    finish(&world, &first, "Failed").await;
    until(&world.within::<Pod>("default"), "db-1 is back", |pods| {
        pods.iter()
            .any(|pod| pod.name_any() == "db-1" && pod.uid() != first.uid() && is_active(pod))
    })
    .await;
    make_all_ready(&world).await;
    patch(
        &world.within::<StatefulSet>("default"),
        "db",
        json!({ "spec": { "replicas": 1 } }),
    )
    .await;
    assert_eq!(names(&pods(&world, 1).await), ["db-0"]);
    assert_eq!(claims(&world).await.len(), 3, "storage is kept");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn storage_goes_with_its_member_if_the_policy_says_so() {
    let world = world().await;
    let policy = json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Delete" }, "podManagementPolicy": "Parallel" });
    world.apply(set(2, "db:1", policy.clone())).await;
    pods(&world, 2).await;
    make_all_ready(&world).await;
    until(
        &world.within::<PersistentVolumeClaim>("default"),
        "the set owns the claims",
        |claims| {
            claims.len() == 2
                && claims.iter().all(|claim| {
                    claim
                        .owner_references()
                        .iter()
                        .any(|owner| owner.kind == "StatefulSet")
                })
        },
    )
    .await;
    world.apply(set(1, "db:1", policy)).await;
    until(
        &world.within::<PersistentVolumeClaim>("default"),
        "the claim went with its pod",
        |claims| {
            claims
                .iter()
                .filter(|claim| claim.metadata.deletion_timestamp.is_none())
                .count()
                == 1
        },
    )
    .await;
    world
        .delete(
            json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" } }),
        )
        .await;
    until(
        &world.within::<PersistentVolumeClaim>("default"),
        "the rest went with the set",
        |claims| claims.is_empty(),
    )
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn update_stops_at_the_partition_and_at_trouble() {
    let world = world().await;
    let partition = |partition: i32| json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": partition } } });
    world.apply(set(3, "db:1", partition(0))).await;
    bring_up(&world, 3).await;
    world.apply(set(3, "db:2", partition(2))).await;
    let updated = |count: usize| {
        move |pods: &[Pod]| {
            pods.len() == 3
                && pods.iter().all(is_active)
                && pods.iter().filter(|pod| image(pod) == "db:2").count() == count
        }
    };
    until(
        &world.within::<Pod>("default"),
        "db-2 is updated",
        updated(1),
    )
    .await;
    make_all_ready(&world).await;
    world.pass(Duration::from_secs(30)).await;
    let now = pods(&world, 3).await;
    assert_eq!(
        now.iter().map(image).collect::<Vec<_>>(),
        ["db:1", "db:1", "db:2"],
        "the partition holds"
    );
    let told = world
        .within::<StatefulSet>("default")
        .get("db")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_ne!(told.current_revision, told.update_revision);
    assert_eq!(told.current_replicas, Some(2));
    assert_eq!(told.updated_replicas, Some(1));

    world.apply(set(3, "db:2", partition(0))).await;
    until(
        &world.within::<Pod>("default"),
        "db-1 is updated",
        updated(2),
    )
    .await;
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        image(&pods(&world, 3).await[0]),
        "db:1",
        "db-0 waits until db-1 serves"
    );
    make_all_ready(&world).await;
    until(
        &world.within::<Pod>("default"),
        "db-0 is updated",
        updated(3),
    )
    .await;
    make_all_ready(&world).await;
    until(
        &world.within::<StatefulSet>("default"),
        "the update is complete",
        |sets| {
            sets[0].status.as_ref().is_some_and(|status| {
                status.current_revision == status.update_revision
                    && status.updated_replicas == Some(3)
            })
        },
    )
    .await;
    assert_eq!(
        world
            .within::<ControllerRevision>("default")
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len(),
        2
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarts_leave_one_pod_a_member() {
    let mut world = world().await;
    world
        .apply(set(5, "db:1", json!({ "podManagementPolicy": "Parallel" })))
        .await;
    for _ in 0..4 {
        until(&world.within::<Pod>("default"), "a first member", |pods| {
            !pods.is_empty()
        })
        .await;
        world.restart().await;
    }
    assert_eq!(
        names(&pods(&world, 5).await),
        ["db-0", "db-1", "db-2", "db-3", "db-4"]
    );
    world.stop().await;
}
