//! What flow control costs a request that does not wait: `cargo bench -p bellerophon-apiserver
//! --features fuzzing --bench flow_control`.
//!
//! Classifies, admits and ends requests, one after the other in one task of a runtime with one
//! worker thread. Prints a table.

use std::io::Write as _;

use bellerophon_apiserver::fuzzing::FlowControlRounds;
use tokio::time::Instant;

const ROUNDS: u32 = 1_000_000;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut out = std::io::stdout();
    writeln!(out, "| measure | figure |\n|---|---|")?;
    for (name, group) in [
        ("request of an exempt user", "system:masters"),
        ("request of another user", "team"),
    ] {
        let task = runtime.spawn(async move {
            let requests = FlowControlRounds::new(group);
            let started = Instant::now();
            for _ in 0..ROUNDS {
                requests.round().await;
            }
            started.elapsed().as_nanos() / u128::from(ROUNDS)
        });
        let nanoseconds = runtime.block_on(task).map_err(std::io::Error::other)?;
        writeln!(out, "| {name} | {nanoseconds} ns |")?;
    }
    Ok(())
}
