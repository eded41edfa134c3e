//! Cost limits of the rules of a definition.
//! In: estimates of single expressions, and how often each may run. Out: the rules above a limit,
//! and by how much.
//! Guarantees: arithmetic saturates; a definition is rejected for the sum of its rules even if each
//! of them is cheap.

use bellerophon_cel::Program;

use super::shape::REQUEST_MAX;

/// The cost limit of one expression over all values it may run for.
pub(super) const EXPRESSION_MAX: u64 = 10_000_000;
/// The cost limit of all expressions of a schema.
const SCHEMA_MAX: u64 = 100_000_000;
/// How many of the most expensive are named.
const NAMED_MAX: usize = 4;

/// How often data of a schema may occur in an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Times {
    AtMost(u64),
    /// As often as it fits into a request.
    Unbounded,
}

impl Times {
    /// Inside of something that holds this many.
    pub(super) fn by(self, more: Self) -> Self {
        match (self, more) {
            (Self::AtMost(a), Self::AtMost(b)) => Self::AtMost(a.saturating_mul(b)),
            _ => Self::Unbounded,
        }
    }

    /// The maximum cost of a rule for data of at least this many bytes.
    pub(super) fn cost_of(self, program: Option<&Program>, bytes_min: u64) -> u64 {
        let times = match self {
            Self::AtMost(times) => times,
            Self::Unbounded => REQUEST_MAX / (bytes_min + 1),
        };
        program.map_or(0, |program| program.cost().max.saturating_mul(times))
    }
}

/// The error of a cost above its limit.
pub(super) fn excess(what: &str, cost: u64, limit: u64) -> Option<String> {
    if cost <= limit {
        return None;
    }
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    let advice = "try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared";
    Some(format!(
        "{what} exceeds budget by factor of {factor} ({advice})"
    ))
}

/// The cost of all expressions of a schema.
#[derive(Debug, Default)]
pub(super) struct Total {
    sum: u64,
    /// The places of the most expensive, most expensive first. At most [`NAMED_MAX`].
    most: Vec<(u64, String)>,
}

impl Total {
    pub(super) fn add(&mut self, path: String, cost: u64) {
        self.sum = self.sum.saturating_add(cost);
        if cost >= SCHEMA_MAX / 100 {
            let at = self.most.partition_point(|(other, _)| *other >= cost);
            self.most.insert(at, (cost, path));
            self.most.truncate(NAMED_MAX);
        }
    }

    /// The error of the sum, and the paths that contributed most.
    pub(super) fn excess(self) -> Option<(String, Vec<String>)> {
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let problem = excess(what, self.sum, SCHEMA_MAX)?;
        Some((
            problem,
            self.most.into_iter().map(|(_, path)| path).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_is_reported_by_its_factor() {
        for (cost, factor) in [
            (10_000_001, "1.000000x"),
            (14_000_000, "1.400000x"),
            (15_000_000, "1.5x"),
            (999_000_000, "99.9x"),
        ] {
            let text = excess("cost", cost, EXPRESSION_MAX).expect("too much");
            assert!(text.contains(&format!("by factor of {factor} (")), "{text}");
        }
        assert!(
            excess("cost", u64::MAX, EXPRESSION_MAX)
                .expect("too much")
                .contains("more than 100x")
        );
        assert_eq!(excess("cost", EXPRESSION_MAX, EXPRESSION_MAX), None);
    }

    #[test]
    fn four_most_expensive_places_are_named() {
        let mut total = Total::default();
        for (i, cost) in [
            2_000_000, 50_000_000, 900_000, 60_000_000, 3_000_000, 40_000_000,
        ]
        .into_iter()
        .enumerate()
        {
            total.add(format!("r{i}"), cost);
        }
        assert_eq!(
            total.excess().expect("too much").1,
            ["r3", "r1", "r5", "r4"]
        );
    }
}
