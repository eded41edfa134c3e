//! Simulated nodes, node lifecycle, taint eviction and pod garbage collection.

use std::time::Duration;

use bellerophon_cluster::Nodes;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::pods::{has_condition, is_ready, test_cluster, until_pod};
use bellerophon_testkit::{TestCluster, wait_until};

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
    let cluster = test_cluster(3).await;
    let nodes = cluster
        .all::<Node>()
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(
        nodes
            .items
            .iter()
            .map(|node| (node.name_any(), node_ready(node).to_owned()))
            .collect::<Vec<_>>(),
        [1, 2, 3].map(|n| (format!("node-{n}"), "True".to_owned()))
    );
    let leases: Api<Lease> = cluster.namespaced("kube-node-lease");
    let before = leases.get("node-2").await.unwrap();
    assert_eq!(
        before.owner_references()[0].uid,
        nodes.items[1].uid().unwrap()
    );
    cluster.advance(Duration::from_secs(25)).await;
    let after = leases.get("node-2").await.unwrap();
    let renewed = |lease: &Lease| lease.spec.as_ref().unwrap().renew_time.clone().unwrap().0;
    assert!(
        renewed(&after).duration_since(renewed(&before)).as_secs() >= 10,
        "{before:?} {after:?}"
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_runs_and_terminates_gracefully() {
    let cluster = test_cluster(1).await;
    cluster
        .apply(pod(
            "web",
            "node-1",
            json!({"sim.bellerophon.io/stop-delay": "7s"}),
        ))
        .await;
    let running = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
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
    assert_eq!(reasons, [""; 0], "conditions that are true have no reason");
    let version = running.metadata.resource_version;
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(
        cluster
            .namespaced::<Pod>("default")
            .get("web")
            .await
            .unwrap()
            .metadata
            .resource_version,
        version
    );
    let pods: Api<Pod> = cluster.namespaced("default");
    pods.delete("web", &Default::default()).await.unwrap();
    cluster.advance(Duration::from_secs(5)).await;
    let terminating = pods.get("web").await.expect("it takes 7 s to stop");
    assert!(terminating.metadata.deletion_timestamp.is_some());
    wait_until(&pods, "the pod is deleted", |pods| pods.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn crashing_pod_backs_off_and_recovers() {
    let cluster = test_cluster(1).await;
    let script = json!({
        "sim.bellerophon.io/run-for": "1s",
        "sim.bellerophon.io/exit-code": "3",
        "sim.bellerophon.io/fail-times": "3",
    });
    cluster.apply(pod("web", "node-1", script)).await;
    let waiting = |pod: &Pod| {
        pod.status.as_ref()?.container_statuses.as_ref()?[0]
            .state
            .as_ref()?
            .waiting
            .as_ref()?
            .reason
            .clone()
    };
    let crashed = until_pod(
        &cluster,
        "web",
        "the container is in CrashLoopBackOff",
        |pod| waiting(pod).as_deref() == Some("CrashLoopBackOff"),
    )
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
    until_pod(
        &cluster,
        "web",
        "the pod is ready after 3 restarts",
        |pod| is_ready(pod) && restarts(pod) == 3,
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_back_off_honours_the_maximum_of_the_node() {
    let cluster = test_cluster(2).await;
    let nodes = cluster.all::<Node>();
    let annotate = async |value: &str| {
        let annotation = json!({"sim.bellerophon.io/max-container-restart-period": value});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotation}}));
        let patched = nodes.patch("node-1", &PatchParams::default(), &patch).await;
        patched.unwrap();
    };
    annotate("5s").await;
    let script = json!({"sim.bellerophon.io/run-for": "1s", "sim.bellerophon.io/exit-code": "3"});
    for (name, node) in [("short", "node-1"), ("long", "node-2")] {
        cluster.apply(pod(name, node, script.clone())).await;
    }
    cluster.advance(Duration::from_secs(600)).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let restarted = async |name: &str| restarts(&pods.get(name).await.unwrap());
    // 600 s of runs of 1 s and delays of 5 s, against delays of 0, 10, 20, 40, 80, 160 and 300 s.
    let short = restarted("short").await;
    assert!((95..=102).contains(&short), "{short}");
    assert_eq!(restarted("long").await, 6);
    // A maximum that was changed applies to the next restart.
    annotate("300s").await;
    cluster.advance(Duration::from_secs(600)).await;
    let later = restarted("short").await;
    assert!((2..=4).contains(&(later - short)), "{short}, {later}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reboot_restarts_the_pods_of_a_node() {
    let cluster = test_cluster(2).await;
    cluster.apply(pod("affected", "node-1", json!({}))).await;
    cluster.apply(pod("elsewhere", "node-2", json!({}))).await;
    until_pod(&cluster, "affected", "the pod is ready", is_ready).await;
    let boot_id = async || {
        cluster
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
    cluster
        .cluster()
        .nodes()
        .expect("a full cluster has nodes")
        .reboot("node-1")
        .unwrap();
    let restarted = until_pod(
        &cluster,
        "affected",
        "the pod is ready after the restart",
        |pod| is_ready(pod) && restarts(pod) == 1,
    )
    .await;
    assert_ne!(boot_id().await, before);
    let last = restarted.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(last.exit_code, 255);
    let other = until_pod(&cluster, "elsewhere", "the other pod is ready", is_ready).await;
    assert_eq!(restarts(&other), 0);
    assert!(cluster.cluster().nodes().unwrap().reboot("node-9").is_err());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_of_the_control_plane_restarts_no_pods() {
    let mut cluster = test_cluster(1).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    let before = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let node = cluster.all::<Node>().get("node-1").await.unwrap();
    cluster.restart_controllers().await;
    cluster.advance(Duration::from_secs(120)).await;
    let after = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    assert_eq!(
        before.status, after.status,
        "no container was restarted and nothing was written"
    );
    let boot_id = |node: Node| node.status.unwrap().node_info.unwrap().boot_id;
    assert_eq!(
        boot_id(node),
        boot_id(cluster.all::<Node>().get("node-1").await.unwrap())
    );
    cluster.stop().await;
}

/// The handle to the simulated nodes.
fn nodes_handle(cluster: &TestCluster) -> &Nodes {
    cluster.cluster().nodes().expect("a full cluster has nodes")
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
async fn unreachable_node_is_tainted_and_its_pods_are_evicted() {
    let cluster = test_cluster(3).await;
    cluster.apply(pod("affected", "node-1", json!({}))).await;
    cluster.apply(pod("elsewhere", "node-2", json!({}))).await;
    until_pod(&cluster, "affected", "the pod is ready", is_ready).await;
    let nodes: Api<Node> = cluster.all();
    wait_until(&nodes, "ready nodes have no taints", |nodes| {
        nodes.iter().all(|node| taints(node).is_empty())
    })
    .await;

    nodes_handle(&cluster).partition("node-1").unwrap();
    let began = Instant::now();
    wait_until(&nodes, "the node is Unknown", |nodes| {
        node_ready(&nodes[0]) == "Unknown"
    })
    .await;
    let elapsed = began.elapsed().as_secs();
    assert!((40..=60).contains(&elapsed), "Unknown after {elapsed} s");
    wait_until(&nodes, "the node is tainted", |nodes| {
        taints(&nodes[0]) == ["unreachable:NoSchedule", "unreachable:NoExecute"]
    })
    .await;
    until_pod(&cluster, "affected", "its pod is not ready", |pod| {
        !is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
    })
    .await;
    let began = Instant::now();
    let evicted = until_pod(&cluster, "affected", "its pod is evicted", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(
        (295..=305).contains(&began.elapsed().as_secs()),
        "evicted after {:?}, expected 5 minutes",
        began.elapsed()
    );
    assert!(has_condition(&evicted, "DisruptionTarget"));
    cluster.advance(Duration::from_secs(600)).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    assert_eq!(
        pods.list(&Default::default()).await.unwrap().items.len(),
        2,
        "the pod may still run"
    );

    nodes_handle(&cluster).restore("node-1").unwrap();
    wait_until(&nodes, "the node is ready", |nodes| {
        node_ready(&nodes[0]) == "True" && taints(&nodes[0]).is_empty()
    })
    .await;
    wait_until(&pods, "the evicted pod is deleted", |pods| {
        pods.iter().all(|pod| pod.name_any() == "elsewhere")
    })
    .await;
    assert!(is_ready(&pods.get("elsewhere").await.unwrap()));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn short_partition_evicts_no_pods() {
    let cluster = test_cluster(2).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    nodes_handle(&cluster).partition("node-1").unwrap();
    let nodes: Api<Node> = cluster.all();
    wait_until(&nodes, "the node is Unknown", |nodes| {
        node_ready(&nodes[0]) == "Unknown"
    })
    .await;
    until_pod(&cluster, "web", "its pod is not ready", |pod| {
        !is_ready(pod)
    })
    .await;
    nodes_handle(&cluster).restore("node-1").unwrap();
    let back = until_pod(&cluster, "web", "its pod is ready again", is_ready).await;
    assert_eq!(restarts(&back), 0, "the pod kept running");
    assert_eq!(
        back.metadata.deletion_timestamp, None,
        "the pod kept running"
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn power_loss_restarts_containers() {
    let cluster = test_cluster(2).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    nodes_handle(&cluster).power_off("node-1").unwrap();
    cluster.advance(Duration::from_secs(120)).await;
    nodes_handle(&cluster).restore("node-1").unwrap();
    let back = until_pod(&cluster, "web", "its pod is ready again", is_ready).await;
    assert_eq!(restarts(&back), 1);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_annotations_operate_the_simulated_node() {
    let mut cluster = test_cluster(2).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let annotate = async |cluster: &TestCluster, name: &str, value: Value| {
        let annotations = json!({
            "metadata": { "annotations": { format!("sim.bellerophon.io/{name}"): value } },
        });
        cluster
            .all::<Node>()
            .patch("node-1", &Default::default(), &Patch::Merge(&annotations))
            .await
            .unwrap();
    };
    annotate(&cluster, "network", json!("off")).await;
    until_pod(&cluster, "web", "the node is partitioned", |pod| {
        !is_ready(pod)
    })
    .await;
    annotate(&cluster, "network", Value::Null).await;
    until_pod(&cluster, "web", "the pod kept running", |pod| {
        is_ready(pod) && restarts(pod) == 0
    })
    .await;
    annotate(&cluster, "power", json!("off")).await;
    until_pod(&cluster, "web", "the node is powered off", |pod| {
        !is_ready(pod)
    })
    .await;
    annotate(&cluster, "power", json!("on")).await;
    until_pod(&cluster, "web", "the container was restarted", |pod| {
        is_ready(pod) && restarts(pod) == 1
    })
    .await;
    annotate(&cluster, "reboot", json!("once")).await;
    until_pod(
        &cluster,
        "web",
        "the container was restarted again",
        |pod| is_ready(pod) && restarts(pod) == 2,
    )
    .await;
    cluster.restart_controllers().await;
    cluster.advance(Duration::from_secs(60)).await;
    until_pod(&cluster, "web", "the reboot is not repeated", |pod| {
        is_ready(pod) && restarts(pod) == 2
    })
    .await;
    annotate(&cluster, "power", json!("of")).await;
    let events: Api<Event> = cluster.namespaced("default");
    wait_until(&events, "an event reports the invalid value", |events| {
        let invalid = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("InvalidSimulation"));
        invalid.filter_map(|event| event.message.as_deref()).eq([
            "annotation sim.bellerophon.io/power must be on or off, got \"of\"; it is ignored",
        ])
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordon_is_recorded_as_node_event() {
    let cluster = test_cluster(1).await;
    let events: Api<Event> = cluster.namespaced("default");
    for (cordoned, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        let spec = json!({ "spec": { "unschedulable": cordoned } });
        cluster
            .all::<Node>()
            .patch("node-1", &Default::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
        wait_until(&events, "the kubelet records the event", |events| {
            events.iter().any(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.reporting_instance.as_deref() == Some("node-1")
            })
        })
        .await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_while_all_nodes_are_unreachable() {
    let cluster = test_cluster(2).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    nodes_handle(&cluster)
        .names()
        .iter()
        .for_each(|node| nodes_handle(&cluster).partition(node).unwrap());
    cluster.advance(Duration::from_secs(1200)).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    assert_eq!(
        pods.get("web").await.unwrap().metadata.deletion_timestamp,
        None
    );
    let nodes = cluster
        .all::<Node>()
        .list(&Default::default())
        .await
        .unwrap();
    for node in &nodes.items {
        assert_eq!(node_ready(node), "Unknown", "{node:?}");
        assert_eq!(taints(node), ["unreachable:NoSchedule"], "{node:?}");
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_garbage_collected() {
    let cluster = test_cluster(2).await;
    cluster.apply(pod("orphan", "node-1", json!({}))).await;
    cluster.apply(pod("kept", "node-2", json!({}))).await;
    until_pod(&cluster, "orphan", "the pod is ready", is_ready).await;
    nodes_handle(&cluster).power_off("node-1").unwrap();
    cluster
        .all::<Node>()
        .delete("node-1", &Default::default())
        .await
        .unwrap();
    let pods: Api<Pod> = cluster.namespaced("default");
    wait_until(&pods, "the orphaned pod is deleted", |pods| {
        pods.iter().all(|pod| pod.name_any() == "kept")
    })
    .await;
    nodes_handle(&cluster).restore("node-1").unwrap();
    wait_until(
        &cluster.all::<Node>(),
        "the node is registered again",
        |nodes| nodes.len() == 2 && node_ready(&nodes[0]) == "True",
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cordon_and_custom_taints_take_effect() {
    let cluster = test_cluster(1).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let nodes: Api<Node> = cluster.all();
    let patch = |spec: Value| Patch::Merge(json!({"spec": spec}));
    nodes
        .patch(
            "node-1",
            &Default::default(),
            &patch(json!({"unschedulable": true})),
        )
        .await
        .unwrap();
    wait_until(&nodes, "a cordoned node is tainted", |nodes| {
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
    wait_until(&nodes, "an uncordoned node is not tainted", |nodes| {
        taints(&nodes[0]).is_empty()
    })
    .await;
    let taint = json!({"taints": [{"key": "example.com/gone", "effect": "NoExecute"}]});
    nodes
        .patch("node-1", &Default::default(), &patch(taint))
        .await
        .unwrap();
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "the pod is evicted",
        |pods| pods.is_empty(),
    )
    .await;
    assert_eq!(
        taints(&nodes.get("node-1").await.unwrap()),
        ["example.com/gone:NoExecute"]
    );
    cluster.stop().await;
}

/// A time that the server accepts, and that is later than `Timestamp` can express.
const LATE: &str = "9999-12-31T23:59:59Z";

/// Patches an object without decoding it.
async fn merge_patch(cluster: &TestCluster, path: &str, patch: Value) {
    let request = Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .unwrap();
    let patched: Value = cluster.client.request(request).await.unwrap();
    assert!(
        patched.to_string().contains(LATE),
        "the server stores the time"
    );
}

/// Caches skipped an object with such a time, so the kubelet did not see that the pod was deleted.
#[tokio::test(start_paused = true)]
async fn pod_with_a_start_time_in_the_year_9999_is_terminated() {
    let cluster = test_cluster(1).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let late = json!({"status": {"startTime": LATE}});
    merge_patch(&cluster, "/api/v1/namespaces/default/pods/web/status", late).await;
    cluster.delete(pod("web", "node-1", json!({}))).await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "the pod is deleted", |pods| pods.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn taint_added_in_the_year_9999_takes_effect() {
    let cluster = test_cluster(1).await;
    cluster.apply(pod("web", "node-1", json!({}))).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    let taint = json!({"key": "example.com/gone", "effect": "NoExecute", "timeAdded": LATE});
    let late = json!({"spec": {"taints": [taint]}});
    merge_patch(&cluster, "/api/v1/nodes/node-1", late).await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "the pod is evicted", |pods| pods.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_taken_host_port_is_rejected() {
    let cluster = test_cluster(2).await;
    let with_host_port = |name: &str, node: &str| {
        let mut pod = pod(name, node, json!({}));
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
        pod
    };
    cluster.apply(with_host_port("first", "node-1")).await;
    until_pod(&cluster, "first", "it is ready", is_ready).await;
    cluster.apply(with_host_port("elsewhere", "node-2")).await;
    until_pod(&cluster, "elsewhere", "it is ready", is_ready).await;
    cluster.apply(with_host_port("second", "node-1")).await;
    let is_failed = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Failed")
    };
    let rejected = until_pod(&cluster, "second", "it is rejected", is_failed).await;
    let status = rejected.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodePorts"));
    assert_eq!(
        status.message.as_deref(),
        Some(
            "Pod was rejected: Predicate NodePorts failed: \
             node(s) didn't have free ports for the requested pod ports"
        )
    );
    assert!(status.container_statuses.is_none());

    let pods: Api<Pod> = cluster.namespaced("default");
    pods.delete("first", &Default::default()).await.unwrap();
    wait_until(&pods, "the first pod is deleted", |pods| {
        pods.iter().all(|pod| pod.name_any() != "first")
    })
    .await;
    cluster.apply(with_host_port("third", "node-1")).await;
    until_pod(&cluster, "third", "the port is free", is_ready).await;
    cluster.stop().await;
}
