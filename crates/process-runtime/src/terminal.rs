//! The master side of a terminal, as an asynchronous stream.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The master side of the terminal of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        Ok(Self(Arc::new(AsyncFd::register(master)?)))
    }

    /// Changes the size of the terminal, in characters. The process receives `SIGWINCH`.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(self.0.get_ref(), size)?)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            let result = guard.try_io(|fd| match rustix::io::read(fd.get_ref(), &mut *unfilled) {
                // No process has the terminal open any more.
                Err(rustix::io::Errno::IO) => Ok(0),
                result => Ok(result?),
            });
            if let Ok(result) = result {
                buf.advance(result?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), buf)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
