//! Status of a Deployment: counts and the conditions Available, Progressing and ReplicaFailure.
//!
//! Input: the Deployment, its ReplicaSets, the time. Output: a status, and the time of the next
//! progress check.
//! Guarantees: `lastTransitionTime` of a condition changes only with its status; `lastUpdateTime`
//! of Progressing is the time of the last progress, from which the progress deadline is counted.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::replica_sets::{PlannedReplicaSet, ReplicaBounds, ReplicaSets};
use crate::workloads::counts::omit_zero;
use crate::workloads::pods::{saturating_add, time_until};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NEW_REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";

/// A condition with both times set to now. Mirrors NewDeploymentCondition.
pub(super) fn new_condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// The condition of a type. Mirrors GetDeploymentCondition.
pub(super) fn get_condition<'a>(
    status: &'a DeploymentStatus,
    type_: &str,
) -> Option<&'a DeploymentCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// Sets a condition, unless it exists with the same status and reason. Mirrors
/// SetDeploymentCondition.
pub(super) fn set_condition(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(current) =
        get_condition(status, &condition.type_).filter(|current| current.status == condition.status)
    {
        if current.reason == condition.reason {
            return;
        }
        condition.last_transition_time = current.last_transition_time.clone();
    }
    remove_condition(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

fn remove_condition(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != type_);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// Sets the condition Progressing.
pub(super) fn set_progressing(
    status: &mut DeploymentStatus,
    value: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    set_condition(
        status,
        new_condition(PROGRESSING, value, reason, message, now),
    );
}

/// `spec.progressDeadlineSeconds`; `None` if there is no deadline. Mirrors HasProgressDeadline.
pub(super) fn progress_deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment
        .spec
        .as_ref()?
        .progress_deadline_seconds
        .filter(|seconds| *seconds != i32::MAX)?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Sets the condition when the Deployment is paused or resumed, so that the pause does not count
/// against the progress deadline. Mirrors checkPausedConditions.
pub(super) fn check_paused_conditions(
    status: &mut DeploymentStatus,
    deployment: &Deployment,
    now: Timestamp,
) {
    let reason = get_condition(status, PROGRESSING).and_then(|condition| condition.reason.clone());
    // Mirrors checkPausedConditions: pausing does not overwrite an exceeded deadline.
    if progress_deadline(deployment).is_none() || reason.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    match (paused, reason.as_deref() == Some(PAUSED)) {
        (true, false) => set_progressing(
            status,
            "Unknown",
            PAUSED,
            "Deployment is paused".into(),
            now,
        ),
        (false, true) => set_progressing(
            status,
            "Unknown",
            "DeploymentResumed",
            "Deployment is resumed".into(),
            now,
        ),
        _ => {}
    }
}

/// Sets the condition for a new ReplicaSet that is created, or found without a condition. Mirrors
/// getNewReplicaSet.
pub(super) fn set_new_replica_set_condition(
    status: &mut DeploymentStatus,
    deployment: &Deployment,
    new: &PlannedReplicaSet,
    now: Timestamp,
) {
    if progress_deadline(deployment).is_none() {
        return;
    }
    let name = new.desired.name_any();
    if new.cached.is_none() {
        let message = format!("Created new replica set \"{name}\"");
        set_progressing(status, "True", "NewReplicaSetCreated", message, now);
    } else if get_condition(status, PROGRESSING).is_none() {
        let message = format!("Found new replica set \"{name}\"");
        set_progressing(status, "True", "FoundNewReplicaSet", message, now);
    }
}

/// The counts and the condition Available. Other conditions are those of `status`. Mirrors
/// calculateStatus.
pub(super) fn calculate_status(
    status: &DeploymentStatus,
    deployment: &Deployment,
    replica_sets: &ReplicaSets,
    bounds: ReplicaBounds,
    now: Timestamp,
) -> DeploymentStatus {
    let available = replica_sets.sum(PlannedReplicaSet::available);
    let updated = replica_sets
        .new
        .as_ref()
        .map_or(0, PlannedReplicaSet::actual);
    let unavailable = replica_sets.sum(PlannedReplicaSet::replicas) - available;
    let mut calculated = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: omit_zero(replica_sets.sum(PlannedReplicaSet::actual)),
        updated_replicas: omit_zero(updated),
        ready_replicas: omit_zero(replica_sets.sum(PlannedReplicaSet::ready)),
        available_replicas: omit_zero(available),
        unavailable_replicas: omit_zero(unavailable.max(0)),
        terminating_replicas: terminating_replicas(replica_sets),
        collision_count: status.collision_count,
        conditions: status.conditions.clone(),
    };
    let condition = if available >= bounds.min_available() {
        new_condition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".into(),
            now,
        )
    } else {
        new_condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".into(),
            now,
        )
    };
    set_condition(&mut calculated, condition);
    calculated
}

/// Sum over the ReplicaSets; `None` if one of them was reconciled without setting the field.
/// Mirrors GetTerminatingReplicaCountForReplicaSets.
fn terminating_replicas(replica_sets: &ReplicaSets) -> Option<i32> {
    replica_sets
        .all()
        .filter_map(|set| set.desired.status.as_ref())
        .try_fold(0, |sum, status| match status.terminating_replicas {
            // A ReplicaSet that was never reconciled has no pods, terminating ones included.
            None if status.observed_generation.unwrap_or(0) == 0 => Some(sum),
            count => count.map(|count| sum + count),
        })
}

