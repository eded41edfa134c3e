//! Pace: how often a very large set is looked at while only the health of its pods changes.
//!
//! In: sets that were looked at. Out: how long to wait with the next look.
//! Holds: a set with more than [`LARGE`] pods, all there, is counted four times a second at most: tens of thousands of pods
//! that become ready would otherwise be counted from the start for each of them. Sets that must create or delete never wait.
//! Only such sets are remembered, and a restart forgets them, which costs one look too many.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use tokio::time::Instant;

/// How many pods make a set very large.
const LARGE: usize = 1000;

/// How often such a set is counted.
const INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<HashMap<ObjectKey, Instant>>);

impl Pace {
    /// How long to wait with the next look; `None` if not at all.
    pub(super) fn wait(&self, key: &ObjectKey, now: Instant) -> Option<Duration> {
        let last = *self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)?;
        INTERVAL
            .checked_sub(now.duration_since(last))
            .filter(|wait| !wait.is_zero())
    }

    /// A set of so many pods was looked at, and is or is not as wanted.
    pub(super) fn looked(&self, key: &ObjectKey, is_complete: bool, pods: usize, now: Instant) {
        if is_complete && pods > LARGE {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(key.clone(), now);
        } else {
            self.forget(key);
        }
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_large_and_complete_sets_wait() {
        let pace = Pace::default();
        let key = ObjectKey::namespaced("default", "web");
        let now = Instant::now();
        for (is_complete, pods, waits) in [
            (true, 10, false),
            (false, 5000, false),
            (true, 5000, true),
            (false, 5000, false),
        ] {
            pace.looked(&key, is_complete, pods, now);
            assert_eq!(
                pace.wait(&key, now + Duration::from_millis(100)).is_some(),
                waits,
                "{is_complete} {pods}"
            );
        }
        pace.looked(&key, true, 5000, now);
        assert_eq!(
            pace.wait(&key, now + Duration::from_millis(100)),
            Some(Duration::from_millis(150))
        );
        assert_eq!(pace.wait(&key, now + INTERVAL), None);
        pace.forget(&key);
        assert_eq!(pace.wait(&key, now), None);
    }
}
