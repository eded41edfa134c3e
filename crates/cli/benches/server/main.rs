//! Benchmark of the API server as a process: `cargo bench -p bellerophon-cli --bench server`
//!
//! Starts the release binary, then loads it over TLS with a bearer token from clients on the same
//! machine, with the same loads as kube-apiserver: start to ready, idle memory, GET, POST, LIST,
//! write to watch, and watch fan-out. Prints a Markdown table; `-- --write FILE` also writes it, and
//! `-- WORDS…` measures only what has one of these words in its name. "CPU" is the processor time of
//! the server for each request or event, which varies less than the others.

#[path = "../common/mod.rs"]
mod common; // the server as a process, and a client

mod load; // the loads
mod process; // measurements without requests
mod watch; // watches

use std::{fmt::Write as _, time::Duration};

use common::{
    BenchError,
    client::Target,
    process::{Server, now, print},
};

const START: &str = "start to ready";
const IDLE: &str = "idle memory (RSS)";
const GET: &str = "GET one ConfigMap, 8 connections";
const POST: &str = "POST ConfigMaps, 16 connections";
const POST_PAGE: &str = "POST ConfigMaps with controllers, live page without a viewer / no page";
const POST_POLICIES: &str = "POST ConfigMaps, 100 policies that match nothing / no policy";
const LIST: &str = "LIST 11,241 ConfigMaps (7.4 MB)";
const WRITE_TO_WATCH: &str = "write to watch, 1 watcher, p50";
const FAN_OUT_100: &str = "fan-out, 100 watchers";
const FAN_OUT_1000: &str = "fan-out, 1,000 watchers";
const IN_PROCESS: &str = "in-process: start() to first response";

/// The results of kube-apiserver 1.36 with etcd on a machine with 2 cores, clients included.
const KUBERNETES: [(&str, &str); 11] = [
    (START, "3–4.6 s"),
    (IDLE, "275 MB + 40 MB etcd"),
    (GET, "2,355/s, mean 3.6 ms"),
    (POST, "1,400/s, mean 11.8 ms"),
    (POST_PAGE, "—"),
    (POST_POLICIES, "—"),
    (LIST, "100–120 ms"),
    (WRITE_TO_WATCH, "2.8 ms"),
    (FAN_OUT_100, "22,900 events/s"),
    (FAN_OUT_1000, "36,400 events/s"),
    (IN_PROCESS, "—"),
];

/// The number of measured starts.
const STARTS: usize = 11;

/// The rounds of a comparison.
const ROUNDS: usize = 5;

/// The policies that match nothing.
const POLICIES: usize = 100;

/// The duration of each load.
const LOAD_TIME: Duration = Duration::from_secs(5);

fn main() -> Result<(), BenchError> {
    let mut arguments = std::env::args().skip(1);
    let mut file = None;
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => file = arguments.next(),
            // Cargo adds it.
            "--bench" => {}
            _ => words.push(argument),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut table =
        String::from("| measure | Bellerophon | kube-apiserver 1.36 + etcd |\n|---|---|---|\n");
    runtime.block_on(async {
        for (name, kubernetes) in KUBERNETES {
            if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
                let result = measure(name).await?;
                writeln!(table, "| {name} | {result} | {kubernetes} |")?;
            }
        }
        Ok::<_, BenchError>(())
    })?;
    print(&table);
    if let Some(file) = file {
        std::fs::write(file, table)?;
    }
    Ok(())
}

/// Measures one row, most of them on a separate server.
async fn measure(name: &str) -> Result<String, BenchError> {
    match name {
        START => return starts(),
        POST_PAGE => {
            let page = |page| Setup {
                options: vec!["--cluster", "core", "--page", page],
                policies: 0,
            };
            return compare_posts([page("127.0.0.1:0"), page("none")]).await;
        }
        POST_POLICIES => {
            let policies = |policies| Setup {
                options: vec!["--cluster", "none"],
                policies,
            };
            return compare_posts([policies(POLICIES), policies(0)]).await;
        }
        IN_PROCESS => return Ok(format!("{:.2} ms", ms(process::in_process().await?))),
        _ => {}
    }
    let server = Server::start()?;
    if name == IDLE {
        tokio::time::sleep(Duration::from_secs(1)).await;
        return Ok(format!(
            "{:.1} MB",
            server.memory_kib("VmRSS")? as f64 / 1024.0
        ));
    }
    let target = Target::read(&server.kubeconfig)?;
    load::prepare(&target).await?;
    let before = process::processor_time(&server)?;
    let cpu = |count: usize| {
        let spent = process::processor_time(&server)? - before;
        Ok::<_, BenchError>(format!(
            "CPU {:.1} µs",
            spent.as_secs_f64() * 1e6 / count as f64
        ))
    };
    let requests = |result: load::RequestResult| {
        let rate = format!("{:.0}/s, mean {:.2} ms", result.per_second, ms(result.mean));
        Ok(format!("{rate}, {}", cpu(result.count)?))
    };
    match name {
        GET => requests(load::requests(&target, 8, LOAD_TIME, load::get).await?),
        POST => requests(load::requests(&target, 16, LOAD_TIME, load::post).await?),
        LIST => {
            let list = load::list(&target).await?;
            let megabytes = list.bytes as f64 / 1e6;
            Ok(format!("{:.1} ms ({megabytes:.1} MB)", ms(list.median)))
        }
        WRITE_TO_WATCH => {
            let one = load::fan_out(&target, 1, 2_000).await?;
            Ok(format!("{:.2} ms (p99 {:.2} ms)", ms(one.p50), ms(one.p99)))
        }
        _ => {
            let (watchers, writes) = if name == FAN_OUT_100 {
                (100, 4_000)
            } else {
                (1_000, 1_000)
            };
            let result = load::fan_out(&target, watchers, writes).await?;
            let cpu = cpu(watchers * writes)?;
            Ok(format!("{:.0} events/s, {cpu}", result.per_second))
        }
    }
}

/// A server of a comparison.
struct Setup<'a> {
    options: Vec<&'a str>,
    /// Admission policies with bindings that match no request.
    policies: usize,
}

/// POST on two servers, in turn.
async fn compare_posts(setups: [Setup<'_>; 2]) -> Result<String, BenchError> {
    let mut rates = [Vec::new(), Vec::new()];
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (i, setup) in setups.iter().enumerate() {
            let server = Server::start_with(&setup.options, &[])?;
            let target = Target::read(&server.kubeconfig)?;
            load::prepare(&target).await?;
            load::create_policies(&target, setup.policies).await?;
            let before = process::processor_time(&server)?;
            let result = load::requests(&target, 16, LOAD_TIME, load::post).await?;
            let spent = process::processor_time(&server)? - before;
            rates[i].push(result.per_second);
            costs[i].push(spent.as_secs_f64() * 1e6 / result.count as f64);
        }
    }
    let [first, second] = rates.map(median);
    let [first_cost, second_cost] = costs.map(median);
    Ok(format!(
        "{first:.0}/s / {second:.0}/s = {:.3}, CPU {first_cost:.1} / {second_cost:.1} µs (medians of {ROUNDS})",
        first / second
    ))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time from the start of the process to ready.
fn starts() -> Result<String, BenchError> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let start = now();
        let server = Server::start()?;
        starts.push(start.elapsed());
        drop(server);
    }
    starts.sort();
    Ok(format!(
        "{:.1} ms (median of {STARTS}; {:.1}–{:.1})",
        ms(starts[STARTS / 2]),
        ms(starts[0]),
        ms(starts[STARTS - 1])
    ))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
