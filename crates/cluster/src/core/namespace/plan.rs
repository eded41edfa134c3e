//! Plan: conditions of a terminating namespace, and the next step.
//!
//! Input: remaining content and errors of one deletion pass. Output: conditions, next step.
//! Guarantees: types, reasons and messages equal those of kube-controller-manager;
//! `lastTransitionTime` changes only with the status of a condition.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Estimated time for other controllers to remove their finalizers, as upstream
/// (finalizerEstimateSeconds).
const FINALIZER_ESTIMATE_SECONDS: i64 = 15;

/// Result of one deletion pass over a terminating namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeletionResult {
    /// Error of discovery, if it failed.
    pub(super) discovery_error: Option<String>,
    /// Errors of deletions, one per resource.
    pub(super) failures: Vec<String>,
    /// Number of remaining objects by `resource.group`.
    pub(super) remaining: BTreeMap<String, usize>,
    /// Number of remaining objects by finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// Longest termination grace period of the remaining pods.
    pub(super) grace_period_seconds: i64,
}

/// What the controller does after a deletion pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// No content remains: remove the finalizer.
    Finalize,
    /// Content remains: requeue after this delay.
    RequeueAfter(Duration),
    /// An error occurred: retry with back-off.
    Retry,
}

impl DeletionResult {
    /// The next step, given how long the namespace has been terminating.
    pub(super) fn next_step(&self, terminating_for: Duration) -> NextStep {
        if self.discovery_error.is_some() || !self.failures.is_empty() {
            return NextStep::Retry;
        }
        if self.remaining.is_empty() {
            return NextStep::Finalize;
        }
        let finalizer_estimate = if self.finalizers.is_empty() {
            0
        } else {
            FINALIZER_ESTIMATE_SECONDS
        };
        let estimate =
            u64::try_from(self.grace_period_seconds.max(finalizer_estimate)).unwrap_or_default();
        // Upstream waits estimate/2 + 1 seconds. The first passes are more frequent, because most
        // content is deleted immediately.
        NextStep::RequeueAfter(terminating_for.clamp(
            Duration::from_secs(1),
            Duration::from_secs(estimate / 2 + 1),
        ))
    }

    /// The updated conditions in upstream's order; `None` if they are unchanged.
    pub(super) fn conditions(
        &self,
        old: &[NamespaceCondition],
        now: Timestamp,
    ) -> Option<Vec<NamespaceCondition>> {
        let mut new = old.to_vec();
        for (type_, failure, success) in self.condition_table() {
            let (status, (reason, message)) = failure.map_or_else(
                || ("False", (success.0, success.1.to_owned())),
                |failure| ("True", failure),
            );
            let desired = NamespaceCondition {
                type_: type_.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: Some(Time(now)),
            };
            match new.iter_mut().find(|condition| condition.type_ == type_) {
                None => new.push(desired),
                // Mirrors updateConditions: the transition time is kept while the status is equal.
                Some(current) if current.status == status => {
                    *current = NamespaceCondition {
                        last_transition_time: current.last_transition_time.clone(),
                        ..desired
                    };
                }
                Some(current) => *current = desired,
            }
        }
        (new != old).then_some(new)
    }

