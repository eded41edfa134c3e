//! Plan for one Job: pods to create, delete and count, and the conditions.
//!
//! Input: the Job, its pods, the time. Output: a plan.
//! Guarantees: failure is checked before success; the interim condition (`FailureTarget`,
//! `SuccessCriteriaMet`) is set first, the terminal one (`Failed`, `Complete`) when all pods are
//! terminal and counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::events::Event;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::job_pod::{
    completion_index, has_tracking_finalizer, is_pod_failed, only_replace_failed_pods,
};
use super::pod_counts::{PodCounts, count_released_pods};
use super::policy::{FailurePolicyAction, match_success_policy};
use crate::workloads::counts::{omit_zero, saturating_i32};
use crate::workloads::deletion_order::pods_to_delete;
use crate::workloads::events::{normal_event, warning_event};
use crate::workloads::pods::{Phase, is_ready, is_terminating, phase, saturating_add, time_until};

/// Maximum number of pods created or deleted in one reconcile, as upstream
/// (MaxPodCreateDeletePerSync).
const MAX_PODS_PER_SYNC: usize = 500;

/// Maximum number of uids in `uncountedTerminatedPods`, about 20 kB, as upstream
/// (MaxUncountedPods).
const MAX_UNCOUNTED_PODS: usize = 500;

/// Pods to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Create {
    /// A number of pods without an index.
    NonIndexed(usize),
    /// One pod per index, with its counted and ignored failures.
    Indexed(Vec<(i32, (i32, i32))>),
}

/// Result of planning one reconcile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) create: Create,
    /// Active pods to delete because the Job finishes. They are counted.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Surplus active pods to delete. They are not counted.
    pub(super) discard: Vec<Arc<Pod>>,
    /// The status, written before finalizers are removed.
    pub(super) status: JobStatus,
    /// Pods whose tracking finalizer is removed once the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<Event>,
    /// Time until the active deadline or the end of a back-off.
    pub(super) requeue_after: Option<Duration>,
}

/// Reason and message of the terminal condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FinishedCondition {
    Failed { reason: String, message: String },
    Succeeded { reason: String, message: String },
}

/// Whether a Job is complete or failed. Mirrors IsJobFinished.
pub(super) fn is_job_finished(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions.iter().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

/// Plans one reconcile. Mirrors syncJob.
pub(super) fn plan(job: &Job, spec: &JobSpec, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let status = count_released_pods(job, pods);
    let counts = PodCounts::of(spec, &status, pods, now);
    let plan = Plan {
        create: Create::NonIndexed(0),
        delete: Vec::new(),
        discard: Vec::new(),
        status,
        release: Vec::new(),
        events: Vec::new(),
        requeue_after: None,
    };
    let mut planner = Planner { job, counts, plan };
    planner.run();
    planner.plan
}

struct Planner<'a> {
    job: &'a Job,
    counts: PodCounts<'a>,
    plan: Plan,
}

