//! The plan for one set of replicas: what to create or delete, and what its status says.
//!
//! In: the wanted number, the pods that are there, the time. Out: a step, and counts.
//! Holds: one pass creates or deletes at most [`BURST`] pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::workloads::pods::{is_available, is_ready, label};
use crate::workloads::rank::first_to_go;

/// How many pods are created or deleted in one pass, as upstream.
pub(super) const BURST: usize = 500;

/// The condition that tells that pods cannot be created or deleted.
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// What one pass does about the number of pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// Decides what to do with `active` pods of which `wanted` are to stay. `related` is only asked for when a choice is to be made.
pub(super) fn step(
    wanted: usize,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> Step {
    let there = active.len();
    if there < wanted {
        return Step::Create((wanted - there).min(BURST));
    }
    match (there - wanted).min(BURST) {
        0 => Step::Nothing,
        all if all == there => Step::Delete(active.to_vec()),
        some => Step::Delete(first_to_go(active.to_vec(), &related(), some, now)),
    }
}

/// What a status is made of.
pub(super) struct Facts<'a> {
    /// The status so far.
    pub(super) was: &'a ReplicaSetStatus,
    pub(super) generation: Option<i64>,
    /// How many pods are wanted.
    pub(super) wanted: usize,
    pub(super) active: &'a [Arc<Pod>],
    /// Pods on their way out; `None` for kinds that do not tell.
    pub(super) terminating: Option<usize>,
    /// The labels of the template; an adopted pod may lack some.
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) min_ready: Duration,
    /// Why pods could not be created or deleted in this pass.
    pub(super) failure: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// The status that follows from the facts.
pub(super) fn status(facts: &Facts<'_>) -> ReplicaSetStatus {
    let count =
        |holds: &dyn Fn(&Pod) -> bool| number(facts.active.iter().filter(|pod| holds(pod)).count());
    ReplicaSetStatus {
        replicas: number(facts.active.len()),
        fully_labeled_replicas: some(count(&|pod| has_all(pod, facts.labels))),
        ready_replicas: some(count(&is_ready)),
        available_replicas: some(count(&|pod| is_available(pod, facts.min_ready, facts.now))),
        terminating_replicas: facts.terminating.map(number),
        observed_generation: facts.generation,
        conditions: conditions(facts),
    }
}

fn has_all(pod: &Pod, labels: &BTreeMap<String, String>) -> bool {
    labels
        .iter()
        .all(|(key, value)| label(pod, key) == Some(value))
}

fn conditions(facts: &Facts<'_>) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = facts.was.conditions.clone().unwrap_or_default();
    let known = conditions
        .iter()
        .any(|condition| condition.type_ == REPLICA_FAILURE);
    match facts.failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        // The first failure stays until pods can be made again: later ones would only change the message on every try.
        Some(_) if known => {}
        Some(message) => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.into(),
            status: "True".into(),
            reason: Some(
                if facts.active.len() < facts.wanted {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .into(),
            ),
            message: Some(message.into()),
            last_transition_time: Some(Time(facts.now)),
        }),
    }
    Some(conditions).filter(|conditions| !conditions.is_empty())
}

/// A count as objects have it.
pub(crate) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A count that is left out when it is zero.
pub(crate) fn some(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::samples::{at, pod};

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
    fn pass_moves_towards_the_wanted_number_by_a_burst() {
        let now = Timestamp::from_second(100).unwrap();
        for (wanted, there, created, deleted) in [
            (0, 0, 0, 0),
            (3, 0, 3, 0),
            (3, 3, 0, 0),
            (3, 5, 0, 2),
            (0, 4, 0, 4),
            (2000, 100, BURST, 0),
            (0, 600, 0, BURST),
        ] {
            let (got_created, got_deleted) = match step(wanted, &pods(there), Vec::new, now) {
                Step::Nothing => (0, 0),
                Step::Create(count) => (count, 0),
                Step::Delete(pods) => (0, pods.len()),
            };
            assert_eq!(got_created, created, "{wanted} wanted, {there} there");
            assert_eq!(got_deleted, deleted, "{wanted} wanted, {there} there");
        }
    }

    fn told(
        was: &ReplicaSetStatus,
        active: &[Arc<Pod>],
        failure: Option<&str>,
    ) -> ReplicaSetStatus {
        let labels = &[("app".to_string(), "web".to_string())].into();
        status(&Facts {
            was,
            generation: Some(2),
            wanted: 3,
            active,
            terminating: Some(1),
            labels,
            min_ready: Duration::from_secs(10),
            failure,
            now: Timestamp::from_second(100).unwrap(),
        })
    }

    #[test]
    fn status_counts_what_is_there() {
        let active = [
            pod("old")
                .running()
                .ready_since(0)
                .label("app", "web")
                .cached(),
            pod("young")
                .running()
                .ready_since(95)
                .label("app", "web")
                .cached(),
            pod("stranger").running().cached(),
        ];
        let counted = told(&ReplicaSetStatus::default(), &active, None);
        assert_eq!(
            counted,
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
    fn failure_is_told_until_it_is_over() {
        let failed = told(&ReplicaSetStatus::default(), &[], Some("exceeded quota"));
        let condition = failed.conditions.as_ref().unwrap()[0].clone();
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        assert_eq!(condition.message.as_deref(), Some("exceeded quota"));
        assert_eq!(condition.last_transition_time, Some(at(100)));
        let again = told(&failed, &[], Some("another message"));
        assert_eq!(
            again.conditions, failed.conditions,
            "the first message stays"
        );
        assert_eq!(told(&failed, &[], None).conditions, None);
        let too_many = pods(4);
        let stuck = told(&ReplicaSetStatus::default(), &too_many, Some("no"));
        assert_eq!(
            stuck.conditions.unwrap()[0].reason.as_deref(),
            Some("FailedDelete")
        );
    }
}
