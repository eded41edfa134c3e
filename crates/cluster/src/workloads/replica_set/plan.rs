//! Plan for one ReplicaSet or ReplicationController: pods to create or delete, and the status.
//!
//! Input: desired replicas, active pods, the time. Output: an action, a status.
//! Guarantees: one reconcile creates or deletes at most [`BURST_REPLICAS`] pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::workloads::counts::{omit_zero, saturating_i32};
use crate::workloads::deletion_order::pods_to_delete;
use crate::workloads::pods::{is_available, is_ready, label};

/// Maximum number of pods created or deleted in one reconcile, as upstream.
pub(super) const BURST_REPLICAS: usize = 500;

/// Condition type: pods cannot be created or deleted.
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// What one reconcile does with the replicas.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplicaAction {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// The action that brings the active pods to the desired number. `related` is called only if some,
/// but not all, pods are deleted. Mirrors manageReplicas.
pub(super) fn manage_replicas(
    desired: usize,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> ReplicaAction {
    let actual = active.len();
    // Mirrors manageReplicas: creations and deletions are limited to the burst.
    if actual < desired {
        return ReplicaAction::Create((desired - actual).min(BURST_REPLICAS));
    }
    match (actual - desired).min(BURST_REPLICAS) {
        0 => ReplicaAction::Nothing,
        all if all == actual => ReplicaAction::Delete(active.to_vec()),
        omit_zero => {
            ReplicaAction::Delete(pods_to_delete(active.to_vec(), &related(), omit_zero, now))
        }
    }
}

/// Input of [`calculate_status`].
pub(super) struct StatusInput<'a> {
    /// The status before this reconcile.
    pub(super) current: &'a ReplicaSetStatus,
    pub(super) generation: Option<i64>,
    /// `spec.replicas`.
    pub(super) desired: usize,
    pub(super) active: &'a [Arc<Pod>],
    /// Number of terminating pods; `None` for a kind whose status has no such field.
    pub(super) terminating: Option<usize>,
    /// Labels of the template, for `fullyLabeledReplicas`. An adopted pod may lack some.
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) min_ready: Duration,
    /// Error of this reconcile's creations or deletions.
    pub(super) failure: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// The new status. Mirrors calculateStatus.
pub(super) fn calculate_status(input: &StatusInput<'_>) -> ReplicaSetStatus {
    let count = |predicate: &dyn Fn(&Pod) -> bool| {
        saturating_i32(input.active.iter().filter(|pod| predicate(pod)).count())
    };
    ReplicaSetStatus {
        replicas: saturating_i32(input.active.len()),
        fully_labeled_replicas: omit_zero(count(&|pod| has_labels(pod, input.labels))),
        ready_replicas: omit_zero(count(&is_ready)),
        available_replicas: omit_zero(count(&|pod| is_available(pod, input.min_ready, input.now))),
        terminating_replicas: input.terminating.map(saturating_i32),
        observed_generation: input.generation,
        conditions: conditions(input),
    }
}

fn has_labels(pod: &Pod, labels: &BTreeMap<String, String>) -> bool {
    labels
        .iter()
        .all(|(key, value)| label(pod, key) == Some(value))
}

fn conditions(input: &StatusInput<'_>) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = input.current.conditions.clone().unwrap_or_default();
    let has_failure = conditions
        .iter()
        .any(|condition| condition.type_ == REPLICA_FAILURE);
    match input.failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        // As upstream, the condition of the first failure is kept until a reconcile succeeds.
        Some(_) if has_failure => {}
        Some(message) => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.into(),
            status: "True".into(),
            // Mirrors calculateStatus: the sign of the difference determines which write failed.
            reason: Some(
                if input.active.len() < input.desired {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .into(),
            ),
            message: Some(message.into()),
            last_transition_time: Some(Time(input.now)),
        }),
    }
    Some(conditions).filter(|conditions| !conditions.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::test_objects::{at, pod};

    fn pods(count: usize) -> Vec<Arc<Pod>> {
        (0..count)
            .map(|i| {
                pod(&format!("p{i:04}"))
                    .on("n")
                    .running()
                    .ready()
                    .label("app", "web")
                    .cached()
            })
            .collect()
    }

    #[test]
    fn action_is_limited_to_the_burst() {
        let now = Timestamp::from_second(100).unwrap();
        for (desired, actual, expected_created, expected_deleted) in [
            (0, 0, 0, 0),
            (3, 0, 3, 0),
            (3, 3, 0, 0),
            (3, 5, 0, 2),
            (0, 4, 0, 4),
            (2000, 100, BURST_REPLICAS, 0),
            (0, 600, 0, BURST_REPLICAS),
        ] {
            let action = manage_replicas(desired, &pods(actual), Vec::new, now);
            let (created, deleted) = match action {
                ReplicaAction::Nothing => (0, 0),
                ReplicaAction::Create(count) => (count, 0),
                ReplicaAction::Delete(pods) => (0, pods.len()),
            };
            assert_eq!(
                created, expected_created,
                "desired {desired}, actual {actual}"
            );
            assert_eq!(
                deleted, expected_deleted,
                "desired {desired}, actual {actual}"
            );
        }
    }

    fn status(
        current: &ReplicaSetStatus,
        active: &[Arc<Pod>],
        failure: Option<&str>,
    ) -> ReplicaSetStatus {
        let labels = &[("app".to_string(), "web".to_string())].into();
        calculate_status(&StatusInput {
            current,
            generation: Some(2),
            desired: 3,
            active,
            terminating: Some(1),
            labels,
            min_ready: Duration::from_secs(10),
            failure,
            now: Timestamp::from_second(100).unwrap(),
        })
    }

    #[test]
    fn status_counts_active_pods() {
        let active = [
            pod("old")
                .running()
                .ready_since(0)
                .label("app", "web")
                .cached(),
            pod("new")
                .running()
                .ready_since(95)
                .label("app", "web")
                .cached(),
            pod("unlabelled").running().cached(),
        ];
        let calculated = status(&ReplicaSetStatus::default(), &active, None);
        assert_eq!(
            calculated,
            ReplicaSetStatus {
                replicas: 3,
                fully_labeled_replicas: Some(2),
                ready_replicas: Some(2),
                available_replicas: Some(1),
                terminating_replicas: Some(1),
                observed_generation: Some(2),
                conditions: None,
            }
        );
    }

    #[test]
    fn failure_condition_is_kept_until_success() {
        let failed = status(&ReplicaSetStatus::default(), &[], Some("exceeded quota"));
        let condition = failed.conditions.as_ref().unwrap()[0].clone();
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        assert_eq!(condition.message.as_deref(), Some("exceeded quota"));
        assert_eq!(condition.last_transition_time, Some(at(100)));
        let repeated = status(&failed, &[], Some("another message"));
        assert_eq!(
            repeated.conditions, failed.conditions,
            "the first message is kept"
        );
        assert_eq!(status(&failed, &[], None).conditions, None);
        let too_many = pods(4);
        let stuck = status(&ReplicaSetStatus::default(), &too_many, Some("no"));
        assert_eq!(
            stuck.conditions.unwrap()[0].reason.as_deref(),
            Some("FailedDelete")
        );
    }
}
