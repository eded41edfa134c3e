//! Rate-limited work queue, between the event handlers and the workers of a controller.
//!
//! In: object keys, each with a cause. Out: one key at a time for each worker, with all its causes.
//! Guarantees: a key is processed by at most one worker at a time; a key added while it is
//! processed is requeued once; first in, first out within a priority and flow.
//!
//! ```text
//! add → slot (dirty) → ready list → get → processing → done
//!         ↑ due                                │
//! add_after, add_rate_limited                  └→ ready list, if added while processing
//! ```

mod cause; // the cause of a queued key
mod flow; // fairness between keys of one priority
mod rate_limit; // the delay of a failed key
mod ready; // ready keys by priority and flow
mod sample; // some of the keys
mod shared; // the lock and the waiting workers
mod slot_table; // hash index from keys to slots
mod slots; // the state of each key
mod state; // dirty, processing and delayed keys

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ObjectKey;
use crate::clock::Rng;
use crate::locks::Os;
pub use cause::{CAUSES_MAX, Cause, CauseEvent, Causes};
pub use flow::{Fairness, Flow};
use rate_limit::RateLimiter;
pub use rate_limit::{Backoff, RateLimit, TokenBucket};
pub use ready::Priority;
pub use sample::{QueueEntry, QueueSample};
use shared::{Contents, Shared};
use state::{Add, Taken};

/// Options of a work queue.
///
/// ```
/// use bellerophon::clock::Rng;
/// use bellerophon::queue::{QueueOptions, WorkQueue};
///
/// let options = QueueOptions { rng: Rng::seeded(1), ..QueueOptions::default() };
/// let queue = WorkQueue::<String>::new(options);
/// assert!(queue.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The delays of [`WorkQueue::add_rate_limited`]. Default: those of client-go.
    pub rate_limit: RateLimit,
    /// The source of jitter. Default: seeded by the operating system.
    pub rng: Rng,
    /// Receives durations for metrics. Default: none; then the queue reads the clock only for
    /// delayed keys.
    pub observer: Option<Arc<dyn QueueObserver>>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            rate_limit: RateLimit::default(),
            rng: Rng::from_os(),
            observer: None,
        }
    }
}

/// Receives the durations of a queue, for metrics. It is called outside the queue's lock and must
/// not block.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::queue::QueueObserver;
///
/// #[derive(Debug)]
/// struct Log;
///
/// impl QueueObserver for Log {
///     fn observe_queue_duration(&self, duration: Duration) {
///         println!("waited {duration:?}");
///     }
///
///     fn observe_work_duration(&self, duration: Duration) {
///         println!("processed for {duration:?}");
///     }
/// }
/// ```
pub trait QueueObserver: Send + Sync + fmt::Debug {
    /// A key was handed out this long after it became ready.
    fn observe_queue_duration(&self, duration: Duration);
    /// A key was done this long after it was handed out.
    fn observe_work_duration(&self, duration: Duration);
}

/// Options of one add, named as in controller-runtime's priority queue.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::queue::{AddOpts, Priority, WorkQueue};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let queue = WorkQueue::<&str>::default();
/// let opts = AddOpts {
///     after: Some(Duration::from_secs(10)),
///     priority: Priority::Low,
///     ..AddOpts::default()
/// };
/// queue.add_with_opts("web", opts);
/// assert_eq!(queue.stats().delayed, 1);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct AddOpts {
    /// Add the key after this delay.
    pub after: Option<Duration>,
    /// Add the key after the delay of its rate limit, and count a failure. With `after`, the
    /// shorter delay applies.
    pub rate_limited: bool,
    /// The longest back-off of a rate-limited add, if that is shorter than the queue's. The token
    /// bucket applies nevertheless.
    pub backoff_max: Option<Duration>,
    /// The priority; a key that is already queued keeps the higher one.
    pub priority: Priority,
    /// The flow; a key that is already ready stays in its flow.
    pub flow: Flow,
    /// Why the key is added.
    pub cause: Option<Cause>,
}

/// The contents of a queue at one moment.
///
/// ```
/// use bellerophon::queue::{Priority, WorkQueue};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let queue = WorkQueue::<&str>::default();
/// queue.add("web");
/// let stats = queue.stats();
/// assert_eq!(stats.depth[1], (Priority::Normal, 1));
/// assert_eq!(stats.adds_total, 1);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// The number of ready keys by priority, highest first. Delayed keys are not counted.
    pub depth: [(Priority, usize); 3],
    /// The number of delayed keys.
    pub delayed: usize,
    /// The number of keys that workers process.
    pub processing: usize,
    /// How often a key became dirty since the start.
    pub adds_total: u64,
    /// The number of delayed adds since the start.
    pub retries_total: u64,
    /// The sum of the times since each processed key was handed out.
    pub unfinished: Duration,
    /// The longest time since a processed key was handed out.
    pub longest_running: Duration,
}

