//! A whole cluster is rebooted in virtual time: `cargo bench -p bellerophon-reboot --bench rollout [NODES]`.
//!
//! Everything is real but the machines: the embedded server, the cluster's loops, the controller, and one agent a node.
//! Out: wall time, processor time, memory, and requests of controller and agents for each node.

#[path = "../tests/reboot/rig.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod rig;

use std::time::Duration;

use bellerophon_testkit::{Record, Subject};
use serde_json::json;
use tokio::time::Instant;

use crate::rig::{Rig, Witness, policy, request, run};

const NODES: usize = 5000;

/// How much cluster life passes between looks at it.
const LOOK_EVERY: Duration = Duration::from_secs(30);

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and prints"
)]
fn main() {
    let nodes = std::env::args()
        .filter_map(|word| word.parse().ok())
        .next()
        .unwrap_or(NODES);
    let began = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::new(nodes).await;
        println!(
            "{nodes} nodes are ready after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        rig.world
            .apply(policy(json!({"maxUnavailable": "5%"})))
            .await;
        let limit = (nodes / 20).max(1);
        let (witness, started, virtually) = (
            Witness::watch(&rig.world, limit),
            std::time::Instant::now(),
            Instant::now(),
        );
        let (controller, agents) = (
            Subject::start(run, &rig.controller),
            Subject::start(rig::run_agents, &rig.agents),
        );
        request(&rig.world, None).await;
        // Thousands of nodes change too often to look at each change.
        while !rig.is_idle().await {
            rig.world.pass(LOOK_EVERY).await;
        }
        let (took, virtual_time, seen) = (started.elapsed(), virtually.elapsed(), witness.end());
        assert_eq!(seen.reboots, nodes, "every node reboots once");
        println!(
            "{nodes} nodes rebooted, at most {} at once (limit {limit})",
            seen.most_at_once
        );
        println!(
            "  {:.1} s of wall time for {:.0} min of cluster life",
            took.as_secs_f64(),
            virtual_time.as_secs_f64() / 60.0
        );
        for (who, record) in [
            ("controller", &rig.controller.record),
            ("agents", &rig.agents.record),
        ] {
            let all = record.all();
            let writes = all.iter().filter(|seen| seen.is_write()).count();
            println!(
                "  {who}: {} requests a node, {} of them writes",
                per_node(all.len(), nodes),
                per_node(writes, nodes)
            );
            println!("    {}", busiest(record, nodes));
        }
        println!("  {}", memory());
        controller.stop().await;
        agents.stop().await;
        rig.world.stop().await;
    });
}

fn per_node(count: usize, nodes: usize) -> String {
    format!("{:.1}", count as f64 / nodes as f64)
}

/// Requests by what they are.
fn busiest(record: &Record, nodes: usize) -> String {
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    record.all().into_iter().for_each(|seen| {
        *kinds
            .entry(format!("{} {}", seen.verb, seen.resource))
            .or_default() += 1
    });
    kinds
        .into_iter()
        .map(|(kind, count)| format!("{kind} {}", per_node(count, nodes)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// What the kernel says of this process: the most memory it ever had, and its processor time.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .map_or("unknown", str::trim);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let words: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // Fields 14 and 15 of the line, the twelfth and thirteenth behind the name, in hundredths of a second.
    let ticks = |place: usize| {
        words
            .get(place)
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or_default()
    };
    let processor = (ticks(11) + ticks(12)) as f64 / 100.0;
    format!("{peak} of memory at most, {processor:.1} s of processor time")
}
