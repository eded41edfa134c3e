//! What it promises, undisturbed and with one fault at a time.

use std::time::Duration;

use bellerophon_operator::manager_of;
use bellerophon_reboot::{
    CORDONED, IN_PROGRESS, LAST, LEDGER, NEEDED, NOW, Prefix, RebootLedger, RebootPolicy, WAITING,
    controller, people::People,
};
use bellerophon_testkit::{Subject, World, survives_any_crash, until};
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::rig::{
    self, Rig, Witness, annotate, boots, budget, deployment, is_idle, policy, request, run,
};

#[tokio::test(start_paused = true)]
async fn marked_nodes_reboot_one_after_another_and_workloads_keep_their_budget() {
    let rig = Rig::new(4).await;
    rig.world.apply(policy(json!({"maxUnavailable": 1}))).await;
    rig.world.apply(deployment("web", 3)).await;
    rig.world
        .apply(budget("web", json!({"minAvailable": 2})))
        .await;
    rig.until_available("web", 3).await;
    let before = boots(&rig.world).await;
    let witness = Witness::watch(&rig.world, 1);
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, None).await;
    rig.until_idle().await;
    let after = boots(&rig.world).await;
    assert!(
        before.iter().all(|(name, boot)| after[name] != *boot),
        "every node has another boot: {before:?} {after:?}"
    );
    let nodes = rig
        .world
        .all::<Node>()
        .list(&Default::default())
        .await
        .expect("nodes")
        .items;
    for node in &nodes {
        let ours: Vec<&String> = node
            .annotations()
            .keys()
            .filter(|key| key.starts_with("reboot."))
            .collect();
        assert_eq!(ours, [LAST], "{}", node.name_any());
    }
    let seen = witness.end();
    assert_eq!(
        (seen.most_at_once, seen.reboots),
        (1, 4),
        "one at a time, once each"
    );
    assert!(
        seen.least_healthy >= 2,
        "never below its budget: {}",
        seen.least_healthy
    );
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

fn prefix() -> Prefix {
    Prefix::read("maintenance.example.com").expect("a prefix")
}

