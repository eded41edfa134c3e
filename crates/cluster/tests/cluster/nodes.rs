//! Nodes and the pods on them.

use std::time::Duration;

use bellerophon_cluster::Nodes;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Api, ResourceExt, api::Patch};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::look::{holds, is_ready, until_pod, world};
use bellerophon_testkit::{World, until};

fn pod(name: &str, node: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "nginx"}]},
    })
}

fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|container| container.restart_count)
        .sum()
}

fn node_ready(node: &Node) -> &str {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .map_or("", |condition| &condition.status)
}

#[tokio::test(start_paused = true)]
async fn nodes_are_ready_and_renew_their_leases() {
    let world = world(3).await;
    let nodes = world.all::<Node>().list(&Default::default()).await.unwrap();
    assert_eq!(
        nodes
            .items
            .iter()
            .map(|node| (node.name_any(), node_ready(node).to_owned()))
            .collect::<Vec<_>>(),
        [1, 2, 3].map(|n| (format!("node-{n}"), "True".to_owned()))
    );
    let leases: Api<Lease> = world.within("kube-node-lease");
    let before = leases.get("node-2").await.unwrap();
    assert_eq!(
        before.owner_references()[0].uid,
        nodes.items[1].uid().unwrap()
    );
    world.pass(Duration::from_secs(25)).await;
    let after = leases.get("node-2").await.unwrap();
    let renewed = |lease: &Lease| lease.spec.as_ref().unwrap().renew_time.clone().unwrap().0;
    assert!(
        renewed(&after).duration_since(renewed(&before)).as_secs() >= 10,
        "{before:?} {after:?}"
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_runs_and_goes_gracefully() {
    let world = world(1).await;
    world
        .apply(pod(
            "web",
            "node-1",
            json!({"sim.bellerophon.io/stop-delay": "7s"}),
        ))
        .await;
    let running = until_pod(&world, "web", "the pod is ready", is_ready).await;
    let status = running.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert!(
        status.pod_ip.unwrap().starts_with("10.128.1."),
        "an address of the node's range"
    );
    let reasons: Vec<_> = status
        .conditions
        .unwrap()
        .into_iter()
        .filter_map(|condition| condition.reason.or(condition.message))
        .collect();
    assert_eq!(
        reasons, [""; 0],
        "a pod that is well does not say why it was not"
    );
    let version = running.metadata.resource_version;
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        world
            .within::<Pod>("default")
            .get("web")
            .await
            .unwrap()
            .metadata
            .resource_version,
        version
    );
    let pods: Api<Pod> = world.within("default");
    pods.delete("web", &Default::default()).await.unwrap();
    world.pass(Duration::from_secs(5)).await;
    let going = pods
        .get("web")
        .await
        .expect("it takes seven seconds to stop");
    assert!(going.metadata.deletion_timestamp.is_some());
    until(&pods, "the pod is gone", |pods| pods.is_empty()).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn crashing_pod_backs_off_and_recovers() {
    let world = world(1).await;
    let script = json!({"sim.bellerophon.io/run-for": "1s", "sim.bellerophon.io/exit-code": "3", "sim.bellerophon.io/fail-times": "3"});
    world.apply(pod("web", "node-1", script)).await;
    let waiting = |pod: &Pod| {
        pod.status.as_ref()?.container_statuses.as_ref()?[0]
            .state
            .as_ref()?
            .waiting
            .as_ref()?
            .reason
            .clone()
    };
    let crashed = until_pod(&world, "web", "it waits after a crash", |pod| {
        waiting(pod).as_deref() == Some("CrashLoopBackOff")
    })
    .await;
    let last = crashed
        .status
        .as_ref()
        .unwrap()
        .container_statuses
        .as_ref()
        .unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(last.exit_code, 3);
    assert_eq!(last.reason.as_deref(), Some("Error"));
    assert!(!is_ready(&crashed));
    until_pod(&world, "web", "it runs at last", |pod| {
        is_ready(pod) && restarts(pod) == 3
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reboot_restarts_the_pods_of_a_node() {
    let world = world(2).await;
    world.apply(pod("there", "node-1", json!({}))).await;
    world.apply(pod("elsewhere", "node-2", json!({}))).await;
    until_pod(&world, "there", "the pod is ready", is_ready).await;
    let boot_id = async || {
        world
            .all::<Node>()
            .get("node-1")
            .await
            .unwrap()
            .status
            .unwrap()
            .node_info
            .unwrap()
            .boot_id
    };
    let before = boot_id().await;
    world
        .cluster()
        .nodes()
        .expect("a full cluster has nodes")
        .reboot("node-1")
        .unwrap();
    let again = until_pod(&world, "there", "the pod runs again", |pod| {
        is_ready(pod) && restarts(pod) == 1
    })
    .await;
    assert_ne!(boot_id().await, before);
    let last = again.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(last.exit_code, 255);
    let other = until_pod(&world, "elsewhere", "the other pod is ready", is_ready).await;
    assert_eq!(restarts(&other), 0);
    assert!(world.cluster().nodes().unwrap().reboot("node-9").is_err());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarted_control_plane_leaves_pods_and_boots_alone() {
    let mut world = world(1).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    let before = until_pod(&world, "web", "the pod is ready", is_ready).await;
    let node = world.all::<Node>().get("node-1").await.unwrap();
    world.restart().await;
    world.pass(Duration::from_secs(120)).await;
    let after = until_pod(&world, "web", "the pod is ready", is_ready).await;
    assert_eq!(
        before.status, after.status,
        "nothing was restarted, nothing was written"
    );
    let boot_id = |node: Node| node.status.unwrap().node_info.unwrap().boot_id;
    assert_eq!(
        boot_id(node),
        boot_id(world.all::<Node>().get("node-1").await.unwrap())
    );
    world.stop().await;
}

/// The operations on the nodes of a world.
fn machines(world: &World) -> &Nodes {
    world.cluster().nodes().expect("a full cluster has nodes")
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints
        .map(|taint| {
            format!(
                "{}:{}",
                taint.key.trim_start_matches("node.kubernetes.io/"),
                taint.effect
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn lost_node_is_tainted_its_pods_evicted_and_all_well_on_return() {
    let world = world(3).await;
    world.apply(pod("there", "node-1", json!({}))).await;
    world.apply(pod("elsewhere", "node-2", json!({}))).await;
    until_pod(&world, "there", "the pod is ready", is_ready).await;
    let nodes: Api<Node> = world.all();
    until(&nodes, "nodes that are well have no taints", |nodes| {
        nodes.iter().all(|node| taints(node).is_empty())
    })
    .await;

    machines(&world).partition("node-1").unwrap();
    let began = Instant::now();
    until(&nodes, "the silent node is unknown", |nodes| {
        node_ready(&nodes[0]) == "Unknown"
    })
    .await;
    let silent = began.elapsed().as_secs();
    assert!((40..=60).contains(&silent), "given up after {silent} s");
    until(&nodes, "and tainted", |nodes| {
        taints(&nodes[0]) == ["unreachable:NoSchedule", "unreachable:NoExecute"]
    })
    .await;
    until_pod(&world, "there", "its pod is not ready", |pod| {
        !is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
    })
    .await;
    let began = Instant::now();
    let evicted = until_pod(&world, "there", "its pod is evicted", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(
        (295..=305).contains(&began.elapsed().as_secs()),
        "pods bear it for five minutes, not {:?}",
        began.elapsed()
    );
    assert!(holds(&evicted, "DisruptionTarget"));
    world.pass(Duration::from_secs(600)).await;
    let pods: Api<Pod> = world.within("default");
    assert_eq!(
        pods.list(&Default::default()).await.unwrap().items.len(),
        2,
        "nobody knows whether it still runs"
    );

    machines(&world).restore("node-1").unwrap();
    until(&nodes, "the node is back", |nodes| {
        node_ready(&nodes[0]) == "True" && taints(&nodes[0]).is_empty()
    })
    .await;
    until(&pods, "the evicted pod is gone", |pods| {
        pods.iter().all(|pod| pod.name_any() == "elsewhere")
    })
    .await;
    assert!(is_ready(&pods.get("elsewhere").await.unwrap()));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn short_partition_is_forgotten() {
    let world = world(2).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&world, "web", "the pod is ready", is_ready).await;
    machines(&world).partition("node-1").unwrap();
    let nodes: Api<Node> = world.all();
    until(&nodes, "the silent node is unknown", |nodes| {
        node_ready(&nodes[0]) == "Unknown"
    })
    .await;
    until_pod(&world, "web", "its pod is not ready", |pod| !is_ready(pod)).await;
    machines(&world).restore("node-1").unwrap();
    let back = until_pod(&world, "web", "its pod is ready again", is_ready).await;
    assert_eq!(restarts(&back), 0, "it ran all the time");
    assert_eq!(
        back.metadata.deletion_timestamp, None,
        "it ran all the time"
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn power_loss_ends_containers() {
    let world = world(2).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&world, "web", "the pod is ready", is_ready).await;
    machines(&world).power_off("node-1").unwrap();
    world.pass(Duration::from_secs(120)).await;
    machines(&world).restore("node-1").unwrap();
    let back = until_pod(&world, "web", "its pod is ready again", is_ready).await;
    assert_eq!(restarts(&back), 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn annotations_of_a_node_operate_its_machine() {
    let mut world = world(2).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&world, "web", "the pod is ready", is_ready).await;
    let order = async |world: &World, name: &str, value: Value| {
        let annotations = json!({ "metadata": { "annotations": { format!("sim.bellerophon.io/{name}"): value } } });
        world
            .all::<Node>()
            .patch("node-1", &Default::default(), &Patch::Merge(&annotations))
            .await
            .unwrap();
    };
    order(&world, "network", json!("off")).await;
    until_pod(&world, "web", "the node is cut off", |pod| !is_ready(pod)).await;
    order(&world, "network", Value::Null).await;
    until_pod(&world, "web", "it ran all the time", |pod| {
        is_ready(pod) && restarts(pod) == 0
    })
    .await;
    order(&world, "power", json!("off")).await;
    until_pod(&world, "web", "the node is off", |pod| !is_ready(pod)).await;
    order(&world, "power", json!("on")).await;
    until_pod(&world, "web", "it was started again", |pod| {
        is_ready(pod) && restarts(pod) == 1
    })
    .await;
    order(&world, "reboot", json!("once")).await;
    until_pod(&world, "web", "it was started once more", |pod| {
        is_ready(pod) && restarts(pod) == 2
    })
    .await;
    world.restart().await;
    world.pass(Duration::from_secs(60)).await;
    until_pod(&world, "web", "an order is obeyed once", |pod| {
        is_ready(pod) && restarts(pod) == 2
    })
    .await;
    order(&world, "power", json!("of")).await;
    let events: Api<Event> = world.within("default");
    until(&events, "a mistake is told", |events| {
        let invalid = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("InvalidSimulation"));
        invalid.filter_map(|event| event.message.as_deref()).eq([
            "annotation sim.bellerophon.io/power must be on or off, got \"of\"; it is ignored",
        ])
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordoning_is_told_on_the_node() {
    let world = world(1).await;
    let events: Api<Event> = world.within("default");
    for (cordoned, wanted) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        let spec = json!({ "spec": { "unschedulable": cordoned } });
        world
            .all::<Node>()
            .patch("node-1", &Default::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
        until(&events, "the kubelet says so", |events| {
            events.iter().any(|event| {
                event.reason.as_deref() == Some(wanted)
                    && event.reporting_instance.as_deref() == Some("node-1")
            })
        })
        .await;
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_while_all_nodes_are_lost() {
    let world = world(2).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&world, "web", "the pod is ready", is_ready).await;
    machines(&world)
        .names()
        .iter()
        .for_each(|node| machines(&world).partition(node).unwrap());
    world.pass(Duration::from_secs(1200)).await;
    let pods: Api<Pod> = world.within("default");
    assert_eq!(
        pods.get("web").await.unwrap().metadata.deletion_timestamp,
        None
    );
    let nodes = world.all::<Node>().list(&Default::default()).await.unwrap();
    assert!(nodes.items.iter().all(|node| node_ready(node) == "Unknown" && taints(node) == ["unreachable:NoSchedule"]), "{nodes:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_taken_away() {
    let world = world(2).await;
    world.apply(pod("orphan", "node-1", json!({}))).await;
    world.apply(pod("stays", "node-2", json!({}))).await;
    until_pod(&world, "orphan", "the pod is ready", is_ready).await;
    machines(&world).power_off("node-1").unwrap();
    world
        .all::<Node>()
        .delete("node-1", &Default::default())
        .await
        .unwrap();
    let pods: Api<Pod> = world.within("default");
    until(&pods, "the orphan is gone", |pods| {
        pods.iter().all(|pod| pod.name_any() == "stays")
    })
    .await;
    machines(&world).restore("node-1").unwrap();
    until(&world.all::<Node>(), "the node registers again", |nodes| {
        nodes.len() == 2 && node_ready(&nodes[0]) == "True"
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordon_and_taint_by_hand_take_effect() {
    let world = world(1).await;
    world.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&world, "web", "the pod is ready", is_ready).await;
    let nodes: Api<Node> = world.all();
    let patch = |spec: Value| Patch::Merge(json!({"spec": spec}));
    nodes
        .patch(
            "node-1",
            &Default::default(),
            &patch(json!({"unschedulable": true})),
        )
        .await
        .unwrap();
    until(&nodes, "a cordoned node is tainted", |nodes| {
        taints(&nodes[0]) == ["unschedulable:NoSchedule"]
    })
    .await;
    nodes
        .patch(
            "node-1",
            &Default::default(),
            &patch(json!({"unschedulable": null})),
        )
        .await
        .unwrap();
    until(&nodes, "an uncordoned one is not", |nodes| {
        taints(&nodes[0]).is_empty()
    })
    .await;
    let taint = json!({"taints": [{"key": "example.com/gone", "effect": "NoExecute"}]});
    nodes
        .patch("node-1", &Default::default(), &patch(taint))
        .await
        .unwrap();
    until(
        &world.within::<Pod>("default"),
        "the pod is driven out",
        |pods| pods.is_empty(),
    )
    .await;
    assert_eq!(
        taints(&nodes.get("node-1").await.unwrap()),
        ["example.com/gone:NoExecute"]
    );
    world.stop().await;
}
