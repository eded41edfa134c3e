//! Benchmark of pods as local processes: `cargo bench -p bellerophon-cli --bench pods`
//!
//! Starts the release binary, `bellerophon up --runtime process --nodes 3`, in both tiers: the time
//! until the 100 pods of a Deployment are ready, the memory of their shims, and `exec` by kube-rs over
//! HTTPS. Prints a Markdown table.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "this benchmark needs no HTTP client")]
mod common; // the server as a process

use std::fs;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use common::{
    BenchError,
    process::{Server, now, print},
};

const PODS: usize = 100;
const EXECS: usize = 100;
const STDIN_BYTES: usize = 10 << 20;

/// How often the Deployment is read until all pods are ready.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const OPTIONS: [&str; 6] = [
    "--runtime",
    "process",
    "--nodes",
    "3",
    "--image",
    "shell=/bin/sh",
];

/// The results of one tier.
struct Results {
    ready: Duration,
    /// Medians of the shims.
    rss_kib: u64,
    anonymous_kib: u64,
    exec: Duration,
    stdin: Duration,
}

fn main() -> Result<(), BenchError> {
    let tokio = tokio::runtime::Runtime::new()?;
    let mut results = Vec::new();
    for environment in [&[][..], &[("BELLEROPHON_TIER", "B")]] {
        let server = Server::start_with(&OPTIONS, environment)?;
        results.push(tokio.block_on(measure(&server))?);
    }
    let row = |name: &str, cell: &dyn Fn(&Results) -> String| {
        let cells: Vec<String> = results.iter().map(cell).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let megabytes_per_second =
        |time: Duration| (STDIN_BYTES as f64 / 1e6 / time.as_secs_f64()).round();
    let table = [
        "| measure | tier A | tier B |\n|---|---|---|\n".to_owned(),
        row("100 pods of a Deployment ready", &|it| {
            format!("{:.2} s", it.ready.as_secs_f64())
        }),
        row("private memory of a shim (RssAnon)", &|it| {
            format!("{:.1} MB", it.anonymous_kib as f64 / 1000.0)
        }),
        row("RSS of a shim, with shared pages of the program", &|it| {
            format!("{:.1} MB", it.rss_kib as f64 / 1000.0)
        }),
        row("`exec` of `true`, median of 100", &|it| {
            format!("{:.1} ms", it.exec.as_secs_f64() * 1e3)
        }),
        row("`exec` of `cat`, 10 MiB by stdin and stdout", &|it| {
            format!("{} MB/s", megabytes_per_second(it.stdin))
        }),
    ];
    print(&table.concat());
    Ok(())
}

async fn measure(server: &Server) -> Result<Results, BenchError> {
    let kubeconfig = Kubeconfig::read_from(&server.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let ready = start_pods(&client).await?;
    let shims = shims(server)?;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = pods.list(&ListParams::default().limit(1)).await?;
    let pod = pod.items.first().ok_or("no pod")?.name_any();
    Ok(Results {
        ready,
        rss_kib: median(shims.iter().map(|pid| memory_kib(pid, "VmRSS:"))),
        anonymous_kib: median(shims.iter().map(|pid| memory_kib(pid, "RssAnon:"))),
        exec: exec_true(&pods, &pod).await?,
        stdin: exec_cat(&pods, &pod).await?,
    })
}

/// Creates a Deployment and waits until its pods are ready.
async fn start_pods(client: &Client) -> Result<Duration, BenchError> {
    let container = json!({
        "name": "app", "image": "shell", "args": ["-c", "exec sleep 1000"],
    });
    let deployment = json!({
        "metadata": {"name": "app"},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": {"app": "app"}},
            "template": {
                "metadata": {"labels": {"app": "app"}},
                "spec": {"containers": [container]},
            },
        },
    });
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let started = now();
    let deployment = serde_json::from_value(deployment)?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await?;
    loop {
        let current = deployments.get_status("app").await?;
        let ready = current.status.and_then(|status| status.ready_replicas);
        if ready == Some(i32::try_from(PODS)?) {
            return Ok(started.elapsed());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The process IDs of the shims of a server.
fn shims(server: &Server) -> Result<Vec<String>, BenchError> {
    let node = server.kubeconfig.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process may end, or belong to another user.
        let command = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        if command.contains("process-runtime-shim") && environment.contains(&node) {
            let pid = path.file_name().ok_or("no process ID")?;
            found.push(pid.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

fn memory_kib(pid: &str, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

fn median<T: Ord + Copy + Default>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The median time from the request to the exit code of a command.
async fn exec_true(pods: &Api<Pod>, pod: &str) -> Result<Duration, BenchError> {
    let parameters = AttachParams::default().stderr(false);
    let mut times = Vec::new();
    for _ in 0..EXECS {
        let started = now();
        let mut process = pods.exec(pod, ["true"], &parameters).await?;
        let status = process.take_status().ok_or("no status")?;
        status.await.ok_or("no exit code")?;
        times.push(started.elapsed());
    }
    Ok(median(times.into_iter()))
}

/// The time to copy bytes to a command and back.
async fn exec_cat(pods: &Api<Pod>, pod: &str) -> Result<Duration, BenchError> {
    let parameters = AttachParams::default().stdin(true).stderr(false);
    let started = now();
    let mut process = pods.exec(pod, ["cat"], &parameters).await?;
    let mut stdin = process.stdin().ok_or("no stdin")?;
    let mut stdout = process.stdout().ok_or("no stdout")?;
    let write = async {
        stdin.write_all(&vec![7; STDIN_BYTES]).await?;
        stdin.shutdown().await
    };
    let read = async {
        let mut bytes = vec![0; STDIN_BYTES];
        stdout.read_exact(&mut bytes).await
    };
    tokio::try_join!(write, read)?;
    Ok(started.elapsed())
}
