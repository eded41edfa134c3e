//! Reboots a whole cluster in virtual time:
//! `cargo bench -p bellerophon-reboot --bench rollout [NODES]`
//!
//! Everything but the machines is real: the embedded API server, the built-in controllers, the
//! reboot controller, and one agent per node. Prints wall time, CPU time, memory, and the requests
//! of controller and agents per node.

#[path = "../tests/reboot/fixture.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod fixture;

use std::time::Duration;

use bellerophon_testkit::{OperatorUnderTest, RequestLog};
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{
    Monitor, RebootFixture, policy, reboot_agents, reboot_controller, request_all,
};

/// The default number of nodes.
const NODES: usize = 5000;

/// The virtual time between two checks for the end of the rollout.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures wall time and prints"
)]
fn main() {
    let nodes = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .next()
        .unwrap_or(NODES);
    let start = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let fixture = RebootFixture::new(nodes).await;
        println!(
            "{nodes} nodes are ready after {:.1} s",
            start.elapsed().as_secs_f64()
        );
        fixture
            .cluster
            .apply(policy(json!({"maxUnavailable": "5%"})))
            .await;
        let limit = (nodes / 20).max(1);
        let monitor = Monitor::start(&fixture.cluster, limit);
        let wall_start = std::time::Instant::now();
        let virtual_start = Instant::now();
        let controller = OperatorUnderTest::start(reboot_controller, &fixture.controller);
        let agents = OperatorUnderTest::start(reboot_agents, &fixture.agents);
        request_all(&fixture.cluster).await;
        // Thousands of nodes change too often to evaluate a condition after every watch event.
        while !fixture.is_idle().await {
            fixture.cluster.advance(CHECK_INTERVAL).await;
        }
        let wall_time = wall_start.elapsed();
        let virtual_time = virtual_start.elapsed();
        let observations = monitor.stop();
        assert_eq!(observations.reboots, nodes, "every node reboots once");
        println!(
            "{nodes} nodes rebooted, at most {} at a time (limit {limit})",
            observations.concurrent_max
        );
        println!(
            "  {:.1} s of wall time for {:.0} min of virtual time",
            wall_time.as_secs_f64(),
            virtual_time.as_secs_f64() / 60.0
        );
        for (component, requests) in [
            ("controller", &fixture.controller.requests),
            ("agents", &fixture.agents.requests),
        ] {
            let all = requests.all();
            let writes = all.iter().filter(|request| request.is_write()).count();
            println!(
                "  {component}: {} requests per node, {} of them writes",
                per_node(all.len(), nodes),
                per_node(writes, nodes)
            );
            println!("    {}", requests_by_kind(requests, nodes));
        }
        println!("  {}", process_usage());
        controller.stop().await;
        agents.stop().await;
        fixture.cluster.stop().await;
    });
}

fn per_node(count: usize, nodes: usize) -> String {
    format!("{:.1}", count as f64 / nodes as f64)
}

/// Requests per node, by verb and resource.
fn requests_by_kind(requests: &RequestLog, nodes: usize) -> String {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for request in requests.all() {
        let kind = format!("{} {}", request.verb, request.resource);
        *counts.entry(kind).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(kind, count)| format!("{kind} {}", per_node(count, nodes)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The peak memory and the CPU time of this process, from procfs.
fn process_usage() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .map_or("unknown", str::trim);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // utime and stime are fields 14 and 15, which are 11 and 12 after the name, in ticks of 10 ms.
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or_default()
    };
    let cpu_seconds = (ticks(11) + ticks(12)) as f64 / 100.0;
    format!("peak memory {peak}, CPU time {cpu_seconds:.1} s")
}
