//! DaemonSet controller. Pods stay unscheduled; their node affinity selects the node.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    controller, finish, image, is_active, is_ready, make_all_ready, make_ready, patch, pods,
    template, test_cluster,
};
use bellerophon_testkit::{TestCluster, wait_until};

fn set(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": template("agent", image),
        },
    })
}

async fn add_node(cluster: &TestCluster, name: &str) {
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": name, "labels": { "disk": "ssd" } },
        }))
        .await;
    // A new node is tainted until it is ready.
    patch(
        &cluster.all::<Node>(),
        name,
        json!({ "spec": { "taints": null } }),
    )
    .await;
}

/// The target node of a pod.
fn node(pod: &Pod) -> String {
    let affinity = pod
        .spec
        .as_ref()
        .unwrap()
        .affinity
        .as_ref()
        .unwrap()
        .node_affinity
        .as_ref()
        .unwrap();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
        .unwrap();
    required.node_selector_terms[0]
        .match_fields
        .as_ref()
        .unwrap()[0]
        .values
        .as_ref()
        .unwrap()[0]
        .clone()
}

fn nodes(pods: &[Pod]) -> Vec<String> {
    let mut nodes: Vec<_> = pods.iter().map(node).collect();
    nodes.sort();
    nodes
}

#[tokio::test(start_paused = true)]
async fn every_eligible_node_has_one_pod() {
    let cluster = test_cluster().await;
    for name in ["n1", "n2"] {
        add_node(&cluster, name).await;
    }
    cluster.apply(set("agent:1")).await;
    let two = pods(&cluster, 2).await;
    assert_eq!(nodes(&two), ["n1", "n2"]);
    assert!(two.iter().all(|pod| controller(pod) == Some("agent")
        && pod.labels().contains_key("controller-revision-hash")));
    add_node(&cluster, "n3").await;
    pods(&cluster, 3).await;
    make_all_ready(&cluster).await;
    let sets = wait_until(
        &cluster.namespaced::<DaemonSet>("default"),
        "three ready",
        |sets| {
            sets[0].status.as_ref().is_some_and(|status| {
                status.number_ready == 3 && status.number_available == Some(3)
            })
        },
    )
    .await;
    let status = sets[0].status.clone().unwrap();
    assert_eq!(status.desired_number_scheduled, 3);
    assert_eq!(status.current_number_scheduled, 3);
    assert_eq!(status.updated_number_scheduled, Some(3));

    // A NoExecute taint makes the node ineligible.
    patch(
        &cluster.all::<Node>(),
        "n3",
        json!({
            "spec": { "taints": [{ "key": "dedicated", "value": "db", "effect": "NoExecute" }] },
        }),
    )
    .await;
    assert_eq!(nodes(&pods(&cluster, 2).await), ["n1", "n2"]);
    let mut only_hdd = set("agent:1");
    only_hdd["spec"]["template"]["spec"]["nodeSelector"] = json!({ "disk": "hdd" });
    cluster.apply(only_hdd).await;
    pods(&cluster, 0).await;
    patch(
        &cluster.all::<Node>(),
        "n2",
        json!({ "metadata": { "labels": { "disk": "hdd" } } }),
    )
    .await;
    assert_eq!(nodes(&pods(&cluster, 1).await), ["n2"]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rolling_update_replaces_one_pod_at_a_time() {
    let cluster = test_cluster().await;
    for name in ["n1", "n2", "n3"] {
        add_node(&cluster, name).await;
    }
    cluster.apply(set("agent:1")).await;
    pods(&cluster, 3).await;
    make_all_ready(&cluster).await;
    cluster.apply(set("agent:2")).await;
    for updated in 1..=3 {
        let all = wait_until(
            &cluster.namespaced::<Pod>("default"),
            "one more updated pod",
            |pods| {
                pods.iter()
                    .filter(|pod| is_active(pod) && image(pod) == "agent:2")
                    .count()
                    == updated
            },
        )
        .await;
        assert_eq!(
            all.iter()
                .filter(|pod| is_active(pod) && !is_ready(pod))
                .count(),
            1,
            "one at a time"
        );
        cluster.advance(Duration::from_secs(5)).await;
        make_all_ready(&cluster).await;
    }
    let revisions = cluster
        .namespaced::<ControllerRevision>("default")
        .list(&Default::default())
        .await
        .unwrap();
    let mut numbers: Vec<_> = revisions.iter().map(|revision| revision.revision).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    // A rollback renumbers the first revision and creates no third one.
    cluster.apply(set("agent:1")).await;
    wait_until(
        &cluster.namespaced::<ControllerRevision>("default"),
        "the first revision is the latest",
        |all| all.len() == 2 && all.iter().map(|revision| revision.revision).max() == Some(3),
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn surge_keeps_the_old_pod_until_the_new_one_is_available() {
    let cluster = test_cluster().await;
    add_node(&cluster, "n1").await;
    let surging = |image: &str| {
        let mut set = set(image);
        set["spec"]["updateStrategy"] = json!({
            "type": "RollingUpdate",
            "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 },
        });
        set
    };
    cluster.apply(surging("agent:1")).await;
    pods(&cluster, 1).await;
    make_all_ready(&cluster).await;
    cluster.apply(surging("agent:2")).await;
    let both = pods(&cluster, 2).await;
    let new = both.iter().find(|pod| image(pod) == "agent:2").unwrap();
    cluster.advance(Duration::from_secs(20)).await;
    pods(&cluster, 2).await;
    make_ready(&cluster, new).await;
    assert_eq!(pods(&cluster, 1).await[0].uid(), new.uid());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_pods_are_replaced_with_back_off() {
    let cluster = test_cluster().await;
    add_node(&cluster, "n1").await;
    cluster.apply(set("agent:1")).await;
    let mut delays = Vec::new();
    for _ in 0..6 {
        let pod = pods(&cluster, 1).await.remove(0);
        finish(&cluster, &pod, "Failed").await;
        let before = super::now(&cluster);
        pods(&cluster, 1).await;
        delays.push(super::now(&cluster).duration_since(before).as_secs());
    }
    assert_eq!(delays, [0, 1, 2, 4, 8, 16]);
    cluster.stop().await;
}
