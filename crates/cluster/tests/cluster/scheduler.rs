//! Scheduling: binding, unschedulable pods, preemption, scheduling gates, draining.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, Patch},
};
use serde_json::{Value, json};

use crate::pods::{condition, is_ready, node_of, test_cluster, until_pod};
use bellerophon_testkit::{TestCluster, wait_until};

/// A pod with a CPU request. Nodes have 32 CPUs.
fn pod(name: &str, cpu: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name.split('-').next()}},
        "spec": {
            "containers": [
                {"name": "app", "image": "nginx", "resources": {"requests": {"cpu": cpu}}},
            ],
        },
    });
    spec.as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| pod["spec"][key] = value.clone());
    pod
}

/// The message of an unschedulable pod.
fn unschedulable_message(pod: &Pod) -> Option<&str> {
    condition(pod, "PodScheduled")
        .filter(|scheduled| scheduled.status == "False")?
        .message
        .as_deref()
}

/// The messages of all events regarding an object with a reason.
async fn event_messages(cluster: &TestCluster, name: &str, reason: &str) -> Vec<String> {
    let events: Api<Event> = cluster.namespaced("default");
    let matches = |event: &Event| {
        event.involved_object.name.as_deref() == Some(name)
            && event.reason.as_deref() == Some(reason)
    };
    let seen = wait_until(&events, &format!("{reason} of {name}"), |events| {
        events.iter().any(matches)
    })
    .await;
    seen.into_iter()
        .filter(matches)
        .filter_map(|event| event.message)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn scheduled_pod_has_events_and_becomes_ready() {
    let cluster = test_cluster(3).await;
    cluster.apply(pod("web", "1", json!({}))).await;
    let web = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let node = node_of(&web).expect("a ready pod has a node");
    assert_eq!(
        event_messages(&cluster, "web", "Scheduled").await,
        [format!("Successfully assigned default/web to {node}")]
    );
    assert_eq!(
        event_messages(&cluster, "web", "Started").await,
        ["Container started"]
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unschedulable_pod_is_scheduled_when_resources_are_freed() {
    let cluster = test_cluster(1).await;
    cluster.apply(pod("first", "20", json!({}))).await;
    until_pod(&cluster, "first", "the first pod is ready", is_ready).await;
    cluster.apply(pod("second", "20", json!({}))).await;
    let pending = until_pod(
        &cluster,
        "second",
        "the second pod is unschedulable",
        |pod| unschedulable_message(pod).is_some(),
    )
    .await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are \
        available: 1 No preemption victims found for incoming pod.";
    assert_eq!(unschedulable_message(&pending), Some(message));
    assert_eq!(
        event_messages(&cluster, "second", "FailedScheduling").await,
        [message]
    );
    let version = pending.resource_version();
    cluster.advance(Duration::from_secs(900)).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    assert_eq!(
        pods.get("second").await.unwrap().resource_version(),
        version,
        "an unchanged condition is not written"
    );
    pods.delete("first", &Default::default()).await.unwrap();
    until_pod(&cluster, "second", "the second pod is scheduled", is_ready).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordon_and_uncordon_take_effect_immediately() {
    let cluster = test_cluster(2).await;
    let nodes: Api<Node> = cluster.all();
    let cordon = |on: Value| Patch::Merge(json!({"spec": {"unschedulable": on}}));
    for node in ["node-1", "node-2"] {
        nodes
            .patch(node, &Default::default(), &cordon(json!(true)))
            .await
            .unwrap();
    }
    wait_until(&nodes, "both are tainted", |nodes| {
        nodes
            .iter()
            .all(|node| node.spec.as_ref().unwrap().taints.is_some())
    })
    .await;
    cluster.apply(pod("web", "1", json!({}))).await;
    let pending = until_pod(&cluster, "web", "the pod is unschedulable", |pod| {
        unschedulable_message(pod).is_some()
    })
    .await;
    assert!(
        unschedulable_message(&pending)
            .unwrap()
            .starts_with("0/2 nodes are available: 2 node(s) were unschedulable."),
        "{pending:?}"
    );
    nodes
        .patch("node-2", &Default::default(), &cordon(json!(null)))
        .await
        .unwrap();
    let web = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    assert_eq!(node_of(&web), Some("node-2"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn higher_priority_pod_preempts_lower_ones() {
    let cluster = test_cluster(1).await;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    });
    cluster.apply(class).await;
    for name in ["low-1", "low-2", "low-3"] {
        cluster.apply(pod(name, "10", json!({}))).await;
        until_pod(&cluster, name, "the pod is ready", is_ready).await;
    }
    cluster
        .apply(pod("high", "15", json!({"priorityClassName": "high"})))
        .await;
    let pending = until_pod(&cluster, "high", "a node is nominated", |pod| {
        pod.status.as_ref().unwrap().nominated_node_name.is_some()
    })
    .await;
    assert_eq!(
        pending
            .status
            .as_ref()
            .unwrap()
            .nominated_node_name
            .as_deref(),
        Some("node-1")
    );
    let high = until_pod(&cluster, "high", "the preempting pod is ready", is_ready).await;
    assert_eq!(high.status.unwrap().nominated_node_name, None);
    let pods: Api<Pod> = cluster.namespaced("default");
    let remaining = wait_until(&pods, "no pod is terminating", |pods| {
        pods.iter()
            .all(|pod| pod.metadata.deletion_timestamp.is_none())
    })
    .await;
    assert_eq!(
        remaining.len(),
        2,
        "{:?}",
        remaining
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        event_messages(&cluster, "high", "FailedScheduling").await,
        ["0/1 nodes are available: 1 Insufficient cpu."]
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scheduling_gates_block_a_pod() {
    let cluster = test_cluster(1).await;
    cluster
        .apply(pod(
            "web",
            "1",
            json!({"schedulingGates": [{"name": "example.com/wait"}]}),
        ))
        .await;
    cluster.advance(Duration::from_secs(600)).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    assert_eq!(node_of(&pods.get("web").await.unwrap()), None);
    pods.patch(
        "web",
        &Default::default(),
        &Patch::Merge(json!({"spec": {"schedulingGates": null}})),
    )
    .await
    .unwrap();
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_drained_node_move_to_other_nodes() {
    let cluster = test_cluster(3).await;
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 6,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "nginx"}]},
            },
        },
    });
    cluster.apply(deployment).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let all_ready =
        |pods: &[Pod]| pods.iter().filter(|pod| is_ready(pod)).count() == 6 && pods.len() == 6;
    let before = wait_until(&pods, "six pods are ready", all_ready).await;
    let on_node: Vec<_> = before
        .iter()
        .filter(|pod| node_of(pod) == Some("node-1"))
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(on_node.len(), 2, "pods are spread evenly");
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    cluster
        .all::<Node>()
        .patch("node-1", &Default::default(), &cordon)
        .await
        .unwrap();
    for name in on_node {
        pods.evict(&name, &EvictParams::default()).await.unwrap();
    }
    let moved =
        |pods: &[Pod]| all_ready(pods) && pods.iter().all(|pod| node_of(pod) != Some("node-1"));
    wait_until(&pods, "all pods are ready on other nodes", moved).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarted_scheduler_accounts_for_existing_pods() {
    let mut cluster = test_cluster(1).await;
    cluster.apply(pod("first", "20", json!({}))).await;
    until_pod(&cluster, "first", "the first pod is ready", is_ready).await;
    cluster.restart_controllers().await;
    cluster.apply(pod("second", "20", json!({}))).await;
    cluster.apply(pod("third", "10", json!({}))).await;
    until_pod(&cluster, "third", "the small pod is ready", is_ready).await;
    until_pod(
        &cluster,
        "second",
        "the large pod is unschedulable",
        |pod| unschedulable_message(pod).is_some(),
    )
    .await;
    cluster.stop().await;
}
