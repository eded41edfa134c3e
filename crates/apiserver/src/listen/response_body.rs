//! Response bodies that are sent to a peer.
//!
//! Guarantees:
//! - A body is handed to hyper in chunks of at most 64 KiB, each counted until it is sent.
//! - All chunks of one connection have 4 MiB; further ones wait for those before them, and are not
//!   encoded before the connection is writable.
//! - The end of a large body or of a stream is sent after all of its chunks: after the end, HTTP/2
//!   could not reset the stream of a peer that does not read.
//! - A stream ends when the server stops.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    gated::{Gated, gated},
    tracker::{RunningRequest, TrackedConnection, UnsentBytes},
    unsent::{Slot, Unsent, end_when_stalled},
};
use crate::http::body::Body;

/// The maximum size of a chunk.
const CHUNK_MAX_BYTES: usize = 64 << 10;

/// A body that is sent to a peer.
pub(super) struct ResponseBody {
    body: Body,
    /// Taken from the body and not yet handed to hyper.
    rest: Bytes,
    /// The memory of `rest`, counted until its last chunk is sent.
    rest_counted: Option<Arc<UnsentBytes>>,
    connection: Arc<TrackedConnection>,
    /// The chunks of a large body or stream. Those of a small body are counted for the connection
    /// only: its end is sent with them.
    unsent: Option<Arc<Unsent>>,
    /// The wait for the connection's limit of unsent bytes.
    writable: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The wait for a part of the connection's window.
    window: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The chunk that waits for the connection or for the window counts as not sent, like one that hyper has.
    waiting: Option<Slot>,
    /// When a stream ends; `None` for a body that ends by itself.
    stop: Option<Gated<Pin<Box<WaitForCancellationFutureOwned>>>>,
    is_ended: bool,
    _running: RunningRequest,
}

impl ResponseBody {
    pub(super) fn new(body: Body, running: RunningRequest, stop: &CancellationToken) -> Self {
        let size = http_body::Body::size_hint(&body).upper();
        let is_small = size.is_some_and(|size| size <= CHUNK_MAX_BYTES as u64);
        let unsent = (!is_small).then(|| Arc::new(Unsent::of_response(body.ends())));
        if let Some(unsent) = &unsent {
            end_when_stalled(unsent);
        }
        Self {
            rest: Bytes::new(),
            rest_counted: None,
            connection: running.connection().clone(),
            unsent,
            writable: None,
            window: None,
            waiting: None,
            stop: body
                .is_stream()
                .then(|| gated(Box::pin(stop.clone().cancelled_owned()))),
            is_ended: false,
            body,
            _running: running,
        }
    }

    /// Takes bytes from the body.
    fn take(&mut self, bytes: Bytes) {
        let counted = UnsentBytes::new(&self.connection, bytes.len());
        self.rest_counted = Some(Arc::new(counted));
        self.rest = bytes;
    }