impl Planner<'_> {
    fn run(&mut self) {
        let now = Time(self.counts.now);
        // Mirrors syncJob: the start time is set on the first reconcile that is not suspended.
        if self.plan.status.start_time.is_none() && !self.counts.is_suspended() {
            self.plan.status.start_time = Some(now);
        }
        // Mirrors syncJob: the decision of an earlier reconcile is final, and failure is checked
        // before success.
        let mut finished = self
            .interim_condition()
            .or_else(|| self.failure_condition())
            .or_else(|| self.success_policy_condition());
        let mut active = saturating_i32(self.counts.active.len());
        if finished.is_some() {
            // Mirrors deleteActivePods: the pods of a decided Job are deleted before its terminal
            // condition is set.
            self.plan.delete = self.counts.active.clone();
            active = 0;
        } else {
            if self.job.metadata.deletion_timestamp.is_none() {
                self.manage_job();
                active += self.created() - saturating_i32(self.plan.discard.len());
            }
            finished = self.completion_condition(active);
            if finished.is_none() && self.job.metadata.deletion_timestamp.is_none() {
                self.update_suspended_condition();
            }
        }
        self.update_counts(active);
        self.track_finished_pods(finished.as_ref());
        if let Some(finished) = &finished {
            self.set_finished_conditions(finished);
        }
    }

    /// The result of an earlier reconcile, by its interim condition.
    fn interim_condition(&self) -> Option<FinishedCondition> {
        let find = |type_: &str| {
            self.conditions()
                .iter()
                .find(|condition| condition.type_ == type_ && condition.status == "True")
                .cloned()
        };
        let reason_and_message = |condition: JobCondition| {
            (
                condition.reason.unwrap_or_default(),
                condition.message.unwrap_or_default(),
            )
        };
        let met = find("SuccessCriteriaMet")
            .map(reason_and_message)
            .map(|(reason, message)| FinishedCondition::Succeeded { reason, message });
        met.or_else(|| {
            find("FailureTarget")
                .map(reason_and_message)
                .map(|(reason, message)| FinishedCondition::Failed { reason, message })
        })
    }

    /// Checks pod failure policy, back-off limit, active deadline and failed indexes.
    fn failure_condition(&mut self) -> Option<FinishedCondition> {
        let failed = |reason: &str, message: &str| {
            Some(FinishedCondition::Failed {
                reason: reason.into(),
                message: message.into(),
            })
        };
        let counts = &self.counts;
        let spec = self.counts.spec;
        let policy_failure = counts
            .pods
            .iter()
            .filter(|pod| is_pod_failed(pod, spec))
            .find_map(|pod| match counts.failure_policy_action(pod) {
                FailurePolicyAction::FailJob(message) => Some(message),
                _ => None,
            });
        if let Some(message) = policy_failure {
            return failed("PodFailurePolicy", &message);
        }
        if counts.failed > spec.backoff_limit.unwrap_or(6) || self.past_backoff_limit_on_failure() {
            return failed(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
        }
        match self.remaining_active_deadline() {
            Some(None) => {
                return failed(
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                );
            }
            Some(Some(left)) => self.plan.requeue_after = Some(left),
            None => {}
        }
        let indexes = self.counts.failed_indexes.as_ref()?.len();
        if spec.max_failed_indexes.is_some_and(|max| indexes > max) {
            return failed(
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            );
        }
        let all_finished = indexes > 0
            && indexes + self.counts.succeeded_indexes.len() >= self.counts.completions();
        if all_finished {
            failed("FailedIndexes", "Job has failed indexes")
        } else {
            None
        }
    }

    /// Mirrors pastBackoffLimitOnFailure: with restart policy `OnFailure`, restarts count.
    fn past_backoff_limit_on_failure(&self) -> bool {
        let spec = self.counts.spec;
        let restarts_on_failure = spec
            .template
            .spec
            .as_ref()
            .and_then(|pod| pod.restart_policy.as_deref())
            == Some("OnFailure");
        let limit = spec.backoff_limit.unwrap_or(6);
        let restarts = self.counts.container_restarts();
        restarts_on_failure
            && if limit == 0 {
                restarts > 0
            } else {
                restarts >= limit
            }
    }

    /// `None` without a deadline, `Some(None)` if it has passed, otherwise the remaining time.
    /// Mirrors pastActiveDeadline.
    fn remaining_active_deadline(&self) -> Option<Option<Duration>> {
        let seconds = self
            .counts
            .spec
            .active_deadline_seconds
            .filter(|_| !self.counts.is_suspended())?;
        let started = self.plan.status.start_time.as_ref()?.0;
        Some(time_until(
            saturating_add(
                started,
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            ),
            self.counts.now,
        ))
    }

    fn success_policy_condition(&self) -> Option<FinishedCondition> {
        let counts = &self.counts;
        let message = match_success_policy(
            counts
                .spec
                .success_policy
                .as_ref()
                .filter(|_| counts.is_indexed()),
            &counts.succeeded_indexes,
            counts.completions(),
        )?;
        Some(FinishedCondition::Succeeded {
            reason: "SuccessPolicy".into(),
            message,
        })
    }

    fn completion_condition(&self, active: i32) -> Option<FinishedCondition> {
        let is_complete = match self.counts.spec.completions {
            // Without `completions`, one success completes the Job once no pod is active.
            None => self.counts.succeeded > 0,
            Some(completions) => self.counts.succeeded >= completions,
        };
        let message = "Reached expected number of succeeded pods".to_owned();
        (is_complete && active == 0).then(|| FinishedCondition::Succeeded {
            reason: "CompletionsReached".into(),
            message,
        })
    }

    /// Brings the number of active pods to the desired one. Mirrors manageJob.
    fn manage_job(&mut self) {
        let counts = &self.counts;
        let active = saturating_i32(counts.active.len());
        let desired = if counts.is_suspended() {
            0
        } else {
            self.desired_active(active)
        };
        let surplus = usize::try_from(active - desired).unwrap_or(0);
        self.plan.discard = self.active_pods_for_removal(surplus);
        // Mirrors manageJob: deletions and creations are not mixed in one sync.
        if !self.plan.discard.is_empty() || counts.is_suspended() {
            return;
        }
        let terminating = if only_replace_failed_pods(counts.spec) {
            counts.terminating()
        } else {
            0
        };
        let missing = usize::try_from(desired - terminating - active)
            .unwrap_or(0)
            .min(MAX_PODS_PER_SYNC);
        if missing == 0 {
            return;
        }
        let per_index = counts.spec.backoff_limit_per_index.is_some();
        // With backoffLimitPerIndex each index has its own back-off, see create_indexes.
        if let Some(remaining) = counts.remaining_backoff().filter(|_| !per_index) {
            return self.requeue_within(remaining);
        }
        if counts.is_indexed() {
            self.create_indexes(missing);
        } else {
            self.plan.create = Create::NonIndexed(missing);
        }
    }

    fn desired_active(&self, active: i32) -> i32 {
        let counts = &self.counts;
        let parallelism = self.counts.spec.parallelism.unwrap_or(1);
        match counts.spec.completions {
            // Without completions, no pod is created after the first success.
            None if counts.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => (completions - counts.succeeded).min(parallelism).max(0),
        }
    }

    /// Active pods to discard: duplicates of an index, pods without a valid index, then surplus
    /// pods in deletion order. Mirrors activePodsForRemoval.
    fn active_pods_for_removal(&self, surplus: usize) -> Vec<Arc<Pod>> {
        let mut remaining = self.counts.active.clone();
        let mut discard = Vec::new();
        if self.counts.is_indexed() {
            let mut by_index: BTreeMap<Option<i32>, Vec<Arc<Pod>>> = BTreeMap::new();
            for pod in remaining.drain(..) {
                by_index
                    .entry(completion_index(&pod).filter(|_| self.counts.has_valid_index(&pod)))
                    .or_default()
                    .push(pod);
            }
            for (index, mut pods) in by_index {
                let surplus = if index.is_some() {
                    pods.len() - 1
                } else {
                    pods.len()
                };
                let removed = pods_to_delete(pods.clone(), &[], surplus, self.counts.now);
                pods.retain(|pod| removed.iter().all(|removed| removed.uid() != pod.uid()));
                remaining.extend(pods);
                discard.extend(removed);
            }
        }
        discard.extend(pods_to_delete(
            remaining,
            &[],
            surplus.saturating_sub(discard.len()),
            self.counts.now,
        ));
        discard.truncate(MAX_PODS_PER_SYNC);
        discard
    }

    /// Creates the pods of the first pending indexes that are not in back-off. Mirrors
    /// getPodCreationInfoForIndependentIndexes.
    fn create_indexes(&mut self, missing: usize) {
        let counts = &self.counts;
        let mut unavailable = counts.succeeded_indexes.clone();
        let terminating = counts
            .pods
            .iter()
            .filter(|pod| only_replace_failed_pods(counts.spec) && is_terminating(pod));
        counts
            .active
            .iter()
            .chain(terminating)
            .filter_map(|pod| completion_index(pod))
            .for_each(|index| unavailable.insert(index));
        if let Some(failed) = &counts.failed_indexes {
            unavailable.merge(failed);
        }
        let pending = unavailable.first_pending(counts.completions(), missing);
        let backoff = |index: i32| counts.remaining_backoff_of_index(index);
        let (now, delayed): (Vec<i32>, Vec<i32>) = pending
            .into_iter()
            .partition(|index| backoff(*index).is_none());
        let delay = delayed.into_iter().filter_map(backoff).min();
        let create = now
            .into_iter()
            .map(|index| (index, counts.new_index_failure_counts(index)))
            .collect::<Vec<_>>();
        self.plan.create = Create::Indexed(create);
        if let Some(delay) = delay {
            self.requeue_within(delay);
        }
    }

    fn created(&self) -> i32 {
        match &self.plan.create {
            Create::NonIndexed(count) => saturating_i32(*count),
            Create::Indexed(indexes) => saturating_i32(indexes.len()),
        }
    }

    fn requeue_within(&mut self, delay: Duration) {
        let current = self.plan.requeue_after;
        self.plan.requeue_after = Some(current.map_or(delay, |after| after.min(delay)));
    }

    /// Sets the counts of active, ready and terminating pods and the indexes.
    fn update_counts(&mut self, active: i32) {
        let counts = &self.counts;
        let plan = &mut self.plan;
        let deleted: Vec<_> = plan.delete.iter().chain(&plan.discard).collect();
        let deleted_ready = deleted.iter().filter(|pod| is_ready(pod)).count();
        let ready = counts.ready() - saturating_i32(deleted_ready);
        plan.status.active = omit_zero(active);
        plan.status.ready = Some(ready);
        // Pods that this reconcile deletes are terminating afterwards.
        plan.status.terminating = Some(counts.terminating() + saturating_i32(deleted.len()));
        if counts.is_indexed() {
            plan.status.succeeded = omit_zero(counts.succeeded_indexes.len());
            plan.status.completed_indexes =
                Some(counts.succeeded_indexes.to_string()).filter(|text| !text.is_empty());
            plan.status.failed_indexes = counts.failed_indexes.as_ref().map(ToString::to_string);
        }
    }

    /// Adds finished pods to `uncountedTerminatedPods` and selects the pods to release. Mirrors
    /// trackJobStatusAndRemoveFinalizers.
    fn track_finished_pods(&mut self, finished: Option<&FinishedCondition>) {
        let counts = &self.counts;
        let plan = &mut self.plan;
        let uncounted = plan
            .status
            .uncounted_terminated_pods
            .get_or_insert_default();
        let mut succeeded = uncounted.succeeded.take().unwrap_or_default();
        let mut failed = uncounted.failed.take().unwrap_or_default();
        let job_terminating = self.job.metadata.deletion_timestamp.is_some();
        // The finalizer of a discarded pod is removed with its deletion; it is not counted.
        let is_discarded = |pod: &Pod| {
            plan.discard
                .iter()
                .any(|discarded| discarded.metadata.uid == pod.metadata.uid)
        };
        let mut succeeded_indexes = 0;
        for pod in counts
            .pods
            .iter()
            .filter(|pod| has_tracking_finalizer(pod) && !is_discarded(pod))
        {
            // The remaining pods are tracked by the next reconcile.
            if succeeded.len() + failed.len() + succeeded_indexes >= MAX_UNCOUNTED_PODS {
                break;
            }
            let is_failed = is_pod_failed(pod, counts.spec);
            let deletion_is_delayed = completion_index(pod)
                .and_then(|index| counts.delayed_deletion.get(&index))
                .is_some_and(|last| last.uid() == pod.uid());
            // Mirrors canRemoveFinalizer.
            let is_finished = phase(pod) == Phase::Succeeded || (is_failed && !deletion_is_delayed);
            if !(job_terminating || finished.is_some() || is_finished) {
                continue;
            }
            let uid = pod.uid().unwrap_or_default();
            // A terminating pod that was recorded as failed may still succeed. The first record
            // holds; otherwise the pod would be counted twice.
            if phase(pod) == Phase::Succeeded && !failed.contains(&uid) {
                if counts.is_indexed() {
                    succeeded_indexes += 1;
                } else if !succeeded.contains(&uid) {
                    succeeded.push(uid);
                }
            } else if is_failed || matches!(finished, Some(FinishedCondition::Failed { .. })) {
                // When the Job has failed, all pods that did not succeed count as failed.
                if !failed.contains(&uid) && counts.has_valid_index(pod) && counts.is_counted(pod) {
                    failed.push(uid);
                }
            }
            plan.release.push(pod.clone());
        }
        uncounted.succeeded = Some(succeeded).filter(|uids| !uids.is_empty());
        uncounted.failed = Some(failed).filter(|uids| !uids.is_empty());
    }

    fn update_suspended_condition(&mut self) {
        let now = self.counts.now;
        let suspended = self.counts.is_suspended();
        let was_suspended = self
            .conditions()
            .iter()
            .any(|condition| condition.type_ == "Suspended" && condition.status == "True");
        if suspended && !was_suspended {
            self.set_condition(new_condition(
                "Suspended",
                "JobSuspended",
                "Job suspended",
                now,
            ));
            self.plan
                .events
                .push(normal_event("Suspended", "Job suspended".into()));
            // The start time is reset on resume; without it the scheduling fields are mutable.
            self.plan.status.start_time = None;
        } else if !suspended && was_suspended {
            self.set_condition(JobCondition {
                status: "False".into(),
                ..new_condition("Suspended", "JobResumed", "Job resumed", now)
            });
            self.plan
                .events
                .push(normal_event("Resumed", "Job resumed".into()));
            // The active deadline is counted from the resume.
            self.plan.status.start_time = Some(Time(now));
        }
    }

    /// Sets the interim condition, and the terminal one when all pods are terminal and counted.
    /// Mirrors enactJobFinished.
    fn set_finished_conditions(&mut self, finished: &FinishedCondition) {
        let now = self.counts.now;
        let (interim, terminal, reason, message) = match finished {
            FinishedCondition::Failed { reason, message } => {
                ("FailureTarget", "Failed", reason, message)
            }
            FinishedCondition::Succeeded { reason, message } => {
                ("SuccessCriteriaMet", "Complete", reason, message)
            }
        };
        if !self
            .conditions()
            .iter()
            .any(|condition| condition.type_ == interim && condition.status == "True")
        {
            self.set_condition(new_condition(interim, reason, message, now));
        }
        let uncounted = self
            .plan
            .status
            .uncounted_terminated_pods
            .clone()
            .unwrap_or_default();
        // Clients take the terminal condition as the end of all pods, so it waits for every count
        // and for terminating pods.
        let all_counted = uncounted.succeeded.is_none()
            && uncounted.failed.is_none()
            && self.plan.release.is_empty()
            && self.plan.delete.is_empty();
        if !all_counted || self.plan.status.terminating != Some(0) {
            return;
        }
        self.set_condition(new_condition(terminal, reason, message, now));
        self.plan.requeue_after = None;
        if let FinishedCondition::Failed { reason, message } = finished {
            return self
                .plan
                .events
                .push(warning_event(reason, message.clone()));
        }
        self.plan.status.completion_time = Some(Time(now));
        if self
            .counts
            .spec
            .completions
            .is_some_and(|completions| self.plan.status.succeeded.unwrap_or(0) > completions)
        {
            let message =
                "Too many succeeded pods running after completion count reached".to_owned();
            self.plan
                .events
                .push(warning_event("TooManySucceededPods", message));
        }
        self.plan
            .events
            .push(normal_event("Completed", "Job completed".into()));
    }

    fn conditions(&self) -> &[JobCondition] {
        self.plan.status.conditions.as_deref().unwrap_or_default()
    }

    fn set_condition(&mut self, condition: JobCondition) {
        let conditions = self.plan.status.conditions.get_or_insert_default();
        match conditions
            .iter_mut()
            .find(|current| current.type_ == condition.type_)
        {
            Some(current) => *current = condition,
            None => conditions.push(condition),
        }
    }
}

fn new_condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

#[cfg(test)]
mod tests;
