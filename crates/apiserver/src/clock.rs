//! The clock of the server.
//! Guarantees: it follows `tokio::time`, so a paused runtime pauses the server's time too.

use bellerophon_apimachinery::time::Time;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The server's clock: the wall clock at its start plus the time elapsed on `tokio::time`.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Timestamp,
    started: Instant,
}

impl Clock {
    /// A clock that reads `origin` now.
    pub(crate) fn starting_at(origin: Timestamp) -> Self {
        Self {
            origin,
            started: Instant::now(),
        }
    }

    /// Now, to the nanosecond.
    pub(crate) fn timestamp(&self) -> Timestamp {
        let passed =
            SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::MAX);
        self.origin
            .saturating_add(passed)
            .expect("a signed duration has no calendar units")
    }

    /// Now, in whole seconds.
    pub(crate) fn now(&self) -> Time {
        Time::from_timestamp(self.timestamp())
    }
}
