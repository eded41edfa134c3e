//! Back-off of one reflector: how long to rest after how many failures.
//! In: failures in a row. Out: a delay, before jitter.
//! Holds: it grows from 0.8 s to 30 s and is nobody else's.

use std::time::Duration;

use crate::clock::Entropy;

const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);

/// The delay after this many failures in a row; never shorter than what the server asked for, which is believed up to
/// the longest delay.
pub(crate) fn delay(failures: u32, retry_after: Option<Duration>) -> Duration {
    let grown = FIRST.saturating_mul(
        1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX),
    );
    grown.max(retry_after.unwrap_or_default()).min(MAX)
}

/// Spreads delays over once to twice their length, so that those who failed together do not return together.
pub(crate) fn jittered(delay: Duration, entropy: &Entropy) -> Duration {
    delay.mul_f64(1.0 + entropy.fraction())
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
    fn those_who_fail_together_return_apart() {
        let entropy = Entropy::seeded(1);
        let delays: Vec<_> = (0..100).map(|_| jittered(FIRST, &entropy)).collect();
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
