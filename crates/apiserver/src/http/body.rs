//! The body of an answer: bytes, or a stream of events.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body::{Frame, SizeHint};

/// What the server answers with.
#[derive(Default)]
pub struct Body(Inner);

#[derive(Default)]
enum Inner {
    #[default]
    Empty,
    Full(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    /// A body that is known as a whole.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self(Inner::Full(bytes.into()))
    }

    /// A body that comes piece by piece.
    pub(crate) fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(Inner::Stream(Box::pin(pieces)))
    }

    /// The same body, with every piece of a stream shown to `see` on its way out. What `see` holds lives until the body is dropped.
    pub(crate) fn inspect(self, see: impl FnMut(&Bytes) + Send + 'static) -> Self {
        match self.0 {
            Inner::Stream(stream) => Self::stream(stream.inspect(see)),
            whole => Self(whole),
        }
    }

    /// Whether it comes piece by piece.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.0, Inner::Stream(_))
    }

    /// The whole body, when it is known.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Inner::Full(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Inner::Empty => f.write_str("empty"),
            Inner::Full(bytes) => write!(f, "{} bytes", bytes.len()),
            Inner::Stream(_) => f.write_str("stream"),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Inner::Empty => Poll::Ready(None),
            Inner::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Inner::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Inner::Stream(stream) => stream
                .poll_next_unpin(cx)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}
