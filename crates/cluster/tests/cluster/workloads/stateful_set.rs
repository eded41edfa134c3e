//! StatefulSet controller.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{finish, image, is_active, list, make_all_ready, patch, pods, template, test_cluster};
use bellerophon_testkit::{TestCluster, wait_until};

fn set(replicas: i32, image: &str, more: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "db" },
        "spec": {
            "replicas": replicas,
            "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } },
            "template": template("db", image),
            "volumeClaimTemplates": [
                {
                    "metadata": { "name": "data" },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": { "requests": { "storage": "1Gi" } },
                    },
                },
            ],
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

async fn claims(cluster: &TestCluster) -> Vec<String> {
    names(&list::<PersistentVolumeClaim>(cluster).await)
}

/// Sets pods ready one after the other. Returns their names in creation order.
async fn bring_up(cluster: &TestCluster, count: usize) -> Vec<String> {
    let mut order = Vec::new();
    for expected in 1..=count {
        let now = pods(cluster, expected).await;
        order.extend(
            names(&now)
                .into_iter()
                .filter(|name| !order.contains(name))
                .collect::<Vec<_>>(),
        );
        cluster.advance(Duration::from_secs(5)).await;
        assert_eq!(
            pods(cluster, expected).await.len(),
            expected,
            "the next pod waits"
        );
        make_all_ready(cluster).await;
    }
    order
}

#[tokio::test(start_paused = true)]
async fn ordered_ready_creates_and_deletes_pods_in_order() {
    let cluster = test_cluster().await;
    cluster.apply(set(3, "db:1", json!({}))).await;
    assert_eq!(bring_up(&cluster, 3).await, ["db-0", "db-1", "db-2"]);
    assert_eq!(
        claims(&cluster).await,
        ["data-db-0", "data-db-1", "data-db-2"]
    );
    let sets = wait_until(
        &cluster.namespaced::<StatefulSet>("default"),
        "three available",
        |sets| {
            sets[0].status.as_ref().is_some_and(|status| {
                status.available_replicas == Some(3) && status.ready_replicas == Some(3)
            })
        },
    )
    .await;
    let status = sets[0].status.clone().unwrap();
    assert_eq!(status.replicas, 3);
    assert_eq!(status.current_replicas, Some(3));
    assert_eq!(status.updated_replicas, Some(3));
    assert_eq!(status.current_revision, status.update_revision);

    // A failed pod is recreated with the same name and claim.
    let first = cluster
        .namespaced::<Pod>("default")
        .get("db-1")
        .await
        .unwrap();
    finish(&cluster, &first, "Failed").await;
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "db-1 is recreated",
        |pods| {
            pods.iter()
                .any(|pod| pod.name_any() == "db-1" && pod.uid() != first.uid() && is_active(pod))
        },
    )
    .await;
    make_all_ready(&cluster).await;
    patch(
        &cluster.namespaced::<StatefulSet>("default"),
        "db",
        json!({ "spec": { "replicas": 1 } }),
    )
    .await;
    assert_eq!(names(&pods(&cluster, 1).await), ["db-0"]);
    assert_eq!(claims(&cluster).await.len(), 3, "claims are kept");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retention_policy_delete_deletes_claims() {
    let cluster = test_cluster().await;
    let policy = json!({
        "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Delete" },
        "podManagementPolicy": "Parallel",
    });
    cluster.apply(set(2, "db:1", policy.clone())).await;
    pods(&cluster, 2).await;
    make_all_ready(&cluster).await;
    wait_until(
        &cluster.namespaced::<PersistentVolumeClaim>("default"),
        "the StatefulSet owns the claims",
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
    cluster.apply(set(1, "db:1", policy)).await;
    wait_until(
        &cluster.namespaced::<PersistentVolumeClaim>("default"),
        "the claim is deleted with its pod",
        |claims| {
            claims
                .iter()
                .filter(|claim| claim.metadata.deletion_timestamp.is_none())
                .count()
                == 1
        },
    )
    .await;
    cluster
        .delete(
            json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" } }),
        )
        .await;
    wait_until(
        &cluster.namespaced::<PersistentVolumeClaim>("default"),
        "the claims are deleted with the StatefulSet",
        |claims| claims.is_empty(),
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rolling_update_stops_at_partition_and_unavailable_pods() {
    let cluster = test_cluster().await;
    let partition = |partition: i32| {
        json!({
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "partition": partition },
            },
        })
    };
    cluster.apply(set(3, "db:1", partition(0))).await;
    bring_up(&cluster, 3).await;
    cluster.apply(set(3, "db:2", partition(2))).await;
    let updated = |count: usize| {
        move |pods: &[Pod]| {
            pods.len() == 3
                && pods.iter().all(is_active)
                && pods.iter().filter(|pod| image(pod) == "db:2").count() == count
        }
    };
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "db-2 is updated",
        updated(1),
    )
    .await;
    make_all_ready(&cluster).await;
    cluster.advance(Duration::from_secs(30)).await;
    let now = pods(&cluster, 3).await;
    assert_eq!(
        now.iter().map(image).collect::<Vec<_>>(),
        ["db:1", "db:1", "db:2"],
        "pods below the partition are not updated"
    );
    let status = cluster
        .namespaced::<StatefulSet>("default")
        .get("db")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_ne!(status.current_revision, status.update_revision);
    assert_eq!(status.current_replicas, Some(2));
    assert_eq!(status.updated_replicas, Some(1));

    cluster.apply(set(3, "db:2", partition(0))).await;
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "db-1 is updated",
        updated(2),
    )
    .await;
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(
        image(&pods(&cluster, 3).await[0]),
        "db:1",
        "db-0 waits until db-1 is available"
    );
    make_all_ready(&cluster).await;
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "db-0 is updated",
        updated(3),
    )
    .await;
    make_all_ready(&cluster).await;
    wait_until(
        &cluster.namespaced::<StatefulSet>("default"),
        "the update is complete",
        |sets| {
            sets[0].status.as_ref().is_some_and(|status| {
                status.current_revision == status.update_revision
                    && status.updated_replicas == Some(3)
            })
        },
    )
    .await;
    assert_eq!(list::<ControllerRevision>(&cluster).await.len(), 2);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarts_create_one_pod_per_ordinal() {
    let mut cluster = test_cluster().await;
    cluster
        .apply(set(5, "db:1", json!({ "podManagementPolicy": "Parallel" })))
        .await;
    for _ in 0..4 {
        wait_until(
            &cluster.namespaced::<Pod>("default"),
            "a first pod",
            |pods| !pods.is_empty(),
        )
        .await;
        cluster.restart_controllers().await;
    }
    assert_eq!(
        names(&pods(&cluster, 5).await),
        ["db-0", "db-1", "db-2", "db-3", "db-4"]
    );
    cluster.stop().await;
}
