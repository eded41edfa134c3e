//! The ring buffer of trace records, and its readers.
//!
//! In: records. Out: batches in order, with the number of records overwritten before they were
//! read.
//! Guarantees: recording never waits for a reader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::links::Links;
use super::probes::{CacheSnapshot, Probes, QueueSnapshot, TracedCache};
use super::record::{AcceptedWrite, TraceEvent, TraceRecord};
use super::timeline::Timeline;
use crate::ObjectKey;
use crate::queue::WorkQueue;

/// The records after the last one that a reader has seen.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::trace::Trace;
///
/// let batch = Trace::new(100).since(0);
/// assert!(batch.records.is_empty());
/// assert_eq!(batch.missed, 0);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct TraceBatch {
    /// The records in order.
    pub records: Vec<Arc<TraceRecord>>,
    /// The number of records overwritten before they were read.
    pub missed: u64,
}

/// A bounded ring buffer of [trace records](TraceRecord). Clones share one buffer.
///
/// All controllers of a [`Manager`](crate::manager::Manager) record into its trace; several
/// Managers may share one, and the sequence numbers order the records of all of them. Recording
/// never waits; when the buffer is full, the oldest record is overwritten. [`Trace::off`] costs one
/// comparison per record.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::queue::Causes;
/// use bellerophon::{ObjectKey, trace::{Trace, TraceEvent}};
///
/// let trace = Trace::new(10_000);
/// let key = ObjectKey::namespaced("team-a", "web");
/// trace.record(|| TraceEvent::Started {
///     controller: "hero".into(),
///     key: key.clone(),
///     causes: Causes::default(),
///     attempt: 1,
///     waited: None,
/// });
/// // What led to the reconciles of this object, and what they wrote.
/// assert_eq!(
///     trace.timeline(&key).to_string(),
///     "#1 hero reconciled team-a/web: still running"
/// );
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Trace(Option<Arc<Ring>>);

#[derive(Debug)]
struct Ring {
    capacity: usize,
    records: Mutex<Records>,
    /// Notified of every record.
    recorded: Notify,
    /// The queues and caches of everything that records here.
    probes: Probes,
    /// The links between records; read on demand.
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Records {
    /// The newest records. Their sequence numbers have no gaps.
    ring: VecDeque<Recorded>,
    /// The sequence number of the newest record.
    sequence: u64,
}

/// A record in the ring.
#[derive(Clone, Debug)]
enum Recorded {
    /// An accepted write, and when it was recorded. An API server records each request that writes,
    /// and few are read: a record for readers has ten times the size.
    Accepted(Instant, Arc<AcceptedWrite>),
    Other(Arc<TraceRecord>),
}

impl Recorded {
    fn new(sequence: u64, at: Instant, event: TraceEvent) -> Self {
        match event {
            TraceEvent::Accepted(write) => Self::Accepted(at, write),
            event => Self::Other(Arc::new(TraceRecord {
                sequence,
                at,
                event,
            })),
        }
    }

    /// The record for a reader.
    fn into_record(self, sequence: u64) -> Arc<TraceRecord> {
        match self {
            Self::Accepted(at, write) => Arc::new(TraceRecord {
                sequence,
                at,
                event: TraceEvent::Accepted(write),
            }),
            Self::Other(record) => record,
        }
    }
}

impl Records {
    /// The sequence number of the oldest record; the next one if there is none.
    fn oldest_sequence(&self) -> u64 {
        self.sequence + 1 - self.ring.len() as u64
    }
}

impl Trace {
    /// A trace that keeps nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// A trace that keeps the newest `capacity` records, at least 1.
    pub fn new(capacity: usize) -> Self {
        let ring = Ring {
            capacity: capacity.max(1),
            records: Mutex::default(),
            recorded: Notify::new(),
            probes: Probes::default(),
            links: Mutex::default(),
        };
        Self(Some(Arc::new(ring)))
    }

    /// Appends a record. `event` is called only if the trace is on.
    pub fn record(&self, event: impl FnOnce() -> TraceEvent) {
        let Some(ring) = &self.0 else { return };
        // Built before the lock is taken: it formats causes and clones keys.
        let event = event();
        let at = Instant::now();
        let overwritten = {
            let mut records = ring.lock();
            records.sequence += 1;
            let recorded = Recorded::new(records.sequence, at, event);
            let is_full = records.ring.len() == ring.capacity;
            let overwritten = is_full.then(|| records.ring.pop_front());
            records.ring.push_back(recorded);
            overwritten
        };
        // Freed after the lock is released.
        drop(overwritten);
        ring.recorded.notify_waiters();
    }

