//! Signals: a person or the kubelet wants the process to end.
//!
//! In: SIGINT (Ctrl-C) and SIGTERM. Out: one return per signal.
//! Holds: where signals cannot be heard, waiting never ends.

/// Waits for the next signal.
#[cfg(unix)]
pub(super) async fn next() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot listen for signals, only killing ends this process");
            std::future::pending().await
        }
    }
}

/// Waits for the next signal.
#[cfg(not(unix))]
pub(super) async fn next() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "cannot listen for signals, only killing ends this process");
        std::future::pending().await
    }
}
