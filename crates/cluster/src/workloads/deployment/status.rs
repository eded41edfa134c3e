//! The status of a Deployment: counts, and whether it is available, progressing or failing.
//!
//! In: the Deployment, its family, the time. Out: a status, and when to look again.
//! Holds: conditions change their time of transition only with their status; progress is told by its time of update, from
//! which the deadline counts.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::family::{Family, Member, Size};
use crate::workloads::pods::{later, until};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";

/// A condition to be set now.
pub(super) fn condition(
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

/// One of the conditions.
pub(super) fn find<'a>(
    status: &'a DeploymentStatus,
    type_: &str,
) -> Option<&'a DeploymentCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// Sets a condition unless it is there with the same status and reason.
pub(super) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(known) =
        find(status, &condition.type_).filter(|known| known.status == condition.status)
    {
        if known.reason == condition.reason {
            return;
        }
        condition.last_transition_time = known.last_transition_time.clone();
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

fn remove(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != type_);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// How long a rollout may go without progress; `None` if for ever.
pub(super) fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment
        .spec
        .as_ref()?
        .progress_deadline_seconds
        .filter(|seconds| *seconds != i32::MAX)?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Tells that the Deployment was paused or resumed, so that the time in between does not count as lack of progress.
pub(super) fn note_pause(status: &mut DeploymentStatus, deployment: &Deployment, now: Timestamp) {
    let reason = find(status, PROGRESSING).and_then(|condition| condition.reason.clone());
    if deadline(deployment).is_none() || reason.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    match (paused, reason.as_deref() == Some(PAUSED)) {
        (true, false) => set(
            status,
            condition(
                PROGRESSING,
                "Unknown",
                PAUSED,
                "Deployment is paused".into(),
                now,
            ),
        ),
        (false, true) => set(
            status,
            condition(
                PROGRESSING,
                "Unknown",
                "DeploymentResumed",
                "Deployment is resumed".into(),
                now,
            ),
        ),
        _ => {}
    }
}

/// Tells of the new set, if nothing was told about progress before.
pub(super) fn note_new_set(
    status: &mut DeploymentStatus,
    deployment: &Deployment,
    new: &Member,
    now: Timestamp,
) {
    if deadline(deployment).is_none() {
        return;
    }
    let name = new.wanted.name_any();
    if new.read.is_none() {
        set(
            status,
            condition(
                PROGRESSING,
                "True",
                "NewReplicaSetCreated",
                format!("Created new replica set \"{name}\""),
                now,
            ),
        );
    } else if find(status, PROGRESSING).is_none() {
        set(
            status,
            condition(
                PROGRESSING,
                "True",
                "FoundNewReplicaSet",
                format!("Found new replica set \"{name}\""),
                now,
            ),
        );
    }
}

/// The counts, and whether enough pods are available. Other conditions are those of `status`.
pub(super) fn counted(
    status: &DeploymentStatus,
    deployment: &Deployment,
    family: &Family,
    size: Size,
    now: Timestamp,
) -> DeploymentStatus {
    let some = |number: i32| (number != 0).then_some(number);
    let available = family.sum(Member::available);
    let mut counted = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(family.sum(Member::actual)),
        updated_replicas: some(family.new.as_ref().map_or(0, Member::actual)),
        ready_replicas: some(family.sum(Member::ready)),
        available_replicas: some(available),
        unavailable_replicas: some((family.sum(Member::replicas) - available).max(0)),
        terminating_replicas: terminating(family),
        collision_count: status.collision_count,
        conditions: status.conditions.clone(),
    };
    let enough = if available >= size.min_available() {
        condition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".into(),
            now,
        )
    } else {
        condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".into(),
            now,
        )
    };
    set(&mut counted, enough);
    counted
}

/// `None` while a set that was looked at does not tell.
fn terminating(family: &Family) -> Option<i32> {
    family
        .all()
        .filter_map(|member| member.wanted.status.as_ref())
        .try_fold(0, |sum, status| match status.terminating_replicas {
            None if status.observed_generation.unwrap_or(0) == 0 => Some(sum),
            number => number.map(|number| sum + number),
        })
}

