//! A parsed RebootPolicy.
//!
//! Input: a RebootPolicy, or the default. Outputs: the selected nodes, the limit of unavailable
//! nodes, whether a window is open.
//!
//! Guarantee: an invalid policy selects every node it may have meant, and grants no reboots.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::{
    policy::{RebootPolicy, RebootPolicySpec},
    state::NodeState,
    window::ParsedWindow,
};

/// A parsed RebootPolicy.
#[derive(Clone, Debug)]
pub(crate) struct ParsedPolicy {
    /// The name of the RebootPolicy; empty for the default.
    pub(crate) name: String,
    pub(crate) generation: Option<i64>,
    pub(crate) spec: RebootPolicySpec,
    selector: Selector,
    windows: Vec<ParsedWindow>,
    /// The validation errors; `None` if it is valid.
    pub(crate) invalid: Option<String>,
}

/// Whether a maintenance window is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    /// The policy has no windows.
    Always,
    /// A window is open until then.
    OpenUntil(Timestamp),
    Closed,
}

impl ParsedPolicy {
    /// The policy of nodes that no RebootPolicy selects.
    pub(crate) fn default_policy() -> Self {
        Self::parse(String::new(), None, RebootPolicySpec::default())
    }

    /// Parses policies, and sorts them by descending priority, then name: the first that selects a
    /// node applies.
    pub(crate) fn parse_all<'a>(policies: impl IntoIterator<Item = &'a RebootPolicy>) -> Vec<Self> {
        let mut all: Vec<Self> = policies.into_iter().map(Self::new).collect();
        all.sort_by(|a, b| {
            b.spec
                .priority
                .cmp(&a.spec.priority)
                .then_with(|| a.name.cmp(&b.name))
        });
        all
    }

    fn new(policy: &RebootPolicy) -> Self {
        Self::parse(
            policy.name_any(),
            policy.metadata.generation,
            policy.spec.clone(),
        )
    }

    fn parse(name: String, generation: Option<i64>, spec: RebootPolicySpec) -> Self {
        let mut errors = Vec::new();
        let selector = Selector::try_from(spec.node_selector.clone()).unwrap_or_else(|error| {
            errors.push(format!("nodeSelector: {error}"));
            // Matches every node: one that the policy may have meant must not fall to the default
            // policy, which grants reboots.
            Selector::default()
        });
        let mut windows = Vec::new();
        for window in &spec.windows {
            match ParsedWindow::parse(window) {
                Ok(window) => windows.push(window),
                Err(error) => errors.push(format!("windows: {error}")),
            }
        }
        for (field, amount) in [
            ("maxUnavailable", Some(&spec.max_unavailable)),
            ("minAvailable", spec.min_available.as_ref()),
        ] {
            if amount.is_some_and(|amount| IntOrPercent::parse(amount).is_none()) {
                errors.push(format!("{field}: neither a number nor a percentage"));
            }
        }
        let invalid = (!errors.is_empty()).then(|| errors.join("; "));
        Self {
            name,
            generation,
            spec,
            selector,
            windows,
            invalid,
        }
    }

    /// Whether a Prometheus query requests reboots.
    pub(crate) fn has_alert_requests(&self) -> bool {
        self.invalid.is_none() && self.spec.requests.alerts.is_some()
    }

    pub(crate) fn selects(&self, node: &NodeState) -> bool {
        self.selector.matches(&node.labels)
    }

    /// The maximum number of unavailable nodes in a pool of this size.
    pub(crate) fn limit(&self, nodes: usize) -> usize {
        if self.invalid.is_some() {
            return 0;
        }
        let max_unavailable = IntOrPercent::parse(&self.spec.max_unavailable)
            .map_or(0, |amount| amount.of(nodes, Rounding::DownToOne));
        let min_available = match &self.spec.min_available {
            Some(amount) => {
                IntOrPercent::parse(amount).map_or(nodes, |amount| amount.of(nodes, Rounding::Up))
            }
            None => 0,
        };
        max_unavailable.min(nodes.saturating_sub(min_available))
    }

    pub(crate) fn window_state(&self, now: Timestamp) -> WindowState {
        if self.spec.windows.is_empty() {
            return WindowState::Always;
        }
        self.windows
            .iter()
            .filter_map(|window| window.open_until(now))
            // Of overlapping windows, the one that closes last decides.
            .max()
            .map_or(WindowState::Closed, WindowState::OpenUntil)
    }

    /// The end of the minimum gap after a change, with a jitter that every controller computes
    /// alike.
    pub(crate) fn gap_after(&self, changed: Timestamp) -> Timestamp {
        let jitter_range = self.spec.jitter_seconds.unsigned_abs() + 1;
        let jitter = jitter_hash(&self.name, changed) % jitter_range;
        let gap = self
            .spec
            .minimum_gap_seconds
            .saturating_add(i64::try_from(jitter).unwrap_or_default());
        changed
            .saturating_add(SignedDuration::from_secs(gap))
            .unwrap_or(changed)
    }
}

