//! The Raft log: append-only segments with group commit.
//!
//! In: entries, votes, truncations and purges, in the order of the calls. Out: acknowledgements,
//! in the same order.
//!
//! Guarantees: an operation is readable when its call returns and durable when it is acknowledged.
//! One task writes: everything that arrived during a sync is one frame and one sync of the next
//! one. After the first failed write nothing is acknowledged any more. Recovery cuts a torn last
//! frame and refuses any other damage, naming file and offset.

mod frame;
mod memory;
mod segments;
mod writer;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use crate::{
    codec::Writer,
    disk::{Disk, Lane, on_lane},
    entry::{Entry, LogId, Vote},
};
use frame::{Begin, Operation};
pub(crate) use memory::Memory;
use segments::Segments;
pub(crate) use segments::is_segment;

/// Called once, when an operation is durable or cannot become so.
pub(crate) type Ack = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Settings of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// A segment that reached this size is followed by another one.
    pub(crate) segment_bytes: u64,
}

/// What a new log begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seed {
    pub(crate) vote: Option<Vote>,
    /// The entry that the state begins with: the log has the entries after it.
    pub(crate) purged: Option<LogId>,
}

/// The log of a member. Clones share it.
#[derive(Clone)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Notifies the writer of pending operations.
    pending: Notify,
    /// Notified when the log failed.
    stopped: Notify,
    writer: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    memory: Memory,
    queue: Queue,
    /// Bytes of all segments, as of the last sync.
    disk_bytes: u64,
    /// Why the log stopped, if it did.
    failed: Option<String>,
}

/// Operations that are not written yet. Bounded by the Raft core, which proposes at most
/// `max_append_entries` entries and waits for votes.
#[derive(Default)]
struct Queue {
    operations: Writer,
    acks: Vec<Ack>,
    /// The highest index of an appended entry.
    last_index: Option<u64>,
    /// Whether an operation waits for a sync. A commit position alone does not.
    is_urgent: bool,
    is_closed: bool,
}

impl Log {
    /// Creates an empty log. The directory has none.
    pub(crate) fn create(disk: &dyn Disk, options: LogOptions, seed: Seed) -> io::Result<()> {
        let begin = Begin {
            vote: seed.vote,
            committed: seed.purged,
            purged: seed.purged,
            last: seed.purged,
        };
        Segments::create(disk, options, begin).map(|_| ())
    }

    /// Reads the log and starts its writer.
    ///
    /// # Errors
    ///
    /// `InvalidData` if a segment is damaged anywhere but in a torn last frame.
    pub(crate) async fn open(disk: Arc<dyn Disk>, options: LogOptions) -> io::Result<Self> {
        let read = move |disk: &dyn Disk| Segments::open(disk, options);
        let (segments, memory) = on_lane(&disk, Lane::Log, read).await?;
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                memory,
                queue: Queue::default(),
                disk_bytes: segments.bytes(),
                failed: None,
            }),
            pending: Notify::new(),
            stopped: Notify::new(),
            writer: Mutex::new(None),
        });
        let task = tokio::spawn(writer::run(Arc::clone(&shared), disk, segments));
        *lock(&shared.writer) = Some(task);
        Ok(Self { shared })
    }

    /// Reads the log in memory.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Memory) -> T) -> T {
        read(&self.inner().memory)
    }

    /// Bytes on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.inner().disk_bytes
    }

    /// Why the log stopped, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner().failed.clone()
    }

    /// Returns when the log failed, with the reason.
    pub(crate) async fn failed(&self) -> String {
        loop {
            let stopped = self.shared.stopped.notified();
            let mut stopped = std::pin::pin!(stopped);
            // Before the check, so that a failure is not missed between them.
            stopped.as_mut().enable();
            if let Some(reason) = self.failure() {
                return reason;
            }
            stopped.await;
        }
    }

    /// Appends entries. They follow the last one.
    pub(crate) fn append(
        &self,
        entries: impl IntoIterator<Item = Entry>,
        ack: Ack,
    ) -> io::Result<()> {
        let operations = entries.into_iter().map(Operation::Append);
        self.enqueue(operations, Some(ack), Urgency::Now)
    }

    /// Saves a vote and returns when it is durable.
    pub(crate) async fn save_vote(&self, vote: Vote) -> io::Result<()> {
        let (send, durable) = oneshot::channel();
        let ack: Ack = Box::new(move |result| {
            // The receiver is gone if the caller was dropped, which needs no result.
            let _ = send.send(result);
        });
        self.enqueue([Operation::Vote(vote)], Some(ack), Urgency::Now)?;
        durable.await.map_err(|_| closed())?
    }

    /// Saves the commit position with the next sync. It is a lower bound after a crash.
    pub(crate) fn save_committed(&self, id: LogId) -> io::Result<()> {
        self.enqueue([Operation::Committed(id)], None, Urgency::NextSync)
    }

    /// Removes the entries after one, or all.
    pub(crate) fn truncate(&self, after: Option<LogId>) -> io::Result<()> {
        self.enqueue([Operation::Truncate(after)], None, Urgency::Now)
    }

    /// Removes the entries up to one. Segments are deleted after the sync.
    pub(crate) fn purge(&self, id: LogId) -> io::Result<()> {
        self.enqueue([Operation::Purge(id)], None, Urgency::Now)
    }

    /// Returns when everything that was enqueued is durable.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let (send, durable) = oneshot::channel();
        let ack: Ack = Box::new(move |result| {
            let _ = send.send(result);
        });
        self.enqueue([], Some(ack), Urgency::Now)?;
        durable.await.map_err(|_| closed())?
    }

    /// Writes what is enqueued and ends the writer.
    pub(crate) async fn close(&self) {
        self.inner().queue.is_closed = true;
        self.shared.pending.notify_one();
        let task = lock(&self.shared.writer).take();
        if let Some(task) = task {
            // A panic of the writer was reported to every operation that waited for it.
            let _ = task.await;
        }
    }

    fn enqueue(
        &self,
        operations: impl IntoIterator<Item = Operation>,
        ack: Option<Ack>,
        urgency: Urgency,
    ) -> io::Result<()> {
        let mut inner = self.inner();
        if let Some(reason) = &inner.failed {
            return Err(failed(reason));
        }
        if inner.queue.is_closed {
            return Err(closed());
        }
        let inner = &mut *inner;
        for operation in operations {
            let before = inner.queue.operations.0.len();
            operation.encode(&mut inner.queue.operations);
            if let Operation::Append(entry) = &operation {
                inner.queue.last_index = inner.queue.last_index.max(Some(entry.log_id.index));
            }
            let length = inner.queue.operations.0.len() - before;
            inner.memory.apply(operation, length)?;
        }
        inner.queue.acks.extend(ack);
        if urgency == Urgency::Now {
            inner.queue.is_urgent = true;
            self.shared.pending.notify_one();
        }
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.shared.inner)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    Now,
    NextSync,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(reason: &str) -> io::Error {
    io::Error::other(format!(
        "the log failed before: {reason}; restart the member"
    ))
}

fn closed() -> io::Error {
    io::Error::other("the log is closed; restart the member")
}

#[cfg(test)]
mod tests;
