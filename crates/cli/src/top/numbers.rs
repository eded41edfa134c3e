//! Numbers of controllers and caches.
//!
//! In: records in the trace format. Out: a row per controller and per cache.
//! Guarantee: at most [`SAMPLES_MAX`] samples of each controller are kept.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

/// The reconciles of a controller that quantiles are computed of.
const SAMPLES_MAX: usize = 1_000;

/// The time that rates are computed of.
const WINDOW_US: i64 = 10_000_000;

/// What is known of a controller.
#[derive(Debug, Default)]
struct Samples {
    /// Starts in the window.
    starts: VecDeque<i64>,
    waits: VecDeque<i64>,
    works: VecDeque<i64>,
    errors: u64,
}

/// The state of a cluster.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    samples: BTreeMap<String, Samples>,
    /// The newest record of queues and caches.
    state: Value,
    now_us: i64,
    /// Records that were read.
    pub(super) records: u64,
    /// Records that were overwritten before they were read.
    pub(super) missed: u64,
}

/// A controller and its queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ControllerRow {
    pub(super) name: String,
    /// Reconciles per second.
    pub(super) rate: f64,
    /// Keys, `None` without a work queue.
    pub(super) ready: Option<u64>,
    pub(super) in_flight: Option<u64>,
    pub(super) delayed: Option<u64>,
    /// Quantiles in microseconds: p50 and p99.
    pub(super) wait: [Option<i64>; 2],
    pub(super) work: [Option<i64>; 2],
    pub(super) errors: u64,
}

/// An informer cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CacheRow {
    pub(super) kind: String,
    pub(super) objects: u64,
    pub(super) version: Option<u64>,
    pub(super) backlog: u64,
    pub(super) lag_us: i64,
    pub(super) relists: u64,
    pub(super) watches: u64,
}

impl Numbers {
    /// Reads a line; returns whether there is a new state to show.
    pub(super) fn add_line(&mut self, line: &str) -> bool {
        serde_json::from_str(line).is_ok_and(|record| self.add(&record))
    }

    fn add(&mut self, record: &Value) -> bool {
        self.now_us = record["time_us"].as_i64().unwrap_or(self.now_us);
        let record_type = record["type"].as_str();
        match record_type {
            Some("state") => {
                self.state = record.clone();
                return true;
            }
            Some("gap") => self.missed += record["missed"].as_u64().unwrap_or_default(),
            _ => self.records += 1,
        }
        let Some(name) = record["controller"].as_str() else {
            return false;
        };
        let now = self.now_us;
        let samples = self.samples.entry(name.to_owned()).or_default();
        match record_type {
            Some("started") => {
                push(&mut samples.starts, Some(now));
                push(&mut samples.waits, record["wait_us"].as_i64());
            }
            Some("finished") => {
                push(&mut samples.works, record["took_us"].as_i64());
                samples.errors += u64::from(record["result"] == "error");
            }
            _ => {}
        }
        false
    }

    /// The controllers by name.
    pub(super) fn controllers(&self) -> Vec<ControllerRow> {
        let rows = self.samples.iter();
        rows.map(|(name, samples)| self.controller(name, samples))
            .collect()
    }