/// A work queue of keys for many producers and many workers. Clones share one queue.
///
/// Guarantees of client-go: a key added several times before it is handed out is handed out once; a
/// key added while it is processed is requeued when its worker is done, behind the other ready
/// keys; adds never block and never fail. Beyond client-go: a key has at most one delayed add, and
/// an add replaces it, since the reconcile it causes decides about further delays; priorities
/// without starvation; [fairness](Flow) between tenants; every entry has its merged [`Causes`]; the
/// key of a worker that panics or is cancelled is done.
///
/// Memory is bounded by the largest number of keys known at the same time. A key is known while it
/// is dirty, processed, delayed or has failures.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::ObjectKey;
/// use bellerophon::queue::WorkQueue;
///
/// let queue = WorkQueue::default();
/// queue.add(ObjectKey::namespaced("team-a", "web"));
/// let item = queue.get().await.expect("the queue is not shut down");
/// assert_eq!(item.key().name(), "web");
/// item.done();
/// # }
/// ```
pub struct WorkQueue<T: Clone + Eq + Hash = ObjectKey>(Arc<Inner<T>>);

struct Inner<T: Clone + Eq + Hash> {
    shared: Shared<T, Os>,
    observer: Option<Arc<dyn QueueObserver>>,
}

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    /// An empty queue.
    pub fn new(options: QueueOptions) -> Self {
        let contents = Contents::new(
            options.observer.is_some(),
            RateLimiter::new(options.rate_limit, options.rng),
        );
        Self(Arc::new(Inner {
            shared: Shared::new(contents),
            observer: options.observer,
        }))
    }

    /// Adds a key.
    pub fn add(&self, key: T) {
        self.0.shared.add(key, Add::default());
    }

    /// Adds a key after a delay. Of several delayed adds, the earliest applies; a delay of zero is
    /// an [`add`](Self::add).
    pub fn add_after(&self, key: T, delay: Duration) {
        self.0.shared.add(
            key,
            Add {
                delay,
                ..Add::default()
            },
        );
    }

    /// Adds a key after the delay of its rate limit, and counts a failure.
    pub fn add_rate_limited(&self, key: T) {
        self.add_with_opts(
            key,
            AddOpts {
                rate_limited: true,
                ..AddOpts::default()
            },
        );
    }

    /// Adds a key with options.
    pub fn add_with_opts(&self, key: T, opts: AddOpts) {
        // The failure is counted even if `after` is shorter: the next back-off must grow.
        let limited = opts
            .rate_limited
            .then(|| self.0.shared.count_failure(&key, opts.backoff_max));
        let delay = match (opts.after, limited) {
            (Some(after), Some(limited)) => after.min(limited),
            (after, limited) => after.or(limited).unwrap_or_default(),
        };
        let causes = opts.cause.map(Causes::from).unwrap_or_default();
        self.0.shared.add(
            key,
            Add {
                delay,
                priority: opts.priority,
                flow: opts.flow,
                causes,
            },
        );
    }

    /// Adds a key that was not reconciled again after a delay, with its priority and causes.
    pub(crate) fn put_back(&self, item: &Item<'_, T>, delay: Duration, flow: Flow) {
        self.0.shared.add(
            item.key().clone(),
            Add {
                delay,
                priority: item.priority(),
                flow,
                causes: item.causes().clone(),
            },
        );
    }

    /// Resets the back-off of a key. A queued key stays queued.
    pub fn forget(&self, key: &T) {
        self.0.shared.forget(key);
    }

    /// The number of rate-limited adds of a key since the last [`forget`](Self::forget).
    pub fn num_requeues(&self, key: &T) -> u32 {
        self.0.shared.failures(key)
    }

    /// The number of ready keys.
    pub fn len(&self) -> usize {
        self.0.shared.with(|contents| {
            contents.state.promote_if_delayed();
            contents.state.ready_len()
        })
    }

    /// Whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the next key; `None` once the queue is shut down and empty. Cancel safe: no key is
    /// lost if the future is dropped.
    pub async fn get(&self) -> Option<Item<'_, T>> {
        Some(self.item(self.0.shared.get().await?))
    }

    /// The next key if one is ready.
    pub fn try_get(&self) -> Option<Item<'_, T>> {
        Some(self.item(self.0.shared.try_get()?))
    }

    /// Shuts the queue down: adds are ignored, delayed keys are dropped, ready keys are still
    /// handed out, then [`get`](Self::get) returns `None`.
    pub fn shut_down(&self) {
        self.0.shared.shut_down();
    }

    /// Shuts the queue down and waits until every ready key was handed out and every worker is
    /// done.
    pub async fn shut_down_with_drain(&self) {
        self.0.shared.shut_down();
        self.0.shared.drained().await;
    }

    /// Whether the queue was shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.0.shared.with(|contents| contents.state.shutting_down)
    }

    /// The contents of the queue. `unfinished` and `longest_running` are zero without an observer.
    pub fn stats(&self) -> QueueStats {
        self.0.shared.with(|contents| {
            let state = &mut contents.state;
            state.promote_if_delayed();
            let now = Instant::now();
            let ages = || {
                state
                    .processing_since()
                    .map(|since| now.saturating_duration_since(since))
            };
            QueueStats {
                depth: Priority::ALL.map(|priority| (priority, state.ready_in(priority))),
                delayed: state.delayed_len(),
                processing: state.processing,
                adds_total: state.adds_total,
                retries_total: state.retries_total,
                unfinished: ages().sum(),
                longest_running: ages().max().unwrap_or_default(),
            }
        })
    }

    /// Returns the stats without keeping the queue alive.
    pub(crate) fn stats_while_alive(&self) -> impl Fn() -> Option<QueueStats> + Send + 'static
    where
        T: Send + 'static,
    {
        // Weak, or the metrics registry would keep every queue of the process alive.
        let queue = Arc::downgrade(&self.0);
        move || queue.upgrade().map(|queue| Self(queue).stats())
    }

    /// At most `keys_max` keys of each state, with their causes. The lock is held for a time
    /// proportional to the number of known keys, as for [`stats`](Self::stats).
    pub fn sample(&self, keys_max: usize) -> QueueSample<T> {
        self.0.shared.with(|contents| {
            contents.state.promote_if_delayed();
            contents.state.sample(keys_max)
        })
    }

    /// Returns stats and a sample without keeping the queue alive.
    pub(crate) fn sample_while_alive(
        &self,
    ) -> impl Fn(usize) -> Option<(QueueStats, QueueSample<T>)> + Send + 'static
    where
        T: Send + 'static,
    {
        let queue = Arc::downgrade(&self.0);
        move |keys_max| {
            let queue = Self(queue.upgrade()?);
            Some((queue.stats(), queue.sample(keys_max)))
        }
    }

    fn item(&self, taken: Taken<T>) -> Item<'_, T> {
        // Outside of the lock: a histogram has its own lock.
        if let (Some(observer), Some(waited)) = (&self.0.observer, taken.waited) {
            observer.observe_queue_duration(waited);
        }
        Item { queue: self, taken }
    }
}

