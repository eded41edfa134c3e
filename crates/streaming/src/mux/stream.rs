//! One byte stream of a connection, as its user has it.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{InputEnd, Mux, OutputPhase, Phase};

/// A byte stream of a connection, in both directions.
///
/// Both directions end independently: shutting the stream down ends what is written, and what the
/// peer sends can still be read. A stream that is dropped ends after what was written, as a socket
/// does; what the peer still sends is discarded, and the peer receives a reset if the protocol has
/// one.
#[derive(Debug)]
pub struct ByteStream {
    reader: ByteReader,
    writer: ByteWriter,
}

/// The direction of a [`ByteStream`] in which the peer sends.
///
/// Reading returns what the peer sent and then the end of the stream. It returns
/// `ConnectionReset` if the peer reset the stream, and `ConnectionAborted` if the connection ended
/// first; in both cases after the bytes that were received.
pub struct ByteReader {
    mux: Arc<Mux>,
    id: u32,
}

/// The direction of a [`ByteStream`] in which the peer receives.
///
/// Writing waits while the peer does not read. What is written is sent without a flush. Once the
/// stream or its connection has ended, writing returns `BrokenPipe`.
pub struct ByteWriter {
    mux: Arc<Mux>,
    id: u32,
}

impl ByteStream {
    pub(super) fn new(mux: Arc<Mux>, id: u32) -> Self {
        let reader = ByteReader {
            mux: Arc::clone(&mux),
            id,
        };
        let writer = ByteWriter { mux, id };
        Self { reader, writer }
    }

    /// Splits the stream into its two directions.
    pub fn into_split(self) -> (ByteReader, ByteWriter) {
        (self.reader, self.writer)
    }

    /// The stream of these two directions.
    pub(crate) fn from_split(reader: ByteReader, writer: ByteWriter) -> Self {
        debug_assert_eq!(reader.id, writer.id);
        Self { reader, writer }
    }

    /// Abandons the stream: what was written and not sent is discarded.
    pub fn reset(self) {
        let mut state = self.reader.mux.state();
        let Some(channel) = state.channels.get_mut(&self.reader.id) else {
            return;
        };
        if channel.output_phase == OutputPhase::Ended && channel.input_end.is_some() {
            return;
        }
        let discarded = channel.end_output();
        channel.output_phase = OutputPhase::Resetting;
        state.release_output(discarded);
        state.enqueue(self.reader.id);
    }
}

impl fmt::Debug for ByteReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteReader").field("id", &self.id).finish()
    }
}

impl fmt::Debug for ByteWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteWriter").field("id", &self.id).finish()
    }
}

impl AsyncRead for ByteReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut guard = self.mux.state();
        let state = &mut *guard;
        let channel = state
            .channels
            .get_mut(&self.id)
            .expect("a channel exists while it has a reader");
        if !channel.input.is_empty() {
            let bytes = channel.input.len().min(buffer.remaining());
            buffer.put_slice(&channel.input[..bytes]);
            channel.input.advance(bytes);
            if channel.input.is_empty() {
                channel.input = BytesMut::new();
            }
            state.release_input(bytes);
            return Poll::Ready(Ok(()));
        }
        let end = match (channel.input_end, state.phase) {
            (Some(end), _) | (None, Phase::Closed(end)) => end,
            (None, Phase::Finishing) => InputEnd::Aborted,
            (None, Phase::Open) => {
                channel.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        Poll::Ready(match end {
            InputEnd::Finished => Ok(()),
            InputEnd::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            InputEnd::Aborted => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }
}

impl AsyncWrite for ByteWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let limits = self.mux.limits;
        let mut guard = self.mux.state();
        let state = &mut *guard;
        let channel = state
            .channels
            .get_mut(&self.id)
            .expect("a channel exists while it has a writer");
        if state.phase != Phase::Open || channel.output_phase != OutputPhase::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let connection_space = limits.output - state.output_bytes;
        let space = connection_space.min(limits.output_per_stream - channel.output.len());
        if space == 0 {
            channel.writer = Some(context.waker().clone());
            if connection_space == 0 {
                state.blocked.push(self.id);
            }
            return Poll::Pending;
        }
        let bytes = space.min(buffer.len());
        channel.output.extend_from_slice(&buffer[..bytes]);
        state.output_bytes += bytes;
        state.enqueue(self.id);
        Poll::Ready(Ok(bytes))
    }

    /// Does nothing: the connection sends what is written as soon as the peer receives it.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.mux.state().finish_output(self.id);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

impl Drop for ByteReader {
    fn drop(&mut self) {
        let mut state = self.mux.state();
        let Some(channel) = state.channels.get_mut(&self.id) else {
            return;
        };
        channel.has_reader = false;
        channel.reader = None;
        let discarded = std::mem::take(&mut channel.input).len();
        state.release_input(discarded);
        state.settle(self.id);
    }
}

impl Drop for ByteWriter {
    fn drop(&mut self) {
        let mut state = self.mux.state();
        state.finish_output(self.id);
        let Some(channel) = state.channels.get_mut(&self.id) else {
            return;
        };
        channel.has_writer = false;
        channel.writer = None;
        state.settle(self.id);
    }
}