    /// Waits until the connection is writable. What is not encoded yet takes no memory.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.writable.is_none() {
            if self.connection.is_writable() {
                return Poll::Ready(());
            }
            let connection = self.connection.clone();
            self.writable = Some(Box::pin(async move { connection.writable().await }));
            self.waiting = self.unsent.as_ref().map(|unsent| unsent.add());
        }
        let writable = self.writable.as_mut().expect("it is set above");
        ready!(writable.as_mut().poll(cx));
        self.writable = None;
        if let Some(unsent) = &self.unsent
            && let Some(slot) = self.waiting.take()
        {
            unsent.remove(slot);
        }
        Poll::Ready(())
    }

    fn poll_window(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        if self.window.is_none() {
            if self.connection.try_take_window(bytes) {
                return Poll::Ready(());
            }
            let connection = self.connection.clone();
            self.window = Some(Box::pin(async move { connection.take_window(bytes).await }));
            self.waiting = self.unsent.as_ref().map(|unsent| unsent.add());
        }
        let window = self.window.as_mut().expect("it is set above");
        ready!(window.as_mut().poll(cx));
        self.window = None;
        Poll::Ready(())
    }

    /// Hands out a part of `rest`, for which the window is taken.
    fn chunk(&mut self, length: usize) -> Chunk {
        let counted = self.rest_counted.clone();
        let bytes = self.rest.split_to(length);
        let waiting = self.waiting.take();
        let of_response = self.unsent.as_ref().map(|unsent| {
            let slot = waiting.unwrap_or_else(|| unsent.add());
            (unsent.clone(), slot)
        });
        if self.rest.is_empty() {
            self.rest_counted = None;
        }
        Chunk {
            bytes,
            _guard: ChunkGuard {
                window: length,
                slot: self.connection.unsent().add(),
                connection: self.connection.clone(),
                of_response,
                _counted: counted,
            },
        }
    }

    /// The end of the body, once its chunks are sent.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_ended = true;
        match &self.unsent {
            Some(unsent) => unsent.poll_empty(cx),
            None => Poll::Ready(()),
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Chunk>>>> {
        let this = &mut *self;
        while this.rest.is_empty() {
            let next = if this.is_ended {
                Poll::Ready(None)
            } else if this.poll_room(cx).is_pending() {
                Poll::Pending
            } else {
                this.body.poll_chunk(CHUNK_MAX_BYTES, cx)
            };
            match next {
                Poll::Ready(Some(Ok(bytes))) => this.take(bytes),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return this.poll_end(cx).map(|()| None),
                Poll::Pending => {
                    let Some(stop) = &mut this.stop else {
                        return Poll::Pending;
                    };
                    ready!(Pin::new(stop).poll(cx));
                    return this.poll_end(cx).map(|()| None);
                }
            }
        }
        let length = this.rest.len().min(CHUNK_MAX_BYTES);
        ready!(this.poll_window(length, cx));
        Poll::Ready(Some(Ok(Frame::data(this.chunk(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_none() && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let exact = self.body.size_hint().exact();
        exact.map_or_else(SizeHint::default, |body| SizeHint::with_exact(body + rest))
    }
}

/// Bytes that are handed to hyper. They are counted until hyper drops them.
pub(super) struct Chunk {
    bytes: Bytes,
    _guard: ChunkGuard,
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

struct ChunkGuard {
    connection: Arc<TrackedConnection>,
    /// The part of the connection's window.
    window: usize,
    slot: Slot,
    of_response: Option<(Arc<Unsent>, Slot)>,
    _counted: Option<Arc<UnsentBytes>>,
}

impl Drop for ChunkGuard {
    fn drop(&mut self) {
        self.connection.return_window(self.window);
        self.connection.unsent().remove(self.slot);
        if let Some((unsent, slot)) = &self.of_response {
            unsent.remove(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use http_body_util::BodyExt as _;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::listen::{
        Limits,
        tracker::{ConnectionTracker, OpenConnection},
        unsent::until_stalled,
    };

    const CHECK: Duration = Duration::from_secs(5);

    fn connection(window: usize) -> OpenConnection {
        ConnectionTracker::new(&Limits {
            connection_unsent_bytes_max: window,
            ..Limits::default()
        })
        .open()
    }

    fn response(open: &OpenConnection, body: Body) -> ResponseBody {
        let stop = CancellationToken::new();
        ResponseBody::new(body, open.connection.begin(), &stop)
    }

    /// Reads a body as a peer that takes this long for each chunk. Returns the sizes of the chunks.
    async fn read(open: &OpenConnection, body: Body, per_chunk: Duration) -> Option<Vec<usize>> {
        let reading = async {
            let mut body = response(open, body);
            let mut sizes = Vec::new();
            while let Some(frame) = body.frame().await {
                let chunk = frame.ok().and_then(|frame| frame.into_data().ok());
                sizes.extend(chunk.as_ref().map(Chunk::remaining));
                sleep(per_chunk).await;
            }
            sizes
        };
        until_stalled(reading, CHECK).await
    }

    #[tokio::test(start_paused = true)]
    async fn peer_has_30_seconds_for_each_chunk() {
        let open = connection(4 << 20);
        let body = || Body::full(vec![0; 200 << 10]);
        let sizes = read(&open, body(), Duration::from_secs(29)).await;
        assert_eq!(sizes.expect("it is read"), [65536, 65536, 65536, 8192]);
        assert!(open.connection.is_idle());
        let started = Instant::now();
        let stalled = read(&open, body(), Duration::from_secs(100)).await;
        assert_eq!(stalled, None);
        assert!(started.elapsed() <= Duration::from_secs(35));
        assert!(open.connection.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_waits_for_the_window_is_reset_too() {
        let open = connection(CHUNK_MAX_BYTES);
        let body = || Body::full(vec![0; 200 << 10]);
        let long = Duration::from_secs(100);
        let started = Instant::now();
        let both = tokio::join!(read(&open, body(), long), read(&open, body(), long));
        assert_eq!(both, (None, None));
        assert!(started.elapsed() <= Duration::from_secs(40));
        assert!(open.connection.is_idle());
    }

    /// Watches used to encode events for peers that did not read: 64 KiB each.
    #[tokio::test(start_paused = true)]
    async fn stream_is_not_encoded_while_the_connection_is_full() {
        let open = connection(CHUNK_MAX_BYTES);
        let full = UnsentBytes::new(&open.connection, CHUNK_MAX_BYTES);
        let encoded = Arc::new(AtomicUsize::new(0));
        let count = encoded.clone();
        let events = futures_util::stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Bytes::from_static(b"event")
        });
        let mut body = response(&open, Body::stream(events));
        let blocked = timeout(Duration::from_secs(1), body.frame()).await;
        assert!(blocked.is_err());
        assert_eq!(encoded.load(Ordering::Relaxed), 0);
        drop(full);
        let event = body.frame().await.expect("an event");
        assert_eq!(encoded.load(Ordering::Relaxed), 1);
        drop(event);
        let mut waiting = response(&open, Body::full(vec![0; CHUNK_MAX_BYTES]));
        open.connection.take_window(CHUNK_MAX_BYTES).await;
        let blocked = timeout(Duration::from_secs(1), waiting.frame()).await;
        assert!(blocked.is_err());
        assert!(!open.connection.is_writable(), "bytes that wait count");
        open.connection.return_window(CHUNK_MAX_BYTES);
        let frame = waiting.frame().await.expect("the body");
        assert!(frame.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_a_large_body_follows_its_chunks() {
        let open = connection(4 << 20);
        let mut small = response(&open, Body::full("small"));
        let chunk = small.frame().await.expect("a chunk");
        assert!(http_body::Body::is_end_stream(&small));
        drop(chunk);
        let mut large = response(&open, Body::full(vec![0; CHUNK_MAX_BYTES + 1]));
        let first = large.frame().await.expect("a chunk");
        let second = large.frame().await.expect("a chunk");
        assert!(!http_body::Body::is_end_stream(&large));
        drop(second);
        let send_first = async {
            sleep(Duration::from_secs(1)).await;
            drop(first);
        };
        let started = Instant::now();
        let (end, ()) = tokio::join!(large.frame(), send_first);
        assert!(end.is_none());
        assert_eq!(started.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_when_the_server_stops() {
        let open = connection(4 << 20);
        let stop = CancellationToken::new();
        let events = Body::stream(futures_util::stream::pending());
        let mut body = ResponseBody::new(events, open.connection.begin(), &stop);
        stop.cancel();
        assert!(body.frame().await.is_none());
    }
}