impl<T: Clone + Eq + Hash> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone + Eq + Hash> Default for WorkQueue<T> {
    fn default() -> Self {
        Self::new(QueueOptions::default())
    }
}

impl<T: Clone + Eq + Hash> fmt::Debug for WorkQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkQueue").field(&self.stats()).finish()
    }
}

/// A key that one worker processes, until [`done`](Self::done) or dropped. No other worker gets the
/// key before that.
///
/// ```
/// use bellerophon::queue::WorkQueue;
///
/// let queue = WorkQueue::<&str>::default();
/// queue.add("web");
/// let item = queue.try_get().expect("a key is ready");
/// queue.add("web");
/// assert!(queue.try_get().is_none());
/// item.done();
/// assert!(queue.try_get().is_some());
/// ```
pub struct Item<'q, T: Clone + Eq + Hash> {
    queue: &'q WorkQueue<T>,
    taken: Taken<T>,
}

impl<T: Clone + Eq + Hash> Item<'_, T> {
    /// The key.
    pub fn key(&self) -> &T {
        &self.taken.key
    }

    /// Why it was added; empty if no add had a cause.
    pub fn causes(&self) -> &Causes {
        &self.taken.causes
    }

    /// The priority it was handed out with.
    pub fn priority(&self) -> Priority {
        self.taken.priority
    }

    /// The number of rate-limited adds since the last [`forget`](WorkQueue::forget).
    pub fn failures(&self) -> u32 {
        self.taken.failures
    }

    /// How long the key was ready; `None` in a queue without an observer.
    pub fn waited(&self) -> Option<Duration> {
        self.taken.waited
    }

    /// Ends the processing. If the key was added meanwhile, it is ready again, behind the others.
    pub fn done(self) {}
}

impl<T: Clone + Eq + Hash> Drop for Item<'_, T> {
    fn drop(&mut self) {
        // In `drop` and not in `done`, so that a worker that panics or is cancelled gives its key
        // back.
        let worked = self.queue.0.shared.done(self.taken.slot);
        if let (Some(observer), Some(worked)) = (&self.queue.0.observer, worked) {
            observer.observe_work_duration(worked);
        }
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
