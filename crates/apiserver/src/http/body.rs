//! Response bodies: bytes, chunks that are encoded while they are sent, or a stream of events.

use std::{
    any::Any,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

/// The body of a response.
#[derive(Default)]
pub struct Body(Inner);

#[derive(Default)]
enum Inner {
    #[default]
    Empty,
    Full(Bytes),
    Chunks(Box<dyn Chunks>),
    Stream {
        chunks: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
        /// When the stream ends by itself; `None` if that is not known.
        ends: Option<Instant>,
        /// Dropped with the stream.
        guard: Option<Box<dyn Any + Send>>,
    },
}

/// A body that is encoded while it is sent: what is not sent yet has no buffer.
pub(crate) trait Chunks: Send {
    /// The next chunk, not empty. It is larger than `max_bytes` only if its memory is shared with
    /// stored objects.
    fn next(&mut self, max_bytes: usize) -> Option<Bytes>;

    /// How many bytes are still to come, if that is known.
    fn remaining_bytes(&self) -> Option<u64>;
}

impl Body {
    /// A body that is known as a whole.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self(Inner::Full(bytes.into()))
    }

    /// A body that is encoded while it is sent.
    pub(crate) fn chunks(chunks: impl Chunks + 'static) -> Self {
        Self(Inner::Chunks(Box::new(chunks)))
    }

    /// A body that comes piece by piece.
    pub(crate) fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::fallible(pieces.map(Ok))
    }

    /// A streamed body that may fail, such as that of a proxied response. After an error the
    /// connection of the client is closed, so that a truncated body is not taken as complete.
    pub(crate) fn fallible(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self(Inner::Stream {
            chunks: Box::pin(pieces),
            ends: None,
            guard: None,
        })
    }

    /// A stream that ends at this moment at the latest. A client that does not read by then is cut.
    pub(crate) fn stream_until(
        pieces: impl Stream<Item = Bytes> + Send + 'static,
        ends: Instant,
    ) -> Self {
        Self(Inner::Stream {
            chunks: Box::pin(pieces.map(Ok)),
            ends: Some(ends),
            guard: None,
        })
    }

    /// The same body, with every piece of a stream or of chunks passed to `see` before it is sent.
    /// `see` is dropped with the body.
    pub(crate) fn inspect(self, mut see: impl FnMut(&Bytes) + Send + 'static) -> Self {
        match self.0 {
            Inner::Stream {
                chunks,
                ends,
                guard,
            } => Self(Inner::Stream {
                chunks: Box::pin(chunks.inspect(move |chunk| {
                    if let Ok(bytes) = chunk {
                        see(bytes);
                    }
                })),
                ends,
                guard,
            }),
            Inner::Chunks(chunks) => Self::chunks(Inspected { chunks, see }),
            whole => Self(whole),
        }
    }

    /// The same body; if it is a stream, the guard lives until it is dropped.
    pub(crate) fn with_guard(mut self, stream_guard: impl Send + 'static) -> Self {
        if let Inner::Stream { guard, .. } = &mut self.0 {
            *guard = Some(match guard.take() {
                None => Box::new(stream_guard),
                Some(first) => Box::new((first, stream_guard)),
            });
        }
        self
    }

    /// Whether it comes piece by piece.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.0, Inner::Stream { .. })
    }

    /// When a stream ends by itself, if that is known.
    pub(crate) fn ends(&self) -> Option<Instant> {
        match &self.0 {
            Inner::Stream { ends, .. } => *ends,
            _ => None,
        }
    }

    /// The whole body, when it is known.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Inner::Full(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The chunks of a body that is encoded while it is sent; any other body is returned.
    pub(crate) fn into_chunks(self) -> Result<Box<dyn Chunks>, Self> {
        match self.0 {
            Inner::Chunks(chunks) => Ok(chunks),
            other => Err(Self(other)),
        }
    }

    /// The next bytes. What is encoded while it is sent comes in chunks of at most `max_bytes`.
    pub(crate) fn poll_chunk(
        &mut self,
        max_bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        match &mut self.0 {
            Inner::Empty => Poll::Ready(None),
            Inner::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Inner::Empty;
                Poll::Ready(Some(Ok(bytes)))
            }
            Inner::Chunks(chunks) => {
                let chunk = chunks.next(max_bytes);
                if chunk.is_none() {
                    self.0 = Inner::Empty;
                }
                Poll::Ready(chunk.map(Ok))
            }
            Inner::Stream { chunks, .. } => chunks.poll_next_unpin(cx),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Inner::Empty => f.write_str("empty"),
            Inner::Full(bytes) => write!(f, "{} bytes", bytes.len()),
            Inner::Chunks(_) => f.write_str("chunks"),
            Inner::Stream { .. } => f.write_str("stream"),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        // A client in the same process has the whole list in one piece.
        self.poll_chunk(usize::MAX, cx)
            .map(|chunk| chunk.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Chunks(chunks) => chunks
                .remaining_bytes()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            Inner::Stream { .. } => SizeHint::default(),
        }
    }
}

struct Inspected<F> {
    chunks: Box<dyn Chunks>,
    see: F,
}

impl<F: FnMut(&Bytes) + Send> Chunks for Inspected<F> {
    fn next(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.chunks.next(max_bytes).inspect(&mut self.see)
    }

    fn remaining_bytes(&self) -> Option<u64> {
        self.chunks.remaining_bytes()
    }
}