    fn controller(&self, name: &str, samples: &Samples) -> ControllerRow {
        let mut queues = self.state["queues"].as_array().into_iter().flatten();
        let queue = queues.find(|queue| queue["controller"] == name);
        let member = |member: &str| queue.and_then(|queue| queue[member].as_u64());
        let is_recent = |start: &&i64| self.now_us - **start < WINDOW_US;
        let recent = samples.starts.iter().filter(is_recent).count();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a rate of at most 1,000 per window"
        )]
        let rate = recent as f64 / (WINDOW_US as f64 / 1e6);
        let quantiles = |samples| [quantile(samples, 50), quantile(samples, 99)];
        ControllerRow {
            name: name.to_owned(),
            rate,
            ready: member("ready"),
            in_flight: member("processing"),
            delayed: member("delayed"),
            wait: quantiles(&samples.waits),
            work: quantiles(&samples.works),
            errors: samples.errors,
        }
    }

    /// The caches, those with the most objects first.
    pub(super) fn caches(&self) -> Vec<CacheRow> {
        let caches = self.state["caches"].as_array().into_iter().flatten();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let mut rows: Vec<CacheRow> = caches
            .map(|cache| CacheRow {
                kind: cache["kind"].as_str().unwrap_or_default().to_owned(),
                objects: number(&cache["objects"]),
                version: version(&cache["version"]),
                backlog: number(&cache["backlog"]),
                lag_us: cache["lag_us"].as_i64().unwrap_or_default(),
                relists: number(&cache["relists"]),
                watches: number(&cache["watches"]),
            })
            .collect();
        rows.sort_by(|a, b| b.objects.cmp(&a.objects).then(a.kind.cmp(&b.kind)));
        rows
    }
}

/// A resource version, which is a number or a text.
fn version(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
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

/// `2.4 ms`, `1.017 s`.
pub(super) fn duration(us: Option<i64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us >= 1_000_000 => format!("{}.{:03} s", us / 1_000_000, us / 1000 % 1000),
        Some(us) => format!("{}.{} ms", us / 1000, us / 100 % 10),
    }
}

/// A number, or `-` if it is unknown.
pub(super) fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Numbers of a cluster with two controllers and two caches.
    pub(in super::super) fn numbers() -> Numbers {
        let mut numbers = Numbers::default();
        for (record, is_state) in [
            (
                json!({ "type": "started", "time_us": 5, "controller": "hero", "wait_us": 1500 }),
                false,
            ),
            (
                json!({ "type": "finished", "time_us": 9, "controller": "hero",
                    "took_us": 1_017_000, "result": "error" }),
                false,
            ),
            (
                json!({ "type": "started", "time_us": 9, "controller": "garbage-collector" }),
                false,
            ),
            (json!({ "type": "accepted", "time_us": 9 }), false),
            (json!({ "type": "gap", "time_us": 9, "missed": 4 }), false),
            (
                json!({ "type": "state", "time_us": 10,
                    "queues": [{ "controller": "hero", "ready": 3, "processing": 1, "delayed": 2 }],
                    "caches": [
                        { "kind": "Node", "objects": 3, "version": "41", "backlog": 0, "lag_us": 0,
                            "relists": 0, "watches": 1 },
                        { "kind": "Pod", "objects": 7, "version": 42, "backlog": 0, "lag_us": 0,
                            "relists": 1, "watches": 2 },
                    ] }),
                true,
            ),
        ] {
            assert_eq!(numbers.add_line(&record.to_string()), is_state, "{record}");
        }
        numbers
    }

    #[test]
    fn rows_have_rates_quantiles_and_queues() {
        let numbers = numbers();
        let controllers = numbers.controllers();
        assert_eq!(controllers[0].name, "garbage-collector");
        assert_eq!(controllers[0].ready, None);
        let hero = ControllerRow {
            name: "hero".to_owned(),
            rate: 0.1,
            ready: Some(3),
            in_flight: Some(1),
            delayed: Some(2),
            wait: [Some(1500); 2],
            work: [Some(1_017_000); 2],
            errors: 1,
        };
        assert_eq!(controllers[1], hero);
        let caches = numbers.caches();
        assert_eq!(caches[0].kind, "Pod");
        assert_eq!(caches[1].version, Some(41));
        assert_eq!(numbers.missed, 4);
        assert!(!Numbers::default().add_line("no JSON"));
    }

    #[test]
    fn samples_are_bounded() {
        let mut numbers = Numbers::default();
        let record = json!({ "type": "started", "time_us": 1, "controller": "hero", "wait_us": 1 });
        for _ in 0..2 * SAMPLES_MAX {
            numbers.add(&record);
        }
        let samples = &numbers.samples["hero"];
        assert_eq!(samples.starts.len(), SAMPLES_MAX);
        assert_eq!(samples.waits.len(), SAMPLES_MAX);
    }
}
