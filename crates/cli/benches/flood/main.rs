//! What the flood of one user does to another one: `cargo bench -p bellerophon-cli --bench flood`
//!
//! Starts the release binary for each row, and creates two service accounts. One creates ConfigMaps
//! sequentially on one connection, one every 2 ms for 6 s; the other one floods the server
//! meanwhile. Prints a Markdown table: the latency of those writes, the ratio of their p99 to that
//! without a flood, the peak of the server's memory beyond what it had before, and what became of
//! the flood. `-- WORDS…` measures only the floods that have one of these words in their names.
//!
//! The flood is a process of its own with the scheduling policy SCHED_IDLE (`chrt`): on another
//! machine, it would not take the processors of the server. What it still takes is in the row of the
//! busy processors, which sends no request. It needs 11,000 file descriptors (`ulimit -n`).

#[path = "../common/mod.rs"]
mod common; // the server as a process, and a client

mod accounts; // the service accounts and their namespaces
mod flooder; // the process that floods
mod floods; // what it sends
mod peer; // its connections
mod statistics; // what became of it
mod writes; // the writes that are measured

use std::{fmt::Write as _, path::Path};

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
    let table = runtime.block_on(async {
        let mut table = String::from(HEADER);
        let quiet = measure(None).await?;
        writeln!(table, "{}", quiet.format(QUIET, &quiet.latencies))?;
        for (flood, _) in FLOODS {
            if words.is_empty() || words.iter().any(|word| flood.contains(word)) {
                let row = measure(Some(flood)).await?;
                writeln!(table, "{}", row.format(flood, &quiet.latencies))?;
            }
        }
        Ok::<_, BenchError>(table)
    })?;
    print(&table);
    Ok(())
}

/// The result of one flood.
struct Row {
    latencies: Latencies,
    memory_kib: u64,
    /// What became of the flood.
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
