//! Rate limiter: the delay of a failed key.
//!
//! In: the number of failures of the key, and the time. Out: a delay.
//! Guarantees: the longest of the limits applies; a delay is at most `delay_max` plus jitter, or
//! the time until the bucket has a token.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Rng;

/// Exponential back-off of each key: `first_delay · 2^failures`, at most `delay_max`.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::clock::Rng;
/// use bellerophon::queue::Backoff;
///
/// let backoff = Backoff { delay_max: Duration::from_secs(60), ..Backoff::default() };
/// let rng = Rng::seeded(1);
/// assert_eq!(backoff.delay(0, &rng), Duration::from_millis(5));
/// assert_eq!(backoff.delay(3, &rng), Duration::from_millis(40));
/// assert_eq!(backoff.delay(30, &rng), Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first_delay: Duration,
    /// The longest delay.
    pub delay_max: Duration,
    /// The share of the delay that is added at random: 0 for none, 1 for up to twice the delay.
    /// Default: 0, as in client-go.
    pub jitter: f64,
}

impl Default for Backoff {
    /// 5 ms to 1,000 s without jitter, as in client-go.
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(5),
            delay_max: Duration::from_secs(1000),
            jitter: 0.0,
        }
    }
}

impl Backoff {
    /// The delay of a key with that many earlier failures.
    pub fn delay(&self, failures: u32, rng: &Rng) -> Duration {
        // Mirrors ItemExponentialFailureRateLimiter.
        let factor = 2f64.powi(failures.min(1 << 10) as i32);
        let delay = (self.first_delay.as_secs_f64() * factor).min(self.delay_max.as_secs_f64());
        let spread = if self.jitter > 0.0 {
            1.0 + self.jitter * rng.fraction()
        } else {
            1.0
        };
        Duration::try_from_secs_f64(delay * spread).unwrap_or(self.delay_max)
    }
}

/// A token bucket that limits the retries of all keys of a queue together.
///
/// ```
/// use bellerophon::queue::TokenBucket;
///
/// let bucket = TokenBucket { burst: 20, ..TokenBucket::default() };
/// assert_eq!(bucket.qps, 10.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens added each second.
    pub qps: f64,
    /// The capacity of the bucket: this many retries without a delay.
    pub burst: u32,
}

impl Default for TokenBucket {
    /// 10 a second with a burst of 100, as in client-go.
    fn default() -> Self {
        Self {
            qps: 10.0,
            burst: 100,
        }
    }
}

/// The rate limit of a queue: a failed key is delayed by its back-off or by the token bucket,
/// whichever is longer.
///
/// ```
/// use bellerophon::queue::{QueueOptions, RateLimit, WorkQueue};
///
/// let rate_limit = RateLimit { bucket: None, ..RateLimit::default() };
/// let queue = WorkQueue::<&str>::new(QueueOptions { rate_limit, ..QueueOptions::default() });
/// # drop(queue);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// The back-off of each key; `None`: no back-off.
    pub backoff: Option<Backoff>,
    /// The token bucket of all keys; `None`: no overall limit.
    pub bucket: Option<TokenBucket>,
}

impl Default for RateLimit {
    /// client-go's DefaultControllerRateLimiter: 5 ms to 1,000 s for each key, 10 a second with a
    /// burst of 100 for all keys.
    fn default() -> Self {
        Self {
            backoff: Some(Backoff::default()),
            bucket: Some(TokenBucket::default()),
        }
    }
}

/// The state of a rate limit.
// Mirrors MaxOfRateLimiter over an ItemExponentialFailureRateLimiter and a BucketRateLimiter; the
// failures of a key are in its slot.
#[derive(Debug)]
pub(super) struct RateLimiter {
    limit: RateLimit,
    rng: Rng,
    /// Tokens at `updated_at`; negative if tokens of the future are reserved.
    tokens: f64,
    updated_at: Option<Instant>,
}

