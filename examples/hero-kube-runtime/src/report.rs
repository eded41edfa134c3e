//! The report: docs/comparison.md.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::Failure;
use crate::runs::{FAULTS, Run};
use crate::scenario::STEPS;

const HEAD: &str = "\
# One operator on two runtimes

The Bellerophon operator exists twice: on the toolkit (`bellerophon run hero`) and on kube-runtime
([examples/hero-kube-runtime](../examples/hero-kube-runtime)). Both call the same functions `observe`, `plan` and
`apply`, so the tables compare the runtimes, not the operators. This page is written by

```sh
cargo xtask comparison
```

Each row is one run on its own `bellerophon up --runtime process`: three nodes, real store processes, the operator
as a process of its own, which reaches the API server through a TCP proxy that has the fault of the row. Members are
reached through port-forwards, so a fault delays them too. The tables are of one run, and times depend on what else the
machine does. Requests and reconciles are comparable on any machine, times on an idle one only.
";

const EXPLANATION: &str = "\
## What the tables show

- Reconciles: without faults both run equally many, although kube-runtime's controller enqueues its object for each update
  of its status and the toolkit's does not (`Predicate::generation_changed`).
- Times: single runs differ by some seconds per step, which is how long an election or the restart of a member takes. After an
  error, the example waits 2 s. On the toolkit the delay grows with the number of attempts, but only to 5 s if the API server
  did not respond.
- Reads: an observation reads all objects of a store live and concurrently, so reads follow the number of reconciles.
- Events: kube-runtime's operator records none. The toolkit's records them in the background, one request each.
- Both run at most one reconcile of an object at a time, and both converge after a crash, because the plan reads the
  state of the cluster and has none of its own.
- The toolkit's process also runs the controllers of Backups and ScheduledBackups, with two more caches.
- On the toolkit, metrics (`workqueue_*`, `controller_runtime_*`, `hero_*`), traces (`bellerophon trace`) and back-off
  per key are there without code. The example has logs only, and a constant delay after errors: kube-runtime does not
  pass the number of attempts to its error policy.

Steps, files and times of a new author, next to kubebuilder, operator-sdk, kopf and kube-rs, are in [the first hour of an
author](first-hour.md).
";

/// Prints a line to stderr.
pub(crate) fn print_error(line: &str) {
    // An error means that stderr is closed.
    let _written = writeln!(std::io::stderr(), "{line}");
}

/// One line about a run.
pub(crate) fn progress(run: &Run) -> String {
    let result = match &run.durations {
        Ok(durations) => {
            let total: f64 = durations.iter().map(std::time::Duration::as_secs_f64).sum();
            format!("converged in {total:.1} s")
        }
        Err(error) => error.clone(),
    };
    format!("{} · {}: {result}", run.fault, run.implementation)
}

/// Prints the report and writes it to a file.
pub(crate) fn publish(runs: &[Run], file: Option<&str>) -> Result<(), Failure> {
    let text = format!(
        "{HEAD}\n{}\n{}\n{EXPLANATION}",
        durations(runs),
        usage(runs)
    );
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(file) = file {
        std::fs::write(file, text)?;
    }
    Ok(())
}

/// Seconds until each step converged.
fn durations(runs: &[Run]) -> String {
    let mut table = format!(
        "## Time to converge, in seconds\n\n| fault | runtime | {} | all |\n|---|---|{}---|\n",
        STEPS.join(" | "),
        "---|".repeat(STEPS.len())
    );
    for run in in_order(runs) {
        let cells = match &run.durations {
            Ok(durations) => {
                let seconds = durations.iter().map(std::time::Duration::as_secs_f64);
                let total: f64 = seconds.clone().sum();
                let cells: Vec<String> = seconds.map(|s| format!("{s:.1}")).collect();
                format!("{} | {total:.1}", cells.join(" | "))
            }
            Err(error) => format!("{error}{}", " |".repeat(STEPS.len())),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {cells} |",
            run.fault, run.implementation
        );
    }
    table
}

/// Requests, processor time and memory.
fn usage(runs: &[Run]) -> String {
    let mut table = "## Requests and resources\n\n\
        | fault | runtime | reconciles | reads | watches | writes | requests to members | events | CPU s | peak RSS MiB |\n\
        |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for run in in_order(runs) {
        let usage = &run.usage;
        let counts = &usage.counts;
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.1} |",
            run.fault,
            run.implementation,
            counts.reconciles,
            counts.reads,
            counts.watches,
            counts.writes,
            counts.port_forwards,
            counts.events,
            usage.cpu_ms as f64 / 1000.0,
            usage.peak_kib as f64 / 1024.0,
        );
    }
    table
}

/// The runs in the order of the faults.
fn in_order(runs: &[Run]) -> impl Iterator<Item = &Run> {
    FAULTS
        .iter()
        .flat_map(|fault| runs.iter().filter(move |run| run.fault == fault.name))
}
