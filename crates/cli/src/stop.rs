//! Signals that end a command.
//! Holds: from `listen` on no signal kills the process unasked; the first is a request, the second an order.

use std::{io, process};

use tracing::info;

/// Ctrl-C and, where the system has it, the signal of service managers.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Takes the signals over from the system.
    ///
    /// # Errors
    /// The system does not give them.
    #[cfg(unix)]
    pub(crate) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        tokio::select! {
            _ = self.interrupt.recv() => info!("interrupted"),
            _ = self.terminate.recv() => info!("asked to terminate"),
        }
        Ok(())
    }

    /// Takes Ctrl-C over from the system.
    ///
    /// # Errors
    /// The system does not give it.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// The next Ctrl-C.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        tokio::signal::ctrl_c().await?;
        info!("interrupted");
        Ok(())
    }

    /// Waits for work to end in order; a signal meanwhile ends the process at once.
    pub(crate) async fn grant(mut self, work: impl Future<Output = ()>) -> io::Result<()> {
        tokio::select! {
            () = work => Ok(()),
            signal = self.next() => {
                signal?;
                eprintln!("bellerophon: stopped at once; requests under way were cut");
                process::exit(1)
            }
        }
    }
}
