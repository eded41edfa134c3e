//! Benchmark of the store as processes, next to etcd: `cargo bench -p bellerophon-store --bench store`
//!
//! One load generator sends the same puts and linearizable gets over HTTP/2 to both, in the same
//! run and on the same disk, with fsync. Prints a Markdown table. `-- --seconds N` sets the time of
//! a row, `-- --replace` measures the replacement of a member with 1 GB, `-- WORDS…` measures only
//! rows with one of these words. etcd is the binary `etcd` of the PATH, or that of `ETCD`; without
//! it, its columns are empty.

mod etcd; // etcd as processes
mod generator; // the load
mod replacement; // a lost member with 1 GB
mod store; // the store as processes
mod target; // the loaded member

use std::{io::Write as _, time::Duration};

use generator::{Load, Measured, Operation};
use target::{BenchError, Target};

/// The time of a row, after a tenth of it as warm-up.
const SECONDS: u64 = 10;

const MEMBERS: [usize; 3] = [1, 3, 5];
const CLIENTS: [usize; 2] = [1, 64];

struct Options {
    row_time: Duration,
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
            "--replace" => options.measures_replacement = true,
            word => options.words.push(word.to_owned()),
        }
    }
    Ok(options)
}

/// All rows of one number of members. Both systems are loaded one after the other in each row.
async fn measure(members: usize, options: &Options) -> Result<(), BenchError> {
    let rows: Vec<Load> = [Operation::Put, Operation::Get]
        .into_iter()
        .flat_map(|operation| CLIENTS.map(|clients| (operation, clients)))
        .map(|(operation, clients)| Load {
            operation,
            clients,
            time: options.row_time,
        })
        .filter(|load| is_selected(&row_name(load, members), &options.words))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut store = store::StoreCluster::start(members).await?;
    let mut etcd = etcd::EtcdCluster::start(members).await?;
    for load in rows {
        let ours = measure_one(&mut store, &load).await?;
        let theirs = match &mut etcd {
            Some(etcd) => measure_one(etcd, &load).await?,
            None => "—".to_owned(),
        };
        print(&format!(
            "| {} | {ours} | {theirs} |\n",
            row_name(&load, members)
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

async fn measure_one(target: &mut impl Target, load: &Load) -> Result<String, BenchError> {
    let before = target.syncs().await?;
    let measured = generator::run(target, load).await?;
    let syncs = target.syncs().await? - before;
    Ok(describe(&measured, load, syncs))
}

fn describe(measured: &Measured, load: &Load, syncs: u64) -> String {
    let mut text = format!(
        "{:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
        measured.rate, measured.p50_ms, measured.p99_ms
    );
    if load.operation == Operation::Put {
        let per_sync = measured.all as f64 / syncs.max(1) as f64;
        text.push_str(&format!(", {per_sync:.1} puts per sync"));
    }
    if measured.errors > 0 {
        text.push_str(&format!(", {} errors", measured.errors));
    }
    text
}

fn print(text: &str) {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .expect("the output of a benchmark is read");
}