/// Judges progress: from the status before to the one counted now.
pub(super) fn judge_progress(
    status: &mut DeploymentStatus,
    before: &DeploymentStatus,
    deployment: &Deployment,
    family: &Family,
    now: Timestamp,
) {
    match deadline(deployment) {
        None => remove(status, PROGRESSING),
        Some(deadline) => {
            let known = find(before, PROGRESSING).cloned();
            let was_complete = known
                .as_ref()
                .is_some_and(|known| known.reason.as_deref() == Some(NEW_SET_AVAILABLE));
            // Without a rollout there is no progress to judge.
            if !(was_complete && status.replicas == status.updated_replicas) {
                judge(status, before, deployment, family, deadline, now);
            }
        }
    }
    promote_failure(status, family);
}

fn judge(
    status: &mut DeploymentStatus,
    before: &DeploymentStatus,
    deployment: &Deployment,
    family: &Family,
    deadline: Duration,
    now: Timestamp,
) {
    let who = match &family.new {
        Some(new) => format!("ReplicaSet \"{}\"", new.wanted.name_any()),
        None => format!("Deployment \"{}\"", deployment.name_any()),
    };
    if is_complete(deployment, status) {
        set(
            status,
            condition(
                PROGRESSING,
                "True",
                NEW_SET_AVAILABLE,
                format!("{who} has successfully progressed."),
                now,
            ),
        );
    } else if made_progress(before, status) {
        let mut progressing = condition(
            PROGRESSING,
            "True",
            "ReplicaSetUpdated",
            format!("{who} is progressing."),
            now,
        );
        if let Some(known) = find(before, PROGRESSING).filter(|known| known.status == "True") {
            progressing.last_transition_time = known.last_transition_time.clone();
        }
        // The same news again is news here: the deadline counts from its time.
        remove(status, PROGRESSING);
        set(status, progressing);
    } else if has_timed_out(status, deadline, now) {
        set(
            status,
            condition(
                PROGRESSING,
                "False",
                TIMED_OUT,
                format!("{who} has timed out progressing."),
                now,
            ),
        );
    }
}

/// Whether all pods are new and available, and no old one is left.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let all = [
        status.updated_replicas,
        status.replicas,
        status.available_replicas,
    ];
    all.into_iter().all(|count| count.unwrap_or(0) == desired)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

fn made_progress(before: &DeploymentStatus, now: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| {
        status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0)
    };
    now.updated_replicas.unwrap_or(0) > before.updated_replicas.unwrap_or(0)
        || old(now) < old(before)
        || now.ready_replicas.unwrap_or(0) > before.ready_replicas.unwrap_or(0)
        || now.available_replicas.unwrap_or(0) > before.available_replicas.unwrap_or(0)
}

fn has_timed_out(status: &DeploymentStatus, deadline: Duration, now: Timestamp) -> bool {
    let Some(known) = find(status, PROGRESSING) else {
        return false;
    };
    match known.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => known
            .last_update_time
            .as_ref()
            .is_some_and(|since| later(since.0, deadline) < now),
    }
}

/// A set that cannot make its pods is the Deployment's failure; the new set's before those of others.
fn promote_failure(status: &mut DeploymentStatus, family: &Family) {
    let failure = family.new.iter().chain(&family.old).find_map(|member| {
        let conditions = member.wanted.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == REPLICA_FAILURE)
    });
    match failure {
        None => remove(status, REPLICA_FAILURE),
        Some(failure) => {
            let told = DeploymentCondition {
                type_: failure.type_.clone(),
                status: failure.status.clone(),
                reason: failure.reason.clone(),
                message: failure.message.clone(),
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time.clone(),
            };
            set(status, told);
        }
    }
}

/// When the deadline must be looked at; `None` if no rollout is under way or it was missed already.
pub(super) fn next_look(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let known = find(status, PROGRESSING)?;
    if is_complete(deployment, status)
        || matches!(
            known.reason.as_deref(),
            Some(TIMED_OUT | NEW_SET_AVAILABLE | PAUSED)
        )
    {
        return None;
    }
    let since = known.last_update_time.as_ref()?.0;
    // Objects tell whole seconds: a second more is on the safe side.
    until(
        later(since, deadline(deployment)? + Duration::from_secs(1)),
        now,
    )
    .or(Some(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests;
