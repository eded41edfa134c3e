//! Back-off of one reflector: the delay after a number of failures.
//! In: failures in a row. Out: a delay, before jitter.
//! Guarantees: it grows from 0.8 s to 30 s, as in client-go, and is shared with no other reflector.

use std::time::Duration;

use crate::clock::Rng;

/// The delay after the first failure.
pub(super) const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);

/// The delay after this many failures in a row; never shorter than the server's Retry-After, which
/// is followed up to the longest delay.
pub(crate) fn delay(failures: u32, retry_after: Option<Duration>) -> Duration {
    let grown = FIRST.saturating_mul(
        1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX),
    );
    grown.max(retry_after.unwrap_or_default()).min(MAX)
}

/// Spreads delays over one to two times their length, so that reflectors that failed together do
/// not retry together.
pub(crate) fn jittered(delay: Duration, rng: &Rng) -> Duration {
    delay.mul_f64(1.0 + rng.fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit() {
        let millis = |failures| delay(failures, None).as_millis();
        assert_eq!(
            [1, 2, 3, 6, 7, 99].map(millis),
            [800, 1600, 3200, 25_600, 30_000, 30_000]
        );
        assert_eq!(
            delay(1, Some(Duration::from_secs(5))),
            Duration::from_secs(5)
        );
        assert_eq!(delay(1, Some(Duration::from_secs(500))), MAX);
    }

    #[test]
    fn reflectors_that_fail_together_retry_apart() {
        let rng = Rng::seeded(1);
        let delays: Vec<_> = (0..100).map(|_| jittered(FIRST, &rng)).collect();
        assert!(
            delays
                .iter()
                .all(|delay| (FIRST..2 * FIRST).contains(delay))
        );
        assert!(
            delays
                .windows(2)
                .any(|pair| pair[0].abs_diff(pair[1]) > FIRST / 2),
            "{delays:?}"
        );
    }
}
