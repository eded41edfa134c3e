//! Counts of a Job's pods: active, succeeded and failed ones, finished indexes, uncounted
//! terminated pods.
//!
//! Input: the Job, its pods, the time. Output: counts and indexes.
//! Guarantees: a finished pod is first added to `uncountedTerminatedPods`, then loses its tracking
//! finalizer, then is added to the counters. The sum is the same in every state, so a crash neither
//! loses a pod nor counts it twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::indexes::CompletionIndexes;
use super::job_pod::{
    completion_index, finish_time, has_tracking_finalizer, index_failure_counts, is_pod_failed,
    remaining_backoff,
};
use super::policy::{FailurePolicyAction, match_pod_failure_policy};
use crate::workloads::counts::{omit_zero, saturating_i32};
use crate::workloads::pods::{
    Phase, container_statuses, is_active, is_ready, is_terminating, phase,
};

/// Counts of one Job at one time.
pub(super) struct PodCounts<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) now: Timestamp,
    /// Succeeded pods: counted, uncounted and newly finished ones.
    pub(super) succeeded: i32,
    /// Failed pods that are not ignored: counted, uncounted and newly finished ones.
    pub(super) failed: i32,
    /// Empty unless the Job is indexed.
    pub(super) succeeded_indexes: CompletionIndexes,
    /// `None` without `backoffLimitPerIndex`.
    pub(super) failed_indexes: Option<CompletionIndexes>,
    /// The last failed pod of each index that needs a replacement, which inherits its failure
    /// counts.
    pub(super) delayed_deletion: BTreeMap<i32, Arc<Pod>>,
}

impl<'a> PodCounts<'a> {
    /// Counts the pods. `status` is the result of [`count_released_pods`].
    pub(super) fn of(
        spec: &'a JobSpec,
        status: &JobStatus,
        pods: &'a [Arc<Pod>],
        now: Timestamp,
    ) -> Self {
        let active: Vec<_> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
        let mut counts = Self {
            spec,
            pods,
            active,
            now,
            succeeded: 0,
            failed: 0,
            succeeded_indexes: CompletionIndexes::default(),
            failed_indexes: None,
            delayed_deletion: BTreeMap::new(),
        };
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let uncounted_succeeded = uncounted.succeeded.unwrap_or_default();
        let uncounted_failed = uncounted.failed.unwrap_or_default();
        let new_succeeded = counts
            .new_finished_pods(&uncounted_succeeded, |pod| phase(pod) == Phase::Succeeded)
            .count();
        let new_failed = counts
            .new_finished_pods(&uncounted_failed, |pod| {
                is_pod_failed(pod, spec) && counts.is_counted(pod)
            })
            .count();
        let sum = |counted: Option<i32>, uncounted: &[String], new: usize| {
            counted.unwrap_or(0) + saturating_i32(uncounted.len() + new)
        };
        // Mirrors nonIgnoredFailedPodsCount.
        counts.failed = sum(status.failed, &uncounted_failed, new_failed);
        counts.succeeded = sum(status.succeeded, &uncounted_succeeded, new_succeeded);
        if counts.is_indexed() {
            counts.count_indexes(status);
        }
        counts
    }

