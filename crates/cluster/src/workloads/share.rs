//! Shares: numbers that people give as they are or in percent.
//!
//! In: `3` or `"25%"`, of how many. Out: a number of pods.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Where the fraction of a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Up,
    Down,
}

/// So many of `total`. What is no number and no percentage, which the server refuses, is none.
pub(crate) fn share(of: Option<&IntOrString>, total: i32, round: Round) -> i32 {
    let percent = match of {
        None => return 0,
        Some(IntOrString::Int(number)) => return *number,
        Some(IntOrString::String(text)) => text
            .strip_suffix('%')
            .and_then(|percent| percent.parse::<i64>().ok())
            .unwrap_or(0),
    };
    let hundredths = percent * i64::from(total);
    let whole = match round {
        Round::Up => hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) != 0),
        Round::Down => hundredths.div_euclid(100),
    };
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// How many pods more and how many fewer than `total` an update may have, never neither: it could not move.
pub(crate) fn fenceposts(
    max_surge: Option<&IntOrString>,
    max_unavailable: Option<&IntOrString>,
    total: i32,
) -> (i32, i32) {
    match (
        share(max_surge, total, Round::Up),
        share(max_unavailable, total, Round::Down),
    ) {
        (0, 0) => (0, 1),
        posts => posts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> IntOrString {
        text.parse()
            .map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int)
    }

    #[test]
    fn share_is_rounded_the_way_it_is_meant() {
        for (of, total, up, down) in [
            ("3", 10, 3, 3),
            ("25%", 10, 3, 2),
            ("0%", 10, 0, 0),
            ("100%", 7, 7, 7),
            ("1%", 1, 1, 0),
            ("33%", 0, 0, 0),
            ("what", 5, 0, 0),
        ] {
            let of = read(of);
            assert_eq!(share(Some(&of), total, Round::Up), up, "{of:?} of {total}");
            assert_eq!(
                share(Some(&of), total, Round::Down),
                down,
                "{of:?} of {total}"
            );
        }
    }

    #[test]
    fn update_can_always_move() {
        for (surge, unavailable, total, posts) in [
            ("0", "1%", 2, (0, 1)),
            ("0%", "1%", 1, (0, 1)),
            ("1%", "25%", 2, (1, 0)),
            ("25%", "25%", 10, (3, 2)),
            ("0", "0", 5, (0, 1)),
        ] {
            assert_eq!(
                fenceposts(Some(&read(surge)), Some(&read(unavailable)), total),
                posts,
                "{surge} {unavailable} of {total}"
            );
        }
    }
}
