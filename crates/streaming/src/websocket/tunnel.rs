//! A byte stream in WebSocket messages: `SPDY/3.1+portforward.k8s.io`.
//!
//! Mirrors `TunnelingConnection` of client-go: every binary message is a piece of the stream, a text
//! message is an error, and the end is a normal closure.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};

use super::normal_closure;

/// The largest message sent, in bytes.
const MESSAGE_BYTES_MAX: usize = 32 << 10;

/// A byte stream in WebSocket messages.
pub(crate) struct Tunnel<S> {
    socket: WebSocketStream<S>,
    /// What is left of the last message.
    unread: Bytes,
    is_closing: bool,
}

impl<S> Tunnel<S> {
    pub(crate) fn new(socket: WebSocketStream<S>) -> Self {
        Self {
            socket,
            unread: Bytes::new(),
            is_closing: false,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Text(_))) => {
                    let error = "invalid message type received";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(unless_closed(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
        let bytes = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..bytes]);
        self.unread.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(context)).map_err(io::Error::other)?;
        let bytes = buffer.len().min(MESSAGE_BYTES_MAX);
        let message = Message::Binary(Bytes::copy_from_slice(&buffer[..bytes]));
        let sent = Pin::new(&mut self.socket).start_send(message);
        sent.map_err(io::Error::other)?;
        Poll::Ready(Ok(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.socket).poll_flush(context));
        Poll::Ready(flushed.map_err(io::Error::other))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closing {
            if let Err(error) = ready!(Pin::new(&mut self.socket).poll_ready(context)) {
                return Poll::Ready(unless_closed(error));
            }
            self.is_closing = true;
            let close = Message::Close(Some(normal_closure()));
            if let Err(error) = Pin::new(&mut self.socket).start_send(close) {
                return Poll::Ready(unless_closed(error));
            }
        }
        match ready!(Pin::new(&mut self.socket).poll_flush(context)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(unless_closed(error)),
        }
    }
}

/// A connection that the peer has closed is at its end; other errors are errors.
fn unless_closed(error: Error) -> io::Result<()> {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => Ok(()),
        error => Err(io::Error::other(error)),
    }
}
