//! `Retry-After`: when rejected clients come back, and what happens to those that come earlier.
//! In: rejections of a priority level and of its flows. Out: seconds to wait, and flows that do not
//! wait.
//! Guarantees: seconds are those of kube-apiserver's `DroppedRequestsTracker`, between 1 and 32; a
//! bounded number of flows is remembered.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

const SECONDS_MAX: u64 = 32;

/// The adaptive `Retry-After` of a priority level. Times are whole seconds of any clock that has
/// run for at least 32 of them.
#[derive(Debug)]
pub(super) struct RetryAfter {
    seconds: u64,
    /// When `seconds` was last raised.
    raised: u64,
    /// The second of the last rejection, and how many there were in it.
    current: (u64, u64),
    /// The seconds before `current` and their rejections, oldest first; as many seconds as can
    /// matter.
    history: VecDeque<(u64, u64)>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            seconds: 1,
            raised: 0,
            current: (0, 0),
            history: VecDeque::new(),
        }
    }
}

impl RetryAfter {
    /// How long clients should wait.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Counts a rejection. `seconds` changes at most once per second, by the rejections before it.
    pub(super) fn record(&mut self, now: u64) {
        if self.current.0 == now {
            self.current.1 += 1;
            return;
        }
        self.history.push_back(self.current);
        let kept = (2 * self.seconds).min(SECONDS_MAX);
        while self
            .history
            .front()
            .is_some_and(|(second, _)| self.current.0 - second > kept)
        {
            self.history.pop_front();
        }
        self.current = (now, 1);
        self.adjust(now);
    }

    /// Mirrors `updateRetryAfterIfNeededLocked`: three rejections per second double the time, at
    /// most once within it; fewer than one shorten it by a second.
    fn adjust(&mut self, now: u64) {
        let seconds = self.seconds;
        let rejected: u64 = self
            .history
            .iter()
            .filter(|(second, _)| now - second <= seconds)
            .map(|(_, rejected)| rejected)
            .sum();
        if now - self.raised >= seconds && rejected >= 3 * seconds {
            self.seconds = (2 * seconds).min(SECONDS_MAX);
            self.raised = now;
        } else if rejected < seconds && seconds > 1 {
            self.seconds -= 1;
        }
    }
}

/// How much later than others a flow is answered that does not wait.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// How many answers are held back; others are not.
const LATE_MAX: usize = 16 << 10;

/// How many flows are remembered; rejections of others are answered without delay.
const FLOWS_MAX: usize = 4096;

/// Requests that were sent concurrently with the rejected one arrive within this time.
const CONCURRENT: Duration = Duration::from_millis(100);

/// Flows that were rejected and are due to wait.
#[derive(Debug, Default)]
pub(super) struct RejectedFlows {
    /// When the flow was rejected, and the end of its `Retry-After`, by its hash.
    flows: BTreeMap<u64, (Instant, Instant)>,
    held: usize,
}

impl RejectedFlows {
    /// Records a rejection with its `Retry-After`. Whether the answer is held back, since the flow
    /// was rejected before and has not waited; then [`RejectedFlows::answered`] is due.
    pub(super) fn hold(&mut self, flow: u64, now: Instant, seconds: u64) -> bool {
        let until = now + Duration::from_secs(seconds);
        let early = match self.flows.get_mut(&flow) {
            Some((rejected, waits_until)) if now < *waits_until => {
                let early = now - *rejected >= CONCURRENT;
                if early {
                    *waits_until = until;
                }
                early
            }
            Some(known) => {
                *known = (now, until);
                false
            }
            None => {
                if self.flows.len() >= FLOWS_MAX {
                    self.flows.retain(|_, (_, waits_until)| now < *waits_until);
                }
                if self.flows.len() < FLOWS_MAX {
                    self.flows.insert(flow, (now, until));
                }
                false
            }
        };
        let held = early && self.held < LATE_MAX;
        self.held += usize::from(held);
        held
    }

    /// An answer is no longer held back.
    pub(super) fn answered(&mut self) {
        self.held -= 1;
    }

    /// How many answers are held back.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_doubles_under_rejections_and_falls_back() {
        let mut retry = RetryAfter::default();
        let mut now = 1000;
        let mut seen = vec![retry.seconds()];
        while retry.seconds() < SECONDS_MAX {
            for _ in 0..3 {
                retry.record(now);
            }
            now += 1;
            if seen.last() != Some(&retry.seconds()) {
                seen.push(retry.seconds());
            }
            assert!(now < 1200, "{seen:?}");
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 32]);
        for _ in 0..200 {
            for _ in 0..3 {
                retry.record(now);
            }
            now += 1;
        }
        assert_eq!(retry.seconds(), 32, "it does not grow further");
        for expected in (1..32).rev() {
            now += 100;
            retry.record(now);
            assert_eq!(retry.seconds(), expected);
        }
        retry.record(now + 100);
        assert_eq!(retry.seconds(), 1);
    }

    #[test]
    fn few_rejections_change_nothing() {
        let mut retry = RetryAfter::default();
        for now in 1000..1100 {
            retry.record(now);
            retry.record(now);
            assert_eq!(retry.seconds(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn flow_that_retries_early_is_delayed() {
        let start = Instant::now();
        let mut flows = RejectedFlows::default();
        assert!(!flows.hold(1, start, 2), "the first rejection");
        assert!(
            !flows.hold(1, start + CONCURRENT / 2, 2),
            "sent concurrently"
        );
        assert!(
            flows.hold(1, start + Duration::from_secs(1), 2),
            "too early"
        );
        assert!(
            !flows.hold(2, start + Duration::from_secs(1), 2),
            "another flow"
        );
        assert!(
            !flows.hold(1, start + Duration::from_secs(3), 2),
            "it has waited"
        );
        assert_eq!(flows.held(), 1);
        flows.answered();
        assert_eq!(flows.held(), 0);
        let mut now = start + Duration::from_secs(10);
        flows.hold(3, now, 1);
        for _ in 0..10 {
            now += Duration::from_millis(900);
            assert!(flows.hold(3, now, 1), "it never waits");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn held_answers_and_flows_are_bounded() {
        let start = Instant::now();
        let mut flows = RejectedFlows::default();
        for flow in 0..2 * FLOWS_MAX as u64 {
            flows.hold(flow, start, 1);
        }
        assert_eq!(flows.flows.len(), FLOWS_MAX);
        let early = start + Duration::from_millis(500);
        let held = (0..2 * LATE_MAX as u64)
            .filter(|number| flows.hold(number % FLOWS_MAX as u64, early, 1))
            .count();
        assert_eq!(held, LATE_MAX);
        flows.hold(u64::MAX, start + Duration::from_secs(9), 1);
        assert_eq!(
            flows.flows.len(),
            1,
            "flows that may come back are forgotten"
        );
    }
}
