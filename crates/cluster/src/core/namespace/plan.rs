//! Plan: what is said of a namespace that goes, and how long to wait.
//!
//! In: what is left in it, what went wrong. Out: its conditions, and the next step.
//! Holds: types, reasons and messages are those that users know; a condition's time changes only with its status.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// How long a finalizer may reasonably take.
const FINALIZER_SECONDS: i64 = 15;

/// What was found in a namespace that goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Why the kinds that the server serves are not known.
    pub(super) undiscovered: Option<String>,
    /// What could not be deleted.
    pub(super) failures: Vec<String>,
    /// How many objects are left, by `resource.group`.
    pub(super) left: BTreeMap<String, usize>,
    /// How many of them wait for which finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// The longest time that a pod may take to end.
    pub(super) grace_seconds: i64,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is left, so the namespace may go.
    Finalize,
    /// Something is left; look again then.
    LookAgain(Duration),
    /// Something went wrong; try again.
    Retry,
}

impl Findings {
    /// What follows, for a namespace that has been going for that long.
    pub(super) fn step(&self, going_for: Duration) -> Step {
        if self.undiscovered.is_some() || !self.failures.is_empty() {
            return Step::Retry;
        }
        if self.left.is_empty() {
            return Step::Finalize;
        }
        let finalizers = if self.finalizers.is_empty() {
            0
        } else {
            FINALIZER_SECONDS
        };
        let estimate = u64::try_from(self.grace_seconds.max(finalizers)).unwrap_or_default();
        // Most content goes at once, and what has been stuck for long will not go soon.
        Step::LookAgain(going_for.clamp(
            Duration::from_secs(1),
            Duration::from_secs(estimate / 2 + 1),
        ))
    }

    /// The conditions after this, in the order in which they have always been; `None` if nothing changed.
    pub(super) fn conditions(
        &self,
        old: &[NamespaceCondition],
        now: Timestamp,
    ) -> Option<Vec<NamespaceCondition>> {
        let mut new = old.to_vec();
        for (type_, wrong, right) in self.judged() {
            let (status, (reason, message)) = wrong.map_or_else(
                || ("False", (right.0, right.1.to_owned())),
                |wrong| ("True", wrong),
            );
            let wanted = NamespaceCondition {
                type_: type_.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: Some(Time(now)),
            };
            match new.iter_mut().find(|condition| condition.type_ == type_) {
                None => new.push(wanted),
                Some(known) if known.status == status => {
                    *known = NamespaceCondition {
                        last_transition_time: known.last_transition_time.clone(),
                        ..wanted
                    };
                }
                Some(known) => *known = wanted,
            }
        }
        (new != old).then_some(new)
    }

    /// Each type, what is wrong, and what is said when nothing is.
    fn judged(&self) -> [Judged; 5] {
        let all = |counts: &BTreeMap<String, usize>, say: fn((&String, &usize)) -> String| {
            let mut said: Vec<_> = counts.iter().map(say).collect();
            said.sort();
            said.join(", ")
        };
        let undiscovered = self
            .undiscovered
            .clone()
            .map(|why| ("DiscoveryFailed", why));
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
        let left = (!self.left.is_empty()).then(|| {
            let left = all(&self.left, |(resource, count)| {
                format!("{resource} has {count} resource instances")
            });
            (
                "SomeResourcesRemain",
                format!("Some resources are remaining: {left}"),
            )
        });
        let finalizers = (!self.finalizers.is_empty()).then(|| {
            let held = all(&self.finalizers, |(finalizer, count)| {
                format!("{finalizer} in {count} resource instances")
            });
            (
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {held}"),
            )
        });
        [
            (
                "NamespaceDeletionDiscoveryFailure",
                undiscovered,
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
                left,
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

type Judged = (
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
    fn next_step_follows_from_what_is_left() {
        let stuck = Findings {
            left: counts(&[("pods.", 2)]),
            ..Findings::default()
        };
        let held = Findings {
            finalizers: counts(&[("example.com/hold", 1)]),
            ..stuck.clone()
        };
        let graceful = Findings {
            grace_seconds: 30,
            ..stuck.clone()
        };
        let seconds = Duration::from_secs;
        for (findings, going_for, wanted) in [
            (Findings::default(), 0, Step::Finalize),
            (stuck.clone(), 0, Step::LookAgain(seconds(1))),
            (held.clone(), 0, Step::LookAgain(seconds(1))),
            (held.clone(), 3, Step::LookAgain(seconds(3))),
            (held, 3600, Step::LookAgain(seconds(8))),
            (graceful, 3600, Step::LookAgain(seconds(16))),
            (
                Findings {
                    failures: vec!["no".into()],
                    ..stuck
                },
                0,
                Step::Retry,
            ),
            (
                Findings {
                    undiscovered: Some("no".into()),
                    ..Findings::default()
                },
                0,
                Step::Retry,
            ),
        ] {
            assert_eq!(
                findings.step(seconds(going_for)),
                wanted,
                "{findings:?} after {going_for}"
            );
        }
    }

    #[test]
    fn conditions_say_what_is_stuck_and_since_when() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let left = counts(&[("pods.", 2), ("heroes.example.com", 1)]);
        let findings = Findings {
            left,
            finalizers: counts(&[("example.com/hold", 3)]),
            ..Findings::default()
        };
        let stuck = findings.conditions(&[], first).unwrap();
        let said: Vec<_> = stuck
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
            said,
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
                    "Some resources are remaining: heroes.example.com has 1 resource instances, pods. has 2 resource instances"
                ),
                (
                    "True",
                    "SomeFinalizersRemain",
                    "Some content in the namespace has finalizers remaining: example.com/hold in 3 resource instances"
                ),
            ]
        );
        assert_eq!(findings.conditions(&stuck, later), None, "nothing new");
        let fewer = Findings {
            left: counts(&[("pods.", 1)]),
            ..findings
        };
        let again = fewer.conditions(&stuck, later).unwrap();
        assert_eq!(
            again[3].last_transition_time,
            Some(Time(first)),
            "still the same status"
        );
        let failed = Findings {
            failures: vec!["b".into(), "a".into()],
            ..Findings::default()
        }
        .conditions(&again, later)
        .unwrap();
        assert_eq!(
            failed[2].message.as_deref(),
            Some("Failed to delete all resource types, 2 remaining: a, b")
        );
        assert_eq!(&*failed[3].status, "False");
        assert_eq!(&failed[3].last_transition_time, &Some(Time(later)));
    }
}
