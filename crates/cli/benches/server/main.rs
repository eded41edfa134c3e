//! Benchmark of the API server as a process: `cargo bench -p bellerophon-cli --bench server`
//!
//! Starts the release binary, then loads it over TLS with a bearer token from clients on the same
//! machine, with the same loads as kube-apiserver: start to ready, idle memory, GET, POST, LIST,
//! write to watch, and watch fan-out. Prints a Markdown table; `-- --write FILE` also writes it.

mod client; // a minimal HTTP client
mod load; // the loads
mod process; // the server as a process, and in this one

use std::{fmt::Write as _, time::Duration};

use client::Target;
use process::Server;

/// The results of kube-apiserver 1.36 with etcd on a machine with 2 cores, clients included.
const KUBERNETES: [(&str, &str); 9] = [
    ("start to ready", "3–4.6 s"),
    ("idle memory (RSS)", "275 MB + 40 MB etcd"),
    ("GET one ConfigMap, 8 connections", "2,355/s, mean 3.6 ms"),
    ("POST ConfigMaps, 16 connections", "1,400/s, mean 11.8 ms"),
    ("LIST 11,241 ConfigMaps (7.4 MB)", "100–120 ms"),
    ("write to watch, 1 watcher, p50", "2.8 ms"),
    ("fan-out, 100 watchers", "22,900 events/s"),
    ("fan-out, 1,000 watchers", "36,400 events/s"),
    ("in-process: start() to first response", "—"),
];

/// The number of measured starts.
const STARTS: usize = 11;

/// The duration of each load.
const LOAD_TIME: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().collect();
    let file = arguments
        .iter()
        .position(|a| a == "--write")
        .and_then(|i| arguments.get(i + 1));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let results = runtime.block_on(measure())?;
    let mut table =
        String::from("| measure | Bellerophon | kube-apiserver 1.36 + etcd |\n|---|---|---|\n");
    for ((name, kubernetes), result) in KUBERNETES.iter().zip(&results) {
        writeln!(table, "| {name} | {result} | {kubernetes} |")?;
    }
    process::print(&table);
    if let Some(file) = file {
        std::fs::write(file, table)?;
    }
    Ok(())
}

async fn measure() -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let server = Server::start()?;
        starts.push(server.ready_after);
        drop(server);
    }
    starts.sort();
    let server = Server::start()?;
    let target = Target::read(&server.kubeconfig)?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = server.memory_kib()?;
    target.prepare().await?;

    let get = load::requests(&target, 8, LOAD_TIME, load::get).await?;
    let post = load::requests(&target, 16, LOAD_TIME, load::post).await?;
    let list = load::list(&target).await?;
    let one = load::fan_out(&target, 1, 2_000).await?;
    let hundred = load::fan_out(&target, 100, 2_000).await?;
    let thousand = load::fan_out(&target, 1_000, 1_000).await?;
    Ok(vec![
        format!(
            "{:.1} ms (median of {STARTS}; {:.1}–{:.1})",
            ms(starts[STARTS / 2]),
            ms(starts[0]),
            ms(starts[STARTS - 1])
        ),
        format!("{:.1} MB", idle as f64 / 1024.0),
        format!("{:.0}/s, mean {:.2} ms", get.per_second, ms(get.mean)),
        format!("{:.0}/s, mean {:.2} ms", post.per_second, ms(post.mean)),
        format!(
            "{:.1} ms ({:.1} MB)",
            ms(list.median),
            list.bytes as f64 / 1e6
        ),
        format!("{:.2} ms (p99 {:.2} ms)", ms(one.p50), ms(one.p99)),
        format!("{:.0} events/s", hundred.per_second),
        format!("{:.0} events/s", thousand.per_second),
        format!("{:.2} ms", ms(process::in_process().await?)),
    ])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
