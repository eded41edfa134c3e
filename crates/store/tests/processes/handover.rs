//! Leadership transfers, and SIGTERM of the leader.

use std::{env, time::Duration};

use bellerophon_linearizability::{Options, check};
use bellerophon_store::api::Role;
use bellerophon_store_client::{Client, Endpoint};
use tokio::time::Instant;

use crate::{
    cluster::{Cluster, eventually},
    load::Load,
};

/// Transfers in a quick run. At most one of 100 may not reach its target.
const TRANSFERS: usize = 10;

fn transfers() -> usize {
    let text = env::var("BELLEROPHON_STORE_TRANSFERS").ok();
    text.map_or(TRANSFERS, |text| {
        text.parse()
            .expect("BELLEROPHON_STORE_TRANSFERS is a number")
    })
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
        let started = Instant::now();
        // The request may be answered by the old leader or lost with it; the result counts.
        let result = admin.transfer_leader(id).await;
        let landed = cluster.wait_for_leader().await.member_id;
        if landed != Some(id) {
            missed.push(format!("{landed:?} instead of {id}: {result:?}"));
        }
        let writes = load.acknowledged() + 5;
        eventually("writes continue", async || load.acknowledged() >= writes).await;
        gaps.push(started.elapsed());
    }
    gaps.sort();
    let median = gaps[gaps.len() / 2];
    let longest = gaps[gaps.len() - 1];
    eprintln!("{count} transfers: five writes after {median:?} (median), {longest:?} (longest)");
    assert!(missed.len() <= count / 100, "{missed:?}");
    let history = load.stop().await;
    let report = check(&history, &Options::default());
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_leader_hands_over_before_it_ends() {
    let mut cluster = Cluster::start(3, &[]).await;
    let load = Load::start(cluster.client_options(), 4, 2);
    for _ in 0..3 {
        let leader = cluster.leader_index().await;
        let before = cluster.wait_for_leader().await.term;
        let process = cluster.members[leader].process.take();
        let status = process.expect("the leader runs").terminate().await;
        assert_eq!(status.code(), Some(0), "{status}");
        // The hand-over is complete when the process ends: one of the others leads.
        let leaders = cluster.leader_status().await;
        let after = leaders.expect("another member leads");
        assert_eq!(after.term, before + 1, "one planned election");
        cluster.restart(leader).await;
        cluster.wait_for_parity().await;
    }
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
    let admin = cluster.admin_of(cluster.members[leader].setup.addresses.unwrap());
    let result = admin.transfer_leader(cluster.members[target].id).await;
    assert!(result.is_err(), "a dead member cannot lead");
    let writes = load.acknowledged() + 20;
    eventually("writes come back", async || load.acknowledged() >= writes).await;
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