    /// All records in the buffer, in order.
    pub fn snapshot(&self) -> Vec<Arc<TraceRecord>> {
        self.since(0).records
    }

    /// The records after that sequence number; 0 returns all in the buffer.
    pub fn since(&self, sequence: u64) -> TraceBatch {
        let Some(ring) = &self.0 else {
            return TraceBatch::default();
        };
        let (oldest, recorded) = {
            let records = ring.lock();
            let oldest = records.oldest_sequence();
            // Sequence numbers in the ring have no gaps, so a position follows from a number.
            let skip = (sequence + 1).saturating_sub(oldest);
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            let recorded: Vec<_> = records.ring.iter().skip(skip).cloned().collect();
            (oldest, recorded)
        };
        let first = oldest.max(sequence + 1);
        // After the lock is released.
        let records = (first..).zip(recorded);
        let records = records.map(|(sequence, recorded)| recorded.into_record(sequence));
        TraceBatch {
            records: records.collect(),
            missed: oldest.saturating_sub(sequence + 1),
        }
    }

    /// A reader of the records from now on.
    pub fn subscribe(&self) -> TraceReader {
        let seen = self.0.as_ref().map_or(0, |ring| ring.lock().sequence);
        TraceReader {
            trace: self.clone(),
            seen,
        }
    }

    /// A reader of the records after that sequence number; 0 for all in the buffer.
    pub fn subscribe_since(&self, sequence: u64) -> TraceReader {
        TraceReader {
            trace: self.clone(),
            seen: sequence,
        }
    }

    /// The sequence number of the newest record; 0 if there is none.
    pub fn newest_sequence(&self) -> u64 {
        self.0.as_ref().map_or(0, |ring| ring.lock().sequence)
    }

    /// Waits until there are records after that sequence number; forever if the trace is off.
    pub async fn wait_for(&self, sequence: u64) {
        let Some(ring) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            // Created before the check: it is notified of every record from now on.
            let recorded = ring.recorded.notified();
            if ring.lock().sequence > sequence {
                return;
            }
            recorded.await;
        }
    }

    /// The reconciles of a key that are still in the buffer, and those whose writes led to them.
    pub fn timeline(&self, key: &ObjectKey) -> Timeline {
        self.with_links(|links| links.trace_back(key))
    }

    /// The reconciles that a version of an object led to, directly and by their writes.
    pub fn effects(&self, kind: &str, key: &ObjectKey, resource_version: &str) -> Timeline {
        self.with_links(|links| links.effects(kind, key, resource_version))
    }

    /// Reads the index of links, after it has read the records since the last call.
    fn with_links(&self, read: impl FnOnce(&Links) -> Timeline) -> Timeline {
        let Some(ring) = &self.0 else {
            return Timeline::default();
        };
        let mut links = ring.links.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.since(links.seen());
        links.update(&batch, ring.lock().oldest_sequence(), ring.capacity);
        read(&links)
    }

    /// The work queues of the controllers that record here, with at most `keys_max` keys of each
    /// state. They are read now; nothing is computed otherwise.
    pub fn queues(&self, keys_max: usize) -> Vec<QueueSnapshot> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |ring| ring.probes.queues(keys_max))
    }

    /// The caches of the informers that record here, read now.
    pub fn caches(&self) -> Vec<CacheSnapshot> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |ring| ring.probes.caches())
    }

    /// Lists a queue in [`queues`](Self::queues) until it is dropped.
    pub(crate) fn track_queue(&self, controller: &Arc<str>, workers: usize, queue: &WorkQueue) {
        if let Some(ring) = &self.0 {
            ring.probes.track_queue(controller, workers, queue);
        }
    }

    /// Lists a cache in [`caches`](Self::caches) until it is dropped.
    pub(crate) fn track_informer(&self, informer: Weak<dyn TracedCache>) {
        if let Some(ring) = &self.0 {
            ring.probes.track_informer(informer);
        }
    }
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a trace while it is recorded.
///
/// A reader does not keep records from being overwritten; each batch counts the ones it missed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::trace::{Trace, TraceEvent};
///
/// let trace = Trace::new(100);
/// let mut reader = trace.subscribe();
/// trace.record(|| TraceEvent::Listed {
///     kind: "Pod".into(),
///     objects: 0,
///     resource_version: None,
/// });
/// assert_eq!(reader.next().await.records.len(), 1);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TraceReader {
    trace: Trace,
    /// The sequence number of the last record that was read or missed.
    seen: u64,
}

