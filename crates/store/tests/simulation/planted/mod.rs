//! Planted bugs: each is found by the simulation.
//!
//! A bug is planted outside of the store: by a disk or a transport that breaks its promise, or by
//! an operator that breaks a rule. So these tests show that the simulation reaches the state in
//! which the promise matters, and that its checks notice.

mod directed;
mod disks;
mod snapshots;
mod transports;

use crate::{cluster::Wrap, scenario::run};

/// Seeds that are tried until a bug is found.
const SEEDS: u64 = 300;

/// Fails unless a history with the bug is refused, and returns what was found.
fn find(name: &str, wrap: fn() -> Wrap, expected: &[&str]) {
    for seed in 1..=SEEDS {
        let Err(problem) = run(seed, wrap()) else {
            continue;
        };
        eprintln!(
            "{name}: seed {seed}: {}",
            problem.lines().next().unwrap_or("")
        );
        assert!(
            expected.iter().any(|text| problem.contains(text)),
            "{name}: seed {seed}: {problem}"
        );
        return;
    }
    panic!("{name} was not found in {SEEDS} histories");
}

const LOST: &[&str] = &[
    "did not grow",
    "did not start",
    "violated",
    "not that of the others",
    "failed",
    "not healed",
];

#[test]
fn acknowledgement_before_sync_is_found() {
    find(
        "no sync",
        || Wrap {
            disk: disks::without_sync,
            ..Wrap::default()
        },
        LOST,
    );
}

#[test]
fn vote_that_is_not_saved_is_found() {
    find(
        "vote not saved",
        || Wrap {
            disk: disks::without_votes,
            ..Wrap::default()
        },
        LOST,
    );
}

#[test]
fn vote_after_the_log_is_found() {
    let expected = &["did not start"];
    find(
        "vote after log",
        || Wrap {
            disk: disks::vote_after_log,
            ..Wrap::default()
        },
        expected,
    );
}

#[test]
fn purge_beyond_the_durable_state_is_found() {
    let expected = &["the log is purged beyond the state"];
    let wrap = || Wrap {
        disk: disks::without_state_sync,
        ..Wrap::default()
    };
    find("purge beyond snapshot", wrap, expected);
}

#[test]
fn early_promotion_is_found() {
    let wrap = || Wrap {
        transport: transports::forged_replication,
        ..Wrap::default()
    };
    find("early promotion", wrap, LOST);
}

#[test]
fn snapshot_without_membership_is_found() {
    let wrap = || Wrap {
        transport: snapshots::without_membership,
        ..Wrap::default()
    };
    find(
        "snapshot without membership",
        wrap,
        &["membership", "failed", "did not"],
    );
}
