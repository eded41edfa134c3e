//! Benchmark of the store as processes, next to etcd: `cargo bench -p bellerophon-store --bench store`
//!
//! One load generator sends the same puts and linearizable gets over HTTP/2 to both, in the same
//! run and on the same disk, with fsync. Prints a Markdown table. `-- --seconds N` sets the time of
//! a row, `-- --rounds N` how often both are loaded in turn; a row has the medians of its rounds.
//! `-- --clients N` measures only rows with N clients, `-- WORDS…` only rows with one of these
//! words. `-- --replace` measures the replacement of a member with 1 GB. etcd is the binary `etcd`
//! of the PATH, or that of `ETCD`; without it, its columns are empty. `STORE_MEMBER` is another
//! build of the member, for comparisons.

mod etcd; // etcd as processes
mod generator; // the load
mod processes; // what the processes use
mod replacement; // a lost member with 1 GB
mod store; // the store as processes
mod target; // the loaded member

use std::{io::Write as _, time::Duration};

use generator::{Load, Measured, Operation};
use processes::Usage;
use target::{BenchError, Target};

/// The time of a row, after a tenth of it as warm-up.
const SECONDS: u64 = 10;

/// Linux counts processor time of processes in these.
const TICK_MS: u64 = 10;

const MEMBERS: [usize; 3] = [1, 3, 5];
const CLIENTS: [usize; 2] = [1, 64];

struct Options {
    row_time: Duration,
    rounds: usize,
    clients: Option<usize>,
    measures_replacement: bool,
    words: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), BenchError> {
    let options = options()?;
    if options.measures_replacement {
        return replacement::measure(&print).await;
    }
    print("| operation | members | clients | store | etcd |\n|---|---|---|---|---|\n");
    for members in MEMBERS {
        measure(members, &options).await?;
    }
    Ok(())
}

fn options() -> Result<Options, BenchError> {
    let mut options = Options {
        row_time: Duration::from_secs(SECONDS),
        rounds: 1,
        clients: None,
        measures_replacement: false,
        words: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo adds it.
            "--bench" => {}
            "--seconds" => {
                let seconds = arguments.next().ok_or("--seconds needs a number")?;
                options.row_time = Duration::from_secs(seconds.parse()?);
            }
            "--rounds" => {
                let rounds = arguments.next().ok_or("--rounds needs a number")?;
                options.rounds = rounds.parse::<usize>()?.max(1);
            }
            "--clients" => {
                let clients = arguments.next().ok_or("--clients needs a number")?;
                options.clients = Some(clients.parse()?);
            }
            "--replace" => options.measures_replacement = true,
            word => options.words.push(word.to_owned()),
        }
    }
    Ok(options)
}

/// All rows of one number of members. Both systems are loaded one after the other in each round.
async fn measure(members: usize, options: &Options) -> Result<(), BenchError> {
    let rows: Vec<Load> = [Operation::Put, Operation::Get]
        .into_iter()
        .flat_map(|operation| CLIENTS.map(|clients| (operation, clients)))
        .map(|(operation, clients)| Load {
            operation,
            clients,
            time: options.row_time,
        })
        .filter(|load| {
            options
                .clients
                .is_none_or(|clients| clients == load.clients)
        })
        .filter(|load| is_selected(&row_name(load, members), &options.words))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut store = store::StoreCluster::start(members).await?;
    generator::fill(&store).await?;
    let mut etcd = etcd::EtcdCluster::start(members).await?;
    if let Some(etcd) = &etcd {
        generator::fill(etcd).await?;
    }
    for load in rows {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..options.rounds {
            ours.push(measure_one(&mut store, &load).await?);
            if let Some(etcd) = &mut etcd {
                theirs.push(measure_one(etcd, &load).await?);
            }
        }
        print(&format!(
            "| {} | {} | {} |\n",
            row_name(&load, members),
            describe(&ours, &load),
            describe(&theirs, &load)
        ));
    }
    Ok(())
}

fn row_name(load: &Load, members: usize) -> String {
    let operation = match load.operation {
        Operation::Put => "put, 256 bytes",
        Operation::Get => "linearizable get",
    };
    format!("{operation} | {members} | {}", load.clients)
}

fn is_selected(name: &str, words: &[String]) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

/// One round of a row.
struct Round {
    measured: Measured,
    syncs: u64,
    usage: Usage,
}

async fn measure_one(target: &mut impl Target, load: &Load) -> Result<Round, BenchError> {
    let syncs_before = target.syncs().await?;
    let usage_before = target.usage()?;
    let measured = generator::run(target, load).await?;
    Ok(Round {
        usage: target.usage()?.since(usage_before),
        syncs: target.syncs().await? - syncs_before,
        measured,
    })
}

/// The medians of the rounds.
fn describe(rounds: &[Round], load: &Load) -> String {
    if rounds.is_empty() {
        return "—".to_owned();
    }
    let of = |value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value).collect());
    let per_request = |value: u64, round: &Round| value as f64 / round.measured.all.max(1) as f64;
    let mut text = format!(
        "{:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
        of(&|round| round.measured.rate),
        of(&|round| round.measured.p50_ms),
        of(&|round| round.measured.p99_ms)
    );
    if load.operation == Operation::Put {
        let per_sync = of(&|round| round.measured.all as f64 / round.syncs.max(1) as f64);
        text.push_str(&format!(", {per_sync:.1} puts per sync"));
    }
    text.push_str(&format!(
        ", {:.1} waits, {:.2} ms CPU",
        of(&|round| per_request(round.usage.waits, round)),
        of(&|round| per_request(round.usage.ticks * TICK_MS, round))
    ));
    let errors: u64 = rounds.iter().map(|round| round.measured.errors).sum();
    if errors > 0 {
        text.push_str(&format!(", {errors} errors"));
    }
    text
}

/// The middle value; of two middle values the larger one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(text: &str) {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .expect("the output of a benchmark is read");
}
