//! Restart back-off of containers (`CrashLoopBackOff`, `ImagePullBackOff`).
//!
//! In: when an instance ended. Out: when the next one may start.
//! Guarantees: the first restart is immediate, the second waits 10 s, doubled up to 5 min; the
//! back-off is reset when 10 min have passed since the last restart.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::super::time::after;

const INITIAL_DELAY: Duration = Duration::from_secs(10);
/// Upstream `MaxContainerBackOff`.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// The back-off is reset when the last restart is longer ago than this.
const RESET_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// The restart back-off of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    delay: Duration,
    /// When the delay was last increased.
    increased_at: Option<Timestamp>,
}

impl Backoff {
    /// The back-off after that many restarts, for a kubelet that did not observe them.
    pub(crate) fn after_restarts(restarts: i32, increased_at: Timestamp) -> Self {
        let mut backoff = Self::default();
        // The maximum delay is reached after 6 restarts.
        for _ in 0..restarts.min(8) {
            backoff.increase(increased_at);
        }
        backoff
    }

    /// The delay of a container that ended at that time.
    pub(crate) fn delay(&self, finished_at: Timestamp) -> Duration {
        let is_reset = self
            .increased_at
            .is_none_or(|increased_at| finished_at.duration_since(increased_at) > RESET_AFTER);
        if is_reset { Duration::ZERO } else { self.delay }
    }

    /// When a container that ended at that time may start.
    pub(crate) fn due(&self, finished_at: Timestamp) -> Timestamp {
        after(finished_at, self.delay(finished_at))
    }

    /// Increases the delay: a container that ended at that time is started again now.
    pub(crate) fn next(&mut self, finished_at: Timestamp, now: Timestamp) {
        if self.delay(finished_at).is_zero() {
            self.delay = Duration::ZERO;
        }
        self.increase(now);
    }

    fn increase(&mut self, now: Timestamp) {
        self.delay = if self.delay.is_zero() {
            INITIAL_DELAY
        } else {
            (self.delay * 2).min(MAX_DELAY)
        };
        self.increased_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_the_maximum_and_is_reset() {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut delays = Vec::new();
        for _ in 0..8 {
            delays.push(backoff.delay(now).as_secs());
            let due = backoff.due(now);
            backoff.next(now, due);
            now = due;
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        let long_run = after(now, Duration::from_secs(601));
        assert_eq!(backoff.due(long_run), long_run, "reset after 10 minutes");
        assert_eq!(
            Backoff::after_restarts(2, now).delay(now),
            Duration::from_secs(20),
            "recovered after two restarts"
        );
    }
}
