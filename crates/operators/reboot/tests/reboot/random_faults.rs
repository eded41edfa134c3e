//! Rollouts on test clusters with random faults: crashed processes, stale caches, an unreachable
//! API server, power and network failures, deleted Nodes, clock skew, changed policies, two active
//! controllers.
//!
//! `REBOOT_SEEDS=100 cargo test -p bellerophon-reboot --test reboot random_faults` runs more seeds
//! than the default.

use std::{collections::BTreeSet, io::Write as _, time::Duration};

use bellerophon::clock::Rng;
use bellerophon_reboot::LAST;
use bellerophon_testkit::{Account, Fault, OperatorUnderTest};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{
    Monitor, RebootFixture, annotation, budget, cordon, deployment, is_cordoned, policy,
    reboot_agents, reboot_controller, reboots_of, request_all, set_agent_clock_skew,
};

/// The default number of seeds.
const SEEDS: u64 = 2;

/// The maximum of `maxUnavailable` in all policies.
const LIMIT: u64 = 2;

/// The maximum back-off of a node after failures.
const BACK_OFF_MAX: Duration = Duration::from_secs(6 * 3600);

/// The virtual time between two checks for the end of a rollout.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[test]
fn rollouts_with_random_faults_keep_every_guarantee() {
    let seeds = std::env::var("REBOOT_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEEDS);
    let mut reboots = 0;
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        reboots += runtime.block_on(rollout(seed));
    }
    assert!(reboots as u64 > seeds, "too few reboots: {reboots}");
    // To stderr directly, since the test harness captures output.
    _ = writeln!(std::io::stderr(), "{seeds} rollouts, {reboots} reboots");
}

/// Runs one rollout. Returns the number of reboots by agents.
async fn rollout(seed: u64) -> usize {
    let random = Rng::seeded(seed);
    let fixture = RebootFixture::new(3 + random.below(3) as usize).await;
    let cluster = &fixture.cluster;
    let names = fixture.nodes().names();
    cluster.apply(random_policy(&random)).await;
    cluster.apply(deployment("web", 3)).await;
    cluster
        .apply(budget("web", json!({"minAvailable": 2})))
        .await;
    fixture.wait_until_available("web", 3).await;
    let cordoned = (random.below(2) == 0).then(|| names[0].clone());
    if let Some(node) = &cordoned {
        cordon(cluster, node).await;
    }
    set_agent_clock_skew(cluster, random.below(7200) as i64 - 3600);
    let monitor = Monitor::start(cluster, LIMIT as usize);
    let start_controller = || OperatorUnderTest::start(reboot_controller, &fixture.controller);
    let start_agents = || OperatorUnderTest::start(reboot_agents, &fixture.agents);
    let mut controllers = vec![start_controller()];
    let mut agents = start_agents();
    request_all(cluster).await;

    let mut deleted = BTreeSet::new();
    for _ in 0..10 + random.below(20) {
        let node = &names[random.below(names.len() as u64) as usize];
        match random.below(11) {
            0 => {
                for controller in controllers.drain(..) {
                    controller.kill().await;
                }
                controllers.push(start_controller());
            }
            1 => {
                agents.kill().await;
                agents = start_agents();
            }
            2 => inject_random(&fixture.controller, &random),
            3 => inject_random(&fixture.agents, &random),
            4 => fixture.agents.disconnect(random_seconds(&random, 600)),
            5 => fixture.controller.disconnect(random_seconds(&random, 600)),
            6 => fixture.nodes().power_off(node).expect("the node exists"),
            7 => fixture.nodes().partition(node).expect("the node exists"),
            8 => fixture.nodes().restore(node).expect("the node exists"),
            9 if controllers.len() == 1 => controllers.push(start_controller()),
            9 if deleted.is_empty() => {
                let object =
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
                cluster.delete(object).await;
                deleted.insert(node.clone());
            }
            _ => drop(cluster.apply(random_policy(&random)).await),
        }
        cluster.advance(random_seconds(&random, 60)).await;
    }

    // No further faults.
    fixture.controller.inject(None);
    fixture.agents.inject(None);
    agents.kill().await;
    set_agent_clock_skew(cluster, 0);
    agents = start_agents();
    for node in &names {
        fixture.nodes().restore(node).expect("the node exists");
    }
    let repaired = Instant::now();
    while !fixture.is_idle().await && repaired.elapsed() < BACK_OFF_MAX {
        cluster.advance(CHECK_INTERVAL).await;
    }
    fixture.wait_until_idle().await;
    monitor.stop();
    let nodes = cluster.all::<Node>();
    let nodes = nodes.list(&Default::default()).await.expect("a list");
    for node in nodes.items {
        let name = node.name_any();
        let reboots = reboots_of(&name);
        assert!(
            reboots <= 1,
            "seed {seed}: {name} was rebooted in {reboots} boots for one request"
        );
        if deleted.contains(&name) {
            continue;
        }
        let last = annotation(&node, LAST);
        assert!(
            last.contains("result=Done"),
            "seed {seed}: the result of {name} is {last:?}"
        );
        assert_eq!(
            is_cordoned(&node),
            cordoned.as_ref() == Some(&name),
            "seed {seed}: unschedulable of {name} has changed"
        );
    }
    for controller in controllers {
        controller.stop().await;
    }
    agents.stop().await;
    fixture.cluster.stop().await;
    names.iter().map(|node| reboots_of(node)).sum()
}

fn random_seconds(random: &Rng, limit: u64) -> Duration {
    Duration::from_secs(random.below(limit))
}

/// Injects one of the faults, or none.
fn inject_random(account: &Account, random: &Rng) {
    let index = random.below(Fault::ALL.len() as u64 + 1) as usize;
    account.inject(Fault::ALL.get(index).copied());
}

fn random_policy(random: &Rng) -> serde_json::Value {
    let max_unavailable = 1 + random.below(LIMIT);
    let settle_seconds = random.below(20);
    let timeout_seconds = 30 + random.below(300);
    let mode = if random.below(4) == 0 {
        "None"
    } else {
        "Evict"
    };
    policy(json!({
        "maxUnavailable": max_unavailable,
        "settleSeconds": settle_seconds,
        "countCordoned": false,
        "failureThreshold": 100,
        "drain": {"timeoutSeconds": timeout_seconds, "mode": mode},
    }))
}
