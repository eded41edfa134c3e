//! The time of the last activity of a connection.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The time of the last read or write of a connection.
pub(crate) struct Activity(Mutex<Instant>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Records a read or write.
    pub(crate) fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns once nothing was recorded for this long.
    pub(crate) async fn idle(&self, timeout: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(deadline) = last.checked_add(timeout) else {
                return std::future::pending().await;
            };
            if deadline <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}
