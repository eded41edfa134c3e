//! The plan for one Job: which pods come and go, which are counted, and whether it is over.
//!
//! In: the Job, its pods, the time. Out: a plan.
//! Holds: failure is judged before success; a verdict is told first (`FailureTarget`, `SuccessCriteriaMet`), and becomes final
//! (`Failed`, `Complete`) when every pod has ended and is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::Note;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::member::{has_failed, index, is_tracked, replaces_failed_only};
use super::policy::{Meaning, success};
use super::tally::{Tally, number, settle, some};
use crate::workloads::deletion_order::pods_to_delete;
use crate::workloads::events::{normal_event, warning_event};
use crate::workloads::pods::{Phase, is_ready, is_terminating, phase, saturating_add, time_until};

/// How many pods one pass creates or deletes at most, as upstream.
const BURST: usize = 500;

/// How many uids the status holds at most, about 20 kB.
const NOTED_MAX: usize = 500;

/// Pods to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Create {
    /// So many without an index.
    Plain(usize),
    /// One for each index, after so many failures, counted and ignored.
    Indexed(Vec<(i32, (i32, i32))>),
}

/// What is to happen.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) create: Create,
    /// Active pods to end because the Job is over; they are counted.
    pub(super) end: Vec<Arc<Pod>>,
    /// Active pods to end because they are too many; they are not.
    pub(super) discard: Vec<Arc<Pod>>,
    /// The status, written before finalizers go.
    pub(super) status: JobStatus,
    /// Pods that may go once the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) notes: Vec<Note>,
    /// When to look again even if nothing changes.
    pub(super) next: Option<Duration>,
}

/// How a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Failed { reason: String, message: String },
    Succeeded { reason: String, message: String },
}

/// Whether a Job is over.
pub(super) fn is_terminal(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions.iter().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

/// Makes the plan.
pub(super) fn plan(job: &Job, spec: &JobSpec, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let status = settle(job, pods);
    let tally = Tally::of(spec, &status, pods, now);
    let plan = Plan {
        create: Create::Plain(0),
        end: Vec::new(),
        discard: Vec::new(),
        status,
        release: Vec::new(),
        notes: Vec::new(),
        next: None,
    };
    let mut draft = Draft { job, tally, plan };
    draft.make();
    draft.plan
}

struct Draft<'a> {
    job: &'a Job,
    tally: Tally<'a>,
    plan: Plan,
}

