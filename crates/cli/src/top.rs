//! `bellerophon top`: queues, reconciles and caches of a running cluster, in the terminal.
//!
//! Inputs: a kubeconfig. Output: a table on stdout, again every second.
//!
//! The API server of `bellerophon up` serves the records at a non-resource path, to clients with
//! permission to get it. Guarantee: memory is bounded by the number of controllers and
//! [`SAMPLES_MAX`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IsTerminal as _, Write as _, stdout};
use std::path::PathBuf;

use clap::Args;
use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use serde_json::Value;

use crate::error::CliError;
use crate::signals::Signals;
use crate::trace::{PATH, connect};

/// The reconciles of a controller that quantiles are computed of.
const SAMPLES_MAX: usize = 1_000;

/// The time that rates are computed of.
const WINDOW_US: i64 = 10_000_000;

/// The caches that are shown: those with the most objects.
const CACHES_MAX: usize = 8;

/// Moves the cursor to the start and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The options of `bellerophon top`.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Print once and exit
    #[arg(long)]
    once: bool,

    /// The kubeconfig that `bellerophon up` wrote
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    kubeconfig: PathBuf,
}

/// Prints the state of a cluster until a signal.
///
/// # Errors
/// The kubeconfig cannot be read, or the server cannot be reached or has no trace.
pub(crate) async fn top(options: &TopOptions) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let (client, _) = connect(&options.kubeconfig, None).await?;
    let request = http::Request::get(format!("{PATH}?format=json&follow=true"))
        .body(Vec::new())
        .map_err(CliError::context("cannot build the request"))?;
    let response = client.request_stream(request).await.map_err(|error| {
        let hint = "only a cluster of `bellerophon up` has a trace";
        CliError::context("cannot read the trace")(error).with_hint(hint)
    })?;
    let mut lines = response.lines();
    let mut screen = Screen::default();
    // In a pipe, tables follow each other.
    let clear = match stdout().is_terminal() {
        true => CLEAR,
        false => "",
    };
    loop {
        let line = tokio::select! {
            line = lines.try_next() => {
                line.map_err(CliError::context("the server closed the connection"))?
            }
            signal = signals.next() => {
                return signal.map_err(CliError::context("cannot listen for signals"));
            }
        };
        let Some(line) = line else { return Ok(()) };
        let Ok(record) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if !screen.add(&record) {
            continue;
        }
        let mut out = stdout().lock();
        match write!(out, "{clear}{}", screen.text()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(CliError::context("cannot write to stdout"))?,
        }
        if options.once {
            return Ok(());
        }
    }
}

/// What is known of a controller.
#[derive(Debug, Default)]
struct Controller {
    /// Starts in the window.
    starts: VecDeque<i64>,
    waits: VecDeque<i64>,
    works: VecDeque<i64>,
    errors: u64,
}

/// The state that is printed.
#[derive(Debug, Default)]
struct Screen {
    controllers: BTreeMap<String, Controller>,
    /// The newest record of queues and caches.
    state: Value,
    now_us: i64,
}

impl Screen {
    /// Reads a record; returns whether the table is to be printed.
    fn add(&mut self, record: &Value) -> bool {
        self.now_us = record["time_us"].as_i64().unwrap_or(self.now_us);
        let kind = record["type"].as_str();
        if kind == Some("state") {
            self.state = record.clone();
            return true;
        }
        let Some(name) = record["controller"].as_str() else {
            return false;
        };
        let now = self.now_us;
        let controller = self.controllers.entry(name.to_owned()).or_default();
        match kind {
            Some("started") => {
                controller.starts.push_back(now);
                push(&mut controller.waits, record["wait_us"].as_i64());
            }
            Some("finished") => {
                push(&mut controller.works, record["took_us"].as_i64());
                controller.errors += u64::from(record["result"] == "error");
            }
            _ => {}
        }
        while controller.starts.len() > SAMPLES_MAX {
            controller.starts.pop_front();
        }
        false
    }

