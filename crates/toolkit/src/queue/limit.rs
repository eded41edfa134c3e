//! Rate limits: how long a failed key waits.
//!
//! In: how often the key failed, and the time. Out: a delay.
//! Holds: the longest of the limits wins; a key's delay never exceeds its back-off's ceiling plus the bucket's debt.

use std::time::Duration;

use tokio::time::Instant;

use crate::Entropy;

/// Per-key exponential back-off: `first_delay · 2^failures`, up to `delay_max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first_delay: Duration,
    /// The longest delay.
    pub delay_max: Duration,
    /// The share of the delay that may be added at random: 0 for none (client-go), 1 for up to twice the delay.
    pub jitter: f64,
}

impl Default for Backoff {
    /// 5 ms to 1000 s without jitter, as client-go has it.
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(5),
            delay_max: Duration::from_secs(1000),
            jitter: 0.0,
        }
    }
}

impl Backoff {
    /// The delay of a key that failed `failures` times before this one.
    pub fn delay(&self, failures: u32, entropy: &Entropy) -> Duration {
        let doubled = 2f64.powi(failures.min(1 << 10) as i32);
        let delay = (self.first_delay.as_secs_f64() * doubled).min(self.delay_max.as_secs_f64());
        let spread = if self.jitter > 0.0 {
            1.0 + self.jitter * entropy.fraction()
        } else {
            1.0
        };
        Duration::try_from_secs_f64(delay * spread).unwrap_or(self.delay_max)
    }
}

/// An overall bucket of retries: `burst` at once, then `qps` a second, for all keys together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Tokens that come back each second.
    pub qps: f64,
    /// Tokens when full.
    pub burst: u32,
}

impl Default for Bucket {
    /// 10 a second, 100 at once, as client-go has it.
    fn default() -> Self {
        Self {
            qps: 10.0,
            burst: 100,
        }
    }
}

/// What a failed key waits for: the longest of its own back-off and the overall bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// The back-off of each key; none means no delay of its own.
    pub backoff: Option<Backoff>,
    /// The bucket all keys share; none means no overall limit.
    pub bucket: Option<Bucket>,
}

impl Default for RateLimit {
    /// client-go's default controller limit: 5 ms to 1000 s per key, 10 a second with a burst of 100 over all.
    fn default() -> Self {
        Self {
            backoff: Some(Backoff::default()),
            bucket: Some(Bucket::default()),
        }
    }
}

/// A rate limit at work.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: RateLimit,
    entropy: Entropy,
    /// Tokens at `counted_at`; negative is what later callers have reserved ahead.
    tokens: f64,
    counted_at: Option<Instant>,
}

impl Limiter {
    pub(super) fn new(limit: RateLimit, entropy: Entropy) -> Self {
        let tokens = limit.bucket.map_or(0.0, |bucket| f64::from(bucket.burst));
        Self {
            limit,
            entropy,
            tokens,
            counted_at: None,
        }
    }

    /// The delay of a key with that many earlier failures. Takes a token whichever limit dominates.
    pub(super) fn delay(&mut self, failures: u32, now: Instant) -> Duration {
        let own = self.limit.backoff.map_or(Duration::ZERO, |backoff| {
            backoff.delay(failures, &self.entropy)
        });
        own.max(self.reserve(now))
    }

    fn reserve(&mut self, now: Instant) -> Duration {
        let Some(bucket) = self.limit.bucket else {
            return Duration::ZERO;
        };
        let elapsed = self
            .counted_at
            .map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.counted_at = Some(now);
        self.tokens =
            (self.tokens + elapsed.as_secs_f64() * bucket.qps).min(f64::from(bucket.burst)) - 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / bucket.qps).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_ceiling() {
        let backoff = Backoff::default();
        let entropy = Entropy::seeded(1);
        for (failures, expected_ms) in [
            (0, 5),
            (1, 10),
            (2, 20),
            (10, 5_120),
            (17, 655_360),
            (18, 1_000_000),
            (40, 1_000_000),
            (u32::MAX, 1_000_000),
        ] {
            assert_eq!(
                backoff.delay(failures, &entropy).as_millis(),
                expected_ms,
                "after {failures} failures"
            );
        }
    }

    #[test]
    fn jitter_spreads_upwards_only() {
        let backoff = Backoff {
            jitter: 0.5,
            ..Backoff::default()
        };
        let entropy = Entropy::seeded(1);
        for _ in 0..1000 {
            let delay = backoff.delay(1, &entropy).as_secs_f64() * 1000.0;
            assert!((10.0..15.0).contains(&delay), "{delay} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_gives_its_burst_then_its_rate() {
        let mut limiter = Limiter::new(
            RateLimit {
                backoff: None,
                bucket: Some(Bucket {
                    qps: 10.0,
                    burst: 2,
                }),
            },
            Entropy::seeded(1),
        );
        let now = Instant::now();
        let delays: Vec<_> = (0..4).map(|_| limiter.delay(0, now).as_millis()).collect();
        assert_eq!(delays, [0, 0, 100, 200]);
        assert_eq!(
            limiter.delay(0, now + Duration::from_secs(10)),
            Duration::ZERO
        );
    }

    #[tokio::test(start_paused = true)]
    async fn longest_limit_wins() {
        let mut limiter = Limiter::new(
            RateLimit {
                backoff: Some(Backoff::default()),
                bucket: Some(Bucket { qps: 1.0, burst: 1 }),
            },
            Entropy::seeded(1),
        );
        let now = Instant::now();
        assert_eq!(limiter.delay(0, now), Duration::from_millis(5));
        assert_eq!(limiter.delay(0, now), Duration::from_secs(1));
        assert_eq!(limiter.delay(12, now), Duration::from_millis(20_480));
    }
}
