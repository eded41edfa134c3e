//! Signals that end a command.
//!
//! Guarantee: after `listen`, the first signal requests a graceful shutdown, and the second ends
//! the process.

use std::{io, process};

use tracing::info;

/// SIGINT and, on Unix, SIGTERM.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The operating system refuses.
    #[cfg(unix)]
    pub(crate) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        tokio::select! {
            _ = self.interrupt.recv() => info!(signal = "SIGINT", "shutting down"),
            _ = self.terminate.recv() => info!(signal = "SIGTERM", "shutting down"),
        }
        Ok(())
    }

    /// Installs the handler of Ctrl-C.
    ///
    /// # Errors
    /// The operating system refuses.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next Ctrl-C.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        tokio::signal::ctrl_c().await?;
        info!(signal = "Ctrl-C", "shutting down");
        Ok(())
    }

    /// Waits for a graceful shutdown. Another signal ends the process with exit code 1.
    pub(crate) async fn wait_for_shutdown(
        mut self,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        tokio::select! {
            () = shutdown => Ok(()),
            signal = self.next() => {
                signal?;
                eprintln!("bellerophon: stopped immediately; pending requests were aborted");
                // Not a return: the tasks that do not end are what the user gave up on.
                process::exit(1)
            }
        }
    }
}