impl Draft<'_> {
    fn make(&mut self) {
        let now = Time(self.tally.now);
        if self.plan.status.start_time.is_none() && !self.tally.is_suspended() {
            self.plan.status.start_time = Some(now);
        }
        let mut verdict = self
            .told_verdict()
            .or_else(|| self.failure())
            .or_else(|| self.met_policy());
        let mut active = number(self.tally.active.len());
        if verdict.is_some() {
            self.plan.end = self.tally.active.clone();
            active = 0;
        } else {
            if self.job.metadata.deletion_timestamp.is_none() {
                self.manage();
                active += self.created() - number(self.plan.discard.len());
            }
            verdict = self.completion(active);
            if verdict.is_none() && self.job.metadata.deletion_timestamp.is_none() {
                self.tell_suspension();
            }
        }
        self.count(active);
        self.track(verdict.as_ref());
        if let Some(verdict) = &verdict {
            self.conclude(verdict);
        }
    }

    /// What an earlier pass decided.
    fn told_verdict(&self) -> Option<Verdict> {
        let find = |type_: &str| {
            self.conditions()
                .iter()
                .find(|known| known.type_ == type_ && known.status == "True")
                .cloned()
        };
        let words = |known: JobCondition| {
            (
                known.reason.unwrap_or_default(),
                known.message.unwrap_or_default(),
            )
        };
        let met = find("SuccessCriteriaMet")
            .map(words)
            .map(|(reason, message)| Verdict::Succeeded { reason, message });
        met.or_else(|| {
            find("FailureTarget")
                .map(words)
                .map(|(reason, message)| Verdict::Failed { reason, message })
        })
    }

    fn failure(&mut self) -> Option<Verdict> {
        let failed = |reason: &str, message: &str| {
            Some(Verdict::Failed {
                reason: reason.into(),
                message: message.into(),
            })
        };
        let tally = &self.tally;
        let spec = self.tally.spec;
        let judged = tally
            .pods
            .iter()
            .filter(|pod| has_failed(pod, spec))
            .find_map(|pod| match tally.meaning(pod) {
                Meaning::FailJob(message) => Some(message),
                _ => None,
            });
        if let Some(message) = judged {
            return failed("PodFailurePolicy", &message);
        }
        if tally.failed > spec.backoff_limit.unwrap_or(6) || self.is_restarted_too_often() {
            return failed(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
        }
        match self.until_deadline() {
            Some(None) => {
                return failed(
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                );
            }
            Some(Some(left)) => self.plan.next = Some(left),
            None => {}
        }
        let indexes = self.tally.failed_indexes.as_ref()?.len();
        if spec.max_failed_indexes.is_some_and(|max| indexes > max) {
            return failed(
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            );
        }
        let over =
            indexes > 0 && indexes + self.tally.succeeded_indexes.len() >= self.tally.completions();
        if over {
            failed("FailedIndexes", "Job has failed indexes")
        } else {
            None
        }
    }

    fn is_restarted_too_often(&self) -> bool {
        let spec = self.tally.spec;
        let in_place = spec
            .template
            .spec
            .as_ref()
            .and_then(|pod| pod.restart_policy.as_deref())
            == Some("OnFailure");
        let limit = spec.backoff_limit.unwrap_or(6);
        let restarts = self.tally.restarts();
        in_place
            && if limit == 0 {
                restarts > 0
            } else {
                restarts >= limit
            }
    }

    /// `None` without a deadline; else how long is left, if anything.
    fn until_deadline(&self) -> Option<Option<Duration>> {
        let seconds = self
            .tally
            .spec
            .active_deadline_seconds
            .filter(|_| !self.tally.is_suspended())?;
        let started = self.plan.status.start_time.as_ref()?.0;
        Some(time_until(
            saturating_add(
                started,
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            ),
            self.tally.now,
        ))
    }

    fn met_policy(&self) -> Option<Verdict> {
        let tally = &self.tally;
        let message = success(
            tally
                .spec
                .success_policy
                .as_ref()
                .filter(|_| tally.is_indexed()),
            &tally.succeeded_indexes,
            tally.completions(),
        )?;
        Some(Verdict::Succeeded {
            reason: "SuccessPolicy".into(),
            message,
        })
    }

    fn completion(&self, active: i32) -> Option<Verdict> {
        let enough = match self.tally.spec.completions {
            // Any pod that ends well says that all is done; those that run are waited for.
            None => self.tally.succeeded > 0,
            Some(completions) => self.tally.succeeded >= completions,
        };
        let message = "Reached expected number of succeeded pods".to_owned();
        (enough && active == 0).then(|| Verdict::Succeeded {
            reason: "CompletionsReached".into(),
            message,
        })
    }

    /// Brings the number of active pods to what is wanted.
    fn manage(&mut self) {
        let tally = &self.tally;
        let active = number(tally.active.len());
        let wanted = if tally.is_suspended() {
            0
        } else {
            self.wanted_active(active)
        };
        let surplus = usize::try_from(active - wanted).unwrap_or(0);
        self.plan.discard = self.too_many(surplus);
        if !self.plan.discard.is_empty() || tally.is_suspended() {
            return;
        }
        let waiting = if replaces_failed_only(tally.spec) {
            tally.terminating()
        } else {
            0
        };
        let missing = usize::try_from(wanted - waiting - active)
            .unwrap_or(0)
            .min(BURST);
        if missing == 0 {
            return;
        }
        let per_index = tally.spec.backoff_limit_per_index.is_some();
        if let Some(wait) = tally.wait().filter(|_| !per_index) {
            return self.look_again(wait);
        }
        if tally.is_indexed() {
            self.create_indexes(missing);
        } else {
            self.plan.create = Create::Plain(missing);
        }
    }

    fn wanted_active(&self, active: i32) -> i32 {
        let tally = &self.tally;
        let parallelism = self.tally.spec.parallelism.unwrap_or(1);
        match tally.spec.completions {
            None if tally.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => (completions - tally.succeeded).min(parallelism).max(0),
        }
    }

    /// Active pods to discard: those with an index twice or none, then as many as are too many.
    fn too_many(&self, surplus: usize) -> Vec<Arc<Pod>> {
        let mut left = self.tally.active.clone();
        let mut discard = Vec::new();
        if self.tally.is_indexed() {
            let mut by_index: BTreeMap<Option<i32>, Vec<Arc<Pod>>> = BTreeMap::new();
            for pod in left.drain(..) {
                by_index
                    .entry(index(&pod).filter(|_| self.tally.is_valid(&pod)))
                    .or_default()
                    .push(pod);
            }
            for (index, mut pods) in by_index {
                let spare = if index.is_some() {
                    pods.len() - 1
                } else {
                    pods.len()
                };
                let gone = pods_to_delete(pods.clone(), &[], spare, self.tally.now);
                pods.retain(|pod| gone.iter().all(|gone| gone.uid() != pod.uid()));
                left.extend(pods);
                discard.extend(gone);
            }
        }
        discard.extend(pods_to_delete(
            left,
            &[],
            surplus.saturating_sub(discard.len()),
            self.tally.now,
        ));
        discard.truncate(BURST);
        discard
    }

    fn create_indexes(&mut self, missing: usize) {
        let tally = &self.tally;
        let mut taken = tally.succeeded_indexes.clone();
        let waited_for = tally
            .pods
            .iter()
            .filter(|pod| replaces_failed_only(tally.spec) && is_terminating(pod));
        tally
            .active
            .iter()
            .chain(waited_for)
            .filter_map(|pod| index(pod))
            .for_each(|index| taken.insert(index));
        if let Some(failed) = &tally.failed_indexes {
            taken.insert_all(failed);
        }
        let free = taken.missing(tally.completions(), missing);
        let (now, later): (Vec<i32>, Vec<i32>) = free
            .into_iter()
            .partition(|index| tally.wait_of(*index).is_none());
        let wait = later.iter().filter_map(|index| tally.wait_of(*index)).min();
        let create = now
            .into_iter()
            .map(|index| (index, tally.failures_of(index)))
            .collect::<Vec<_>>();
        self.plan.create = Create::Indexed(create);
        if let Some(wait) = wait {
            self.look_again(wait);
        }
    }

    fn created(&self) -> i32 {
        match &self.plan.create {
            Create::Plain(count) => number(*count),
            Create::Indexed(indexes) => number(indexes.len()),
        }
    }

    fn look_again(&mut self, wait: Duration) {
        self.plan.next = Some(self.plan.next.map_or(wait, |next| next.min(wait)));
    }

    /// Counts what runs.
    fn count(&mut self, active: i32) {
        let tally = &self.tally;
        let plan = &mut self.plan;
        let gone: Vec<_> = plan.end.iter().chain(&plan.discard).collect();
        let ready = tally.ready() - number(gone.iter().filter(|pod| is_ready(pod)).count());
        plan.status.active = some(active);
        plan.status.ready = Some(ready);
        plan.status.terminating = Some(tally.terminating() + number(gone.len()));
        if tally.is_indexed() {
            plan.status.succeeded = some(tally.succeeded_indexes.len());
            plan.status.completed_indexes =
                Some(tally.succeeded_indexes.to_string()).filter(|text| !text.is_empty());
            plan.status.failed_indexes = tally.failed_indexes.as_ref().map(ToString::to_string);
        }
    }

    /// Notes pods that ended, and releases those that are noted or need not be.
    fn track(&mut self, verdict: Option<&Verdict>) {
        let tally = &self.tally;
        let plan = &mut self.plan;
        let noted = plan
            .status
            .uncounted_terminated_pods
            .get_or_insert_default();
        let mut succeeded = noted.succeeded.take().unwrap_or_default();
        let mut failed = noted.failed.take().unwrap_or_default();
        let going = self.job.metadata.deletion_timestamp.is_some();
        let discarded = |pod: &Pod| {
            plan.discard
                .iter()
                .any(|gone| gone.metadata.uid == pod.metadata.uid)
        };
        let mut indexes = 0;
        for pod in tally
            .pods
            .iter()
            .filter(|pod| is_tracked(pod) && !discarded(pod))
        {
            if succeeded.len() + failed.len() + indexes >= NOTED_MAX {
                break;
            }
            let fails = has_failed(pod, tally.spec);
            let is_replaced = index(pod)
                .and_then(|index| tally.replaced_next.get(&index))
                .is_some_and(|next| next.uid() == pod.uid());
            let ends = phase(pod) == Phase::Succeeded || (fails && !is_replaced);
            if !(going || verdict.is_some() || ends) {
                continue;
            }
            let uid = pod.uid().unwrap_or_default();
            if phase(pod) == Phase::Succeeded && !failed.contains(&uid) {
                if tally.is_indexed() {
                    indexes += 1;
                } else if !succeeded.contains(&uid) {
                    succeeded.push(uid);
                }
            } else if fails || matches!(verdict, Some(Verdict::Failed { .. })) {
                // When the Job has failed, every pod that did not end well has.
                if !failed.contains(&uid) && tally.is_valid(pod) && tally.counts(pod) {
                    failed.push(uid);
                }
            }
            plan.release.push(pod.clone());
        }
        let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        noted.succeeded = some(succeeded);
        noted.failed = some(failed);
    }

    fn tell_suspension(&mut self) {
        let now = self.tally.now;
        let suspended = self.tally.is_suspended();
        let known = self
            .conditions()
            .iter()
            .find(|known| known.type_ == "Suspended")
            .map(|known| known.status == "True");
        if suspended && known != Some(true) {
            self.set(condition("Suspended", "JobSuspended", "Job suspended", now));
            self.plan
                .notes
                .push(normal_event("Suspended", "Job suspended".into()));
            // It starts anew when it is resumed, and may be changed until then.
            self.plan.status.start_time = None;
        } else if !suspended && known == Some(true) {
            self.set(JobCondition {
                status: "False".into(),
                ..condition("Suspended", "JobResumed", "Job resumed", now)
            });
            self.plan
                .notes
                .push(normal_event("Resumed", "Job resumed".into()));
            // The deadline counts from when it runs again.
            self.plan.status.start_time = Some(Time(now));
        }
    }

    /// Tells the verdict, and makes it final when nothing is left to do.
    fn conclude(&mut self, verdict: &Verdict) {
        let now = self.tally.now;
        let (interim, last, reason, message) = match verdict {
            Verdict::Failed { reason, message } => ("FailureTarget", "Failed", reason, message),
            Verdict::Succeeded { reason, message } => {
                ("SuccessCriteriaMet", "Complete", reason, message)
            }
        };
        if !self
            .conditions()
            .iter()
            .any(|known| known.type_ == interim && known.status == "True")
        {
            self.set(condition(interim, reason, message, now));
        }
        let noted = self
            .plan
            .status
            .uncounted_terminated_pods
            .clone()
            .unwrap_or_default();
        let is_settled = noted.succeeded.is_none()
            && noted.failed.is_none()
            && self.plan.release.is_empty()
            && self.plan.end.is_empty();
        if !is_settled || self.plan.status.terminating != Some(0) {
            return;
        }
        self.set(condition(last, reason, message, now));
        self.plan.next = None;
        if let Verdict::Failed { reason, message } = verdict {
            return self.plan.notes.push(warning_event(reason, message.clone()));
        }
        self.plan.status.completion_time = Some(Time(now));
        if self
            .tally
            .spec
            .completions
            .is_some_and(|completions| self.plan.status.succeeded.unwrap_or(0) > completions)
        {
            let note = "Too many succeeded pods running after completion count reached".to_owned();
            self.plan
                .notes
                .push(warning_event("TooManySucceededPods", note));
        }
        self.plan
            .notes
            .push(normal_event("Completed", "Job completed".into()));
    }

    fn conditions(&self) -> &[JobCondition] {
        self.plan.status.conditions.as_deref().unwrap_or_default()
    }

    fn set(&mut self, condition: JobCondition) {
        let conditions = self.plan.status.conditions.get_or_insert_default();
        match conditions
            .iter_mut()
            .find(|known| known.type_ == condition.type_)
        {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
}

fn condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
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
