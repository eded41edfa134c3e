//! Restart back-off of containers (`CrashLoopBackOff`, `ImagePullBackOff`).
//!
//! In: when an instance ended. Out: when the next one may start.
//! Guarantees: the first restart is immediate, the second waits 10 s, doubled up to 5 min or the
//! maximum of the node; the back-off is reset when 10 min have passed since the last restart.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::super::node_simulation::RESTART_PERIOD_MAX;
use super::super::time::after;

const INITIAL_DELAY: Duration = Duration::from_secs(10);
/// Upstream `MaxContainerBackOff`, and the largest maximum of a node.
pub(super) const MAX_DELAY: Duration = RESTART_PERIOD_MAX;

/// The back-off is reset when the last restart is longer ago than this.
const RESET_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// The restart back-off of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// At most [`MAX_DELAY`]; the maximum of the node applies when it is read.
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

    /// The delay of a container that ended at that time, on a node with this maximum.
    pub(crate) fn delay(&self, finished_at: Timestamp, max: Duration) -> Duration {
        let is_reset = self
            .increased_at
            .is_none_or(|increased_at| finished_at.duration_since(increased_at) > RESET_AFTER);
        if is_reset {
            Duration::ZERO
        } else {
            self.delay.min(max)
        }
    }

    /// When a container that ended at that time may start, on a node with this maximum.
    pub(crate) fn due(&self, finished_at: Timestamp, max: Duration) -> Timestamp {
        after(finished_at, self.delay(finished_at, max))
    }

    /// Increases the delay: a container that ended at that time is started again now.
    pub(crate) fn next(&mut self, finished_at: Timestamp, now: Timestamp) {
        if self.delay(finished_at, MAX_DELAY).is_zero() {
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

    /// The delays before 9 starts of a container that ends immediately.
    fn delays(max: Duration) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut delays = Vec::new();
        for _ in 0..9 {
            delays.push(backoff.delay(now, max).as_secs());
            let due = backoff.due(now, max);
            backoff.next(now, due);
            now = due;
        }
        delays
    }

    #[test]
    fn delay_doubles_up_to_the_maximum_of_the_node() {
        for (max, expected) in [
            (300, [0, 10, 20, 40, 80, 160, 300, 300, 300]),
            (100, [0, 10, 20, 40, 80, 100, 100, 100, 100]),
            (4, [0, 4, 4, 4, 4, 4, 4, 4, 4]),
        ] {
            assert_eq!(delays(Duration::from_secs(max)), expected, "{max} s");
        }
    }

    #[test]
    fn delay_is_reset_after_ten_minutes() {
        let start = Timestamp::UNIX_EPOCH;
        let backoff = Backoff::after_restarts(2, start);
        for (run_seconds, expected) in [(0, 20), (600, 20), (601, 0)] {
            let ended = after(start, Duration::from_secs(run_seconds));
            let delay = backoff.delay(ended, MAX_DELAY);
            assert_eq!(delay.as_secs(), expected, "{run_seconds} s");
        }
    }
}
