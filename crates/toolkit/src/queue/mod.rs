//! Work queue: the border between noticing a change and acting on it.
//!
//! In: object keys, each with a cause. Out: one key per worker, with all its causes.
//! Holds: no key is with two workers; a key changed meanwhile comes back once; first come first served within a priority.

mod cause; // why a key is here
mod limit; // how long a failed key waits
mod places; // where the slot of a key is
mod ready; // whose turn it is
mod shared; // the lock, and those who wait
mod slots; // what is known of each key
mod state; // which keys need work

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::locks::Os;
use crate::{Entropy, ObjectKey};
pub use cause::{CAUSES_MAX, Cause, CauseEvent, Causes};
use limit::Limiter;
pub use limit::{Backoff, Bucket, RateLimit};
pub use ready::{Line, Priority};
use shared::{Contents, Shared};
use state::{Add, Taken};

/// What a queue is made of.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// How long keys added by [`WorkQueue::add_rate_limited`] wait.
    pub rate_limit: RateLimit,
    /// Where jitter comes from.
    pub entropy: Entropy,
    /// Whether times are taken and reported; an unmeasured queue never reads the clock unless something is delayed.
    pub observer: Option<Arc<dyn QueueObserver>>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            rate_limit: RateLimit::default(),
            entropy: Entropy::from_os(),
            observer: None,
        }
    }
}

/// Told how long keys wait and are worked on. Called outside the queue's lock; must not block.
pub trait QueueObserver: Send + Sync + fmt::Debug {
    /// A key was handed out after waiting that long.
    fn waited(&self, how_long: Duration);
    /// A key came back after a worker had it that long.
    fn worked(&self, how_long: Duration);
}

/// How one add differs from a plain one, named as in controller-runtime.
#[derive(Clone, Debug, Default)]
pub struct AddOpts {
    /// Wait that long first.
    pub after: Option<Duration>,
    /// Wait as long as the rate limit says, and count a failure of the key. With `after`, the shorter of both.
    pub rate_limited: bool,
    /// The priority; an entry that is there already keeps the higher of both.
    pub priority: Priority,
    /// Whose turn it is among keys of one priority; an entry that is there already stays in its line.
    pub line: Line,
    /// Why.
    pub cause: Option<Cause>,
}

/// What a queue holds at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Keys ready to be handed out, by priority, most urgent first. Delayed keys do not count.
    pub depth: [(Priority, usize); 3],
    /// Keys waiting for a time.
    pub delayed: usize,
    /// Keys with a worker.
    pub running: usize,
    /// How often a key became ready since the start.
    pub adds_total: u64,
    /// Adds with a delay since the start.
    pub retries_total: u64,
    /// The ages of all running keys, summed.
    pub unfinished: Duration,
    /// The age of the key that is with its worker longest.
    pub longest_running: Duration,
}

