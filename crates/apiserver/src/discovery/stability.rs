//! Which version of a group is preferred.
//! Guarantees: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, and then all other names in
//! alphabetical order.

use std::cmp::{Ordering, Reverse};

/// How far a version has come; the greatest is the most stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Alpha,
    Beta,
    Final,
}

/// Compares versions; the more stable one comes first.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => Reverse(a).cmp(&Reverse(b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// The parts of a name such as `v1` or `v2beta3`; `None` for any other name.
fn parse(version: &str) -> Option<(Stage, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    for (word, stage) in [("alpha", Stage::Alpha), ("beta", Stage::Beta)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stage, digits(major)?, digits(minor)?));
        }
    }
    Some((Stage::Final, digits(rest)?, 0))
}

fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_are_before_beta_and_alpha() {
        let order = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
            "v1gamma1",
            "v+1",
        ];
        let mut shuffled = order;
        shuffled.reverse();
        shuffled.sort_by(|a, b| compare(a, b));
        let mut expected = order;
        expected[8..].sort_unstable();
        assert_eq!(shuffled, expected);
    }
}
