//! The tally of a Job: what ran, what runs, and what of it is in the books.
//!
//! In: the Job, its pods, the time. Out: counts and indexes.
//! Holds: a pod that ended is first noted by uid in the status, then loses its finalizer, then is counted; at every point in
//! between the sum is the same, so a crash neither loses a pod nor counts one twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::indexes::Indexes;
use super::member::{failures_before, finished_at, has_failed, index, is_tracked, wait_after};
use super::policy::{Meaning, meaning};
use crate::workloads::pods::{Phase, is_active, is_ready, is_terminating, phase};

/// What there is to know about a Job at one moment.
pub(super) struct Tally<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) now: Timestamp,
    /// How many succeeded, noted or not.
    pub(super) succeeded: i32,
    /// How many failed and count, noted or not.
    pub(super) failed: i32,
    /// Of an indexed Job.
    pub(super) succeeded_indexes: Indexes,
    /// Of a Job with a limit for each index.
    pub(super) failed_indexes: Option<Indexes>,
    /// The last failed pod of each index that waits for a replacement, which takes over its count of failures.
    pub(super) replaced_next: BTreeMap<i32, Arc<Pod>>,
}

impl<'a> Tally<'a> {
    /// Counts. `status` is the Job's, with everything in the books that can be.
    pub(super) fn of(
        spec: &'a JobSpec,
        status: &JobStatus,
        pods: &'a [Arc<Pod>],
        now: Timestamp,
    ) -> Self {
        let active: Vec<_> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
        let mut tally = Self {
            spec,
            pods,
            active,
            now,
            succeeded: 0,
            failed: 0,
            succeeded_indexes: Indexes::default(),
            failed_indexes: None,
            replaced_next: BTreeMap::new(),
        };
        let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let noted_succeeded = noted.succeeded.unwrap_or_default();
        let noted_failed = noted.failed.unwrap_or_default();
        let new_succeeded = tally
            .unnoted(&noted_succeeded, |pod| phase(pod) == Phase::Succeeded)
            .count();
        let new_failed = tally
            .unnoted(&noted_failed, |pod| {
                has_failed(pod, spec) && tally.counts(pod)
            })
            .count();
        let sum = |counted: Option<i32>, noted: &[String], new: usize| {
            counted.unwrap_or(0) + number(noted.len() + new)
        };
        tally.failed = sum(status.failed, &noted_failed, new_failed);
        tally.succeeded = sum(status.succeeded, &noted_succeeded, new_succeeded);
        if tally.is_indexed() {
            tally.count_indexes(status);
        }
        tally
    }

