//! Back-off of failed daemons: a node that refuses a pod is not asked again and again.
//!
//! In: a failed pod on a node. Out: replace it now, or wait so long.
//! Holds: delays double from a second to 15 minutes and start afresh after twice that; at most [`NODES_MAX`] are remembered,
//! and of more the one asked longest ago is forgotten, which costs one replacement too early. A restart forgets them all.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// How many nodes of sets are remembered.
const NODES_MAX: usize = 10_000;

/// One node of one generation of a set.
pub(super) type Spot = (String, i64, String);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    spots: HashMap<Spot, (Duration, Instant)>,
}

impl Backoff {
    /// How long to wait with a spot; `None` notes that its pod is replaced now.
    pub(super) fn hold_back(&mut self, spot: Spot, now: Instant) -> Option<Duration> {
        let known = self
            .spots
            .get(&spot)
            .copied()
            .filter(|(_, since)| now.duration_since(*since) <= 2 * LONGEST);
        if let Some((delay, since)) = known
            && let Some(left) = delay
                .checked_sub(now.duration_since(since))
                .filter(|left| !left.is_zero())
        {
            return Some(left);
        }
        if self.spots.len() >= NODES_MAX && !self.spots.contains_key(&spot) {
            self.forget_one(now);
        }
        let delay = known.map_or(FIRST, |(delay, _)| (delay * 2).min(LONGEST));
        self.spots.insert(spot, (delay, now));
        None
    }

    fn forget_one(&mut self, now: Instant) {
        self.spots
            .retain(|_, (_, since)| now.duration_since(*since) <= 2 * LONGEST);
        if self.spots.len() >= NODES_MAX
            && let Some(oldest) = self
                .spots
                .iter()
                .min_by_key(|(_, (_, since))| *since)
                .map(|(spot, _)| spot.clone())
        {
            self.spots.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_double_and_start_afresh() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        let mut ask = |second: u64| {
            backoff
                .hold_back(
                    ("u".into(), 1, "n".into()),
                    start + Duration::from_secs(second),
                )
                .map(|wait| wait.as_secs())
        };
        assert_eq!(ask(0), None);
        assert_eq!(ask(0), Some(1));
        assert_eq!(ask(1), None);
        assert_eq!(ask(2), Some(1));
        assert_eq!(ask(3), None);
        assert_eq!(ask(4), Some(3));
        assert_eq!(ask(3 + 31 * 60), None);
        assert_eq!(ask(3 + 31 * 60), Some(1), "afresh");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        for index in 0..NODES_MAX + 5 {
            backoff.hold_back(("u".into(), 1, index.to_string()), now);
        }
        assert_eq!(backoff.spots.len(), NODES_MAX);
    }
}
