//! Chunks of responses that are handed to hyper and not yet sent.
//!
//! hyper does not poll a body while a chunk of it waits for the peer, so a body cannot time out by
//! itself. What waits is counted here, and checked by a timer outside of the body.
//!
//! Guarantees: a chunk that is unsent for the write timeout, or a watch that has chunks unsent one
//! second after its end, ends its HTTP/2 stream (`RST_STREAM`) or its HTTP/1.1 connection.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::{Instant, Sleep, sleep_until};

use super::tracker::TrackedConnection;

/// How many checks there are in a write timeout: a chunk of a stream may be unsent for as many.
const STREAM_CHECKS: usize = 6;

/// How many checks a chunk may be unsent on its connection. Streams that are not read are reset
/// before that; if the peer reads nothing at all, the resets are not sent either.
const CONNECTION_CHECKS: usize = 7;

/// How long a watch may have unsent chunks after its end.
const AFTER_END: Duration = Duration::from_secs(1);

/// Unsent chunks, by the check before which they were handed to hyper.
#[derive(Debug)]
pub(super) struct Unsent {
    /// For how many checks a chunk may be unsent.
    checks_max: usize,
    /// How many checks there were.
    checks: AtomicUsize,
    /// The chunks of each of the last checks, at the number of the check modulo `checks_max + 1`.
    chunks: [AtomicUsize; CONNECTION_CHECKS + 1],
    /// When the body ends by itself.
    ends: Option<Instant>,
    /// Notified when a chunk is sent.
    sent: AtomicWaker,
}

/// A chunk of [`Unsent`], until [`Unsent::remove`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(usize);

impl Unsent {
    /// The chunks of one response. It ends by itself at this moment, if that is known.
    pub(super) fn of_response(ends: Option<Instant>) -> Self {
        Self::new(STREAM_CHECKS, ends)
    }

    /// The chunks of all responses of a connection.
    pub(super) fn of_connection() -> Self {
        Self::new(CONNECTION_CHECKS, None)
    }

    fn new(checks_max: usize, ends: Option<Instant>) -> Self {
        Self {
            checks_max,
            checks: AtomicUsize::new(0),
            chunks: Default::default(),
            ends,
            sent: AtomicWaker::new(),
        }
    }

    pub(super) fn add(&self) -> Slot {
        let slot = self.checks.load(Ordering::Relaxed) % (self.checks_max + 1);
        self.chunks[slot].fetch_add(1, Ordering::Relaxed);
        Slot(slot)
    }

    pub(super) fn remove(&self, Slot(slot): Slot) {
        self.chunks[slot].fetch_sub(1, Ordering::AcqRel);
        self.sent.wake();
    }

    fn is_empty(&self) -> bool {
        self.chunks
            .iter()
            .all(|chunks| chunks.load(Ordering::Acquire) == 0)
    }

    /// Waits until every chunk is sent.
    pub(super) fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.sent.register(cx.waker());
        if self.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Whether a chunk has been unsent for too long. Called once per check interval.
    pub(super) fn is_stalled(&self) -> bool {
        let check = self.checks.fetch_add(1, Ordering::Relaxed) + 1;
        let oldest = check % (self.checks_max + 1);
        self.chunks[oldest].load(Ordering::Acquire) > 0
    }

    /// Whether a chunk is unsent after the end of its body.
    fn is_over(&self) -> bool {
        let end = self.ends.map(|ends| ends + AFTER_END);
        end.is_some_and(|end| end <= Instant::now()) && !self.is_empty()
    }

    fn next_check(&self, interval: Duration) -> Instant {
        let now = Instant::now();
        let regular = now + interval;
        match self.ends.map(|ends| ends + AFTER_END) {
            Some(end) if end > now => regular.min(end),
            _ => regular,
        }
    }
}

/// The time between two checks, for a write timeout.
pub(super) fn check_interval(write_timeout: Duration) -> Duration {
    write_timeout / STREAM_CHECKS as u32
}

tokio::task_local! {
    /// The unsent chunks of the body that this task sends, if it is large or a stream.
    static SENDING: Cell<Option<Arc<Unsent>>>;
}

