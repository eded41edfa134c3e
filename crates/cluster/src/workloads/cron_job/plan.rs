//! The plan for one CronJob: whether a Job is due, which are to go, and when to look again.
//!
//! In: the CronJob, its Jobs, the time. Out: a plan.
//! Holds: of missed times only the latest is made up for, and only within the starting deadline; a Job is named after its
//! time, so the same time never starts two.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::Note;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::schedule::Schedule;
use crate::workloads::claim::controller_reference;
use crate::workloads::events::{normal_event, warning_event};
use crate::workloads::pods::{saturating_add, time_until};

/// The time a Job was made for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// A little later than due, in case clocks differ a little.
const LATE: Duration = Duration::from_millis(100);

/// From how many missed times on people are warned.
const MISSED_MAX: i64 = 100;

/// What is to happen.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Finished Jobs beyond the history that is kept.
    pub(super) forget: Vec<Arc<Job>>,
    /// Running Jobs that make room for the next one.
    pub(super) replace: Vec<Arc<Job>>,
    /// The Job that is due.
    pub(super) start: Option<Box<Job>>,
    /// The status, but for the Job that is started.
    pub(super) status: CronJobStatus,
    pub(super) notes: Vec<Note>,
    /// When the next one is due.
    pub(super) next: Option<Duration>,
}

/// Makes the plan.
pub(super) fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut draft = Draft {
        cron,
        spec: &cron.spec,
        jobs,
        now,
        plan: Plan {
            status: cron.status.clone().unwrap_or_default(),
            ..Plan::default()
        },
    };
    draft.forget();
    draft.see_jobs();
    if cron.metadata.deletion_timestamp.is_none() {
        draft.look_at_the_clock();
    }
    draft.plan
}

struct Draft<'a> {
    cron: &'a CronJob,
    spec: &'a CronJobSpec,
    jobs: &'a [Arc<Job>],
    now: Timestamp,
    plan: Plan,
}