#[tokio::test(start_paused = true)]
async fn controller_agents_and_people_agree_on_another_prefix() {
    let rig = Rig::new(2).await;
    let controls = |client: Client, stop: CancellationToken| {
        let made = manager_of(client, rig::options(), |setup| {
            Ok(vec![controller(setup, prefix(), None)])
        })
        .expect("a manager");
        async move { made.run(stop).await.map_err(|error| error.to_string()) }.boxed()
    };
    let running = Subject::start(controls, &rig.controller);
    let agents = Subject::start(
        |client, stop| rig::run_agents_under(prefix(), client, stop),
        &rig.agents,
    );
    People::new(rig.world.client.clone(), prefix())
        .request("node-1", "kernel")
        .await
        .expect("it is asked");
    request(&rig.world, Some("node-2")).await;
    let ended = prefix().key(LAST);
    let nodes = until(&rig.world.all::<Node>(), "one reboots", |nodes| {
        nodes[0]
            .annotations()
            .get(&ended)
            .is_some_and(|text| text.contains("Done"))
    })
    .await;
    assert_eq!(
        nodes[1]
            .annotations()
            .keys()
            .filter(|key| key.contains("reboot"))
            .collect::<Vec<_>>(),
        [NEEDED],
        "the usual prefix means nothing"
    );
    running.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_right_is_used_and_none_is_missing() {
    let rig = Rig::new(3).await;
    rig.world.apply(policy(json!({"maxUnavailable": 1, "blockers": {"pods": [{"matchLabels": {"holds": "nodes"}}]}}))).await;
    rig.world.apply(deployment("web", 2)).await;
    rig.until_available("web", 2).await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, None).await;
    rig.until_idle().await;
    for (account, operator) in [
        (&rig.controller, bellerophon_reboot::OPERATOR),
        (&rig.agents, bellerophon_reboot::AGENT),
    ] {
        assert_eq!(account.record.forbidden(), []);
        let unused = account.record.unused(&(operator.rights)());
        assert!(unused.is_empty(), "{unused:?}");
    }
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drain_names_the_budget_and_gives_the_slot_back() {
    let rig = Rig::new(2).await;
    rig.world
        .apply(policy(
            json!({"maxUnavailable": 1, "drain": {"timeoutSeconds": 60}}),
        ))
        .await;
    rig.world.apply(deployment("web", 1)).await;
    rig.world
        .apply(budget("web", json!({"maxUnavailable": 0})))
        .await;
    rig.until_available("web", 1).await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, None).await;
    let nodes = rig.world.all::<Node>();
    let has = |node: &Node, note: &str, text: &str| {
        node.annotations()
            .get(note)
            .is_some_and(|value| value.contains(text))
    };
    until(&nodes, "the budget is named", |nodes| {
        nodes
            .iter()
            .any(|node| has(node, WAITING, "reason=BlockedByPDB"))
    })
    .await;
    let given_back =
        |node: &Node| has(node, LAST, "result=DrainTimedOut") && has(node, NEEDED, "kernel");
    let nodes = until(&nodes, "one gives up, the other reboots", |nodes| {
        nodes.iter().any(given_back) && nodes.iter().any(|node| has(node, LAST, "result=Done"))
    })
    .await;
    let stuck = nodes
        .iter()
        .find(|node| given_back(node))
        .expect("it gave up");
    assert!(
        !stuck.annotations().contains_key(CORDONED)
            && !stuck.annotations().contains_key(IN_PROGRESS)
    );
    assert_eq!(
        stuck.spec.as_ref().and_then(|spec| spec.unschedulable),
        None,
        "schedulable as before"
    );
    rig.world.pass(Duration::from_secs(60)).await;
    let events = rig
        .world
        .all::<Event>()
        .list(&Default::default())
        .await
        .expect("events")
        .items;
    let named = |event: &Event| {
        event.reason.as_deref() == Some("BlockedByPDB")
            && event
                .message
                .as_deref()
                .is_some_and(|text| text.contains("budget web"))
    };
    assert!(
        events.iter().any(named),
        "people are told which: {events:?}"
    );
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn forged_and_repeated_orders_reboot_nothing() {
    let rig = Rig::new(2).await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, Some("node-1")).await;
    rig.until_idle().await;
    let before = boots(&rig.world).await;
    let last = rig
        .world
        .all::<Node>()
        .get("node-1")
        .await
        .expect("a node")
        .annotations()[LAST]
        .clone();
    let id = last.split(' ').next().expect("an id");
    for order in [
        format!("{id} expires=2999-01-01T00:00:00Z"),
        "id=forged-1 expires=2999-01-01T00:00:00Z".into(),
        "yes".into(),
    ] {
        annotate(&rig.world, "node-1", NOW, Some(&order)).await;
        annotate(&rig.world, "node-2", NOW, Some(&order)).await;
        until(&rig.world.all::<Node>(), "it is taken off", |nodes| {
            nodes
                .iter()
                .all(|node| !node.annotations().contains_key(NOW))
        })
        .await;
    }
    let progress = format!(
        "id=forged-2 boot={} since=2026-01-01T00:00:00Z stage=Rebooting",
        before["node-2"]
    );
    annotate(&rig.world, "node-2", IN_PROGRESS, Some(&progress)).await;
    until(&rig.world.all::<Node>(), "it is taken off", |nodes| {
        nodes
            .iter()
            .all(|node| !node.annotations().contains_key(IN_PROGRESS))
    })
    .await;
    rig.world.pass(Duration::from_secs(600)).await;
    assert_eq!(boots(&rig.world).await, before);
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lost_node_keeps_its_slot_until_it_is_gone() {
    let rig = Rig::new(3).await;
    rig.world
        .apply(policy(json!({"maxUnavailable": 2, "failureThreshold": 1, "bootTimeoutSeconds": 60, "drain": {"timeoutSeconds": 60}})))
        .await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, Some("node-1")).await;
    let nodes = rig.world.all::<Node>();
    until(&nodes, "it reboots", |nodes| {
        nodes[0]
            .annotations()
            .get(IN_PROGRESS)
            .is_some_and(|text| text.contains("Rebooting"))
    })
    .await;
    rig.nodes().power_off("node-1").expect("a node");
    rig.world.pass(Duration::from_secs(900)).await;
    request(&rig.world, Some("node-2")).await;
    let open = |policies: &[RebootPolicy]| {
        policies[0]
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .any(|c| c.type_ == "BreakerOpen" && c.status == "True")
    };
    until(&rig.world.all::<RebootPolicy>(), "the breaker opens", open).await;
    until(&nodes, "the next one is told why", |nodes| {
        nodes[1]
            .annotations()
            .get(WAITING)
            .is_some_and(|text| text.contains("BreakerOpen"))
    })
    .await;
    rig.world.pass(Duration::from_secs(3600)).await;
    let ledger = rig
        .world
        .all::<RebootLedger>()
        .get(LEDGER)
        .await
        .expect("a ledger");
    assert_eq!(
        ledger
            .spec
            .grants
            .iter()
            .map(|grant| grant.node.as_str())
            .collect::<Vec<_>>(),
        ["node-1"]
    );
    rig.world
        .delete(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}))
        .await;
    until(&nodes, "the next one reboots", |nodes| {
        nodes.iter().any(|node| {
            node.name_any() == "node-2"
                && node
                    .annotations()
                    .get(LAST)
                    .is_some_and(|text| text.contains("Done"))
        })
    })
    .await;
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_that_others_cordoned_stays_cordoned() {
    let rig = Rig::new(2).await;
    let cordon = json!({"spec": {"unschedulable": true}});
    rig.world
        .all::<Node>()
        .patch(
            "node-2",
            &Default::default(),
            &kube::api::Patch::Merge(&cordon),
        )
        .await
        .expect("it is cordoned");
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(rig::run_agents, &rig.agents),
    );
    request(&rig.world, Some("node-2")).await;
    rig.until_idle().await;
    let node = rig.world.all::<Node>().get("node-2").await.expect("a node");
    assert!(node.annotations()[LAST].contains("Done"));
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), Some(true));
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_controllers_at_once_spend_no_slot_twice() {
    let rig = Rig::new(6).await;
    rig.world
        .apply(policy(json!({"maxUnavailable": 2, "settleSeconds": 5})))
        .await;
    let witness = Witness::watch(&rig.world, 2);
    let (one, two) = (
        Subject::start(run, &rig.controller),
        Subject::start(run, &rig.controller),
    );
    let agents = Subject::start(rig::run_agents, &rig.agents);
    request(&rig.world, None).await;
    rig.until_idle().await;
    let seen = witness.end();
    assert_eq!((seen.most_at_once, seen.reboots), (2, 6));
    one.stop().await;
    two.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_changes_nothing_in_the_end() {
    let world = async || {
        let rig = Rig::new(2).await;
        let mut rules = bellerophon_operator::rights_of(&bellerophon_reboot::OPERATOR);
        rules.extend(bellerophon_operator::rights_of(&bellerophon_reboot::AGENT));
        let account = rig.world.account("everything", &rules).await;
        request(&rig.world, None).await;
        (rig.world, account)
    };
    let settled = async |world: &World| {
        let ledgers = world.all::<RebootLedger>();
        until(&world.all::<Node>(), "both have rebooted", |nodes| {
            nodes.iter().all(is_idle)
        })
        .await;
        until(&ledgers, "all slots are free", |ledgers| {
            ledgers.iter().all(|ledger| ledger.spec.grants.is_empty())
        })
        .await;
        let nodes = world
            .all::<Node>()
            .list(&Default::default())
            .await
            .expect("nodes")
            .items;
        let told = |node: &Node| {
            format!(
                "{} {:?}",
                node.annotations()[LAST].contains("Done"),
                node.spec.as_ref().and_then(|spec| spec.unschedulable)
            )
        };
        let events = world
            .all::<Event>()
            .list(&Default::default())
            .await
            .expect("events")
            .items;
        let reboots = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Rebooted"))
            .count();
        format!(
            "{:?}, {reboots} reboots",
            nodes.iter().map(told).collect::<Vec<_>>()
        )
    };
    let crashes = survives_any_crash(rig::run_both, world, settled).await;
    assert!(
        crashes >= 10,
        "a rollout of two nodes writes more than {crashes} times"
    );
}
