//! Some keys of a queue, for people who look at it.

use tokio::time::Instant;

use super::cause::Causes;
use crate::ObjectKey;

/// A key of a queue, and why and since when it is there.
///
/// ```
/// use bellerophon::queue::QueueEntry;
///
/// fn is_in_backoff(entry: &QueueEntry) -> bool {
///     entry.due.is_some() && entry.failures > 0
/// }
/// ```
#[derive(Clone, Debug)]
pub struct QueueEntry<T = ObjectKey> {
    /// The key.
    pub key: T,
    /// Why it will be processed. The causes of a key that is processed are in its trace record.
    pub causes: Causes,
    /// Rate-limited adds since the last forget.
    pub failures: u32,
    /// When it became ready or was handed out; `None` in a queue without an observer.
    pub since: Option<Instant>,
    /// When a delayed key becomes ready.
    pub due: Option<Instant>,
}

/// A bounded number of the keys of a queue, by their state.
///
/// ```
/// use bellerophon::queue::WorkQueue;
///
/// let queue = WorkQueue::<&str>::default();
/// queue.add("web");
/// let sample = queue.sample(10);
/// assert_eq!(sample.ready[0].key, "web");
/// assert!(sample.processing.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct QueueSample<T = ObjectKey> {
    /// Ready keys, oldest first. In a queue of more keys, it is not always the oldest that are
    /// included.
    pub ready: Vec<QueueEntry<T>>,
    /// Keys that workers process.
    pub processing: Vec<QueueEntry<T>>,
    /// Delayed keys, the earliest first.
    pub delayed: Vec<QueueEntry<T>>,
}