    /// Mirrors namespaceConditionUpdater.
    fn condition_table(&self) -> [ConditionRow; 5] {
        let list = |counts: &BTreeMap<String, usize>, format: fn((&String, &usize)) -> String| {
            let mut entries: Vec<_> = counts.iter().map(format).collect();
            entries.sort();
            entries.join(", ")
        };
        let discovery_error = self
            .discovery_error
            .clone()
            .map(|error| ("DiscoveryFailed", error));
        let failed = (!self.failures.is_empty()).then(|| {
            let mut failures = self.failures.clone();
            failures.sort();
            let message = format!(
                "Failed to delete all resource types, {} remaining: {}",
                failures.len(),
                failures.join(", ")
            );
            ("ContentDeletionFailed", message)
        });
        let remaining = (!self.remaining.is_empty()).then(|| {
            let resources = list(&self.remaining, |(resource, count)| {
                format!("{resource} has {count} resource instances")
            });
            (
                "SomeResourcesRemain",
                format!("Some resources are remaining: {resources}"),
            )
        });
        let finalizers = (!self.finalizers.is_empty()).then(|| {
            let finalizers = list(&self.finalizers, |(finalizer, count)| {
                format!("{finalizer} in {count} resource instances")
            });
            (
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {finalizers}"),
            )
        });
        [
            (
                "NamespaceDeletionDiscoveryFailure",
                discovery_error,
                (
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                ),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                (
                    "ParsedGroupVersions",
                    "All legacy kube types successfully parsed",
                ),
            ),
            (
                "NamespaceDeletionContentFailure",
                failed,
                (
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
            ),
            (
                "NamespaceContentRemaining",
                remaining,
                ("ContentRemoved", "All content successfully removed"),
            ),
            (
                "NamespaceFinalizersRemaining",
                finalizers,
                (
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
            ),
        ]
    }
}

/// Type, reason and message if the status is `True`, reason and message if it is `False`.
type ConditionRow = (
    &'static str,
    Option<(&'static str, String)>,
    (&'static str, &'static str),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, usize)]) -> BTreeMap<String, usize> {
        counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    #[test]
    fn next_step_depends_on_remaining_content_and_errors() {
        let remaining = DeletionResult {
            remaining: counts(&[("pods.", 2)]),
            ..DeletionResult::default()
        };
        let with_finalizers = DeletionResult {
            finalizers: counts(&[("example.com/hold", 1)]),
            ..remaining.clone()
        };
        let with_pods = DeletionResult {
            grace_period_seconds: 30,
            ..remaining.clone()
        };
        let seconds = Duration::from_secs;
        for (result, terminating_for, expected) in [
            (DeletionResult::default(), 0, NextStep::Finalize),
            (remaining.clone(), 0, NextStep::RequeueAfter(seconds(1))),
            (
                with_finalizers.clone(),
                0,
                NextStep::RequeueAfter(seconds(1)),
            ),
            (
                with_finalizers.clone(),
                3,
                NextStep::RequeueAfter(seconds(3)),
            ),
            (with_finalizers, 3600, NextStep::RequeueAfter(seconds(8))),
            (with_pods, 3600, NextStep::RequeueAfter(seconds(16))),
            (
                DeletionResult {
                    failures: vec!["no".into()],
                    ..remaining
                },
                0,
                NextStep::Retry,
            ),
            (
                DeletionResult {
                    discovery_error: Some("no".into()),
                    ..DeletionResult::default()
                },
                0,
                NextStep::Retry,
            ),
        ] {
            assert_eq!(
                result.next_step(seconds(terminating_for)),
                expected,
                "{result:?} after {terminating_for}"
            );
        }
    }

    #[test]
    fn conditions_report_remaining_content_and_transition_time() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let result = DeletionResult {
            remaining: counts(&[("pods.", 2), ("heroes.example.com", 1)]),
            finalizers: counts(&[("example.com/hold", 3)]),
            ..DeletionResult::default()
        };
        let conditions = result.conditions(&[], first).unwrap();
        let rows: Vec<_> = conditions
            .iter()
            .map(|c| {
                (
                    &*c.status,
                    c.reason.as_deref().unwrap(),
                    c.message.as_deref().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (
                    "False",
                    "ResourcesDiscovered",
                    "All resources successfully discovered"
                ),
                (
                    "False",
                    "ParsedGroupVersions",
                    "All legacy kube types successfully parsed"
                ),
                (
                    "False",
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization"
                ),
                (
                    "True",
                    "SomeResourcesRemain",
                    "Some resources are remaining: heroes.example.com has 1 resource instances, \
                        pods. has 2 resource instances"
                ),
                (
                    "True",
                    "SomeFinalizersRemain",
                    "Some content in the namespace has finalizers remaining: example.com/hold in 3 \
                        resource instances"
                ),
            ]
        );
        assert_eq!(result.conditions(&conditions, later), None, "unchanged");
        let fewer = DeletionResult {
            remaining: counts(&[("pods.", 1)]),
            ..result
        };
        let updated = fewer.conditions(&conditions, later).unwrap();
        assert_eq!(
            updated[3].last_transition_time,
            Some(Time(first)),
            "same status"
        );
        let failed = DeletionResult {
            failures: vec!["b".into(), "a".into()],
            ..DeletionResult::default()
        }
        .conditions(&updated, later)
        .unwrap();
        assert_eq!(
            failed[2].message.as_deref(),
            Some("Failed to delete all resource types, 2 remaining: a, b")
        );
        assert_eq!(&*failed[3].status, "False");
        assert_eq!(&failed[3].last_transition_time, &Some(Time(later)));
    }
}