impl RateLimiter {
    pub(super) fn new(limit: RateLimit, rng: Rng) -> Self {
        let tokens = limit.bucket.map_or(0.0, |bucket| f64::from(bucket.burst));
        Self {
            limit,
            rng,
            tokens,
            updated_at: None,
        }
    }

    /// The delay of a key with that many earlier failures, whose back-off is `backoff_max` at most.
    /// Always takes a token.
    pub(super) fn delay(
        &mut self,
        failures: u32,
        backoff_max: Option<Duration>,
        now: Instant,
    ) -> Duration {
        let backoff = self
            .limit
            .backoff
            .map_or(Duration::ZERO, |backoff| backoff.delay(failures, &self.rng));
        let backoff = backoff_max.map_or(backoff, |longest| backoff.min(longest));
        backoff.max(self.reserve(now))
    }

    fn reserve(&mut self, now: Instant) -> Duration {
        let Some(bucket) = self.limit.bucket else {
            return Duration::ZERO;
        };
        let elapsed = self
            .updated_at
            .map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.updated_at = Some(now);
        self.tokens =
            // As rate.Limiter.Reserve: the token is taken in advance, and the debt is the delay.
            // Keys that fail together are spread over time instead of being rejected.
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
    fn backoff_doubles_up_to_delay_max() {
        let backoff = Backoff::default();
        let rng = Rng::seeded(1);
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
                backoff.delay(failures, &rng).as_millis(),
                expected_ms,
                "after {failures} failures"
            );
        }
    }

    #[test]
    fn jitter_only_adds_to_the_delay() {
        let backoff = Backoff {
            jitter: 0.5,
            ..Backoff::default()
        };
        let rng = Rng::seeded(1);
        for _ in 0..1000 {
            let delay = backoff.delay(1, &rng).as_secs_f64() * 1000.0;
            assert!((10.0..15.0).contains(&delay), "{delay} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_allows_its_burst_then_its_rate() {
        let mut limiter = RateLimiter::new(
            RateLimit {
                backoff: None,
                bucket: Some(TokenBucket {
                    qps: 10.0,
                    burst: 2,
                }),
            },
            Rng::seeded(1),
        );
        let now = Instant::now();
        let delays: Vec<_> = (0..4)
            .map(|_| limiter.delay(0, None, now).as_millis())
            .collect();
        assert_eq!(delays, [0, 0, 100, 200]);
        assert_eq!(
            limiter.delay(0, None, now + Duration::from_secs(10)),
            Duration::ZERO
        );
    }

    #[tokio::test(start_paused = true)]
    async fn longest_limit_applies() {
        let mut limiter = RateLimiter::new(
            RateLimit {
                backoff: Some(Backoff::default()),
                bucket: Some(TokenBucket { qps: 1.0, burst: 1 }),
            },
            Rng::seeded(1),
        );
        let now = Instant::now();
        assert_eq!(limiter.delay(0, None, now), Duration::from_millis(5));
        assert_eq!(limiter.delay(0, None, now), Duration::from_secs(1));
        assert_eq!(limiter.delay(12, None, now), Duration::from_millis(20_480));
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_applies_to_a_bounded_backoff() {
        let mut limiter = RateLimiter::new(
            RateLimit {
                backoff: Some(Backoff::default()),
                bucket: Some(TokenBucket { qps: 1.0, burst: 7 }),
            },
            Rng::seeded(1),
        );
        let now = Instant::now();
        let longest = Some(Duration::from_secs(5));
        assert_eq!(limiter.delay(0, longest, now), Duration::from_millis(5));
        for _ in 0..6 {
            assert_eq!(limiter.delay(20, longest, now), Duration::from_secs(5));
        }
        for _ in 0..5 {
            limiter.delay(20, longest, now);
        }
        assert_eq!(limiter.delay(20, longest, now), Duration::from_secs(6));
    }
}