    /// The table.
    fn text(&self) -> String {
        let mut text = format!(
            "{:42} {:>8} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
            "CONTROLLER",
            "RATE/S",
            "READY",
            "IN FLIGHT",
            "DELAYED",
            "WAIT P50",
            "P99",
            "WORK P50",
            "P99",
            "ERRORS"
        );
        for (name, controller) in &self.controllers {
            text.push_str(&self.row(name, controller));
        }
        text.push_str(&format!(
            "\n{:42} {:>8} {:>9} {:>8} {:>9} {:>8}\n",
            "CACHE", "OBJECTS", "REVISION", "BACKLOG", "LAG", "RELISTS"
        ));
        let mut caches: Vec<&Value> = self.state["caches"]
            .as_array()
            .into_iter()
            .flatten()
            .collect();
        caches.sort_by_key(|cache| std::cmp::Reverse(cache["objects"].as_u64()));
        for cache in caches.into_iter().take(CACHES_MAX) {
            text.push_str(&format!(
                "{:42} {:>8} {:>9} {:>8} {:>9} {:>8}\n",
                cache["kind"].as_str().unwrap_or_default(),
                number(&cache["objects"]),
                number(&cache["version"]),
                number(&cache["backlog"]),
                duration(cache["lag_us"].as_i64()),
                number(&cache["relists"]),
            ));
        }
        text
    }

    fn row(&self, name: &str, controller: &Controller) -> String {
        let mut queues = self.state["queues"].as_array().into_iter().flatten();
        let queue = queues.find(|queue| queue["controller"] == name);
        let member =
            |member: &str| queue.map_or_else(|| "-".to_owned(), |queue| number(&queue[member]));
        let recent = controller
            .starts
            .iter()
            .filter(|start| self.now_us - **start < WINDOW_US)
            .count();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a rate of at most 1,000 per window"
        )]
        let rate = recent as f64 / (WINDOW_US as f64 / 1e6);
        format!(
            "{name:42} {rate:>8.1} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
            member("ready"),
            member("processing"),
            member("delayed"),
            duration(quantile(&controller.waits, 50)),
            duration(quantile(&controller.waits, 99)),
            duration(quantile(&controller.works, 50)),
            duration(quantile(&controller.works, 99)),
            controller.errors,
        )
    }
}

fn push(samples: &mut VecDeque<i64>, sample: Option<i64>) {
    samples.extend(sample);
    if samples.len() > SAMPLES_MAX {
        samples.pop_front();
    }
}

fn quantile(samples: &VecDeque<i64>, percent: usize) -> Option<i64> {
    let mut sorted: Vec<i64> = samples.iter().copied().collect();
    sorted.sort_unstable();
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied()
}

fn number(value: &Value) -> String {
    value
        .as_i64()
        .map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// `2.4 ms`, `1.017 s`.
fn duration(us: Option<i64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us >= 1_000_000 => format!("{}.{:03} s", us / 1_000_000, us / 1000 % 1000),
        Some(us) => format!("{}.{} ms", us / 1000, us / 100 % 10),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_has_a_row_per_controller_and_cache() {
        let mut screen = Screen::default();
        for (record, prints) in [
            (
                json!({ "type": "started", "time_us": 5, "controller": "hero", "wait_us": 1500 }),
                false,
            ),
            (
                json!({ "type": "finished", "time_us": 9, "controller": "hero", "took_us": 1_017_000, "result": "error" }),
                false,
            ),
            (json!({ "type": "accepted", "time_us": 9 }), false),
            (
                json!({ "type": "state", "time_us": 10,
                "queues": [{ "controller": "hero", "ready": 3, "processing": 1, "delayed": 2 }],
                "caches": [{ "kind": "Pod", "objects": 7, "version": 42, "backlog": 0, "lag_us": 0, "relists": 1 }] }),
                true,
            ),
        ] {
            assert_eq!(screen.add(&record), prints, "{record}");
        }
        let text = screen.text();
        let words = |start: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(start))
                .expect("a line");
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            words("hero"),
            "hero 0.1 3 1 2 1.5 ms 1.5 ms 1.017 s 1.017 s 1"
        );
        assert_eq!(words("Pod"), "Pod 7 42 0 0.0 ms 1");
    }
}
