//! Queues and caches as a line of the trace format, of type `state`.
//!
//! In: a trace, the newest version of the storage. Out: one line.
//! Guarantees: read when requested; at most [`KEYS_MAX`] keys of each state of a queue.

use std::time::Duration;

use bellerophon::clock::Clock;
use bellerophon::queue::QueueEntry;
use bellerophon::trace::{CacheSnapshot, QueueSnapshot, Trace};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::line::{causes_json, micros};

/// The keys that are listed for each state of a queue: what fits into a panel.
const KEYS_MAX: usize = 20;

/// How often a reader gets the state.
pub(crate) const STATE_INTERVAL: Duration = Duration::from_secs(1);

/// The queues and caches now, after the record with that sequence number.
pub(crate) fn line(trace: &Trace, clock: &Clock, sequence: u64) -> String {
    let now = Instant::now();
    let queues: Vec<Value> = trace
        .queues(KEYS_MAX)
        .iter()
        .map(|snapshot| queue(snapshot, now))
        .collect();
    let caches: Vec<Value> = trace.caches().iter().map(cache).collect();
    json!({
        "seq": sequence,
        "time_us": clock.at(now).as_microsecond(),
        "type": "state",
        "queues": queues,
        "caches": caches,
    })
    .to_string()
}

fn queue(snapshot: &QueueSnapshot, now: Instant) -> Value {
    let stats = &snapshot.stats;
    let entries = |list: &[QueueEntry]| -> Vec<Value> {
        list.iter().map(|listed| entry(listed, now)).collect()
    };
    let sample = &snapshot.sample;
    let backoff = sample.delayed.iter().filter(|entry| entry.failures > 0);
    json!({
        "controller": &*snapshot.controller,
        "workers": snapshot.workers,
        "ready": stats.depth.iter().map(|(_, depth)| depth).sum::<usize>(),
        "processing": stats.processing,
        "delayed": stats.delayed,
        "backoff": backoff.count(),
        "adds": stats.adds_total,
        "retries": stats.retries_total,
        "longest_us": micros(stats.longest_running),
        "keys": {
            "ready": entries(&sample.ready),
            "processing": entries(&sample.processing),
            "delayed": entries(&sample.delayed),
        },
    })
}

fn entry(entry: &QueueEntry, now: Instant) -> Value {
    let mut value = json!({ "name": entry.key.name(), "causes": causes_json(&entry.causes) });
    if let Some(namespace) = entry.key.namespace() {
        value["namespace"] = namespace.into();
    }
    if entry.failures > 0 {
        value["failures"] = entry.failures.into();
    }
    if let Some(since) = entry.since {
        value["age_us"] = micros(now.saturating_duration_since(since)).into();
    }
    if let Some(due) = entry.due {
        value["due_us"] = micros(due.saturating_duration_since(now)).into();
    }
    value
}

fn cache(snapshot: &CacheSnapshot) -> Value {
    let stats = &snapshot.stats;
    json!({
        "kind": &*snapshot.kind,
        "objects": stats.objects,
        "version": snapshot.resource_version,
        "backlog": stats.backlog,
        "lag_us": micros(stats.lag),
        "silence_us": micros(stats.silence),
        "relists": stats.relists,
        "watches": stats.watches,
    })
}