/// A queue of keys for many producers and many workers. Clones are handles to the same queue.
///
/// Promises client-go's semantics: a key added several times before it is handed out is handed out once; a key added
/// while a worker has it comes back when that worker is done, at the end of the line; adds never block and never fail.
/// Beyond client-go: a key has at most one future, so an add absorbs a delayed one (the run it causes decides anew);
/// priorities without starvation; every entry carries its merged [`Causes`]; a worker that panics or is dropped gives
/// its key back. It knows keys and causes, never objects. Its size is bounded by the
/// largest number of different keys it ever had to remember at once; a key that is done with may stay in its room until
/// another one needs that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::{ObjectKey, WorkQueue};
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
            Limiter::new(options.rate_limit, options.entropy),
        );
        Self(Arc::new(Inner {
            shared: Shared::new(contents),
            observer: options.observer,
        }))
    }

    /// Marks a key as needing work.
    pub fn add(&self, key: T) {
        self.0.shared.add(key, Add::default());
    }

    /// Marks a key as needing work after a delay. The earliest of all times asked for counts; no delay is a plain add.
    pub fn add_after(&self, key: T, delay: Duration) {
        self.0.shared.add(
            key,
            Add {
                delay,
                ..Add::default()
            },
        );
    }

    /// Marks a key as needing work after the delay of its rate limit, and counts a failure.
    pub fn add_rate_limited(&self, key: T) {
        self.add_with_opts(
            key,
            AddOpts {
                rate_limited: true,
                ..AddOpts::default()
            },
        );
    }

    /// Marks a key as needing work, with everything that can be said about it.
    pub fn add_with_opts(&self, key: T, opts: AddOpts) {
        let limited = opts.rate_limited.then(|| self.0.shared.count_failure(&key));
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
                line: opts.line,
                causes,
            },
        );
    }

    /// Has a key that a worker did nothing about come back after a delay, for the causes it came for.
    pub(crate) fn put_back(&self, item: &Item<'_, T>, delay: Duration, line: Line) {
        self.0.shared.add(
            item.key().clone(),
            Add {
                delay,
                priority: item.priority(),
                line,
                causes: item.causes().clone(),
            },
        );
    }

    /// Starts the key's back-off afresh. What is queued stays queued.
    pub fn forget(&self, key: &T) {
        self.0.shared.forget(key);
    }

    /// How often the key was added with a rate limit since it was last forgotten.
    pub fn num_requeues(&self, key: &T) -> u32 {
        self.0.shared.failures(key)
    }

    /// How many keys are ready to be handed out.
    pub fn len(&self) -> usize {
        self.0.shared.with(|contents| {
            contents.state.promote_if_delayed();
            contents.state.ready_len()
        })
    }

    /// Whether no key is ready to be handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key, as soon as there is one; `None` once the queue is shut down and empty. Dropping the future loses nothing.
    pub async fn get(&self) -> Option<Item<'_, T>> {
        Some(self.item(self.0.shared.get().await?))
    }

    /// The next key if one is ready.
    pub fn try_get(&self) -> Option<Item<'_, T>> {
        Some(self.item(self.0.shared.try_get()?))
    }

    /// Ends the queue: adds are ignored, delayed keys are dropped, ready keys are still handed out, then [`get`](Self::get) says `None`.
    pub fn shut_down(&self) {
        self.0.shared.shut_down();
    }

    /// Ends the queue and waits until every ready key was handed out and every worker is done.
    pub async fn shut_down_with_drain(&self) {
        self.0.shared.shut_down();
        self.0.shared.drained().await;
    }

    /// Whether the queue was shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.0.shared.with(|contents| contents.state.shutting_down)
    }

    /// What the queue holds now. Ages are only known if the queue has an observer.
    pub fn stats(&self) -> QueueStats {
        self.0.shared.with(|contents| {
            let state = &mut contents.state;
            state.promote_if_delayed();
            let now = Instant::now();
            let ages = || {
                state
                    .running_since()
                    .map(|since| now.saturating_duration_since(since))
            };
            QueueStats {
                depth: Priority::ALL.map(|priority| (priority, state.ready_in(priority))),
                delayed: state.delayed_len(),
                running: state.running,
                adds_total: state.adds_total,
                retries_total: state.retries_total,
                unfinished: ages().sum(),
                longest_running: ages().max().unwrap_or_default(),
            }
        })
    }

    /// Asks for the state without keeping the queue alive.
    pub(crate) fn stats_while_alive(&self) -> impl Fn() -> Option<QueueStats> + Send + 'static
    where
        T: Send + 'static,
    {
        let queue = Arc::downgrade(&self.0);
        move || queue.upgrade().map(|queue| Self(queue).stats())
    }

    fn item(&self, taken: Taken<T>) -> Item<'_, T> {
        if let (Some(observer), Some(waited)) = (&self.0.observer, taken.waited) {
            observer.waited(waited);
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

/// A key in the hands of one worker, until [`done`](Self::done) or dropped. No other worker gets the key meanwhile.
pub struct Item<'q, T: Clone + Eq + Hash> {
    queue: &'q WorkQueue<T>,
    taken: Taken<T>,
}

impl<T: Clone + Eq + Hash> Item<'_, T> {
    /// The key.
    pub fn key(&self) -> &T {
        &self.taken.key
    }

    /// Why it is here; empty if nobody said.
    pub fn causes(&self) -> &Causes {
        &self.taken.causes
    }

    /// The priority it was handed out with.
    pub fn priority(&self) -> Priority {
        self.taken.priority
    }

    /// How often it failed in a row before this time.
    pub fn failures(&self) -> u32 {
        self.taken.failures
    }

    /// Gives the key back. If it was added meanwhile, it is ready again, at the end of the line.
    pub fn done(self) {}
}

impl<T: Clone + Eq + Hash> Drop for Item<'_, T> {
    fn drop(&mut self) {
        let worked = self.queue.0.shared.done(self.taken.slot);
        if let (Some(observer), Some(worked)) = (&self.queue.0.observer, worked) {
            observer.worked(worked);
        }
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
