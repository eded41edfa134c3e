//! Trace bus: what happened, in one order, for those who ask why.
//!
//! In: typed records from every stage (watch event, enqueue, reconcile, write). Out: the newest of them, by a global sequence.
//! Holds: memory is bounded by the capacity; recording never waits; a reader that is too slow learns how many records it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::{CauseEvent, ObjectKey};

/// What one record says. A write and the watch event it caused share kind, key and resource version.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// A watch told of a change.
    Noticed {
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// Its version after the change, if known.
        resource_version: Option<String>,
        /// What happened.
        event: CauseEvent,
    },
    /// A change put a key into a controller's queue.
    Enqueued {
        /// The controller.
        controller: Arc<str>,
        /// The key to reconcile.
        key: ObjectKey,
        /// The kind of the object that changed.
        because_kind: Arc<str>,
        /// The object that changed.
        because_key: ObjectKey,
        /// Its version, which links to [`TraceEvent::Noticed`].
        because_version: Option<String>,
    },
    /// A worker began.
    Started {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// Its merged causes, in words.
        causes: String,
        /// 1 for the first try.
        attempt: u32,
    },
    /// A write went through the toolkit.
    Wrote {
        /// The controller.
        controller: Arc<str>,
        /// The key it was reconciling.
        reconciling: ObjectKey,
        /// The kind written.
        kind: Arc<str>,
        /// The object written.
        key: ObjectKey,
        /// The version the server answered with; `None` for a delete.
        resource_version: Option<String>,
    },
    /// A worker ended.
    Ended {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// `success`, `requeue_after` or `error`.
        result: &'static str,
        /// How long it took.
        took: Duration,
    },
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Its place in the order of everything; no number is given twice.
    pub sequence: u64,
    /// When.
    pub at: Instant,
    /// What.
    pub event: TraceEvent,
}

/// What a reader gets: the records after the one it saw last.
#[derive(Clone, Debug, Default)]
pub struct TraceBatch {
    /// In order.
    pub records: Vec<Arc<TraceRecord>>,
    /// How many records were overwritten before this reader came for them.
    pub missed: u64,
}

/// A bounded ring of records. Clones are handles to the same ring.
///
/// A bus without capacity ([`TraceBus::off`]) costs one comparison per record; nothing is built for it.
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
        let ring = Ring { capacity: capacity.max(1), records: Mutex::default(), newest: watch::Sender::new(0) };
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
            records.ring.push_back(Arc::new(TraceRecord { sequence, at, event }));
            sequence
        };
        ring.newest.send_if_modified(|newest| sequence > std::mem::replace(newest, sequence.max(*newest)));
    }

    /// The records after that sequence; 0 asks for all that are left.
    pub fn since(&self, sequence: u64) -> TraceBatch {
        let Some(ring) = &self.0 else { return TraceBatch::default() };
        let records = ring.lock();
        let oldest = records.ring.front().map_or(records.sequence + 1, |record| record.sequence);
        let skip = (sequence + 1).saturating_sub(oldest);
        TraceBatch {
            records: records.ring.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)).cloned().collect(),
            missed: oldest.saturating_sub(sequence + 1),
        }
    }

    /// Waits for records after that sequence. A bus that is off never answers.
    pub async fn wait_since(&self, sequence: u64) -> TraceBatch {
        let Some(ring) = &self.0 else { return std::future::pending().await };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn noticed(name: usize) -> TraceEvent {
        TraceEvent::Noticed {
            kind: "Pod".into(),
            key: ObjectKey::cluster(name.to_string()),
            resource_version: None,
            event: CauseEvent::Added,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn full_ring_drops_the_oldest_and_says_so() {
        let bus = TraceBus::new(4);
        (0..10).for_each(|name| bus.record(|| noticed(name)));
        for (since, expected, missed) in
            [(0, vec![7, 8, 9, 10], 6), (6, vec![7, 8, 9, 10], 0), (8, vec![9, 10], 0), (10, vec![], 0), (99, vec![], 0)]
        {
            let batch = bus.since(since);
            assert_eq!(batch.records.iter().map(|record| record.sequence).collect::<Vec<_>>(), expected, "since {since}");
            assert_eq!(batch.missed, missed, "since {since}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reader_is_woken_by_the_next_record() {
        let bus = TraceBus::new(4);
        bus.record(|| noticed(0));
        let reader = tokio::spawn({
            let bus = bus.clone();
            async move { bus.wait_since(1).await.records.len() }
        });
        tokio::task::yield_now().await;
        bus.record(|| noticed(1));
        assert_eq!(reader.await.unwrap(), 1);
    }

    #[test]
    fn bus_that_is_off_builds_nothing() {
        TraceBus::off().record(|| unreachable!("nobody keeps it"));
    }
}
