//! The master side of a terminal, as asynchronous streams.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::termios::Winsize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

/// The terminal of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct Terminal(Arc<OwnedFd>);

impl Terminal {
    /// The terminal with that master, what is displayed on it, and what is typed.
    pub(crate) fn new(master: OwnedFd) -> io::Result<(Self, TerminalOutput, pipe::Sender)> {
        rustix::io::ioctl_fionbio(&master, true)?;
        // A terminal can be read and written as a pipe; only the check would reject it.
        let output = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
        let input = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
        Ok((Self(Arc::new(master)), TerminalOutput(output), input))
    }

    /// Changes the size of the terminal, in characters. The process receives `SIGWINCH`.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(&*self.0, size)?)
    }
}

/// What is displayed on a terminal.
pub(crate) struct TerminalOutput(pipe::Receiver);

impl AsyncRead for TerminalOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let io_error = rustix::io::Errno::IO.raw_os_error();
        match Pin::new(&mut self.0).poll_read(cx, buf) {
            // No process has the terminal open any more.
            Poll::Ready(Err(error)) if error.raw_os_error() == Some(io_error) => {
                Poll::Ready(Ok(()))
            }
            result => result,
        }
    }
}