impl TraceReader {
    /// Waits for the records since the last call; forever if the trace is off. Cancel safe: no
    /// record is lost if the future is dropped.
    pub async fn next(&mut self) -> TraceBatch {
        self.trace.wait_for(self.seen).await;
        let batch = self.trace.since(self.seen);
        self.seen += batch.missed + batch.records.len() as u64;
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::CauseEvent;
    use crate::trace::WriteAttributes;

    fn delivered(name: usize) -> TraceEvent {
        TraceEvent::Delivered {
            kind: "Pod".into(),
            key: ObjectKey::cluster(name.to_string()),
            resource_version: None,
            event: CauseEvent::Added,
        }
    }

    fn accepted(resource_version: u64) -> Arc<AcceptedWrite> {
        let attributes = WriteAttributes {
            user: "admin".into(),
            manager: "kubectl".into(),
            verb: "update",
            subresource: "".into(),
            kind: "Pod".into(),
            is_in_process: false,
        };
        Arc::new(AcceptedWrite {
            attributes: attributes.into(),
            key: ObjectKey::cluster("web"),
            previous_version: None,
            resource_version,
            is_deletion: false,
        })
    }

    fn sequences(batch: &TraceBatch) -> Vec<u64> {
        batch.records.iter().map(|record| record.sequence).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn full_ring_overwrites_the_oldest_and_counts_them() {
        let trace = Trace::new(4);
        (0..10).for_each(|name| trace.record(|| delivered(name)));
        for (since, expected, missed) in [
            (0, vec![7, 8, 9, 10], 6),
            (6, vec![7, 8, 9, 10], 0),
            (8, vec![9, 10], 0),
            (10, vec![], 0),
            (99, vec![], 0),
        ] {
            let batch = trace.since(since);
            assert_eq!(sequences(&batch), expected, "since {since}");
            assert_eq!(batch.missed, missed, "since {since}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reader_gets_each_record_once_and_the_number_it_missed() {
        let trace = Trace::new(4);
        trace.record(|| delivered(0));
        let mut reader = trace.subscribe();
        let waiting = tokio::spawn(async move { (reader.next().await, reader) });
        tokio::task::yield_now().await;
        trace.record(|| delivered(1));
        let (batch, mut reader) = waiting.await.unwrap();
        assert_eq!(sequences(&batch), [2]);
        assert_eq!(batch.missed, 0);
        (0..10).for_each(|name| trace.record(|| delivered(name)));
        let batch = reader.next().await;
        assert_eq!(sequences(&batch), [9, 10, 11, 12]);
        assert_eq!(batch.missed, 6);
        trace.record(|| delivered(0));
        assert_eq!(sequences(&reader.next().await), [13]);
    }

    #[tokio::test(start_paused = true)]
    async fn accepted_writes_keep_their_place_between_other_records() {
        let trace = Trace::new(4);
        for version in 1..=6 {
            trace.record(|| delivered(version));
            trace.record(|| TraceEvent::Accepted(accepted(version as u64)));
        }
        let batch = trace.since(0);
        assert_eq!(sequences(&batch), [9, 10, 11, 12]);
        assert_eq!(batch.missed, 8);
        for (sequence, version) in [(9, 5), (11, 6)] {
            let batch = trace.since(sequence);
            let record = &batch.records[0];
            assert_eq!(record.sequence, sequence + 1);
            let TraceEvent::Accepted(write) = &record.event else {
                panic!("{record} is no accepted write");
            };
            assert_eq!(write.resource_version, version);
        }
    }

    #[test]
    fn trace_that_is_off_builds_no_event() {
        Trace::off().record(|| unreachable!("the trace is off"));
        assert!(Trace::off().snapshot().is_empty());
    }
}
