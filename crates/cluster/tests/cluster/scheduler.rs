//! Pods find their nodes.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, Patch},
};
use serde_json::{Value, json};

use crate::look::{condition, is_ready, node_of, until_pod, world};
use bellerophon_testkit::{World, until};

/// A pod that asks for so much CPU; nodes have 32.
fn pod(name: &str, cpu: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name.split('-').next()}},
        "spec": {"containers": [{"name": "app", "image": "nginx", "resources": {"requests": {"cpu": cpu}}}]},
    });
    spec.as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| pod["spec"][key] = value.clone());
    pod
}

/// Whether the scheduler says that no node takes a pod, and why.
fn refusal(pod: &Pod) -> Option<&str> {
    condition(pod, "PodScheduled")
        .filter(|scheduled| scheduled.status == "False")?
        .message
        .as_deref()
}

/// The notes of all events about an object with that reason.
async fn notes(world: &World, name: &str, reason: &str) -> Vec<String> {
    let events: Api<Event> = world.within("default");
    let about = |event: &Event| {
        event.involved_object.name.as_deref() == Some(name)
            && event.reason.as_deref() == Some(reason)
    };
    let seen = until(&events, &format!("{reason} of {name}"), |events| {
        events.iter().any(about)
    })
    .await;
    seen.into_iter()
        .filter(about)
        .filter_map(|event| event.message)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pod_is_bound_runs_and_is_told_of() {
    let world = world(3).await;
    world.apply(pod("web", "1", json!({}))).await;
    let web = until_pod(&world, "web", "the pod is ready", is_ready).await;
    let node = node_of(&web).expect("a ready pod has a node");
    assert_eq!(
        notes(&world, "web", "Scheduled").await,
        [format!("Successfully assigned default/web to {node}")]
    );
    assert_eq!(notes(&world, "web", "Started").await, ["Container started"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unschedulable_pod_says_why_and_goes_when_there_is_room() {
    let world = world(1).await;
    world.apply(pod("first", "20", json!({}))).await;
    until_pod(&world, "first", "the first pod runs", is_ready).await;
    world.apply(pod("second", "20", json!({}))).await;
    let waits = until_pod(&world, "second", "the second waits", |pod| {
        refusal(pod).is_some()
    })
    .await;
    let why = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(refusal(&waits), Some(why));
    assert_eq!(notes(&world, "second", "FailedScheduling").await, [why]);
    let written = waits.resource_version();
    world.pass(Duration::from_secs(900)).await;
    let pods: Api<Pod> = world.within("default");
    assert_eq!(
        pods.get("second").await.unwrap().resource_version(),
        written,
        "nothing is written that says nothing new"
    );
    pods.delete("first", &Default::default()).await.unwrap();
    until_pod(&world, "second", "the second has its room", is_ready).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordoned_and_new_nodes_count_at_once() {
    let world = world(2).await;
    let nodes: Api<Node> = world.all();
    let cordon = |on: Value| Patch::Merge(json!({"spec": {"unschedulable": on}}));
    for node in ["node-1", "node-2"] {
        nodes
            .patch(node, &Default::default(), &cordon(json!(true)))
            .await
            .unwrap();
    }
    until(&nodes, "both are tainted", |nodes| {
        nodes
            .iter()
            .all(|node| node.spec.as_ref().unwrap().taints.is_some())
    })
    .await;
    world.apply(pod("web", "1", json!({}))).await;
    let waits = until_pod(&world, "web", "the pod waits", |pod| refusal(pod).is_some()).await;
    assert!(
        refusal(&waits)
            .unwrap()
            .starts_with("0/2 nodes are available: 2 node(s) were unschedulable."),
        "{waits:?}"
    );
    nodes
        .patch("node-2", &Default::default(), &cordon(json!(null)))
        .await
        .unwrap();
    let web = until_pod(&world, "web", "the pod runs", is_ready).await;
    assert_eq!(node_of(&web), Some("node-2"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn important_pod_makes_room_for_itself() {
    let world = world(1).await;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000});
    world.apply(class).await;
    for name in ["low-1", "low-2", "low-3"] {
        world.apply(pod(name, "10", json!({}))).await;
        until_pod(&world, name, "it runs", is_ready).await;
    }
    world
        .apply(pod("high", "15", json!({"priorityClassName": "high"})))
        .await;
    let waits = until_pod(&world, "high", "it waits for a node", |pod| {
        pod.status.as_ref().unwrap().nominated_node_name.is_some()
    })
    .await;
    assert_eq!(
        waits
            .status
            .as_ref()
            .unwrap()
            .nominated_node_name
            .as_deref(),
        Some("node-1")
    );
    let high = until_pod(&world, "high", "the important pod runs", is_ready).await;
    assert_eq!(high.status.unwrap().nominated_node_name, None);
    let pods: Api<Pod> = world.within("default");
    let left = until(&pods, "no more than needed have gone", |pods| {
        pods.iter()
            .all(|pod| pod.metadata.deletion_timestamp.is_none())
    })
    .await;
    assert_eq!(
        left.len(),
        2,
        "{:?}",
        left.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
    assert_eq!(
        notes(&world, "high", "FailedScheduling").await,
        ["0/1 nodes are available: 1 Insufficient cpu."]
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn gates_hold_a_pod_back() {
    let world = world(1).await;
    world
        .apply(pod(
            "web",
            "1",
            json!({"schedulingGates": [{"name": "example.com/wait"}]}),
        ))
        .await;
    world.pass(Duration::from_secs(600)).await;
    let pods: Api<Pod> = world.within("default");
    assert_eq!(node_of(&pods.get("web").await.unwrap()), None);
    pods.patch(
        "web",
        &Default::default(),
        &Patch::Merge(json!({"spec": {"schedulingGates": null}})),
    )
    .await
    .unwrap();
    until_pod(&world, "web", "the pod runs", is_ready).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drained_node_is_empty_and_its_pods_elsewhere() {
    let world = world(3).await;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "nginx"}]}}},
    });
    world.apply(deployment).await;
    let pods: Api<Pod> = world.within("default");
    let all_ready =
        |pods: &[Pod]| pods.iter().filter(|pod| is_ready(pod)).count() == 6 && pods.len() == 6;
    let before = until(&pods, "six pods run", all_ready).await;
    let there: Vec<_> = before
        .iter()
        .filter(|pod| node_of(pod) == Some("node-1"))
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(there.len(), 2, "pods are spread evenly");
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    world
        .all::<Node>()
        .patch("node-1", &Default::default(), &cordon)
        .await
        .unwrap();
    for name in there {
        pods.evict(&name, &EvictParams::default()).await.unwrap();
    }
    let moved =
        |pods: &[Pod]| all_ready(pods) && pods.iter().all(|pod| node_of(pod) != Some("node-1"));
    until(&pods, "all run elsewhere", moved).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarted_scheduler_counts_what_is_there() {
    let mut world = world(1).await;
    world.apply(pod("first", "20", json!({}))).await;
    until_pod(&world, "first", "the first pod runs", is_ready).await;
    world.restart().await;
    world.apply(pod("second", "20", json!({}))).await;
    world.apply(pod("third", "10", json!({}))).await;
    until_pod(&world, "third", "the small one runs", is_ready).await;
    until_pod(&world, "second", "the large one does not fit", |pod| {
        refusal(pod).is_some()
    })
    .await;
    world.stop().await;
}
