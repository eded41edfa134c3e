//! What flow control costs a request that does not wait: `cargo bench -p bellerophon-apiserver --features fuzzing
//! --bench flow_control`.
//!
//! Classifies, admits and ends requests, one after the other on one thread. Prints a table.

use std::io::Write as _;

use bellerophon_apiserver::fuzzing::FlowControlRounds;
use tokio::time::Instant;

const ROUNDS: u32 = 1_000_000;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut out = std::io::stdout();
    writeln!(out, "| measure | figure |\n|---|---|")?;
    for (name, group) in [
        ("request of an exempt user", "system:masters"),
        ("request of another user", "team"),
    ] {
        let nanoseconds = runtime.block_on(async {
            let requests = FlowControlRounds::new(group);
            let started = Instant::now();
            for _ in 0..ROUNDS {
                requests.round().await;
            }
            started.elapsed().as_nanos() / u128::from(ROUNDS)
        });
        writeln!(out, "| {name} | {nanoseconds} ns |")?;
    }
    Ok(())
}
