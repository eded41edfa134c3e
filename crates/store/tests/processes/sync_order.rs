//! No response is written before the sync that covers its write, seen by strace.
//!
//! Ignored where strace does not exist or may not trace; BELLEROPHON_REQUIRE_STRACE=1 makes it
//! fail instead.

use std::{env, fs, path::Path, process::Stdio};

use tokio::process::Command;

use crate::cluster::{Cluster, eventually};

/// Writes of one client, one after the other.
const WRITES: usize = 50;

async fn can_trace() -> bool {
    let traced = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .stderr(Stdio::null())
        .status()
        .await;
    traced.is_ok_and(|status| status.success())
}

/// Reports why the test is ignored.
///
/// # Panics
/// `BELLEROPHON_REQUIRE_STRACE` is 1.
fn ignore(reason: &str) {
    let is_required = env::var("BELLEROPHON_REQUIRE_STRACE").is_ok_and(|value| value == "1");
    assert!(
        !is_required,
        "{reason}, and BELLEROPHON_REQUIRE_STRACE is 1"
    );
    eprintln!("ignored: {reason}");
}

/// The times of syncs of log segments, in order, from a trace.
fn syncs(trace: &Path) -> usize {
    let text = fs::read_to_string(trace).unwrap();
    let calls = text
        .lines()
        .filter(|line| line.contains("sync(") || line.contains("sync resumed"));
    calls
        .filter(|line| line.trim_end().ends_with("= 0"))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_write_waits_for_its_own_sync() {
    if !can_trace().await {
        ignore("strace is not installed or may not trace");
        return;
    }
    let cluster = Cluster::start(1, &[]).await;
    let trace = cluster.directory.path().join("trace");
    let process = cluster.members[0]
        .process
        .as_ref()
        .expect("the member runs");
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fdatasync,fsync", "-p"])
        .arg(process.id().to_string())
        .arg("-o")
        .arg(&trace)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let client = cluster.client();
    let key = "a".parse().unwrap();
    // The trace has begun when a write is in it. strace exits if it may trace its own children only.
    let mut has_exited = false;
    eventually("strace is attached", async || {
        client.put(&key, "x", None).await.unwrap();
        has_exited = strace.try_wait().unwrap().is_some();
        has_exited || (trace.exists() && syncs(&trace) > 0)
    })
    .await;
    if has_exited {
        ignore("strace may not attach to a process");
        return;
    }
    for number in 0..WRITES {
        // strace writes a line when the call returns, before the member continues.
        let before = syncs(&trace);
        client.put(&key, number.to_string(), None).await.unwrap();
        let after = syncs(&trace);
        assert!(
            after > before,
            "write {number} was acknowledged without a sync"
        );
    }
    strace.kill().await.unwrap();
}
