//! Back-off of failed daemon pods, as upstream's failedPodsBackoff.
//!
//! Input: a failed pod on a node. Output: replace it now, or the remaining delay.
//! Guarantees: delays double from [`INITIAL_DELAY`] to [`MAX_DELAY`] and reset after twice the
//! maximum; at most [`ENTRIES_MAX`] entries are kept, beyond that the oldest is dropped, which
//! costs one early replacement. State is in memory.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

const INITIAL_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// Maximum number of entries.
const ENTRIES_MAX: usize = 10_000;

/// DaemonSet uid, observed generation and node name. Mirrors failedPodsBackoffKey.
pub(super) type BackoffKey = (String, i64, String);

#[derive(Debug, Default)]
pub(super) struct FailedPodsBackoff {
    /// Delay and time of the last replacement.
    entries: HashMap<BackoffKey, (Duration, Instant)>,
}

impl FailedPodsBackoff {
    /// The remaining delay. `None` means that the pod is replaced now, and starts the next delay.
    pub(super) fn remaining_or_start(&mut self, key: BackoffKey, now: Instant) -> Option<Duration> {
        // Mirrors hasExpired in client-go util/flowcontrol/backoff.go: an entry expires after twice
        // the maximum delay.
        let current = self
            .entries
            .get(&key)
            .copied()
            .filter(|(_, since)| now.duration_since(*since) <= 2 * MAX_DELAY);
        if let Some((delay, since)) = current
            && let Some(left) = delay
                .checked_sub(now.duration_since(since))
                .filter(|left| !left.is_zero())
        {
            return Some(left);
        }
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&key) {
            self.evict(now);
        }
        let delay = current.map_or(INITIAL_DELAY, |(delay, _)| (delay * 2).min(MAX_DELAY));
        self.entries.insert(key, (delay, now));
        None
    }

    /// Drops expired entries, or the oldest one if none is expired.
    fn evict(&mut self, now: Instant) {
        self.entries
            .retain(|_, (_, since)| now.duration_since(*since) <= 2 * MAX_DELAY);
        if self.entries.len() >= ENTRIES_MAX
            && let Some(oldest) = self
                .entries
                .iter()
                .min_by_key(|(_, (_, since))| *since)
                .map(|(key, _)| key.clone())
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_double_and_reset() {
        let mut backoff = FailedPodsBackoff::default();
        let start = Instant::now();
        let mut remaining = |second: u64| {
            backoff
                .remaining_or_start(
                    ("u".into(), 1, "n".into()),
                    start + Duration::from_secs(second),
                )
                .map(|wait| wait.as_secs())
        };
        assert_eq!(remaining(0), None);
        assert_eq!(remaining(0), Some(1));
        assert_eq!(remaining(1), None);
        assert_eq!(remaining(2), Some(1));
        assert_eq!(remaining(3), None);
        assert_eq!(remaining(4), Some(3));
        assert_eq!(remaining(3 + 31 * 60), None);
        assert_eq!(remaining(3 + 31 * 60), Some(1), "reset");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_entries_is_bounded() {
        let mut backoff = FailedPodsBackoff::default();
        let now = Instant::now();
        for index in 0..ENTRIES_MAX + 5 {
            backoff.remaining_or_start(("u".into(), 1, index.to_string()), now);
        }
        assert_eq!(backoff.entries.len(), ENTRIES_MAX);
    }
}
