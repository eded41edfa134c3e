//! Back-off: how long a container that failed waits for its next start.
//!
//! In: when a run ended. Out: when the next one may begin.
//! Holds: the first restart is at once, then 10 s, doubled each time up to 5 min; a run of 10 min starts it afresh.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::super::simulated::after;

const FIRST: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// A container whose last restart is longer ago than this has proved itself.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// How long the next start waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    delay: Duration,
    /// When the delay was last raised.
    raised: Option<Timestamp>,
}

impl Backoff {
    /// The state after so many restarts, for a kubelet that did not see them.
    pub(crate) fn after_restarts(restarts: i32, raised: Timestamp) -> Self {
        let mut backoff = Self::default();
        // Beyond the longest delay nothing changes.
        (0..restarts.min(8)).for_each(|_| backoff.raise(raised));
        backoff
    }

    /// How long a container waits that ended at `ended`.
    pub(crate) fn delay(&self, ended: Timestamp) -> Duration {
        let forgotten = self
            .raised
            .is_none_or(|raised| ended.duration_since(raised) > FORGOTTEN_AFTER);
        if forgotten {
            Duration::ZERO
        } else {
            self.delay
        }
    }

    /// When a container may start that ended at `ended`.
    pub(crate) fn due(&self, ended: Timestamp) -> Timestamp {
        after(ended, self.delay(ended))
    }

    /// A container that ended at `ended` is started again now.
    pub(crate) fn next(&mut self, ended: Timestamp, now: Timestamp) {
        if self.delay(ended).is_zero() {
            self.delay = Duration::ZERO;
        }
        self.raise(now);
    }

    fn raise(&mut self, now: Timestamp) {
        self.delay = if self.delay.is_zero() {
            FIRST
        } else {
            (self.delay * 2).min(MAX)
        };
        self.raised = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_loop_waits_twice_as_long_each_time() {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(backoff.delay(now).as_secs());
            let due = backoff.due(now);
            backoff.next(now, due);
            now = due;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        let long_run = after(now, Duration::from_secs(601));
        assert_eq!(
            backoff.due(long_run),
            long_run,
            "a long run starts it afresh"
        );
        assert_eq!(
            Backoff::after_restarts(2, now).delay(now),
            Duration::from_secs(20),
            "as if it had been there"
        );
    }
}