    /// Pods with the tracking finalizer that are not in `uncounted` and satisfy the predicate.
    /// Mirrors getNewFinishedPods.
    fn new_finished_pods<'b>(
        &'b self,
        uncounted: &'b [String],
        predicate: impl Fn(&Pod) -> bool + 'b,
    ) -> impl Iterator<Item = &'b Arc<Pod>> {
        let is_uncounted = move |pod: &Pod| {
            pod.metadata
                .uid
                .as_ref()
                .is_some_and(|uid| uncounted.contains(uid))
        };
        self.pods.iter().filter(move |pod| {
            has_tracking_finalizer(pod)
                && !is_uncounted(pod)
                && self.has_valid_index(pod)
                && predicate(pod)
        })
    }

    /// Mirrors calculateSucceededIndexes and calculateFailedIndexes.
    fn count_indexes(&mut self, status: &JobStatus) {
        let completions = self.completions();
        let parse =
            |text: Option<&str>| CompletionIndexes::parse(text.unwrap_or_default(), completions);
        self.succeeded_indexes = parse(status.completed_indexes.as_deref());
        for pod in self
            .pods
            .iter()
            .filter(|pod| has_tracking_finalizer(pod) && phase(pod) == Phase::Succeeded)
        {
            completion_index(pod)
                .filter(|index| *index < completions)
                .into_iter()
                .for_each(|index| self.succeeded_indexes.insert(index));
        }
        // An index counts once, however many of its pods succeeded.
        self.succeeded = self.succeeded_indexes.len();
        if let Some(limit) = self.spec.backoff_limit_per_index {
            let mut failed = parse(status.failed_indexes.as_deref());
            for pod in self.pods.iter().filter(|pod| {
                has_tracking_finalizer(pod)
                    && self.has_valid_index(pod)
                    && self.is_index_failed(pod, limit)
            }) {
                completion_index(pod)
                    .into_iter()
                    .for_each(|index| failed.insert(index));
            }
            self.delayed_deletion = self.pods_with_delayed_deletion(&failed);
            self.failed_indexes = Some(failed);
        }
    }

    /// Mirrors isIndexFailed.
    fn is_index_failed(&self, pod: &Pod, limit: i32) -> bool {
        is_pod_failed(pod, self.spec)
            && match self.failure_policy_action(pod) {
                FailurePolicyAction::FailIndex => true,
                FailurePolicyAction::Ignore => false,
                FailurePolicyAction::Count | FailurePolicyAction::FailJob(_) => {
                    index_failure_counts(pod).0 >= limit
                }
            }
    }

    /// Mirrors getPodsWithDelayedDeletionPerIndex.
    fn pods_with_delayed_deletion(&self, failed: &CompletionIndexes) -> BTreeMap<i32, Arc<Pod>> {
        let active: BTreeSet<i32> = self
            .active
            .iter()
            .filter_map(|pod| completion_index(pod))
            .collect();
        let mut last: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| {
            has_tracking_finalizer(pod)
                && self.has_valid_index(pod)
                && is_pod_failed(pod, self.spec)
        }) {
            let Some(index) = completion_index(pod) else {
                continue;
            };
            if self.succeeded_indexes.contains(index)
                || failed.contains(index)
                || active.contains(&index)
            {
                continue;
            }
            let order = |pod: &Pod| {
                let (counted, ignored) = index_failure_counts(pod);
                (counted + ignored, finish_time(pod))
            };
            if last
                .get(&index)
                .is_none_or(|other| order(other) <= order(pod))
            {
                last.insert(index, pod.clone());
            }
        }
        last
    }

    pub(super) fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    pub(super) fn completions(&self) -> i32 {
        self.spec.completions.unwrap_or(0)
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether the pod of an indexed Job has an index below `completions`.
    pub(super) fn has_valid_index(&self, pod: &Pod) -> bool {
        !self.is_indexed() || completion_index(pod).is_some_and(|index| index < self.completions())
    }

    pub(super) fn failure_policy_action(&self, pod: &Pod) -> FailurePolicyAction {
        match_pod_failure_policy(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Whether a failed pod counts towards the back-off limit.
    pub(super) fn is_counted(&self, pod: &Pod) -> bool {
        self.failure_policy_action(pod) != FailurePolicyAction::Ignore
    }

    pub(super) fn ready(&self) -> i32 {
        saturating_i32(self.active.iter().filter(|pod| is_ready(pod)).count())
    }

    pub(super) fn terminating(&self) -> i32 {
        saturating_i32(self.pods.iter().filter(|pod| is_terminating(pod)).count())
    }

    /// Remaining back-off after the failures since the last success. Mirrors getRemainingTime.
    pub(super) fn remaining_backoff(&self) -> Option<Duration> {
        let finish_times = |predicate: &dyn Fn(&Pod) -> bool| -> Vec<Timestamp> {
            self.pods
                .iter()
                .filter(|pod| predicate(pod))
                .filter_map(|pod| finish_time(pod))
                .collect()
        };
        let last_success = finish_times(&|pod| phase(pod) == Phase::Succeeded)
            .into_iter()
            .max();
        let failures: Vec<_> = finish_times(&|pod| is_pod_failed(pod, self.spec))
            .into_iter()
            .filter(|time| last_success.is_none_or(|success| *time > success))
            .collect();
        remaining_backoff(
            saturating_i32(failures.len()),
            failures.iter().max().copied(),
            self.now,
        )
    }

    /// Remaining back-off of an index. Mirrors getRemainingTimePerIndex.
    pub(super) fn remaining_backoff_of_index(&self, index: i32) -> Option<Duration> {
        let last = self.delayed_deletion.get(&index)?;
        let (counted, ignored) = index_failure_counts(last);
        remaining_backoff(counted + ignored + 1, finish_time(last), self.now)
    }

    /// Counted and ignored failures of the next pod of an index. Mirrors getNewIndexFailureCounts.
    pub(super) fn new_index_failure_counts(&self, index: i32) -> (i32, i32) {
        let Some(last) = self.delayed_deletion.get(&index) else {
            return (0, 0);
        };
        let (counted, ignored) = index_failure_counts(last);
        if self.is_counted(last) {
            (counted + 1, ignored)
        } else {
            (counted, ignored + 1)
        }
    }

    /// Sum of the container restarts of running and pending pods.
    pub(super) fn container_restarts(&self) -> i32 {
        self.pods
            .iter()
            .filter(|pod| matches!(phase(pod), Phase::Running | Phase::Pending))
            .flat_map(|pod| container_statuses(pod))
            .map(|container| container.restart_count)
            .sum()
    }
}

/// The status with the uncounted pods that have lost their finalizer moved to the counters. Mirrors
/// cleanUncountedPodsWithoutFinalizers.
pub(super) fn count_released_pods(job: &Job, pods: &[Arc<Pod>]) -> JobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    let with_finalizer: BTreeSet<String> = pods
        .iter()
        .filter(|pod| has_tracking_finalizer(pod))
        .filter_map(|pod| pod.uid())
        .collect();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let remove_released = |uids: &mut Option<Vec<String>>| {
        let before = uids.as_ref().map_or(0, Vec::len);
        let remaining: Vec<_> = uids
            .take()
            .unwrap_or_default()
            .into_iter()
            .filter(|uid| with_finalizer.contains(uid))
            .collect();
        let released = saturating_i32(before - remaining.len());
        *uids = Some(remaining).filter(|remaining| !remaining.is_empty());
        released
    };
    let succeeded = remove_released(&mut uncounted.succeeded);
    let failed = remove_released(&mut uncounted.failed);
    status.succeeded = omit_zero(status.succeeded.unwrap_or(0) + succeeded);
    status.failed = omit_zero(status.failed.unwrap_or(0) + failed);
    status
}
