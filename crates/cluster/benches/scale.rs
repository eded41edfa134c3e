//! Scale benchmark: `cargo bench -p bellerophon-cluster --bench scale`.
//!
//! API server, controllers and simulated nodes run in this process. The first part applies one
//! Deployment and measures the time until all its pods are Ready; the second measures the CPU time
//! of the heartbeats of idle nodes. `-- --nodes N --pods M --idle K` sets the sizes; 0 skips a
//! part.
//!
//! Output: the table of docs/benchmarks.md on stdout, progress on stderr. CPU time is printed
//! beside wall time because it depends less on the load of the machine.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

use std::{error::Error, time::Duration};

use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::Cluster;
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ServiceAccount};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measurement time of the idle nodes.
const IDLE_TIME: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let index = arguments.iter().position(|argument| argument == name);
        index
            .and_then(|index| arguments.get(index + 1))
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let nodes = number("--nodes", 1000);
    let pods = number("--pods", 30_000);
    let idle = number("--idle", 5000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("| measure | figure |\n|---|---|");
    if pods > 0 {
        runtime.block_on(bench_deployment(nodes, pods))?;
    }
    if idle > 0 {
        runtime.block_on(bench_idle_nodes(idle))?;
    }
    Ok(())
}

async fn start(nodes: usize) -> Result<(ApiServer, Client, Cluster), Failure> {
    let server = ApiServer::builder().seed(1).start().await?;
    let client = server.client();
    let start = Instant::now();
    let before = cpu_time()?;
    let mut cluster = Cluster::builder(client.clone())
        .nodes(nodes)
        .seed(1)
        .start();
    cluster.ready().await?;
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = cpu_time()? - before;
    println!(
        "| {nodes} nodes, from start to all Ready | {elapsed:.1} s ({cpu:.1} s of CPU time) |"
    );
    Ok((server, client, cluster))
}

/// Time from the apply of a Deployment until all pods are Ready.
async fn bench_deployment(nodes: usize, pods: usize) -> Result<(), Failure> {
    let (server, client, cluster) = start(nodes).await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    while accounts.get_opt("default").await?.is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": pods,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "containers": [
                        {
                            "name": "web",
                            "image": "nginx",
                            "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                        },
                    ],
                },
            },
        },
    });
    let deployments = Api::<Deployment>::namespaced(client, "default");
    let start = Instant::now();
    let before = cpu_time()?;
    deployments
        .patch(
            "web",
            &PatchParams::apply("bench"),
            &Patch::Apply(&deployment),
        )
        .await?;
    let mut reported = 0;
    let events = deployments.watch(&WatchParams::default(), "0").await?;
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let (WatchEvent::Added(web) | WatchEvent::Modified(web)) = event? else {
            continue;
        };
        let ready = usize::try_from(
            web.status
                .and_then(|status| status.ready_replicas)
                .unwrap_or(0),
        )?;
        if ready >= reported + pods / 10 {
            reported = ready;
            eprintln!(
                "{ready:>7} pods Ready after {:.1} s, {} MB",
                start.elapsed().as_secs_f64(),
                peak_memory()? / 1024
            );
        }
        if ready == pods {
            break;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = cpu_time()? - before;
    let rate = pods as f64 / elapsed;
    println!(
        "| {pods} pods of one Deployment on {nodes} nodes, from apply to all Ready | {elapsed:.1} \
            s, {rate:.0} pods/s ({cpu:.1} s of CPU time) |"
    );
    println!(
        "| peak memory of the process | {} MB |",
        peak_memory()? / 1024
    );
    cluster.stop().await?;
    server.shutdown().await;
    Ok(())
}

/// CPU time of the heartbeats of nodes without pods.
async fn bench_idle_nodes(nodes: usize) -> Result<(), Failure> {
    let (server, _, cluster) = start(nodes).await?;
    // Wait until the taints of new nodes are removed and lease renewals are spread.
    sleep(Duration::from_secs(15)).await;
    let start = Instant::now();
    let before = cpu_time()?;
    sleep(IDLE_TIME).await;
    let share = (cpu_time()? - before) / start.elapsed().as_secs_f64();
    println!(
        "| {nodes} idle nodes with heartbeats | {:.1} % of one core |",
        share * 100.0
    );
    cluster.stop().await?;
    server.shutdown().await;
    Ok(())
}

/// CPU time of this process in seconds.
fn cpu_time() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields
        .get(11..13)
        .into_iter()
        .flatten()
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // Linux counts in ticks of 10 ms.
    Ok(ticks / 100.0)
}

/// Peak resident memory of this process in kB.
fn peak_memory() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
