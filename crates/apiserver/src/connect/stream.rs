//! The byte stream to a backend, from the dial until its last owner drops it.
//!
//! Guarantees: when the server stops, reads end and writes fail, regardless of the owner of the
//! stream by then: a response body, a bridge, or a client in the same process that has upgraded its
//! connection. What counts the connection (metrics, the place of the client's connection) lives as
//! long as the stream.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::ByteStream;

/// Guards that count an open connection to a backend; only ever dropped.
pub(crate) type Counted = Arc<dyn Send + Sync>;

/// A stream that ends when the server stops.
pub(super) struct BackendStream {
    stream: Box<dyn ByteStream>,
    stopping: CancellationToken,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    _counted: Counted,
}

impl BackendStream {
    pub(super) fn new(
        stream: Box<dyn ByteStream>,
        stop: &CancellationToken,
        counted: Counted,
    ) -> Self {
        Self {
            stream,
            stopping: stop.clone(),
            stopped: Box::pin(stop.clone().cancelled_owned()),
            _counted: counted,
        }
    }

    fn check_running(&self) -> io::Result<()> {
        if self.stopping.is_cancelled() {
            Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the API server stops",
            ))
        } else {
            Ok(())
        }
    }
}

impl AsyncRead for BackendStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(self.check_running());
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_running()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_running()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_running()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stream_ends_when_the_server_stops() {
        let (near, mut far) = tokio::io::duplex(64);
        let stop = CancellationToken::new();
        let counted: Arc<()> = Arc::default();
        let mut stream = BackendStream::new(Box::new(near), &stop, counted.clone());
        stream.write_all(b"request").await.expect("it runs");
        let mut request = [0; 7];
        far.read_exact(&mut request).await.expect("it is sent");
        let stopping = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
        };
        let mut response = Vec::new();
        let (read, ()) = tokio::join!(stream.read_to_end(&mut response), stopping);
        assert_eq!(
            read.expect_err("it stops").kind(),
            io::ErrorKind::BrokenPipe
        );
        assert!(stream.write_all(b"more").await.is_err());
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(stream);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
