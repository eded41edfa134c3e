//! How large a cluster may be: `cargo bench -p bellerophon-cluster --bench scale`.
//!
//! Everything runs in this process: the API server, the loops and the simulated nodes. First one Deployment is applied, and
//! the time taken until every pod of it is Ready; then nodes without pods are left alone, and the processor time taken that
//! their heartbeats cost. `-- --nodes N --pods M --idle K` asks for other numbers; 0 leaves a part out.
//!
//! Out: the table of docs/benchmarks.md on stdout; on stderr how far it is. Processor time stands beside every time, because
//! a busy machine changes it little.
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

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long idle nodes are watched.
const IDLE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1))
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
        runtime.block_on(deploy(nodes, pods))?;
    }
    if idle > 0 {
        runtime.block_on(rest(idle))?;
    }
    Ok(())
}

async fn start(nodes: usize) -> Result<(ApiServer, Client, Cluster), Failure> {
    let server = ApiServer::builder().seed(1).start().await?;
    let client = server.client();
    let began = Instant::now();
    let before = processor_time()?;
    let mut cluster = Cluster::builder(client.clone())
        .nodes(nodes)
        .seed(1)
        .start();
    cluster.ready().await?;
    let took = began.elapsed().as_secs_f64();
    let used = processor_time()? - before;
    println!(
        "| {nodes} nodes, from start to all Ready | {took:.1} s ({used:.1} s of processor time) |"
    );
    Ok((server, client, cluster))
}

/// From one apply to all Ready.
async fn deploy(nodes: usize, pods: usize) -> Result<(), Failure> {
    let (server, client, cluster) = start(nodes).await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    while accounts.get_opt("default").await?.is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": pods, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } } }] },
            },
        },
    });
    let deployments = Api::<Deployment>::namespaced(client, "default");
    let began = Instant::now();
    let before = processor_time()?;
    deployments
        .patch(
            "web",
            &PatchParams::apply("bench"),
            &Patch::Apply(&deployment),
        )
        .await?;
    let mut shown = 0;
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
        if ready >= shown + pods / 10 {
            shown = ready;
            eprintln!(
                "{ready:>7} pods Ready after {:.1} s, {} MB",
                began.elapsed().as_secs_f64(),
                memory()? / 1024
            );
        }
        if ready == pods {
            break;
        }
    }
    let took = began.elapsed().as_secs_f64();
    let used = processor_time()? - before;
    let rate = pods as f64 / took;
    println!(
        "| {pods} pods of one Deployment on {nodes} nodes, from apply to all Ready | {took:.1} s, {rate:.0} pods/s ({used:.1} s of processor time) |"
    );
    println!(
        "| memory of the whole process at most | {} MB |",
        memory()? / 1024
    );
    cluster.stop().await?;
    server.shutdown().await;
    Ok(())
}

/// Nodes with nothing to do but to show that they are alive.
async fn rest(nodes: usize) -> Result<(), Failure> {
    let (server, _, cluster) = start(nodes).await?;
    // The taints of new nodes are taken off, and the first renewals spread, before anything is measured.
    sleep(Duration::from_secs(15)).await;
    let began = Instant::now();
    let before = processor_time()?;
    sleep(IDLE).await;
    let share = (processor_time()? - before) / began.elapsed().as_secs_f64();
    println!(
        "| {nodes} idle nodes with heartbeats | {:.1} % of one core |",
        share * 100.0
    );
    cluster.stop().await?;
    server.shutdown().await;
    Ok(())
}

/// Seconds that this process had a processor so far.
fn processor_time() -> Result<f64, Failure> {
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
    // Linux counts in hundredths.
    Ok(ticks / 100.0)
}

/// The most memory this process ever had, in kilobytes.
fn memory() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
