//! Rules: a policy, read once, that can be asked.
//!
//! In: a RebootPolicy, or none. Out: which nodes it counts for, how many may be away, whether a window is open.
//! Holds: a policy that cannot be read selects every node it might mean and allows nothing.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::{
    policy::{RebootPolicy, RebootPolicySpec},
    state::NodeState,
    window::Hours,
};

/// A policy that was read.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Empty for the default.
    pub(crate) policy: String,
    pub(crate) generation: Option<i64>,
    pub(crate) spec: RebootPolicySpec,
    selector: Selector,
    hours: Vec<Hours>,
    /// Why it allows nothing.
    pub(crate) invalid: Option<String>,
}

/// Whether a reboot may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Always,
    Until(Timestamp),
    Closed,
}

impl Rules {
    /// What counts for nodes that no policy selects.
    pub(crate) fn default_ones() -> Self {
        Self::read(String::new(), None, RebootPolicySpec::default())
    }

    /// All policies in the order in which nodes are theirs.
    pub(crate) fn of_all<'a>(policies: impl IntoIterator<Item = &'a RebootPolicy>) -> Vec<Self> {
        let mut all: Vec<Self> = policies.into_iter().map(Self::of).collect();
        all.sort_by(|a, b| {
            b.spec
                .priority
                .cmp(&a.spec.priority)
                .then_with(|| a.policy.cmp(&b.policy))
        });
        all
    }

    fn of(policy: &RebootPolicy) -> Self {
        Self::read(
            policy.name_any(),
            policy.metadata.generation,
            policy.spec.clone(),
        )
    }

    fn read(policy: String, generation: Option<i64>, spec: RebootPolicySpec) -> Self {
        let mut wrong = Vec::new();
        let selector = Selector::try_from(spec.node_selector.clone()).unwrap_or_else(|error| {
            wrong.push(format!("nodeSelector: {error}"));
            Selector::default()
        });
        let hours = spec.windows.iter().filter_map(|window| {
            Hours::read(window)
                .map_err(|error| wrong.push(format!("windows: {error}")))
                .ok()
        });
        let hours = hours.collect();
        for (field, amount) in [
            ("maxUnavailable", Some(&spec.max_unavailable)),
            ("minAvailable", spec.min_available.as_ref()),
        ] {
            if amount.is_some_and(|amount| Amount::read(amount).is_none()) {
                wrong.push(format!("{field}: neither a number nor a percentage"));
            }
        }
        let invalid = (!wrong.is_empty()).then(|| wrong.join("; "));
        Self {
            policy,
            generation,
            spec,
            selector,
            hours,
            invalid,
        }
    }

    /// Whether Prometheus is asked who needs a reboot.
    pub(crate) fn asks(&self) -> bool {
        self.invalid.is_none() && self.spec.requests.alerts.is_some()
    }

    pub(crate) fn selects(&self, node: &NodeState) -> bool {
        self.selector.matches(&node.labels)
    }

    /// How many of so many nodes may be unavailable.
    pub(crate) fn limit(&self, nodes: usize) -> usize {
        if self.invalid.is_some() {
            return 0;
        }
        let most = Amount::read(&self.spec.max_unavailable)
            .map_or(0, |amount| amount.of(nodes, Round::DownToOne));
        let least = self.spec.min_available.as_ref().map_or(Some(0), |least| {
            Amount::read(least).map(|amount| amount.of(nodes, Round::Up))
        });
        most.min(nodes.saturating_sub(least.unwrap_or(nodes)))
    }

    pub(crate) fn open(&self, now: Timestamp) -> Open {
        if self.spec.windows.is_empty() {
            return Open::Always;
        }
        self.hours
            .iter()
            .filter_map(|hours| hours.open_until(now))
            .max()
            .map_or(Open::Closed, Open::Until)
    }

    /// Until when nothing is granted, after what changed then: the gap, and some of the jitter, the same for everyone who asks.
    pub(crate) fn gap_after(&self, changed: Timestamp) -> Timestamp {
        let part = spread(&self.policy, changed) % (self.spec.jitter_seconds.unsigned_abs() + 1);
        let gap = self
            .spec
            .minimum_gap_seconds
            .saturating_add(i64::try_from(part).unwrap_or_default());
        changed
            .saturating_add(SignedDuration::from_secs(gap))
            .unwrap_or(changed)
    }
}

