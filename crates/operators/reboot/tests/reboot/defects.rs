//! Defects that other tools have or had, as their sources and users tell. Those that a plan alone can show are tests beside the plans;
//! `docs/operators/reboot.md` lists all of them.

use std::time::Duration;

use bellerophon_operator::manager_of;
use bellerophon_reboot::{
    IN_PROGRESS, LAST, NEEDED, Prefix, RebootLedger, agents, people::People, simulated,
};
use bellerophon_testkit::{Subject, until};
use futures_util::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::rig::{self, Rig, Witness, budget, policy, request, run, run_agents};

fn note<'a>(node: &'a Node, note: &str) -> &'a str {
    node.annotations().get(note).map_or("", String::as_str)
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// kured: an agent that cannot read its lock when it starts gives up for good, and its node stays cordoned.
#[tokio::test(start_paused = true)]
async fn agent_that_starts_while_the_server_is_away_still_ends_its_reboot() {
    let rig = Rig::new(2).await;
    let controller = Subject::start(run, &rig.controller);
    let first = Subject::start(run_agents, &rig.agents);
    request(&rig.world, Some("node-1")).await;
    let nodes = rig.world.all::<Node>();
    until(&nodes, "it reboots", |nodes| {
        note(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    first.kill().await;
    rig.agents.lose_server(Duration::from_secs(30 * 60));
    let second = Subject::start(run_agents, &rig.agents);
    rig.world.pass(Duration::from_secs(29 * 60)).await;
    let waiting = nodes.get("node-1").await.expect("a node");
    assert!(
        is_cordoned(&waiting) && note(&waiting, IN_PROGRESS).contains("Rebooting"),
        "nobody else ends it"
    );
    rig.until_idle().await;
    let node = nodes.get("node-1").await.expect("a node");
    assert!(
        !is_cordoned(&node) && note(&node, LAST).contains("Done"),
        "{:?}",
        node.annotations()
    );
    controller.stop().await;
    second.stop().await;
    rig.world.stop().await;
}

/// kured 1169: pods to be drained are listed once, so that one that comes up elsewhere under the same name is chased there.
#[tokio::test(start_paused = true)]
async fn pod_that_moved_is_not_chased() {
    let rig = Rig::new(2).await;
    let labels = json!({"app": "db"});
    rig.world.apply(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"serviceName": "db", "replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    }))
    .await;
    rig.world
        .apply(budget("db", json!({"maxUnavailable": 0})))
        .await;
    let pods = rig.world.within::<Pod>("default");
    let place = |pods: &[Pod]| {
        pods.iter()
            .find_map(|pod| pod.spec.as_ref()?.node_name.clone())
    };
    let here =
        place(&until(&pods, "it is placed", |pods| place(pods).is_some()).await).expect("a place");
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(run_agents, &rig.agents),
    );
    request(&rig.world, Some(&here)).await;
    let nodes = rig.world.all::<Node>();
    let drains = |nodes: &[Node]| {
        nodes
            .iter()
            .any(|node| note(node, IN_PROGRESS).contains("Draining"))
    };
    until(&nodes, "the budget keeps it from going", drains).await;
    rig.world
        .delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db-0"}}))
        .await;
    let moved = until(&pods, "it comes up elsewhere", |pods| {
        place(pods).is_some_and(|there| there != here)
    })
    .await;
    rig.until_idle().await;
    let now = pods.get("db-0").await.expect("a pod");
    assert_eq!(
        (now.uid(), now.metadata.deletion_timestamp),
        (moved[0].uid(), None),
        "it is left alone there"
    );
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

/// FLUO 123: the only node of a cluster waits for itself.
#[tokio::test(start_paused = true)]
async fn only_node_of_a_cluster_reboots() {
    let rig = Rig::new(1).await;
    let witness = Witness::watch(&rig.world, 1);
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(run_agents, &rig.agents),
    );
    request(&rig.world, None).await;
    rig.until_idle().await;
    assert_eq!(witness.end().reboots, 1);
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

/// Agents on machines that will not reboot.
fn run_on_stubborn_machines(
    client: Client,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), String>> {
    let nodes = rig::simulated_nodes();
    async move {
        let ask = nodes.clone();
        let boot_id = move |node: &str| ask.boot_id(node).map_err(|error| error.to_string());
        let each = simulated(nodes.names(), boot_id, |_| {
            Err("inhibited by an upgrade".to_owned())
        });
        let made = manager_of(client, rig::options(), |setup| {
            Ok(agents(setup, &Prefix::default(), each))
        });
        made.map_err(|error| error.to_string())?
            .run(stop)
            .await
            .map_err(|error| error.to_string())
    }
    .boxed()
}

/// FLUO 19: a machine that does not reboot is not reported. The tutorial: its request is lost.
#[tokio::test(start_paused = true)]
async fn machine_that_will_not_reboot_is_reported_and_asks_again() {
    let rig = Rig::new(2).await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(run_on_stubborn_machines, &rig.agents),
    );
    request(&rig.world, Some("node-1")).await;
    let nodes = until(&rig.world.all::<Node>(), "it gives up", |nodes| {
        note(&nodes[0], LAST).contains("result=Refused")
    })
    .await;
    assert!(
        !is_cordoned(&nodes[0]) && note(&nodes[0], NEEDED) == "kernel",
        "{:?}",
        nodes[0].annotations()
    );
    let ledgers = rig.world.all::<RebootLedger>();
    until(&ledgers, "its slot is free", |ledgers| {
        ledgers.iter().all(|ledger| ledger.spec.grants.is_empty())
    })
    .await;
    rig.world.pass(Duration::from_secs(60)).await;
    let events = rig
        .world
        .all::<Event>()
        .list(&Default::default())
        .await
        .expect("events")
        .items;
    assert!(
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("RebootGivenUp")),
        "{events:?}"
    );
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}

/// kured 137, 847, 950: the lock of a node that no longer exists is held for ever, and nobody can see by whom.
#[tokio::test(start_paused = true)]
async fn person_sees_who_holds_a_slot_and_can_free_it() {
    let rig = Rig::new(2).await;
    rig.world.apply(policy(json!({"maxUnavailable": 1}))).await;
    let (controller, agents) = (
        Subject::start(run, &rig.controller),
        Subject::start(run_agents, &rig.agents),
    );
    let people = People::new(rig.world.client.clone(), Prefix::default());
    people
        .request("node-1", "kernel")
        .await
        .expect("it is asked");
    until(&rig.world.all::<Node>(), "it reboots", |nodes| {
        note(&nodes[0], IN_PROGRESS).contains("Rebooting")
    })
    .await;
    rig.nodes().power_off("node-1").expect("a node");
    rig.world.pass(Duration::from_secs(3600)).await;
    let rows = people.status().await.expect("a table");
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.node.as_str(), row.state, row.holds_slot))
        .collect();
    assert_eq!(
        shown,
        [("node-1", "Rebooting", true), ("node-2", "Idle", false)]
    );
    people
        .release("node-1", rig.world.clock.now())
        .await
        .expect("it is freed");
    assert!(
        people
            .release("node-1", rig.world.clock.now())
            .await
            .is_err(),
        "once"
    );
    assert!(
        people.pause("nobody").await.is_err(),
        "there is no such node"
    );
    let row = &people.status().await.expect("a table")[0];
    assert_eq!(
        (
            row.state,
            row.holds_slot,
            row.last.as_ref().map(|(last, _)| last.as_str())
        ),
        ("Idle", false, Some("Released"))
    );
    controller.stop().await;
    agents.stop().await;
    rig.world.stop().await;
}
