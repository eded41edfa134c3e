//! Defects that other reboot operators have or had, according to their source code and users. Those
//! that a plan alone can show are unit tests of the plans; `docs/design/reboot.md` lists all of
//! them.

use std::time::Duration;

use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon_reboot::{
    AnnotationPrefix, IN_PROGRESS, LAST, NEEDED, RebootLedger, agents, commands::RebootCommands,
    simulated_agents,
};
use bellerophon_testkit::{OperatorUnderTest, wait_until};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::fixture::{
    Monitor, RebootFixture, annotation, budget, has_no_grants, is_cordoned, policy, reboot_agents,
    reboot_controller, request, request_all, simulated_nodes,
};

/// kured: an agent that cannot read its lock at its start exits, and its node stays cordoned.
#[tokio::test(start_paused = true)]
async fn agent_started_without_an_api_server_completes_its_reboot() {
    let fixture = RebootFixture::new(2).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let first = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(&fixture.cluster, "node-1").await;
    let nodes = fixture.cluster.all::<Node>();
    wait_until(&nodes, "the node reboots", |nodes| {
        annotation(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    first.kill().await;
    let minutes = match fixture.cluster.has_virtual_time() {
        true => 30,
        false => 2,
    };
    let outage = Duration::from_secs(minutes * 60);
    fixture.agents.disconnect(outage);
    let second = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    sleep(outage - Duration::from_secs(60)).await;
    let node = nodes.get("node-1").await.expect("the node exists");
    assert!(is_cordoned(&node));
    assert!(annotation(&node, IN_PROGRESS).contains("Rebooting"));
    fixture.wait_until_idle().await;
    let node = nodes.get("node-1").await.expect("the node exists");
    assert!(!is_cordoned(&node));
    assert!(
        annotation(&node, LAST).contains("Done"),
        "{:?}",
        node.annotations()
    );
    controller.stop().await;
    second.stop().await;
    fixture.cluster.stop().await;
}

/// kured 1169: the pods to evict are listed once, so that a pod that is recreated on another node
/// under the same name is evicted there.
#[tokio::test(start_paused = true)]
async fn pod_recreated_on_another_node_is_not_evicted() {
    let fixture = RebootFixture::new(2).await;
    let labels = json!({"app": "db"});
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    fixture.cluster.apply(stateful_set).await;
    fixture
        .cluster
        .apply(budget("db", json!({"maxUnavailable": 0})))
        .await;
    let pods = fixture.cluster.namespaced::<Pod>("default");
    let node_of = |pods: &[Pod]| {
        let mut nodes = pods.iter();
        nodes.find_map(|pod| pod.spec.as_ref()?.node_name.clone())
    };
    let scheduled = wait_until(&pods, "the pod is scheduled", |pods| {
        node_of(pods).is_some()
    })
    .await;
    let former_node = node_of(&scheduled).expect("the pod has a node");
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(&fixture.cluster, &former_node).await;
    let nodes = fixture.cluster.all::<Node>();
    wait_until(&nodes, "the budget blocks the eviction", |nodes| {
        let mut nodes = nodes.iter();
        nodes.any(|node| annotation(node, IN_PROGRESS).contains("Draining"))
    })
    .await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db-0"}});
    fixture.cluster.delete(pod).await;
    let recreated = wait_until(&pods, "the pod runs on the other node", |pods| {
        node_of(pods).is_some_and(|node| node != former_node)
    })
    .await;
    fixture.wait_until_idle().await;
    let current = pods.get("db-0").await.expect("the pod exists");
    assert_eq!(current.uid(), recreated[0].uid());
    assert_eq!(current.metadata.deletion_timestamp, None);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

/// FLUO 123: the only node of a cluster waits for itself.
#[tokio::test(start_paused = true)]
async fn only_node_of_a_cluster_reboots() {
    let fixture = RebootFixture::new(1).await;
    let monitor = Monitor::start(&fixture.cluster, 1);
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(&fixture.cluster).await;
    fixture.wait_until_idle().await;
    assert_eq!(monitor.stop().reboots, 1);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

/// A Manager that runs agents whose machines refuse to reboot.
fn agents_without_reboot(client: Client, options: ManagerOptions) -> Manager {
    let nodes = simulated_nodes();
    let boot_ids = nodes.clone();
    let boot_id = move |node: &str| boot_ids.boot_id(node).map_err(|error| error.to_string());
    let refuse = |_: &str| Err("inhibited by an upgrade".to_owned());
    let agent_options = simulated_agents(nodes.names(), boot_id, refuse);
    let mut mgr = Manager::new(client, options);
    agents(&mut mgr, &AnnotationPrefix::default(), agent_options);
    mgr
}

/// FLUO 19: a machine that does not reboot is not reported. The tutorial: its request is lost.
#[tokio::test(start_paused = true)]
async fn refused_reboot_is_reported_and_requested_again() {
    let fixture = RebootFixture::new(2).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(agents_without_reboot, &fixture.agents);
    request(&fixture.cluster, "node-1").await;
    let nodes = fixture.cluster.all::<Node>();
    let nodes = wait_until(
        &nodes,
        "the agent gives up and uncordons the node",
        |nodes| annotation(&nodes[0], LAST).contains("result=Refused") && !is_cordoned(&nodes[0]),
    )
    .await;
    assert_eq!(annotation(&nodes[0], NEEDED), "kernel");
    let ledgers = fixture.cluster.all::<RebootLedger>();
    wait_until(&ledgers, "its slot is released", |ledgers| {
        ledgers.iter().all(has_no_grants)
    })
    .await;
    fixture.cluster.advance(Duration::from_secs(60)).await;
    let events = fixture.cluster.all::<Event>();
    let events = events.list(&Default::default()).await.expect("a list");
    let mut reasons = events.items.iter().map(|event| event.reason.as_deref());
    assert!(
        reasons.any(|reason| reason == Some("RebootGivenUp")),
        "{events:?}"
    );
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

/// kured 137, 847, 950: the lock of a deleted node is never released, and its holder is not shown.
#[tokio::test(start_paused = true)]
async fn administrator_sees_and_releases_a_slot() {
    let fixture = RebootFixture::new(2).await;
    fixture
        .cluster
        .apply(policy(json!({"maxUnavailable": 1})))
        .await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    let commands = RebootCommands::new(fixture.cluster.client.clone(), AnnotationPrefix::default());
    commands
        .request("node-1", "kernel")
        .await
        .expect("the request is written");
    let nodes = fixture.cluster.all::<Node>();
    wait_until(&nodes, "the node reboots", |nodes| {
        annotation(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    // The agent has called the machine, which boots for 10 seconds.
    fixture.cluster.advance(Duration::from_secs(1)).await;
    fixture
        .nodes()
        .power_off("node-1")
        .expect("the node exists");
    fixture.cluster.advance(Duration::from_secs(3600)).await;
    let statuses = commands.status().await.expect("a status");
    let rows: Vec<_> = statuses
        .iter()
        .map(|status| (status.node.as_str(), status.state, status.holds_slot))
        .collect();
    assert_eq!(
        rows,
        [("node-1", "Rebooting", true), ("node-2", "Idle", false)]
    );
    let now = fixture.cluster.clock.now();
    let first = commands.release("node-1", now).await;
    first.expect("the slot is released");
    let second = commands.release("node-1", now).await;
    assert!(second.is_err(), "a slot is released once");
    let unknown = commands.pause("unknown").await;
    assert!(unknown.is_err(), "the node does not exist");
    let status = &commands.status().await.expect("a status")[0];
    assert_eq!(status.state, "Idle");
    assert!(!status.holds_slot);
    let last = status.last.as_ref().map(|(result, _)| result.as_str());
    assert_eq!(last, Some("Released"));
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}