/// Makes the task that calls this end when these chunks are not sent in time.
pub(super) fn end_when_stalled(unsent: &Arc<Unsent>) {
    // Every body is created in a task that `until_stalled` polls.
    let _outside = SENDING.try_with(|sending| sending.set(Some(unsent.clone())));
}

/// Waits until a connection can take another response. A request that waits for too long ends
/// like a response that is not read.
pub(super) async fn wait_until_writable(connection: &TrackedConnection) {
    if connection.is_writable() {
        return;
    }
    let unsent = Arc::new(Unsent::of_response(None));
    end_when_stalled(&unsent);
    let slot = unsent.add();
    connection.writable().await;
    unsent.remove(slot);
}

/// Runs a future that sends responses: an HTTP/2 stream or a connection. `None` if the peer did not
/// read a response in time; the future is dropped then.
pub(super) async fn until_stalled<F: Future>(future: F, interval: Duration) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut sending: Option<Arc<Unsent>> = None;
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        let polled = SENDING.sync_scope(Cell::new(sending.take()), || {
            let polled = future.as_mut().poll(cx);
            sending = SENDING.with(Cell::take);
            polled
        });
        if let Poll::Ready(output) = polled {
            return Poll::Ready(Some(output));
        }
        let Some(unsent) = &sending else {
            return Poll::Pending;
        };
        loop {
            if timer.is_none() && unsent.is_empty() {
                return Poll::Pending;
            }
            let check =
                timer.get_or_insert_with(|| Box::pin(sleep_until(unsent.next_check(interval))));
            ready!(check.as_mut().poll(cx));
            timer = None;
            if unsent.is_stalled() || unsent.is_over() {
                return Poll::Ready(None);
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    /// How long a task with one unsent chunk runs, if the chunk is sent after this time.
    async fn run_time(ends: Option<Duration>, sent_after: Duration, end: Duration) -> Duration {
        let started = Instant::now();
        let unsent = Arc::new(Unsent::of_response(ends.map(|ends| started + ends)));
        let sending = unsent.clone();
        let task = async move {
            end_when_stalled(&sending);
            let slot = sending.add();
            tokio::time::sleep(sent_after).await;
            sending.remove(slot);
            tokio::time::sleep(end).await;
        };
        until_stalled(task, INTERVAL).await;
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn task_ends_30_seconds_after_an_unsent_chunk() {
        let hour = Duration::from_secs(3600);
        let stalled = run_time(None, hour, Duration::ZERO).await;
        assert!(stalled >= INTERVAL * 6, "{stalled:?}");
        assert!(stalled <= INTERVAL * 7, "{stalled:?}");
        let read = run_time(None, Duration::from_secs(29), hour).await;
        assert_eq!(read, Duration::from_secs(29) + hour);
    }

    #[tokio::test(start_paused = true)]
    async fn watch_ends_one_second_after_its_time() {
        let hour = Duration::from_secs(3600);
        let ends = Some(Duration::from_secs(8));
        assert_eq!(run_time(ends, hour, hour).await, Duration::from_secs(9));
        let read = run_time(ends, Duration::from_secs(2), hour).await;
        assert_eq!(read, Duration::from_secs(2) + hour);
    }

    #[tokio::test(start_paused = true)]
    async fn task_without_bodies_is_not_limited() {
        let day = Duration::from_secs(24 * 3600);
        let nothing = until_stalled(pending::<()>(), INTERVAL);
        assert!(tokio::time::timeout(day, nothing).await.is_err());
    }

    #[test]
    fn chunk_is_stalled_after_its_checks() {
        for (unsent, checks) in [(Unsent::of_response(None), 6), (Unsent::of_connection(), 7)] {
            for _ in 0..100 {
                let slot = unsent.add();
                assert!(!unsent.is_stalled());
                unsent.remove(slot);
            }
            assert!(unsent.is_empty());
            unsent.add();
            let stalled: Vec<bool> = (0..=checks).map(|_| unsent.is_stalled()).collect();
            assert_eq!(stalled.iter().position(|stalled| *stalled), Some(checks));
        }
    }
}
