//! Absolute numbers of `IntOrString` fields such as `maxUnavailable: 25%`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Rounding of a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Up,
    Down,
}

/// The number, or the percentage of `total`. Absent and malformed values, which validation rejects,
/// are 0. Mirrors GetScaledValueFromIntOrPercent.
pub(crate) fn scaled_value(value: Option<&IntOrString>, total: i32, round: Round) -> i32 {
    let percent = match value {
        None => return 0,
        Some(IntOrString::Int(number)) => return *number,
        Some(IntOrString::String(text)) => text
            .strip_suffix('%')
            .and_then(|percent| percent.parse::<i64>().ok())
            .unwrap_or(0),
    };
    // In 64 bits: 100 % of i32::MAX does not fit into 32.
    let hundredths = percent * i64::from(total);
    let whole = match round {
        Round::Up => hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) != 0),
        Round::Down => hundredths.div_euclid(100),
    };
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// Absolute `(maxSurge, maxUnavailable)` of a rolling update. They are never both 0, because the
/// update could not proceed. Mirrors ResolveFenceposts.
pub(crate) fn resolve_fenceposts(
    max_surge: Option<&IntOrString>,
    max_unavailable: Option<&IntOrString>,
    total: i32,
) -> (i32, i32) {
    match (
        // Surge is rounded up and unavailability down, so that rounding does not reduce
        // availability.
        scaled_value(max_surge, total, Round::Up),
        scaled_value(max_unavailable, total, Round::Down),
    ) {
        (0, 0) => (0, 1),
        fenceposts => fenceposts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> IntOrString {
        text.parse()
            .map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int)
    }

    #[test]
    fn percentages_are_rounded_up_or_down() {
        for (value, total, up, down) in [
            ("3", 10, 3, 3),
            ("25%", 10, 3, 2),
            ("0%", 10, 0, 0),
            ("100%", 7, 7, 7),
            ("1%", 1, 1, 0),
            ("33%", 0, 0, 0),
            ("what", 5, 0, 0),
        ] {
            let value = parse(value);
            assert_eq!(
                scaled_value(Some(&value), total, Round::Up),
                up,
                "{value:?} of {total}"
            );
            assert_eq!(
                scaled_value(Some(&value), total, Round::Down),
                down,
                "{value:?} of {total}"
            );
        }
    }

    #[test]
    fn surge_and_unavailable_are_never_both_zero() {
        for (surge, unavailable, total, fenceposts) in [
            ("0", "1%", 2, (0, 1)),
            ("0%", "1%", 1, (0, 1)),
            ("1%", "25%", 2, (1, 0)),
            ("25%", "25%", 10, (3, 2)),
            ("0", "0", 5, (0, 1)),
        ] {
            assert_eq!(
                resolve_fenceposts(Some(&parse(surge)), Some(&parse(unavailable)), total),
                fenceposts,
                "{surge} {unavailable} of {total}"
            );
        }
    }
}