/// An FNV-1a hash of a policy and the time of its last change: another value for each change,
/// without stored state.
fn jitter_hash(policy: &str, changed: Timestamp) -> u64 {
    let bytes = policy.bytes().chain(changed.as_second().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A parsed `IntOrString`.
#[derive(Clone, Copy)]
enum IntOrPercent {
    Count(usize),
    Percent(usize),
}

/// How a percentage is rounded to nodes.
enum Rounding {
    /// A percentage of less than one node is one, so that small pools can reboot.
    DownToOne,
    Up,
}

impl IntOrPercent {
    fn parse(amount: &IntOrString) -> Option<Self> {
        match amount {
            IntOrString::Int(count) => usize::try_from(*count).ok().map(Self::Count),
            IntOrString::String(text) => text
                .strip_suffix('%')
                .and_then(|text| text.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Percent),
        }
    }

    fn of(self, nodes: usize, rounding: Rounding) -> usize {
        match (self, rounding) {
            (Self::Count(count), _) => count,
            (Self::Percent(0), _) => 0,
            (Self::Percent(percent), Rounding::DownToOne) => (nodes * percent / 100).max(1),
            (Self::Percent(percent), Rounding::Up) => (nodes * percent).div_ceil(100),
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
    fn limit_respects_max_unavailable_and_min_available() {
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
            let policy = ParsedPolicy::parse("p".into(), None, spec);
            assert_eq!(policy.limit(nodes), limit, "{max} {min:?} of {nodes}");
        }
    }

    #[test]
    fn invalid_selector_selects_all_nodes_and_grants_nothing() {
        let requirement = LabelSelectorRequirement {
            key: "a".into(),
            operator: "Like".into(),
            values: None,
        };
        let node_selector = LabelSelector {
            match_expressions: Some(vec![requirement]),
            match_labels: None,
        };
        let spec = RebootPolicySpec {
            node_selector,
            ..RebootPolicySpec::default()
        };
        let policy = ParsedPolicy::parse("p".into(), None, spec);
        assert!(policy.invalid.is_some());
        assert!(policy.selects(&NodeState::default()));
        assert_eq!(policy.limit(100), 0);
    }

    #[test]
    fn invalid_window_is_never_open() {
        let window = Window {
            days: vec![],
            start: "22:00".into(),
            end: "23:00".into(),
            time_zone: "Nowhere".into(),
        };
        let spec = RebootPolicySpec {
            windows: vec![window],
            ..RebootPolicySpec::default()
        };
        let policy = ParsedPolicy::parse("p".into(), None, spec);
        assert!(policy.invalid.is_some());
        let state = policy.window_state(Timestamp::UNIX_EPOCH);
        assert_eq!(state, WindowState::Closed);
    }

    #[test]
    fn gap_is_deterministic_and_within_its_jitter() {
        let spec = RebootPolicySpec {
            minimum_gap_seconds: 60,
            jitter_seconds: 30,
            ..RebootPolicySpec::default()
        };
        let policy = ParsedPolicy::parse("p".into(), None, spec);
        let gaps: std::collections::BTreeSet<i64> = (0..100)
            .map(|second| {
                let changed = Timestamp::from_second(second).expect("a time");
                assert_eq!(policy.gap_after(changed), policy.gap_after(changed));
                policy.gap_after(changed).as_second() - second
            })
            .collect();
        assert!(gaps.iter().all(|gap| (60..=90).contains(gap)), "{gaps:?}");
        assert!(gaps.len() > 10, "{gaps:?}");
    }
}