    /// Tracked pods that are not noted yet and for which this holds.
    fn unnoted<'b>(
        &'b self,
        noted: &'b [String],
        holds: impl Fn(&Pod) -> bool + 'b,
    ) -> impl Iterator<Item = &'b Arc<Pod>> {
        let is_noted = move |pod: &Pod| {
            pod.metadata
                .uid
                .as_ref()
                .is_some_and(|uid| noted.contains(uid))
        };
        self.pods.iter().filter(move |pod| {
            is_tracked(pod) && !is_noted(pod) && self.is_valid(pod) && holds(pod)
        })
    }

    fn count_indexes(&mut self, status: &JobStatus) {
        let completions = self.completions();
        let known = |text: Option<&str>| Indexes::parse(text.unwrap_or_default(), completions);
        self.succeeded_indexes = known(status.completed_indexes.as_deref());
        for pod in self
            .pods
            .iter()
            .filter(|pod| is_tracked(pod) && phase(pod) == Phase::Succeeded)
        {
            index(pod)
                .filter(|index| *index < completions)
                .into_iter()
                .for_each(|index| self.succeeded_indexes.insert(index));
        }
        self.succeeded = self.succeeded_indexes.len();
        if let Some(limit) = self.spec.backoff_limit_per_index {
            let mut failed = known(status.failed_indexes.as_deref());
            for pod in self
                .pods
                .iter()
                .filter(|pod| is_tracked(pod) && self.is_valid(pod) && self.fails_index(pod, limit))
            {
                index(pod)
                    .into_iter()
                    .for_each(|index| failed.insert(index));
            }
            self.replaced_next = self.find_replaced_next(&failed);
            self.failed_indexes = Some(failed);
        }
    }

    fn fails_index(&self, pod: &Pod, limit: i32) -> bool {
        has_failed(pod, self.spec)
            && match self.meaning(pod) {
                Meaning::FailIndex => true,
                Meaning::Ignore => false,
                Meaning::Count | Meaning::FailJob(_) => failures_before(pod).0 >= limit,
            }
    }

    fn find_replaced_next(&self, failed: &Indexes) -> BTreeMap<i32, Arc<Pod>> {
        let running: BTreeSet<i32> = self.active.iter().filter_map(|pod| index(pod)).collect();
        let mut last: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
        for pod in self
            .pods
            .iter()
            .filter(|pod| is_tracked(pod) && self.is_valid(pod) && has_failed(pod, self.spec))
        {
            let Some(index) = index(pod) else { continue };
            if self.succeeded_indexes.contains(index)
                || failed.contains(index)
                || running.contains(&index)
            {
                continue;
            }
            let age = |pod: &Pod| {
                (
                    failures_before(pod).0 + failures_before(pod).1,
                    finished_at(pod),
                )
            };
            if last.get(&index).is_none_or(|known| age(known) <= age(pod)) {
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

    /// Whether a pod of an indexed Job has an index there is; other Jobs take any.
    pub(super) fn is_valid(&self, pod: &Pod) -> bool {
        !self.is_indexed() || index(pod).is_some_and(|index| index < self.completions())
    }

    pub(super) fn meaning(&self, pod: &Pod) -> Meaning {
        meaning(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Whether a failed pod counts.
    pub(super) fn counts(&self, pod: &Pod) -> bool {
        self.meaning(pod) != Meaning::Ignore
    }

    pub(super) fn ready(&self) -> i32 {
        number(self.active.iter().filter(|pod| is_ready(pod)).count())
    }

    pub(super) fn terminating(&self) -> i32 {
        number(self.pods.iter().filter(|pod| is_terminating(pod)).count())
    }

    /// How long new pods must wait because the last ones failed in a row.
    pub(super) fn wait(&self) -> Option<Duration> {
        let ended = |holds: &dyn Fn(&Pod) -> bool| -> Vec<Timestamp> {
            self.pods
                .iter()
                .filter(|pod| holds(pod))
                .filter_map(|pod| finished_at(pod))
                .collect()
        };
        let success = ended(&|pod| phase(pod) == Phase::Succeeded)
            .into_iter()
            .max();
        let failures: Vec<_> = ended(&|pod| has_failed(pod, self.spec))
            .into_iter()
            .filter(|at| success.is_none_or(|success| *at > success))
            .collect();
        wait_after(
            number(failures.len()),
            failures.iter().max().copied(),
            self.now,
        )
    }

    /// How long the replacement of an index must wait.
    pub(super) fn wait_of(&self, index: i32) -> Option<Duration> {
        let last = self.replaced_next.get(&index)?;
        let (counted, ignored) = failures_before(last);
        wait_after(counted + ignored + 1, finished_at(last), self.now)
    }

    /// How many failures, counted and ignored, the next pod of an index carries on.
    pub(super) fn failures_of(&self, index: i32) -> (i32, i32) {
        let Some(last) = self.replaced_next.get(&index) else {
            return (0, 0);
        };
        let (counted, ignored) = failures_before(last);
        if self.counts(last) {
            (counted + 1, ignored)
        } else {
            (counted, ignored + 1)
        }
    }

    /// Restarts of containers that are not replaced but restarted in place.
    pub(super) fn restarts(&self) -> i32 {
        let alive = self
            .pods
            .iter()
            .filter(|pod| matches!(phase(pod), Phase::Running | Phase::Pending));
        alive
            .flat_map(|pod| crate::workloads::pods::container_statuses(pod))
            .map(|container| container.restart_count)
            .sum()
    }
}

/// Takes into the books what was noted and has lost its finalizer since.
pub(super) fn settle(job: &Job, pods: &[Arc<Pod>]) -> JobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    let tracked: BTreeSet<String> = pods
        .iter()
        .filter(|pod| is_tracked(pod))
        .filter_map(|pod| pod.uid())
        .collect();
    let noted = status.uncounted_terminated_pods.get_or_insert_default();
    let settled = |list: &mut Option<Vec<String>>| {
        let before = list.as_ref().map_or(0, Vec::len);
        let left: Vec<_> = list
            .take()
            .unwrap_or_default()
            .into_iter()
            .filter(|uid| tracked.contains(uid))
            .collect();
        let settled = number(before - left.len());
        *list = Some(left).filter(|left| !left.is_empty());
        settled
    };
    let succeeded = settled(&mut noted.succeeded);
    let failed = settled(&mut noted.failed);
    status.succeeded = some(status.succeeded.unwrap_or(0) + succeeded);
    status.failed = some(status.failed.unwrap_or(0) + failed);
    status
}

pub(super) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn some(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}
