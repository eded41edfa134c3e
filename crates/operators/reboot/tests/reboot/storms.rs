//! Rollouts on whole clusters while everything else goes wrong too: processes die, caches lag, the server is away, machines lose power or the
//! network, Nodes are deleted, clocks are off, budgets change, two controllers work at once.
//!
//! `REBOOT_STORMS=100 cargo test -p bellerophon-reboot --test reboot storms` tries more seeds than a usual run does.

use std::{collections::BTreeSet, io::Write as _, time::Duration};

use bellerophon::Entropy;
use bellerophon_reboot::LAST;
use bellerophon_testkit::{Account, Fault, Subject};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, api::Patch};
use serde_json::json;
use tokio::time::Instant;

use crate::rig::{self, Rig, Witness, budget, deployment, policy, request, run, run_agents, told};

/// How many seeds a usual run tries.
const STORMS: u64 = 8;

/// The most nodes that any policy of a storm lets reboot at once.
const LIMIT: u64 = 2;

/// How long a node that failed often waits before it tries again.
const BACK_OFF_MAX: Duration = Duration::from_secs(6 * 3600);

/// How much cluster life passes between looks at it.
const LOOK_EVERY: Duration = Duration::from_secs(60);

#[test]
fn storms_break_no_promise() {
    let storms = std::env::var("REBOOT_STORMS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(STORMS);
    let mut reboots = 0;
    for seed in 0..storms {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        reboots += runtime.block_on(storm(seed));
    }
    assert!(
        reboots as u64 > storms,
        "machines are told to reboot: {reboots}"
    );
    // Past the test harness, which keeps what a test prints to itself.
    _ = writeln!(
        std::io::stderr(),
        "{storms} storms, {reboots} machines told to reboot"
    );
}

/// Plays one storm; how many machines were told to reboot.
async fn storm(seed: u64) -> usize {
    let dice = Entropy::seeded(seed);
    let rig = Rig::new(3 + dice.below(3) as usize).await;
    let names = rig.nodes().names();
    rig.world.apply(random_policy(&dice)).await;
    rig.world.apply(deployment("web", 3)).await;
    rig.world
        .apply(budget("web", json!({"minAvailable": 2})))
        .await;
    rig.until_available("web", 3).await;
    let cordoned = (dice.below(2) == 0).then(|| names[0].clone());
    if let Some(node) = &cordoned {
        let cordon = json!({"spec": {"unschedulable": true}});
        rig.world
            .all::<Node>()
            .patch(node, &Default::default(), &Patch::Merge(&cordon))
            .await
            .expect("it is cordoned");
    }
    rig::set_clocks_off(&rig.world, dice.below(7200) as i64 - 3600);
    let witness = Witness::watch(&rig.world, LIMIT as usize);
    let mut controllers = vec![Subject::start(run, &rig.controller)];
    let mut agents = Subject::start(run_agents, &rig.agents);
    request(&rig.world, None).await;

    let mut deleted = BTreeSet::new();
    for _ in 0..10 + dice.below(20) {
        let node = &names[dice.below(names.len() as u64) as usize];
        match dice.below(11) {
            0 => {
                for controller in controllers.drain(..) {
                    controller.kill().await;
                }
                controllers.push(Subject::start(run, &rig.controller));
            }
            1 => {
                agents.kill().await;
                agents = Subject::start(run_agents, &rig.agents);
            }
            2 => weather(&rig.controller, &dice),
            3 => weather(&rig.agents, &dice),
            4 => rig.agents.lose_server(Duration::from_secs(dice.below(600))),
            5 => rig
                .controller
                .lose_server(Duration::from_secs(dice.below(600))),
            6 => rig.nodes().power_off(node).expect("a node"),
            7 => rig.nodes().partition(node).expect("a node"),
            8 => rig.nodes().restore(node).expect("a node"),
            9 if controllers.len() == 1 => controllers.push(Subject::start(run, &rig.controller)),
            9 if deleted.is_empty() => {
                rig.world
                    .delete(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))
                    .await;
                deleted.insert(node.clone());
            }
            _ => drop(rig.world.apply(random_policy(&dice)).await),
        }
        rig.world.pass(Duration::from_secs(dice.below(60))).await;
    }

    // The sky clears, and clocks are set.
    rig.controller.suffer(None);
    rig.agents.suffer(None);
    agents.kill().await;
    rig::set_clocks_off(&rig.world, 0);
    agents = Subject::start(run_agents, &rig.agents);
    names
        .iter()
        .for_each(|node| rig.nodes().restore(node).expect("a node"));
    let cleared = Instant::now();
    while !rig.is_idle().await && cleared.elapsed() < BACK_OFF_MAX {
        rig.world.pass(LOOK_EVERY).await;
    }
    rig.until_idle().await;
    witness.end();
    for node in rig
        .world
        .all::<Node>()
        .list(&Default::default())
        .await
        .expect("nodes")
        .items
    {
        let name = node.name_any();
        assert!(
            told(&name) <= 1,
            "storm {seed}: {name} was told to reboot in {} of its boots for one request",
            told(&name)
        );
        if deleted.contains(&name) {
            continue;
        }
        let last = node.annotations().get(LAST).map_or("", String::as_str);
        assert!(
            last.contains("result=Done"),
            "storm {seed}: {name} ended with {last:?}"
        );
        let is_cordoned = node.spec.and_then(|spec| spec.unschedulable) == Some(true);
        assert_eq!(
            is_cordoned,
            cordoned.as_ref() == Some(&name),
            "storm {seed}: {name} is as it was"
        );
    }
    for controller in controllers {
        controller.stop().await;
    }
    agents.stop().await;
    rig.world.stop().await;
    names.iter().map(|node| told(node)).sum()
}

fn weather(account: &Account, dice: &Entropy) {
    account.suffer(
        Fault::ALL
            .get(dice.below(Fault::ALL.len() as u64 + 1) as usize)
            .copied(),
    );
}

fn random_policy(dice: &Entropy) -> serde_json::Value {
    policy(json!({
        "maxUnavailable": 1 + dice.below(LIMIT), "settleSeconds": dice.below(20), "countCordoned": false, "failureThreshold": 100,
        "drain": {"timeoutSeconds": 30 + dice.below(300), "mode": if dice.below(4) == 0 { "None" } else { "Evict" }},
    }))
}
