//! The queues and caches of everything that records into a trace, read when they are requested.
//!
//! In: queues and informers, when they are created. Out: their contents at one moment.
//! Guarantees: nothing is computed until a snapshot is requested; a dropped queue or informer is no
//! longer listed; the number of keys of a snapshot is bounded.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::informer_stats::InformerStats;
use crate::queue::{QueueSample, QueueStats, WorkQueue};

/// The work queue of one controller at one moment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::trace::Trace;
///
/// assert!(Trace::new(100).queues(10).is_empty());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QueueSnapshot {
    /// The controller.
    pub controller: Arc<str>,
    /// The number of its workers.
    pub workers: usize,
    /// The numbers of its keys.
    pub stats: QueueStats,
    /// Some of its keys.
    pub sample: QueueSample,
}

/// The cache of one informer at one moment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::trace::Trace;
///
/// assert!(Trace::new(100).caches().is_empty());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CacheSnapshot {
    /// The kind of its objects: `Pod`, `Deployment.apps`.
    pub kind: Arc<str>,
    /// Its numbers.
    pub stats: InformerStats,
    /// The newest resource version that it has seen.
    pub resource_version: Option<u64>,
}

/// A cache that is read when a snapshot is requested.
pub(crate) trait TracedCache: Send + Sync {
    fn snapshot(&self) -> CacheSnapshot;
}

/// Reads a queue with at most that many keys of each state; `None` once it is dropped.
type ReadQueue = Box<dyn Fn(usize) -> Option<(QueueStats, QueueSample)> + Send>;

struct TrackedQueue {
    controller: Arc<str>,
    workers: usize,
    read: ReadQueue,
}

/// The queues and informers that are tracked.
#[derive(Default)]
pub(super) struct Probes {
    queues: Mutex<Vec<TrackedQueue>>,
    informers: Mutex<Vec<Weak<dyn TracedCache>>>,
}

impl Probes {
    pub(super) fn track_queue(&self, controller: &Arc<str>, workers: usize, queue: &WorkQueue) {
        lock(&self.queues).push(TrackedQueue {
            controller: controller.clone(),
            workers,
            read: Box::new(queue.sample_while_alive()),
        });
    }

    pub(super) fn track_informer(&self, informer: Weak<dyn TracedCache>) {
        let mut informers = lock(&self.informers);
        // Informers come and go with the objects that select them.
        informers.retain(|informer| informer.strong_count() > 0);
        informers.push(informer);
    }

    pub(super) fn queues(&self, keys_max: usize) -> Vec<QueueSnapshot> {
        let mut snapshots = Vec::new();
        lock(&self.queues).retain(|queue| {
            let read = (queue.read)(keys_max);
            let is_alive = read.is_some();
            snapshots.extend(read.map(|(stats, sample)| QueueSnapshot {
                controller: queue.controller.clone(),
                workers: queue.workers,
                stats,
                sample,
            }));
            is_alive
        });
        snapshots
    }

    pub(super) fn caches(&self) -> Vec<CacheSnapshot> {
        let informers: Vec<_> = lock(&self.informers)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        informers.iter().map(|cache| cache.snapshot()).collect()
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probes")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::ObjectKey;
    use crate::queue::WorkQueue;
    use crate::trace::Trace;

    #[tokio::test(start_paused = true)]
    async fn snapshot_lists_keys_of_each_state_up_to_the_bound() {
        let trace = Trace::new(10);
        let queue = WorkQueue::default();
        trace.track_queue(&"hero".into(), 2, &queue);
        let key = |name: &str| ObjectKey::cluster(name);
        queue.add(key("running"));
        let item = queue.try_get();
        for name in ["a", "b", "c"] {
            queue.add(key(name));
        }
        queue.add_after(key("later"), Duration::from_secs(9));
        queue.add_rate_limited(key("failed"));
        let snapshot = &trace.queues(2)[0];
        assert_eq!(&*snapshot.controller, "hero");
        assert_eq!(snapshot.workers, 2);
        assert_eq!(snapshot.stats.depth[1].1, 3);
        let sample = &snapshot.sample;
        assert_eq!(sample.ready.len(), 2);
        assert_eq!(sample.processing.len(), 1);
        assert_eq!(sample.processing[0].key, key("running"));
        let due: Vec<_> = sample.delayed.iter().map(|entry| &entry.key).collect();
        assert_eq!(due, [&key("failed"), &key("later")], "the earliest first");
        assert_eq!(sample.delayed[0].failures, 1);
        assert!(sample.delayed[0].due < sample.delayed[1].due);
        drop(item);
        drop(queue);
        assert!(trace.queues(2).is_empty(), "a dropped queue is not listed");
    }
}
