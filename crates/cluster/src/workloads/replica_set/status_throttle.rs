//! Status throttle: limits how often a very large ReplicaSet is reconciled while only the status of
//! its pods changes.
//!
//! Input: finished reconciles. Output: delay of the next one.
//! Guarantees: a set with more than [`LARGE`] pods and nothing to create or delete is reconciled at
//! most every [`INTERVAL`]; otherwise each of its pods that becomes ready would cost a count over
//! all of them. A set that has to create or delete pods is never delayed. State is in memory; its
//! loss costs one extra reconcile.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use tokio::time::Instant;

/// Number of pods above which a set is throttled.
const LARGE: usize = 1000;

/// Minimum interval between two reconciles of such a set.
const INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
/// Time of the last reconcile of each throttled set.
pub(super) struct StatusThrottle(Mutex<HashMap<ObjectKey, Instant>>);

impl StatusThrottle {
    /// Delay of the next reconcile; `None` if there is none.
    pub(super) fn delay(&self, key: &ObjectKey, now: Instant) -> Option<Duration> {
        let last = *self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)?;
        INTERVAL
            .checked_sub(now.duration_since(last))
            .filter(|delay| !delay.is_zero())
    }

    /// Records a reconcile. `is_complete` means that there was nothing to create or delete.
    pub(super) fn reconciled(&self, key: &ObjectKey, is_complete: bool, pods: usize, now: Instant) {
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
    async fn only_large_complete_sets_are_delayed() {
        let throttle = StatusThrottle::default();
        let key = ObjectKey::namespaced("default", "web");
        let now = Instant::now();
        for (is_complete, pods, delayed) in [
            (true, 10, false),
            (false, 5000, false),
            (true, 5000, true),
            (false, 5000, false),
        ] {
            throttle.reconciled(&key, is_complete, pods, now);
            assert_eq!(
                throttle
                    .delay(&key, now + Duration::from_millis(100))
                    .is_some(),
                delayed,
                "{is_complete} {pods}"
            );
        }
        throttle.reconciled(&key, true, 5000, now);
        assert_eq!(
            throttle.delay(&key, now + Duration::from_millis(100)),
            Some(Duration::from_millis(150))
        );
        assert_eq!(throttle.delay(&key, now + INTERVAL), None);
        throttle.forget(&key);
        assert_eq!(throttle.delay(&key, now), None);
    }
}