/// A number that differs from one change to the next, and needs no memory (FNV-1a).
fn spread(policy: &str, changed: Timestamp) -> u64 {
    let bytes = policy.bytes().chain(changed.as_second().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[derive(Clone, Copy)]
enum Amount {
    Count(usize),
    Percent(usize),
}

enum Round {
    /// A share of a small pool that is less than one node would never let it move.
    DownToOne,
    Up,
}

impl Amount {
    fn read(amount: &IntOrString) -> Option<Self> {
        match amount {
            IntOrString::Int(count) => usize::try_from(*count).ok().map(Self::Count),
            IntOrString::String(text) => text
                .strip_suffix('%')
                .and_then(|text| text.parse().ok())
                .filter(|share| *share <= 100)
                .map(Self::Percent),
        }
    }

    fn of(self, nodes: usize, round: Round) -> usize {
        match (self, round) {
            (Self::Count(count), _) => count,
            (Self::Percent(0), _) => 0,
            (Self::Percent(share), Round::DownToOne) => (nodes * share / 100).max(1),
            (Self::Percent(share), Round::Up) => (nodes * share).div_ceil(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

    use super::*;
    use crate::window::Window;

    fn amount(text: &str) -> IntOrString {
        text.parse()
            .map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int)
    }

    #[test]
    fn limits_are_what_both_sides_allow() {
        for (max, min, nodes, limit) in [
            ("1", None, 10, 1),
            ("3", None, 2, 2),
            ("0", None, 10, 0),
            ("5%", None, 5000, 250),
            ("5%", None, 19, 1),
            ("5%", None, 59, 2),
            ("0%", None, 100, 0),
            ("100%", None, 7, 7),
            ("10%", Some("95%"), 100, 5),
            ("10", Some("8"), 10, 2),
            ("10", Some("12"), 10, 0),
            ("2", Some("91%"), 10, 0),
            ("ten", None, 10, 0),
            ("-1", None, 10, 0),
            ("101%", None, 10, 0),
            ("1", Some("x"), 10, 0),
        ] {
            let spec = RebootPolicySpec {
                max_unavailable: amount(max),
                min_available: min.map(amount),
                ..RebootPolicySpec::default()
            };
            assert_eq!(
                Rules::read("p".into(), None, spec).limit(nodes),
                limit,
                "{max} {min:?} of {nodes}"
            );
        }
    }

    #[test]
    fn policy_that_cannot_be_read_selects_and_allows_nothing() {
        let requirement = LabelSelectorRequirement {
            key: "a".into(),
            operator: "Like".into(),
            values: None,
        };
        let node_selector = LabelSelector {
            match_expressions: Some(vec![requirement]),
            match_labels: None,
        };
        let rules = Rules::read(
            "p".into(),
            None,
            RebootPolicySpec {
                node_selector,
                ..RebootPolicySpec::default()
            },
        );
        assert!(rules.invalid.is_some() && rules.selects(&NodeState::default()));
        assert_eq!(rules.limit(100), 0);
        let window = Window {
            days: vec![],
            start: "22:00".into(),
            end: "23:00".into(),
            time_zone: "Nowhere".into(),
        };
        let rules = Rules::read(
            "p".into(),
            None,
            RebootPolicySpec {
                windows: vec![window],
                ..RebootPolicySpec::default()
            },
        );
        assert_eq!(
            (rules.invalid.is_some(), rules.open(Timestamp::UNIX_EPOCH)),
            (true, Open::Closed)
        );
    }

    #[test]
    fn gap_is_the_same_for_everyone_and_within_its_jitter() {
        let spec = RebootPolicySpec {
            minimum_gap_seconds: 60,
            jitter_seconds: 30,
            ..RebootPolicySpec::default()
        };
        let rules = Rules::read("p".into(), None, spec);
        let gaps: std::collections::BTreeSet<i64> = (0..100)
            .map(|second| {
                let changed = Timestamp::from_second(second).expect("a time");
                assert_eq!(rules.gap_after(changed), rules.gap_after(changed));
                rules.gap_after(changed).as_second() - second
            })
            .collect();
        assert!(
            gaps.iter().all(|gap| (60..=90).contains(gap)) && gaps.len() > 10,
            "{gaps:?}"
        );
    }
}
