//! `kill -9` under load: no acknowledged write is lost, and the history is linearizable.

use std::env;

use bellerophon_linearizability::{Options, check};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::{
    cluster::{Cluster, eventually},
    load::Load,
};

/// Kills in a quick run.
const KILLS: u64 = 6;

/// Histories are checked after this number of kills, since a check takes as long as a history.
const KILLS_PER_HISTORY: u64 = 12;

/// Concurrent clients.
const CLIENTS: u64 = 6;

/// Small enough that members take snapshots during the test, and drop the log.
const SNAPSHOT_LOG_BYTES: &str = "300000";

/// All revisions of one history: the checker replays them.
const HISTORY_REVISIONS: &str = "1000000";

fn kills() -> u64 {
    let text = env::var("BELLEROPHON_STORE_KILLS").ok();
    text.map_or(KILLS, |text| {
        text.parse().expect("BELLEROPHON_STORE_KILLS is a number")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_members_lose_no_acknowledged_write() {
    let mut left = kills();
    let mut seed = 1;
    while left > 0 {
        let count = left.min(KILLS_PER_HISTORY);
        run(count, seed).await;
        left -= count;
        seed += 1;
    }
}

async fn run(kills: u64, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let extra = [
        "--snapshot-log-bytes",
        SNAPSHOT_LOG_BYTES,
        "--history-revisions",
        HISTORY_REVISIONS,
    ];
    let mut cluster = Cluster::start(3, &extra).await;
    let load = Load::start(cluster.client_options(), CLIENTS, seed);
    for _ in 0..kills {
        let writes = load.acknowledged() + random.random_range(20..200);
        eventually("writes are acknowledged", async || {
            load.acknowledged() >= writes
        })
        .await;
        let victims = victims(&cluster, &mut random).await;
        for index in &victims {
            let process = cluster.members[*index].process.take();
            process.expect("the member runs").kill().await;
        }
        if victims.len() == 1 {
            let writes = load.acknowledged() + 20;
            eventually("two of three members write", async || {
                load.acknowledged() >= writes
            })
            .await;
        }
        for index in victims {
            cluster.restart(index).await;
        }
        cluster.wait_for_parity().await;
    }
    let acknowledged = load.acknowledged();
    let history = load.stop().await;
    let report = check(&history, &Options::default());
    let report = report.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    eprintln!("seed {seed}: {kills} kills, {acknowledged} acknowledged writes, {report:?}");
    assert_eq!(report.unchecked_reads, 0);
    assert!(report.events as u64 >= acknowledged, "{report:?}");
}

/// The leader, a follower, or all members.
async fn victims(cluster: &Cluster, random: &mut StdRng) -> Vec<usize> {
    let leader = cluster.leader_index().await;
    match random.random_range(0..10) {
        0..5 => vec![leader],
        5..8 => vec![(leader + random.random_range(1..3)) % 3],
        _ => vec![0, 1, 2],
    }
}
