//! Time to start 100 pods with one container each, and the memory of their shims.
//!
//! `cargo bench -p bellerophon-process-runtime`. A container counts as started when its program is
//! executed.

use std::fs;

use bellerophon_process_runtime::{
    Container, ContainerConfig, Error, Limits, Runtime, RuntimeOptions, Sandbox, SandboxConfig,
    SandboxNetwork, Streams, Tier,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

const HELPER: &str = env!("CARGO_BIN_EXE_process-runtime-helper");
const PODS: u8 = 100;

fn main() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime is built from defaults");
    for force_tier_b in [false, true] {
        let result = tokio.block_on(measure(force_tier_b));
        result.expect("the pods start");
    }
}

async fn start_pod(
    runtime: Runtime,
    dir: std::path::PathBuf,
    number: u8,
) -> Result<(Sandbox, Container), Error> {
    let ip = match runtime.tier() {
        Tier::A => [10, 1, 0, number].into(),
        Tier::B => runtime.allocate_ip(),
    };
    let name = format!("pod-{number}");
    let config = SandboxConfig {
        id: name.clone(),
        hostname: name.clone(),
        ip,
        network: SandboxNetwork::Pod,
    };
    let sandbox = runtime.create_sandbox(config).await?;
    let config = ContainerConfig {
        name: "main".to_owned(),
        argv: vec!["sleep".to_owned(), "1000".to_owned()],
        env: Vec::new(),
        working_dir: None,
        user: None,
        streams: Streams::default(),
        mounts: Vec::new(),
        log_path: dir.join(name).join("0.log"),
        read_only_root: false,
        limits: Limits::default(),
        target: None,
    };
    let container = sandbox.start_container(config).await?;
    Ok((sandbox, container))
}

async fn measure(force_tier_b: bool) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let options = RuntimeOptions {
        shim: HELPER.into(),
        force_tier_b,
        ..RuntimeOptions::new(dir.path().join("data"))
    };
    let runtime = Runtime::start(options).await?;
    let start = Instant::now();
    let mut starting = JoinSet::new();
    for number in 1..=PODS {
        starting.spawn(start_pod(runtime.clone(), dir.path().to_owned(), number));
    }
    let mut pods = Vec::new();
    while let Some(pod) = starting.join_next().await {
        pods.push(pod.map_err(std::io::Error::other)??);
    }
    let started = start.elapsed();
    let shims: Vec<i32> = pods
        .iter()
        .map(|(_, container)| container.shim_pid())
        .collect();
    let resident = median(&shims, "status", "VmRSS:");
    let anonymous = median(&shims, "status", "RssAnon:");
    let proportional = median(&shims, "smaps_rollup", "Pss:");
    let start = Instant::now();
    for (sandbox, _) in &pods {
        sandbox.stop().await?;
    }
    eprintln!(
        "tier {}: {PODS} pods started in {} ms, stopped in {} ms; \
         shim: {resident} KiB RSS, {anonymous} KiB anonymous, {proportional} KiB PSS (median)",
        runtime.tier().as_str(),
        started.as_millis(),
        start.elapsed().as_millis(),
    );
    Ok(())
}

/// The median of a field of `/proc/PID/FILE` in KiB.
fn median(pids: &[i32], file: &str, field: &str) -> u64 {
    let value = |pid: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    let mut values: Vec<u64> = pids.iter().map(value).collect();
    values.sort_unstable();
    values[values.len() / 2]
}
