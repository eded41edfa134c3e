//! The bus: a bounded ring of records, and those who read it.
//!
//! In: records. Out: batches in order, with the number of records that were overwritten before they were read.
//! Holds: recording never waits for a reader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::record::{TraceEvent, TraceRecord};
use super::why::{Why, link};
use crate::ObjectKey;

/// What a reader gets: the records after the one it saw last.
#[derive(Clone, Debug, Default)]
pub struct TraceBatch {
    /// In order.
    pub records: Vec<Arc<TraceRecord>>,
    /// How many records were overwritten before this reader came for them.
    pub missed: u64,
}

/// A bounded ring of records. Clones are handles to the same ring: give one to every controller and manager of a process,
/// and the sequence orders what all of them did.
///
/// A bus without capacity ([`TraceBus::off`]) costs one comparison per record; nothing is built for it.
///
/// ```no_run
/// # use bellerophon::{Controller, ControllerOptions, ObjectKey, Outcome, Request, SharedInformer, TraceBus};
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # fn example(maps: SharedInformer<ConfigMap>) {
/// let trace = TraceBus::new(10_000);
/// let options = ControllerOptions { trace: trace.clone(), ..ControllerOptions::default() };
/// let controller = Controller::of(&maps).with_options(options).reconcile_with(async |_: Request<ConfigMap>| Ok(Outcome::Done));
/// // Later, from anywhere: what led to the reconciles of this object, and what they wrote.
/// println!("{}", trace.why(&ObjectKey::namespaced("team-a", "web")));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TraceBus(Option<Arc<Ring>>);

#[derive(Debug)]
struct Ring {
    capacity: usize,
    records: Mutex<Records>,
    /// The sequence of the newest record.
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Records {
    ring: VecDeque<Arc<TraceRecord>>,
    sequence: u64,
}

impl TraceBus {
    /// A bus that keeps nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// A bus that keeps the newest `capacity` records. When full, the oldest goes.
    pub fn new(capacity: usize) -> Self {
        let ring = Ring {
            capacity: capacity.max(1),
            records: Mutex::default(),
            newest: watch::Sender::new(0),
        };
        Self(Some(Arc::new(ring)))
    }

    /// Appends a record, which is built only if it is kept.
    pub fn record(&self, event: impl FnOnce() -> TraceEvent) {
        let Some(ring) = &self.0 else { return };
        let (event, at) = (event(), Instant::now());
        let sequence = {
            let mut records = ring.lock();
            records.sequence += 1;
            let sequence = records.sequence;
            if records.ring.len() == ring.capacity {
                records.ring.pop_front();
            }
            records.ring.push_back(Arc::new(TraceRecord {
                sequence,
                at,
                event,
            }));
            sequence
        };
        ring.newest
            .send_if_modified(|newest| sequence > std::mem::replace(newest, sequence.max(*newest)));
    }

    /// All records that are left, in order.
    pub fn snapshot(&self) -> Vec<Arc<TraceRecord>> {
        self.since(0).records
    }

    /// The records after that sequence; 0 asks for all that are left.
    pub fn since(&self, sequence: u64) -> TraceBatch {
        let Some(ring) = &self.0 else {
            return TraceBatch::default();
        };
        let records = ring.lock();
        let oldest = records
            .ring
            .front()
            .map_or(records.sequence + 1, |record| record.sequence);
        let skip = (sequence + 1).saturating_sub(oldest);
        TraceBatch {
            records: records
                .ring
                .iter()
                .skip(usize::try_from(skip).unwrap_or(usize::MAX))
                .cloned()
                .collect(),
            missed: oldest.saturating_sub(sequence + 1),
        }
    }

    /// A reader of what happens from now on.
    pub fn subscribe(&self) -> TraceReader {
        let seen = self.0.as_ref().map_or(0, |ring| ring.lock().sequence);
        TraceReader {
            bus: self.clone(),
            seen,
        }
    }

    /// The reconciles of a key that are still remembered, and those whose writes led to them.
    pub fn why(&self, key: &ObjectKey) -> Why {
        link(&self.snapshot(), key)
    }

    /// Waits for records after that sequence. A bus that is off never answers.
    async fn wait_since(&self, sequence: u64) -> TraceBatch {
        let Some(ring) = &self.0 else {
            return std::future::pending().await;
        };
        let mut newest = ring.newest.subscribe();
        // The sender lives as long as the ring, which this borrows.
        let _ = newest.wait_for(|newest| *newest > sequence).await;
        self.since(sequence)
    }
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a bus as it goes on. It holds no records back: what is overwritten before it is read is counted and lost.
#[derive(Clone, Debug)]
pub struct TraceReader {
    bus: TraceBus,
    /// The sequence of the last record that was read or missed.
    seen: u64,
}

impl TraceReader {
    /// Waits for what was recorded since the last call. On a bus that is off it waits for ever. Dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> TraceBatch {
        let batch = self.bus.wait_since(self.seen).await;
        self.seen += batch.missed + batch.records.len() as u64;
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CauseEvent;

    fn noticed(name: usize) -> TraceEvent {
        TraceEvent::Noticed {
            kind: "Pod".into(),
            key: ObjectKey::cluster(name.to_string()),
            resource_version: None,
            event: CauseEvent::Added,
        }
    }

    fn sequences(batch: &TraceBatch) -> Vec<u64> {
        batch.records.iter().map(|record| record.sequence).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn full_ring_drops_the_oldest_and_says_so() {
        let bus = TraceBus::new(4);
        (0..10).for_each(|name| bus.record(|| noticed(name)));
        for (since, expected, missed) in [
            (0, vec![7, 8, 9, 10], 6),
            (6, vec![7, 8, 9, 10], 0),
            (8, vec![9, 10], 0),
            (10, vec![], 0),
            (99, vec![], 0),
        ] {
            let batch = bus.since(since);
            assert_eq!(
                (sequences(&batch), batch.missed),
                (expected, missed),
                "since {since}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reader_gets_each_record_once_and_learns_what_it_missed() {
        let bus = TraceBus::new(4);
        bus.record(|| noticed(0));
        let mut reader = bus.subscribe();
        let waiting = tokio::spawn(async move { (reader.next().await, reader) });
        tokio::task::yield_now().await;
        bus.record(|| noticed(1));
        let (batch, mut reader) = waiting.await.unwrap();
        assert_eq!((sequences(&batch), batch.missed), (vec![2], 0));
        (0..10).for_each(|name| bus.record(|| noticed(name)));
        let batch = reader.next().await;
        assert_eq!((sequences(&batch), batch.missed), (vec![9, 10, 11, 12], 6));
        bus.record(|| noticed(0));
        assert_eq!(sequences(&reader.next().await), [13]);
    }

    #[test]
    fn bus_that_is_off_builds_nothing() {
        TraceBus::off().record(|| unreachable!("nobody keeps it"));
        assert!(TraceBus::off().snapshot().is_empty());
    }
}
