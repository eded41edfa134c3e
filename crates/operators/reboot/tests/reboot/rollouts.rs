//! Rollouts without faults, or with one.

use std::time::Duration;

use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon_operator::permissions_of;
use bellerophon_reboot::{
    AGENT, AnnotationPrefix, CORDONED, IN_PROGRESS, LAST, LEDGER, NEEDED, NOW, OPERATOR,
    RebootLedger, RebootPolicy, WAITING, commands::RebootCommands, controller,
};
use bellerophon_testkit::{OperatorUnderTest, TestCluster, converges_after_any_crash, wait_until};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::fixture::{
    Monitor, RebootFixture, annotate, annotation, boot_ids, budget, cordon, deployment,
    is_cordoned, policy, reboot_agents, reboot_agents_with_prefix, reboot_controller,
    reboot_controller_and_agents, request, request_all, wait_until_idle,
};

/// The maximum number of unavailable nodes, without further settings.
fn max_unavailable(count: i32) -> serde_json::Value {
    policy(json!({"maxUnavailable": count}))
}

#[tokio::test(start_paused = true)]
async fn nodes_reboot_one_at_a_time_within_disruption_budgets() {
    let fixture = RebootFixture::new(4).await;
    let cluster = &fixture.cluster;
    cluster.apply(max_unavailable(1)).await;
    cluster.apply(deployment("web", 3)).await;
    cluster
        .apply(budget("web", json!({"minAvailable": 2})))
        .await;
    fixture.wait_until_available("web", 3).await;
    let before = boot_ids(cluster).await;
    let monitor = Monitor::start(cluster, 1);
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(cluster).await;
    fixture.wait_until_idle().await;
    let after = boot_ids(cluster).await;
    for (name, boot_id) in &before {
        assert_ne!(after[name], *boot_id, "{name} has not rebooted");
    }
    let nodes = cluster.all::<Node>();
    let nodes = nodes.list(&Default::default()).await.expect("a list");
    for node in &nodes.items {
        let annotations: Vec<&String> = node
            .annotations()
            .keys()
            .filter(|key| key.starts_with("reboot."))
            .collect();
        assert_eq!(annotations, [LAST], "{}", node.name_any());
    }
    let observations = monitor.stop();
    assert_eq!(observations.concurrent_max, 1);
    assert_eq!(observations.reboots, 4);
    assert!(observations.healthy_min >= 2, "{observations:?}");
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

fn other_prefix() -> AnnotationPrefix {
    AnnotationPrefix::parse("maintenance.example.com").expect("a valid prefix")
}

fn controller_with_other_prefix(client: Client, options: ManagerOptions) -> Manager {
    let mut mgr = Manager::new(client, options);
    controller(&mut mgr, other_prefix(), None);
    mgr
}

#[tokio::test(start_paused = true)]
async fn annotations_of_another_prefix_are_ignored() {
    let fixture = RebootFixture::new(2).await;
    let controller = OperatorUnderTest::start(controller_with_other_prefix, &fixture.controller);
    let agents = OperatorUnderTest::start(
        |client, options| reboot_agents_with_prefix(&other_prefix(), client, options),
        &fixture.agents,
    );
    RebootCommands::new(fixture.cluster.client.clone(), other_prefix())
        .request("node-1", "kernel")
        .await
        .expect("the request is written");
    // With the default prefix.
    request(&fixture.cluster, "node-2").await;
    let last_reboot = other_prefix().key(LAST);
    let nodes = fixture.cluster.all::<Node>();
    let nodes = wait_until(&nodes, "node-1 has rebooted", |nodes| {
        annotation(&nodes[0], &last_reboot).contains("Done")
    })
    .await;
    let annotations: Vec<&String> = nodes[1]
        .annotations()
        .keys()
        .filter(|key| key.contains("reboot"))
        .collect();
    assert_eq!(annotations, [NEEDED]);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_permission_is_used_and_none_is_missing() {
    let fixture = RebootFixture::new(3).await;
    let blockers = json!({"pods": [{"matchLabels": {"holds": "nodes"}}]});
    fixture
        .cluster
        .apply(policy(json!({"maxUnavailable": 1, "blockers": blockers})))
        .await;
    fixture.cluster.apply(deployment("web", 2)).await;
    fixture.wait_until_available("web", 2).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(&fixture.cluster).await;
    fixture.wait_until_idle().await;
    for (account, operator) in [(&fixture.controller, OPERATOR), (&fixture.agents, AGENT)] {
        assert_eq!(account.requests.forbidden(), []);
        let unused = account
            .requests
            .unused_permissions(&(operator.permissions)());
        assert!(unused.is_empty(), "{unused:?}");
    }
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn timed_out_drain_names_the_budget_and_releases_the_slot() {
    let fixture = RebootFixture::new(2).await;
    let cluster = &fixture.cluster;
    let spec = json!({"maxUnavailable": 1, "drain": {"timeoutSeconds": 60}});
    cluster.apply(policy(spec)).await;
    cluster.apply(deployment("web", 1)).await;
    cluster
        .apply(budget("web", json!({"maxUnavailable": 0})))
        .await;
    fixture.wait_until_available("web", 1).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(cluster).await;
    let nodes = cluster.all::<Node>();
    wait_until(&nodes, "a node reports the budget", |nodes| {
        let mut nodes = nodes.iter();
        nodes.any(|node| annotation(node, WAITING).contains("reason=BlockedByPDB"))
    })
    .await;
    let has_timed_out = |node: &Node| {
        annotation(node, LAST).contains("result=DrainTimedOut")
            && annotation(node, NEEDED).contains("kernel")
    };
    let has_rebooted = |node: &Node| annotation(node, LAST).contains("result=Done");
    let nodes = wait_until(&nodes, "one times out, the other reboots", |nodes| {
        nodes.iter().any(has_timed_out) && nodes.iter().any(has_rebooted)
    })
    .await;
    let mut nodes = nodes.iter();
    let node = nodes
        .find(|node| has_timed_out(node))
        .expect("one timed out");
    assert!(!node.annotations().contains_key(CORDONED));
    assert!(!node.annotations().contains_key(IN_PROGRESS));
    let spec = node.spec.as_ref();
    assert_eq!(spec.and_then(|spec| spec.unschedulable), None);
    cluster.advance(Duration::from_secs(60)).await;
    let events = cluster.all::<Event>();
    let events = events.list(&Default::default()).await.expect("a list");
    let names_budget = |event: &Event| {
        let message = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some("BlockedByPDB") && message.contains("budget web")
    };
    assert!(events.items.iter().any(names_budget), "{events:?}");
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn forged_and_repeated_orders_reboot_nothing() {
    let fixture = RebootFixture::new(2).await;
    let cluster = &fixture.cluster;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(cluster, "node-1").await;
    fixture.wait_until_idle().await;
    let before = boot_ids(cluster).await;
    let nodes = cluster.all::<Node>();
    let node = nodes.get("node-1").await.expect("the node exists");
    let id = annotation(&node, LAST)
        .split(' ')
        .next()
        .expect("the annotation has an ID");
    for order in [
        format!("{id} expires=2999-01-01T00:00:00Z"),
        "id=forged-1 expires=2999-01-01T00:00:00Z".into(),
        "yes".into(),
    ] {
        annotate(cluster, "node-1", NOW, Some(&order)).await;
        annotate(cluster, "node-2", NOW, Some(&order)).await;
        wait_until(&nodes, "the orders are removed", |nodes| {
            let mut nodes = nodes.iter();
            nodes.all(|node| !node.annotations().contains_key(NOW))
        })
        .await;
    }
    let progress = format!(
        "id=forged-2 boot={} since=2026-01-01T00:00:00Z stage=Rebooting",
        before["node-2"]
    );
    annotate(cluster, "node-2", IN_PROGRESS, Some(&progress)).await;
    wait_until(&nodes, "the progress is removed", |nodes| {
        let mut nodes = nodes.iter();
        nodes.all(|node| !node.annotations().contains_key(IN_PROGRESS))
    })
    .await;
    cluster.advance(Duration::from_secs(600)).await;
    assert_eq!(boot_ids(cluster).await, before);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

/// The stage in the annotation used to be the commit.
#[tokio::test(start_paused = true)]
async fn forged_stage_does_not_reboot_past_a_budget() {
    let fixture = RebootFixture::new(2).await;
    let cluster = &fixture.cluster;
    // Longer than the waits below, and short enough for real time.
    let spec = json!({"maxUnavailable": 2, "drain": {"timeoutSeconds": 300}});
    cluster.apply(policy(spec)).await;
    cluster.apply(deployment("web", 2)).await;
    cluster
        .apply(budget("web", json!({"maxUnavailable": 0})))
        .await;
    fixture.wait_until_available("web", 2).await;
    let before = boot_ids(cluster).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(cluster).await;
    let nodes = cluster.all::<Node>();
    let blocked = wait_until(&nodes, "both nodes report the budget", |nodes| {
        let mut nodes = nodes.iter();
        nodes.all(|node| annotation(node, WAITING).contains("reason=BlockedByPDB"))
    })
    .await;
    let forge = async || {
        for node in &blocked {
            let forged = annotation(node, IN_PROGRESS).replace("Draining", "Rebooting");
            annotate(cluster, &node.name_any(), IN_PROGRESS, Some(&forged)).await;
        }
    };
    forge().await;
    cluster.advance(Duration::from_secs(120)).await;
    assert_eq!(boot_ids(cluster).await, before);
    // Also not after a restart of the agents.
    agents.kill().await;
    forge().await;
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    cluster.advance(Duration::from_secs(120)).await;
    assert_eq!(boot_ids(cluster).await, before);
    wait_until(&nodes, "the drains time out", |nodes| {
        let mut nodes = nodes.iter();
        nodes.all(|node| annotation(node, LAST).contains("result=DrainTimedOut"))
    })
    .await;
    assert_eq!(boot_ids(cluster).await, before);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

/// The result in the annotation used to release the slot, also of a machine that goes down.
#[tokio::test(start_paused = true)]
async fn forged_end_does_not_release_the_slot_of_a_rebooting_node() {
    let fixture = RebootFixture::new(2).await;
    let cluster = &fixture.cluster;
    cluster.apply(max_unavailable(1)).await;
    let before = boot_ids(cluster).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(cluster, "node-1").await;
    let nodes = cluster.all::<Node>();
    let rebooting = wait_until(&nodes, "node-1 reboots", |nodes| {
        annotation(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    let progress = annotation(&rebooting[0], IN_PROGRESS);
    let id = progress
        .split(' ')
        .next()
        .expect("the annotation has an ID");
    let forged = format!("{id} result=Withdrawn at=2026-01-01T00:00:00Z failures=0");
    let patch = json!({
        "metadata": {"annotations": {LAST: forged, IN_PROGRESS: null, CORDONED: null}},
        "spec": {"unschedulable": null},
    });
    nodes
        .patch("node-1", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("the patch is accepted");
    // The machine goes down, and does not come back.
    cluster.advance(Duration::from_secs(1)).await;
    fixture
        .nodes()
        .power_off("node-1")
        .expect("the node exists");
    request(cluster, "node-2").await;
    cluster.advance(Duration::from_secs(600)).await;
    let ledger = cluster.all::<RebootLedger>().get(LEDGER).await;
    let ledger = ledger.expect("the ledger exists");
    let granted: Vec<_> = ledger.spec.grants.iter().map(|grant| &grant.node).collect();
    assert_eq!(granted, ["node-1"]);
    assert_eq!(boot_ids(cluster).await["node-2"], before["node-2"]);
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lost_node_keeps_its_slot_until_it_is_deleted() {
    let fixture = RebootFixture::new(3).await;
    let cluster = &fixture.cluster;
    let spec = json!({
        "maxUnavailable": 2,
        "failureThreshold": 1,
        "bootTimeoutSeconds": 60,
        "drain": {"timeoutSeconds": 60},
    });
    cluster.apply(policy(spec)).await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(cluster, "node-1").await;
    let nodes = cluster.all::<Node>();
    wait_until(&nodes, "node-1 reboots", |nodes| {
        annotation(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    // The agent has called the machine, which boots for 10 seconds.
    cluster.advance(Duration::from_secs(1)).await;
    fixture
        .nodes()
        .power_off("node-1")
        .expect("the node exists");
    cluster.advance(Duration::from_secs(900)).await;
    let is_open = |policies: &[RebootPolicy]| {
        let status = policies[0].status.as_ref();
        let mut conditions = status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.type_ == "BreakerOpen" && condition.status == "True")
    };
    let policies = cluster.all::<RebootPolicy>();
    wait_until(&policies, "the breaker opens", is_open).await;
    request(cluster, "node-2").await;
    wait_until(&nodes, "node-2 reports the breaker", |nodes| {
        annotation(&nodes[1], WAITING).contains("BreakerOpen")
    })
    .await;
    cluster.advance(Duration::from_secs(3600)).await;
    let ledgers = cluster.all::<RebootLedger>();
    let ledger = ledgers.get(LEDGER).await.expect("the ledger exists");
    let holders: Vec<&str> = ledger
        .spec
        .grants
        .iter()
        .map(|grant| grant.node.as_str())
        .collect();
    assert_eq!(holders, ["node-1"]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
    cluster.delete(node).await;
    wait_until(&nodes, "node-2 has rebooted", |nodes| {
        nodes
            .iter()
            .any(|node| node.name_any() == "node-2" && annotation(node, LAST).contains("Done"))
    })
    .await;
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_cordoned_by_others_stays_cordoned() {
    let fixture = RebootFixture::new(2).await;
    cordon(&fixture.cluster, "node-2").await;
    let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request(&fixture.cluster, "node-2").await;
    fixture.wait_until_idle().await;
    let nodes = fixture.cluster.all::<Node>();
    let node = nodes.get("node-2").await.expect("the node exists");
    assert!(annotation(&node, LAST).contains("Done"));
    assert!(is_cordoned(&node));
    controller.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_active_controllers_respect_the_limit() {
    let fixture = RebootFixture::new(6).await;
    let spec = json!({"maxUnavailable": 2, "settleSeconds": 5});
    fixture.cluster.apply(policy(spec)).await;
    let monitor = Monitor::start(&fixture.cluster, 2);
    let first = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let second = OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
    request_all(&fixture.cluster).await;
    fixture.wait_until_idle().await;
    let observations = monitor.stop();
    assert_eq!(observations.concurrent_max, 2);
    assert_eq!(observations.reboots, 6);
    first.stop().await;
    second.stop().await;
    agents.stop().await;
    fixture.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn converges_after_a_crash_at_any_write() {
    let setup = async || {
        let fixture = RebootFixture::new(2).await;
        let mut rules = permissions_of(&OPERATOR);
        rules.extend(permissions_of(&AGENT));
        let account = fixture.cluster.service_account("both", &rules).await;
        request_all(&fixture.cluster).await;
        (fixture.cluster, account)
    };
    let settled = async |cluster: &TestCluster| {
        wait_until_idle(cluster).await;
        let nodes = cluster.all::<Node>();
        let nodes = nodes.list(&Default::default()).await.expect("a list");
        let describe = |node: &Node| {
            let is_done = annotation(node, LAST).contains("Done");
            let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
            format!("{is_done} {unschedulable:?}")
        };
        let states: Vec<String> = nodes.items.iter().map(describe).collect();
        let events = cluster.all::<Event>();
        let events = events.list(&Default::default()).await.expect("a list");
        let reboots = events
            .items
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Rebooted"))
            .count();
        format!("{states:?}, {reboots} reboots")
    };
    let crashes = converges_after_any_crash(reboot_controller_and_agents, setup, settled).await;
    assert!(
        crashes >= 10,
        "a rollout of two nodes has more than {crashes} writes"
    );
}
