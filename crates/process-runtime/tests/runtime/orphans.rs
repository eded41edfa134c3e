//! No process outlives its node.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bellerophon_process_runtime::{Runtime, Tier};
use tokio::time::Instant;

use crate::support::*;

/// How long processes may live after their node was killed.
const ORPHANS_END: Duration = Duration::from_secs(2);

/// Starts a node process whose pods fork, create sessions and ignore signals.
fn start_node(tier: Tier, data_dir: &Path) -> Child {
    let mut child = Command::new(HELPER)
        .args(["node", tier.as_str(), data_dir.to_str().unwrap(), "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

async fn kill_nodes(tier: Tier, times: usize) {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    for _ in 0..times {
        let mut child = start_node(tier, &data_dir);
        let data_dir = data_dir.canonicalize().unwrap();
        assert!(marked_processes(&data_dir) >= 4, "{tier:?}");
        child.kill().unwrap();
        let killed = Instant::now();
        while marked_processes(&data_dir) > 0 {
            assert!(killed.elapsed() < ORPHANS_END, "{tier:?}");
            tokio::task::yield_now().await;
        }
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn killed_node_leaves_no_process() {
    for tier in tiers().await {
        kill_nodes(tier, 10).await;
    }
}

#[tokio::test]
#[ignore = "takes minutes; run it after changes of the shim"]
async fn node_killed_a_thousand_times_leaves_no_process() {
    for tier in tiers().await {
        kill_nodes(tier, 500).await;
    }
}

#[tokio::test]
async fn killed_shim_leaves_no_process() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let script = "trap '' TERM; (setsid sleep 1000 &); echo ready; sleep 1000; true";
        let config = container(&pod, &[script]);
        let log_path = config.log_path.clone();
        let container = pod.sandbox.start_container(config).await.unwrap();
        wait_for_output(&container, &log_path, "ready").await;
        let shim = rustix::process::Pid::from_raw(container.shim_pid()).unwrap();
        rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
        let exit = within(container.wait()).await;
        assert_eq!(exit.exit_code, 137, "{tier:?}");
        let data_dir = node.dir.path().join("data").canonicalize().unwrap();
        if tier == Tier::B {
            assert_eq!(marked_processes(&data_dir), 0, "{tier:?}");
        }
        within(pod.sandbox.stop()).await.unwrap();
        assert_eq!(marked_processes(&data_dir), 0, "{tier:?}");
    }
}

#[tokio::test]
async fn start_kills_processes_of_an_earlier_node() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), Tier::B);
    let data_dir = dir.path().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    let data_dir = data_dir.canonicalize().unwrap();
    let mut orphan = Command::new("sleep")
        .arg("1000")
        .env("BELLEROPHON_NODE", &data_dir)
        .spawn()
        .unwrap();
    let runtime = Runtime::start(options.clone()).await.unwrap();
    assert_eq!(marked_processes(&data_dir), 0);
    orphan.wait().unwrap();
    let error = Runtime::start(options).await.err().unwrap();
    assert!(error.to_string().contains("another node uses"), "{error}");
    drop(runtime);
}