impl Draft<'_> {
    /// Finished Jobs beyond the limits, the earliest first.
    fn forget(&mut self) {
        for (type_, limit) in [
            ("Complete", self.spec.successful_jobs_history_limit),
            ("Failed", self.spec.failed_jobs_history_limit),
        ] {
            let Some(limit) = limit else { continue };
            let mut finished: Vec<_> = self
                .jobs
                .iter()
                .filter(|job| finished_as(job) == Some(type_))
                .collect();
            finished.sort_by_key(|job| {
                let started = job
                    .status
                    .as_ref()
                    .and_then(|status| status.start_time.as_ref())
                    .map(|time| time.0);
                (started.is_none(), started, job.name_any())
            });
            let surplus = finished
                .len()
                .saturating_sub(usize::try_from(limit).unwrap_or(0));
            self.plan
                .forget
                .extend(finished.into_iter().take(surplus).cloned());
        }
        for job in self.plan.forget.clone() {
            self.deactivate(&job.uid().unwrap_or_default());
        }
    }

    /// Brings the list of active Jobs up to date.
    fn see_jobs(&mut self) {
        for job in self.jobs {
            let uid = job.uid().unwrap_or_default();
            let listed = self
                .active()
                .iter()
                .any(|active| active.uid.as_ref() == Some(&uid));
            match finished_as(job) {
                None if !listed => {
                    let note = format!(
                        "Saw a job that the controller did not create or forgot: {}",
                        job.name_any()
                    );
                    self.plan.notes.push(warning_event("UnexpectedJob", note));
                }
                None => {}
                Some(type_) => {
                    if listed {
                        self.deactivate(&uid);
                        let note =
                            format!("Saw completed job: {}, condition: {type_}", job.name_any());
                        self.plan.notes.push(normal_event("SawCompletedJob", note));
                    }
                    if type_ == "Complete" {
                        self.note_success(job);
                    }
                }
            }
        }
        let missing =
            |active: &ObjectReference| !self.jobs.iter().any(|job| job.metadata.uid == active.uid);
        for active in self
            .active()
            .iter()
            .filter(|active| missing(active))
            .cloned()
            .collect::<Vec<_>>()
        {
            let note = format!(
                "Active job went missing: {}",
                active.name.as_deref().unwrap_or_default()
            );
            self.plan.notes.push(normal_event("MissingJob", note));
            self.deactivate(&active.uid.unwrap_or_default());
        }
    }

    fn note_success(&mut self, job: &Job) {
        let completed = job
            .status
            .as_ref()
            .and_then(|status| status.completion_time.clone());
        let known = self
            .plan
            .status
            .last_successful_time
            .as_ref()
            .map(|time| time.0);
        if completed
            .as_ref()
            .is_some_and(|completed| known.is_none_or(|known| completed.0 > known))
        {
            self.plan.status.last_successful_time = completed;
        }
    }

    fn active(&self) -> &[ObjectReference] {
        self.plan.status.active.as_deref().unwrap_or_default()
    }

    fn deactivate(&mut self, uid: &str) {
        if let Some(active) = &mut self.plan.status.active {
            active.retain(|active| active.uid.as_deref() != Some(uid));
            if active.is_empty() {
                self.plan.status.active = None;
            }
        }
    }

    fn look_at_the_clock(&mut self) {
        let Some(zone) = self.zone() else { return };
        if self.spec.suspend == Some(true) {
            return;
        }
        let Some(schedule) = self.schedule(zone.clone()) else {
            return;
        };
        self.plan.next = self.until_next(&schedule);
        let Some(due) = self.due(&schedule) else {
            return;
        };
        let deadline = self
            .spec
            .starting_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        if deadline.is_some_and(|deadline| saturating_add(due, deadline) < self.now) {
            let when = due
                .to_zoned(TimeZone::UTC)
                .strftime("%a, %d %b %Y %H:%M:%S %z")
                .to_string();
            return self.plan.notes.push(warning_event(
                "MissSchedule",
                format!("Missed scheduled time to start a job: {when}"),
            ));
        }
        let job = self.job(due, &zone);
        let is_started = self
            .active()
            .iter()
            .any(|active| active.name == job.metadata.name);
        if is_started
            || self
                .plan
                .status
                .last_schedule_time
                .as_ref()
                .is_some_and(|last| last.0 == due)
        {
            return;
        }
        match self.spec.concurrency_policy.as_deref() {
            Some("Forbid") if !self.active().is_empty() => {
                let note = "Not starting job because prior execution is running and concurrency policy is Forbid";
                return self
                    .plan
                    .notes
                    .push(normal_event("JobAlreadyActive", note.into()));
            }
            Some("Replace") => {
                let active: Vec<_> = self
                    .active()
                    .iter()
                    .filter_map(|active| active.uid.clone())
                    .collect();
                self.plan.replace = self
                    .jobs
                    .iter()
                    .filter(|job| {
                        job.metadata
                            .uid
                            .as_ref()
                            .is_some_and(|uid| active.contains(uid))
                    })
                    .cloned()
                    .collect();
                active.iter().for_each(|uid| self.deactivate(uid));
            }
            _ => {}
        }
        self.plan.status.last_schedule_time = Some(Time(due));
        self.plan.start = Some(Box::new(job));
        self.plan.next = self.until_next(&schedule);
    }

    fn zone(&mut self) -> Option<TimeZone> {
        let Some(name) = self.spec.time_zone.as_deref() else {
            return Some(TimeZone::UTC);
        };
        match TimeZone::get(name) {
            Ok(zone) => Some(zone),
            Err(error) => {
                self.plan.notes.push(warning_event(
                    "UnknownTimeZone",
                    format!("invalid timeZone: {name:?}: {error}"),
                ));
                None
            }
        }
    }

    fn schedule(&mut self, zone: TimeZone) -> Option<Schedule> {
        let text = &self.spec.schedule;
        if text.contains("TZ") {
            let note = format!(
                "CRON_TZ or TZ used in schedule {text:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
            );
            self.plan
                .notes
                .push(warning_event("UnsupportedSchedule", note));
        }
        match Schedule::parse(text, zone) {
            Ok(schedule) => Some(schedule),
            Err(error) => {
                self.plan.notes.push(warning_event(
                    "UnparseableSchedule",
                    format!("unparseable schedule: {text:?} : {error}"),
                ));
                None
            }
        }
    }

    /// The last time that counts: the last scheduled one, or when the CronJob was made.
    fn since(&self) -> Timestamp {
        let last = self.plan.status.last_schedule_time.as_ref().or(self
            .cron
            .metadata
            .creation_timestamp
            .as_ref());
        last.map_or(self.now, |time| time.0)
    }

    /// The latest time that has come and was not acted on; earlier ones are missed.
    fn due(&mut self, schedule: &Schedule) -> Option<Timestamp> {
        let window = self
            .spec
            .starting_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        let earliest = window.and_then(|window| {
            self.now
                .checked_sub(jiff::SignedDuration::try_from(window).ok()?)
                .ok()
        });
        let since = earliest.map_or(self.since(), |earliest| earliest.max(self.since()));
        let (due, missed) = latest(schedule, since, self.now)?;
        if missed > MISSED_MAX {
            let note = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.plan
                .notes
                .push(warning_event("TooManyMissedTimes", note.into()));
        }
        Some(due)
    }

    fn until_next(&self, schedule: &Schedule) -> Option<Duration> {
        let since = latest(schedule, self.since(), self.now).map_or(self.since(), |(due, _)| due);
        let next = schedule
            .next(since)
            .filter(|next| *next > self.now)
            .or_else(|| schedule.next(self.now))?;
        time_until(next, self.now).map(|wait| wait + LATE)
    }

    fn job(&self, due: Timestamp, zone: &TimeZone) -> Job {
        let template = &self.spec.job_template;
        let meta = template.metadata.clone().unwrap_or_default();
        let local = due.to_zoned(zone.clone());
        let offset = if zone == &TimeZone::UTC {
            "Z".to_owned()
        } else {
            local.strftime("%:z").to_string()
        };
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.insert(
            SCHEDULED.into(),
            format!("{}{offset}", local.strftime("%Y-%m-%dT%H:%M:%S")),
        );
        Job {
            metadata: ObjectMeta {
                name: Some(format!("{}-{}", self.cron.name_any(), due.as_second() / 60)),
                namespace: self.cron.namespace(),
                labels: meta.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference(self.cron)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    }
}

/// The latest time of a schedule from `since` until `now`, and about how many there were.
fn latest(schedule: &Schedule, since: Timestamp, now: Timestamp) -> Option<(Timestamp, i64)> {
    let first = schedule.next(since).filter(|first| *first <= now)?;
    let Some(second) = schedule.next(first).filter(|second| *second <= now) else {
        return Some((first, 1));
    };
    // Years may have passed: the distance of two times tells about how many fit in between, and where to begin to look.
    let distance = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / distance + 1;
    let start = Timestamp::from_second(
        first
            .as_second()
            .saturating_add((missed - 2).saturating_mul(distance)),
    )
    .unwrap_or(first);
    let times = std::iter::successors(schedule.next(start).filter(|time| *time <= now), |time| {
        schedule.next(*time).filter(|next| *next <= now)
    });
    Some((times.last().unwrap_or(second), missed))
}

/// How a Job ended, if it did.
fn finished_as(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let last = conditions.iter().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    })?;
    Some(last.type_.as_str())
}

/// How the list of active Jobs names one.
pub(super) fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        resource_version: job.resource_version(),
        ..job.object_ref(&())
    }
}

#[cfg(test)]
mod tests;
