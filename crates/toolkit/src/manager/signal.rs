//! Signals: a user or the kubelet ends the process.
//!
//! In: SIGINT (Ctrl-C) and SIGTERM. Out: one return per signal.
//! Guarantees: a signal between two waits is not lost; if signals cannot be received, the wait
//! never ends.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives signals from its construction on.
#[cfg(unix)]
pub(super) struct Signals(Option<(Signal, Signal)>);

#[cfg(unix)]
impl Signals {
    pub(super) fn listen() -> Self {
        match (
            signal(SignalKind::interrupt()),
            signal(SignalKind::terminate()),
        ) {
            (Ok(interrupt), Ok(terminate)) => Self(Some((interrupt, terminate))),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "cannot listen for signals, only killing ends this process");
                Self(None)
            }
        }
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        let Some((interrupt, terminate)) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            biased;
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// Receives signals during [`Signals::next`] only.
#[cfg(not(unix))]
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn listen() -> Self {
        Self
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "cannot listen for signals, only killing ends this process");
            std::future::pending().await
        }
    }
}