/// Sets the conditions Progressing and ReplicaFailure. `before` is the status before this
/// reconcile. Mirrors syncRolloutStatus.
pub(super) fn sync_rollout_status(
    status: &mut DeploymentStatus,
    before: &DeploymentStatus,
    deployment: &Deployment,
    replica_sets: &ReplicaSets,
    now: Timestamp,
) {
    match progress_deadline(deployment) {
        None => remove_condition(status, PROGRESSING),
        Some(deadline) => {
            let was_complete = get_condition(before, PROGRESSING).is_some_and(|condition| {
                condition.reason.as_deref() == Some(NEW_REPLICA_SET_AVAILABLE)
            });
            // A complete Deployment without a new rollout keeps its condition.
            if !(was_complete && status.replicas == status.updated_replicas) {
                sync_progress(status, before, deployment, replica_sets, deadline, now);
            }
        }
    }
    sync_replica_failure(status, replica_sets);
}

fn sync_progress(
    status: &mut DeploymentStatus,
    before: &DeploymentStatus,
    deployment: &Deployment,
    replica_sets: &ReplicaSets,
    deadline: Duration,
    now: Timestamp,
) {
    let object = match &replica_sets.new {
        Some(new) => format!("ReplicaSet \"{}\"", new.desired.name_any()),
        None => format!("Deployment \"{}\"", deployment.name_any()),
    };
    if is_complete(deployment, status) {
        let message = format!("{object} has successfully progressed.");
        set_progressing(status, "True", NEW_REPLICA_SET_AVAILABLE, message, now);
    } else if is_progressing(before, status) {
        let mut progressing = new_condition(
            PROGRESSING,
            "True",
            "ReplicaSetUpdated",
            format!("{object} is progressing."),
            now,
        );
        if let Some(current) =
            get_condition(before, PROGRESSING).filter(|current| current.status == "True")
        {
            progressing.last_transition_time = current.last_transition_time.clone();
        }
        // set_condition would skip an equal condition, but lastUpdateTime has to be renewed.
        remove_condition(status, PROGRESSING);
        set_condition(status, progressing);
    } else if is_timed_out(status, deadline, now) {
        let message = format!("{object} has timed out progressing.");
        set_progressing(status, "False", TIMED_OUT, message, now);
    }
}

/// Whether all replicas are updated and available, and no old one remains. Mirrors
/// DeploymentComplete.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let counts = [
        status.updated_replicas,
        status.replicas,
        status.available_replicas,
    ];
    counts
        .into_iter()
        .all(|count| count.unwrap_or(0) == desired)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Mirrors DeploymentProgressing.
fn is_progressing(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old_replicas = |status: &DeploymentStatus| {
        status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0)
    };
    after.updated_replicas.unwrap_or(0) > before.updated_replicas.unwrap_or(0)
        || old_replicas(after) < old_replicas(before)
        || after.ready_replicas.unwrap_or(0) > before.ready_replicas.unwrap_or(0)
        || after.available_replicas.unwrap_or(0) > before.available_replicas.unwrap_or(0)
}

/// Mirrors DeploymentTimedOut.
fn is_timed_out(status: &DeploymentStatus, deadline: Duration, now: Timestamp) -> bool {
    let Some(condition) = get_condition(status, PROGRESSING) else {
        return false;
    };
    match condition.reason.as_deref() {
        Some(NEW_REPLICA_SET_AVAILABLE) => false,
        // Mirrors DeploymentTimedOut: only progress, which replaces the condition, ends the
        // timeout.
        Some(TIMED_OUT) => true,
        _ => condition
            .last_update_time
            .as_ref()
            .is_some_and(|since| saturating_add(since.0, deadline) < now),
    }
}

/// Copies the condition ReplicaFailure of a ReplicaSet, preferably the new one. Mirrors
/// getReplicaFailures.
fn sync_replica_failure(status: &mut DeploymentStatus, replica_sets: &ReplicaSets) {
    let failure = replica_sets
        .new
        .iter()
        .chain(&replica_sets.old)
        .find_map(|set| {
            let conditions = set.desired.status.as_ref()?.conditions.as_ref()?;
            conditions
                .iter()
                .find(|condition| condition.type_ == REPLICA_FAILURE)
        });
    match failure {
        None => remove_condition(status, REPLICA_FAILURE),
        Some(failure) => {
            let condition = DeploymentCondition {
                type_: failure.type_.clone(),
                status: failure.status.clone(),
                reason: failure.reason.clone(),
                message: failure.message.clone(),
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time.clone(),
            };
            set_condition(status, condition);
        }
    }
}

/// Time until the progress deadline; `None` if no rollout is in progress or the deadline was
/// exceeded already. Mirrors requeueStuckDeployment.
pub(super) fn next_progress_check(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let condition = get_condition(status, PROGRESSING)?;
    if is_complete(deployment, status)
        || matches!(
            condition.reason.as_deref(),
            Some(TIMED_OUT | NEW_REPLICA_SET_AVAILABLE | PAUSED)
        )
    {
        return None;
    }
    let since = condition.last_update_time.as_ref()?.0;
    // Timestamps have a resolution of one second, so one second is added.
    time_until(
        saturating_add(
            since,
            progress_deadline(deployment)? + Duration::from_secs(1),
        ),
        now,
    )
    .or(Some(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests;
