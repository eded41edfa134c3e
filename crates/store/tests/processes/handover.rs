//! Leadership transfers, and SIGTERM of the leader.

use std::{env, pin::pin, time::Duration};

use bellerophon_linearizability::{Options, check};
use bellerophon_store::api::Role;
use bellerophon_store_client::{Client, Endpoint};
use tokio::time::{Instant, timeout};

use crate::{
    cluster::{Cluster, eventually},
    load::Load,
};

/// How often acknowledged writes are counted to measure gaps.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);

/// Writes after a change of the leader, until it counts as over.
const WRITES_AFTER: u64 = 5;

/// How long a transfer to a dead member is repeated. An attempt lasts up to two timeouts of elections.
const TRANSFER_TIME: Duration = Duration::from_secs(4);

/// Transfers in a quick run. At most one of 100 may not reach its target.
const TRANSFERS: usize = 10;

/// The number of transfers, set by a variable for a long run.
fn transfers() -> usize {
    long_run().unwrap_or(TRANSFERS)
}

/// The number of leaders that are terminated.
fn terminations() -> usize {
    long_run().unwrap_or(3)
}

/// The number of transfers to a dead member: each lasts until its timeout.
fn failed_transfers() -> usize {
    long_run().map_or(1, |count| count.min(10))
}

fn long_run() -> Option<usize> {
    let text = env::var("BELLEROPHON_STORE_TRANSFERS").ok()?;
    let count = text.parse();
    Some(count.expect("BELLEROPHON_STORE_TRANSFERS is a number"))
}

/// The longest time without an acknowledged write, from now until `work` is complete and clients
/// have written again.
async fn write_gap(load: &Load, work: impl Future<Output = ()>) -> Duration {
    let mut work = pin!(async {
        work.await;
        let writes = load.acknowledged() + WRITES_AFTER;
        eventually("writes continue", async || load.acknowledged() >= writes).await;
    });
    let mut acknowledged = load.acknowledged();
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    loop {
        let is_complete = timeout(SAMPLE_INTERVAL, &mut work).await.is_ok();
        longest = longest.max(last.elapsed());
        let count = load.acknowledged();
        if count > acknowledged {
            acknowledged = count;
            last = Instant::now();
        }
        if is_complete {
            return longest;
        }
    }
}

/// Prints the distribution of gaps, in the terms of docs/benchmarks.md.
fn print_gaps(what: &str, mut gaps: Vec<Duration>) {
    gaps.sort();
    let quantile = |percent: usize| gaps[(gaps.len() * percent).div_ceil(100) - 1];
    eprintln!(
        "{} of {what}: longest time without an acknowledged write: {:?} (median), {:?} (p99), \
         {:?} (longest)",
        gaps.len(),
        quantile(50),
        quantile(99),
        quantile(100),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_lands_on_its_target() {
    let cluster = Cluster::start(3, &[]).await;
    let load = Load::start(cluster.client_options(), 4, 1);
    let admin = cluster.admin();
    let count = transfers();
    let mut missed = Vec::new();
    let mut gaps = Vec::new();
    for round in 0..count {
        let leader = cluster.leader_index().await;
        let target = (leader + 1 + round % 2) % 3;
        let id = cluster.members[target].id;
        let gap = write_gap(&load, async {
            // The request may be answered by the old leader or lost with it; the result counts.
            let result = admin.transfer_leader(id).await;
            let landed = cluster.wait_for_leader().await.member_id;
            if landed != Some(id) {
                missed.push(format!("{landed:?} instead of {id}: {result:?}"));
            }
        });
        gaps.push(gap.await);
    }
    print_gaps("transfers", gaps);
    assert!(missed.len() <= count / 100, "{missed:?}");
    let history = load.stop().await;
    let report = check(&history, &Options::default());
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_leader_hands_over_before_it_ends() {
    let mut cluster = Cluster::start(3, &[]).await;
    let load = Load::start(cluster.client_options(), 4, 2);
    let mut gaps = Vec::new();
    for _ in 0..terminations() {
        let leader = cluster.leader_index().await;
        let before = cluster.wait_for_leader().await.term;
        let process = cluster.members[leader].process.take();
        let process = process.expect("the leader runs");
        let gap = write_gap(&load, async {
            let status = process.terminate().await;
            assert_eq!(status.code(), Some(0), "{status}");
        });
        gaps.push(gap.await);
        // The hand-over is complete when the process ends: one of the others leads.
        let leaders = cluster.leader_status().await;
        let after = leaders.expect("another member leads");
        assert_eq!(after.term, before + 1, "one planned election");
        cluster.restart(leader).await;
        cluster.wait_for_parity().await;
    }
    print_gaps("SIGTERMs of the leader", gaps);
    let history = load.stop().await;
    let report = check(&history, &Options::default());
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_to_dead_member_keeps_the_cluster_writable() {
    let mut cluster = Cluster::start(3, &[]).await;
    let load = Load::start(cluster.client_options(), 2, 3);
    let leader = cluster.leader_index().await;
    let target = (leader + 1) % 3;
    let process = cluster.members[target].process.take();
    process.expect("the member runs").kill().await;
    let addresses = cluster.members[leader].setup.addresses.unwrap();
    let admin = cluster.admin_within(TRANSFER_TIME, addresses);
    let id = cluster.members[target].id;
    let mut gaps = Vec::new();
    for _ in 0..failed_transfers() {
        let gap = write_gap(&load, async {
            let result = admin.transfer_leader(id).await;
            assert!(result.is_err(), "a dead member cannot lead");
        });
        gaps.push(gap.await);
    }
    print_gaps("transfers to a dead member", gaps);
    cluster.restart(target).await;
    cluster.wait_for_parity().await;
    let status = cluster.status_of(target).await.unwrap();
    assert_ne!(status.role, Some(Role::Learner));
    let history = load.stop().await;
    let report = check(&history, &Options::default());
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

/// Endpoints were requested one after another: a member that was removed delayed a backup by the
/// whole timeout of a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_found_beside_an_endpoint_that_does_not_answer() {
    let cluster = Cluster::start(3, &[]).await;
    // It accepts connections and does not read from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let mut options = cluster.admin_options_after(Endpoint {
        is_https: true,
        host: "127.0.0.1".to_owned(),
        port: silent.local_addr().expect("it is bound").port(),
    });
    // Longer than any test may take.
    options.attempt_timeout = Duration::from_secs(3600);
    options.request_timeout = Duration::from_secs(3600);
    let leader = Client::new(options).leader().await;
    let leader = leader.expect("members answer").expect("one is the leader");
    let status = leader.status().await.expect("it answers");
    assert_eq!(status.role, Some(Role::Leader));
}
