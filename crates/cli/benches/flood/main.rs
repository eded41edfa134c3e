//! Effect of a flood of one user on another one: `cargo bench -p bellerophon-cli --bench flood`
//!
//! Starts the release binary for each measurement, and creates two service accounts. One creates
//! ConfigMaps sequentially on one connection, one every 2 ms for 6 s; the other one floods the
//! server meanwhile. Every row is measured in each of several rounds. Prints a Markdown table with
//! the round of the median p99: the latency of those writes, the ratio of their p99 to the median
//! p99 without a flood, the growth of the server's memory, and the results of the flood. `--
//! WORDS…` measures only the floods that have one of these words in their names.
//!
//! Flood and measured client would be on other machines. So the flood is a separate process with
//! the scheduling policy SCHED_IDLE, which does not take the processors of the server, and the
//! measured client has SCHED_FIFO, which does not wait for the threads of the server (`chrt`; it
//! needs CAP_SYS_NICE). What the flood still takes is in the row of the busy processors, which sends
//! no request. It needs 11,000 file descriptors (`ulimit -n`).

#[path = "../common/mod.rs"]
mod common; // the server as a process, and a client

mod accounts; // the service accounts and their namespaces
mod flooder; // the process that floods
mod floods; // requests of the flood
mod peer; // its connections
mod statistics; // results of a flood
mod writes; // the writes that are measured

use std::{fmt::Write as _, path::Path, process::Command};

use common::{
    BenchError,
    process::{Server, print},
};
use floods::FLOODS;
use writes::Latencies;

/// The row without a flood.
const QUIET: &str = "none";

const HEADER: &str = "\
| flood | p50 ms | p99 ms | max ms | p99 / quiet p99 | peak memory MiB | the flood |
|---|---|---|---|---|---|---|
";

const MIB: f64 = 1024.0;

/// Odd, so that there is a median.
const ROUNDS: usize = 3;

fn main() -> Result<(), BenchError> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        // Cargo adds it.
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [flooder::ARGUMENT, flood, kubeconfig] = *words {
        return flooder::run(flood, Path::new(kubeconfig));
    }
    // The client of the writes uses as little of the processors as possible.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    prioritize_this_thread();
    let floods = FLOODS.into_iter().map(|(flood, _)| flood);
    let is_measured = |flood: &&str| words.is_empty() || words.iter().any(|w| flood.contains(w));
    let floods: Vec<&str> = floods.filter(is_measured).collect();
    let mut quiet = Vec::new();
    let mut rows: Vec<Vec<Row>> = floods.iter().map(|_| Vec::new()).collect();
    runtime.block_on(async {
        for _ in 0..ROUNDS {
            quiet.push(measure(None).await?);
            for (flood, rows) in floods.iter().zip(&mut rows) {
                rows.push(measure(Some(flood)).await?);
            }
        }
        Ok::<_, BenchError>(())
    })?;
    let quiet = median(quiet);
    let mut table = String::from(HEADER);
    writeln!(table, "{}", quiet.format(QUIET, &quiet.latencies))?;
    for (flood, rows) in floods.into_iter().zip(rows) {
        writeln!(table, "{}", median(rows).format(flood, &quiet.latencies))?;
    }
    print(&table);
    Ok(())
}

/// Gives this thread, which measures, SCHED_FIFO; the processes that it starts have the default.
fn prioritize_this_thread() {
    let process = std::process::id().to_string();
    let chrt = Command::new("chrt")
        .args(["--reset-on-fork", "--fifo", "--pid", "20", &process])
        .status();
    if !chrt.is_ok_and(|status| status.success()) {
        eprintln!(
            "flood: the measured client waits for the threads of the server, without SCHED_FIFO"
        );
    }
}

/// The row with the median p99.
fn median(mut rows: Vec<Row>) -> Row {
    rows.sort_by(|a, b| a.latencies.p99.total_cmp(&b.latencies.p99));
    rows.swap_remove(rows.len() / 2)
}

/// The result of one flood.
struct Row {
    latencies: Latencies,
    memory_kib: u64,
    /// The results of the flood.
    outcome: String,
}

impl Row {
    fn format(&self, flood: &str, quiet: &Latencies) -> String {
        let Latencies { p50, p99, max } = self.latencies;
        let ratio = p99 / quiet.p99;
        let memory = self.memory_kib as f64 / MIB;
        let outcome = &self.outcome;
        format!(
            "| {flood} | {p50:.2} | {p99:.2} | {max:.1} | {ratio:.1} | {memory:.0} | {outcome} |"
        )
    }
}

/// Measures the writes on a new server, during a flood if there is one.
async fn measure(flood: Option<&str>) -> Result<Row, BenchError> {
    let server = Server::start()?;
    let accounts = accounts::create(&server.kubeconfig).await?;
    let mut connection = accounts.other.connect().await?;
    writes::warm_up(&mut connection).await?;
    // Resets the peak (VmHWM) to the current value (VmRSS), see proc_pid_clear_refs(5).
    std::fs::write(server.proc_path("clear_refs"), "5")?;
    let before_kib = server.memory_kib("VmRSS")?;
    let flooding = match flood {
        Some(flood) => Some(flooder::start(flood, &accounts.flooder_kubeconfig)?),
        None => None,
    };
    let latencies = writes::measure(&mut connection).await?;
    let peak_kib = server.memory_kib("VmHWM")?;
    let outcome = match flooding {
        Some(flooding) => flooding.stop()?,
        None => String::new(),
    };
    Ok(Row {
        latencies,
        memory_kib: peak_kib.saturating_sub(before_kib),
        outcome,
    })
}
