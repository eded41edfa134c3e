//! Plan for one CronJob: the Job to create, Jobs to delete, the status, the next schedule time.
//!
//! Input: the CronJob, its Jobs, the time. Output: a plan.
//! Rules: of several missed schedule times only the most recent creates a Job, and only within the
//! starting deadline.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::events::Event;
use bellerophon_apimachinery::cron::Schedule;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::workloads::claim::controller_reference;
use crate::workloads::events::{normal_event, warning_event};
use crate::workloads::pods::{saturating_add, time_until};

/// Annotation of a Job with its schedule time.
const SCHEDULED_TIMESTAMP_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Added to the requeue delay for clock skew, as upstream (nextScheduleDelta).
const NEXT_SCHEDULE_DELTA: Duration = Duration::from_millis(100);

/// Number of missed schedule times above which a warning event is recorded, as upstream.
const MANY_MISSED: i64 = 100;

/// Result of planning one reconcile.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Finished Jobs beyond the history limits.
    pub(super) cleanup: Vec<Arc<Job>>,
    /// Active Jobs to delete, with concurrency policy `Replace`.
    pub(super) replace: Vec<Arc<Job>>,
    pub(super) create: Option<Box<Job>>,
    /// The status without the created Job in its active list.
    pub(super) status: CronJobStatus,
    pub(super) events: Vec<Event>,
    /// Time until the next schedule time.
    pub(super) requeue_after: Option<Duration>,
}

/// Plans one reconcile. Mirrors syncCronJob.
pub(super) fn plan(cron_job: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut planner = Planner {
        cron_job,
        spec: &cron_job.spec,
        jobs,
        now,
        plan: Plan {
            status: cron_job.status.clone().unwrap_or_default(),
            ..Plan::default()
        },
    };
    planner.cleanup_finished_jobs();
    planner.sync_active_list();
    if cron_job.metadata.deletion_timestamp.is_none() {
        planner.schedule_job();
    }
    planner.plan
}

struct Planner<'a> {
    cron_job: &'a CronJob,
    spec: &'a CronJobSpec,
    jobs: &'a [Arc<Job>],
    now: Timestamp,
    plan: Plan,
}

impl Planner<'_> {
    /// Selects finished Jobs beyond the history limits, oldest start time first. Mirrors
    /// cleanupFinishedJobs and removeOldestJobs.
    fn cleanup_finished_jobs(&mut self) {
        for (type_, limit) in [
            ("Complete", self.spec.successful_jobs_history_limit),
            ("Failed", self.spec.failed_jobs_history_limit),
        ] {
            let Some(limit) = limit else { continue };
            let mut finished: Vec<_> = self
                .jobs
                .iter()
                .filter(|job| finished_status(job) == Some(type_))
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
                .cleanup
                .extend(finished.into_iter().take(surplus).cloned());
        }
        for job in self.plan.cleanup.clone() {
            self.delete_from_active_list(&job.uid().unwrap_or_default());
        }
    }

    /// Removes finished and missing Jobs from the active list.
    fn sync_active_list(&mut self) {
        for job in self.jobs {
            let uid = job.uid().unwrap_or_default();
            let is_active = self
                .active()
                .iter()
                .any(|active| active.uid.as_ref() == Some(&uid));
            match finished_status(job) {
                None if !is_active => {
                    let message = format!(
                        "Saw a job that the controller did not create or forgot: {}",
                        job.name_any()
                    );
                    self.plan
                        .events
                        .push(warning_event("UnexpectedJob", message));
                }
                None => {}
                Some(type_) => {
                    if is_active {
                        self.delete_from_active_list(&uid);
                        let message =
                            format!("Saw completed job: {}, condition: {type_}", job.name_any());
                        self.plan
                            .events
                            .push(normal_event("SawCompletedJob", message));
                    }
                    if type_ == "Complete" {
                        self.update_last_successful_time(job);
                    }
                }
            }
        }
        let is_missing =
            |active: &ObjectReference| !self.jobs.iter().any(|job| job.metadata.uid == active.uid);
        for active in self
            .active()
            .iter()
            .filter(|active| is_missing(active))
            .cloned()
            .collect::<Vec<_>>()
        {
            let message = format!(
                "Active job went missing: {}",
                active.name.as_deref().unwrap_or_default()
            );
            self.plan.events.push(normal_event("MissingJob", message));
            self.delete_from_active_list(&active.uid.unwrap_or_default());
        }
    }

    fn update_last_successful_time(&mut self, job: &Job) {
        let completed = job
            .status
            .as_ref()
            .and_then(|status| status.completion_time.clone());
        let last = self
            .plan
            .status
            .last_successful_time
            .as_ref()
            .map(|time| time.0);
        if completed
            .as_ref()
            .is_some_and(|completed| last.is_none_or(|last| completed.0 > last))
        {
            self.plan.status.last_successful_time = completed;
        }
    }

    fn active(&self) -> &[ObjectReference] {
        self.plan.status.active.as_deref().unwrap_or_default()
    }

    fn delete_from_active_list(&mut self, uid: &str) {
        if let Some(active) = &mut self.plan.status.active {
            active.retain(|active| active.uid.as_deref() != Some(uid));
            if active.is_empty() {
                self.plan.status.active = None;
            }
        }
    }

    /// Creates a Job if a schedule time has passed.
    fn schedule_job(&mut self) {
        let Some(zone) = self.time_zone() else { return };
        // Mirrors syncCronJob: a suspended CronJob is not requeued.
        if self.spec.suspend == Some(true) {
            return;
        }
        let Some(schedule) = self.schedule(zone.clone()) else {
            return;
        };
        self.plan.requeue_after = self.next_schedule_delay(&schedule);
        let Some(scheduled) = self.scheduled_time(&schedule) else {
            return;
        };
        let deadline = self
            .spec
            .starting_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        // Mirrors syncCronJob: a late start is reported by an event.
        if deadline.is_some_and(|deadline| saturating_add(scheduled, deadline) < self.now) {
            let time = scheduled
                .to_zoned(TimeZone::UTC)
                .strftime("%a, %d %b %Y %H:%M:%S %z")
                .to_string();
            return self.plan.events.push(warning_event(
                "MissSchedule",
                format!("Missed scheduled time to start a job: {time}"),
            ));
        }
        let job = self.new_job(scheduled, &zone);
        let is_created = self
            .active()
            .iter()
            .any(|active| active.name == job.metadata.name);
        // Mirrors syncCronJob (inActiveListByName and the comparison with lastScheduleTime): the
        // cache may have only one of the two from the previous reconcile, and either prevents a
        // second Job.
        if is_created
            || self
                .plan
                .status
                .last_schedule_time
                .as_ref()
                .is_some_and(|last| last.0 == scheduled)
        {
            return;
        }
        match self.spec.concurrency_policy.as_deref() {
            // Mirrors syncCronJob: Forbid skips this time and tries again at the next one.
            Some("Forbid") if !self.active().is_empty() => {
                let message = "Not starting job because prior execution is running and concurrency \
                    policy is Forbid";
                return self
                    .plan
                    .events
                    .push(normal_event("JobAlreadyActive", message.into()));
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
                active
                    .iter()
                    .for_each(|uid| self.delete_from_active_list(uid));
            }
            _ => {}
        }
        self.plan.status.last_schedule_time = Some(Time(scheduled));
        self.plan.create = Some(Box::new(job));
        // The new lastScheduleTime changes the next time of @every schedules.
        self.plan.requeue_after = self.next_schedule_delay(&schedule);
    }

    fn time_zone(&mut self) -> Option<TimeZone> {
        let Some(name) = self.spec.time_zone.as_deref() else {
            // Upstream uses the local time zone of kube-controller-manager. UTC gives the same
            // schedule on every machine.
            return Some(TimeZone::UTC);
        };
        match TimeZone::get(name) {
            Ok(zone) => Some(zone),
            Err(error) => {
                self.plan.events.push(warning_event(
                    "UnknownTimeZone",
                    format!("invalid timeZone: {name:?}: {error}"),
                ));
                None
            }
        }
    }

    fn schedule(&mut self, zone: TimeZone) -> Option<Schedule> {
        let text = &self.spec.schedule;
        // Validation rejects TZ in new objects, but objects stored earlier may contain it.
        if text.contains("TZ") {
            let message = format!(
                "CRON_TZ or TZ used in schedule {text:?} is not officially supported, see \
                    https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more \
                    details"
            );
            self.plan
                .events
                .push(warning_event("UnsupportedSchedule", message));
        }
        match Schedule::parse(text, zone) {
            Ok(schedule) => Some(schedule),
            Err(error) => {
                self.plan.events.push(warning_event(
                    "UnparseableSchedule",
                    format!("unparseable schedule: {text:?} : {error}"),
                ));
                None
            }
        }
    }

    /// The last schedule time, or the creation time of the CronJob.
    fn earliest_time(&self) -> Timestamp {
        let last = self.plan.status.last_schedule_time.as_ref().or(self
            .cron_job
            .metadata
            .creation_timestamp
            .as_ref());
        last.map_or(self.now, |time| time.0)
    }

    /// The most recent schedule time within the starting deadline; `None` if it is in the future.
    fn scheduled_time(&mut self, schedule: &Schedule) -> Option<Timestamp> {
        let deadline = self
            .spec
            .starting_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        let deadline_start = deadline.and_then(|deadline| {
            self.now
                .checked_sub(jiff::SignedDuration::try_from(deadline).ok()?)
                .ok()
        });
        let since = deadline_start.map_or(self.earliest_time(), |deadline_start| {
            deadline_start.max(self.earliest_time())
        });
        let (scheduled, missed) = most_recent_schedule_time(schedule, since, self.now)?;
        if missed > MANY_MISSED {
            let message = "too many missed start times. Set or decrease \
                .spec.startingDeadlineSeconds or check clock skew";
            self.plan
                .events
                .push(warning_event("TooManyMissedTimes", message.into()));
        }
        Some(scheduled)
    }

    /// Mirrors nextScheduleTimeDuration.
    fn next_schedule_delay(&self, schedule: &Schedule) -> Option<Duration> {
        let earliest = self.earliest_time();
        let since = most_recent_schedule_time(schedule, earliest, self.now)
            .map_or(earliest, |(scheduled, _)| scheduled);
        let next = schedule
            .next(since)
            .filter(|next| *next > self.now)
            .or_else(|| schedule.next(self.now))?;
        time_until(next, self.now).map(|delay| delay + NEXT_SCHEDULE_DELTA)
    }

    /// The Job of a schedule time. Mirrors getJobFromTemplate2 and getJobName.
    fn new_job(&self, scheduled: Timestamp, zone: &TimeZone) -> Job {
        let template = &self.spec.job_template;
        let meta = template.metadata.clone().unwrap_or_default();
        let local = scheduled.to_zoned(zone.clone());
        let offset = if zone == &TimeZone::UTC {
            "Z".to_owned()
        } else {
            local.strftime("%:z").to_string()
        };
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.insert(
            SCHEDULED_TIMESTAMP_ANNOTATION.into(),
            format!("{}{offset}", local.strftime("%Y-%m-%dT%H:%M:%S")),
        );
        Job {
            metadata: ObjectMeta {
                // Mirrors getTimeHashInMinutes. Schedules have a resolution of one minute, so a
                // time has one name, and a repeated create fails with 409 instead of starting a
                // second Job.
                name: Some(format!(
                    "{}-{}",
                    self.cron_job.name_any(),
                    scheduled.as_second() / 60
                )),
                namespace: self.cron_job.namespace(),
                labels: meta.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference(self.cron_job)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    }
}

/// The most recent time of a schedule after `since` until `now`, and the approximate number of
/// times in between. Mirrors mostRecentScheduleTime.
fn most_recent_schedule_time(
    schedule: &Schedule,
    since: Timestamp,
    now: Timestamp,
) -> Option<(Timestamp, i64)> {
    let first = schedule.next(since).filter(|first| *first <= now)?;
    let Some(second) = schedule.next(first).filter(|second| *second <= now) else {
        return Some((first, 1));
    };
    // Many times may have been missed. Their number is estimated from the interval of the first
    // two, and the search starts two intervals before now.
    let interval = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / interval + 1;
    let start = Timestamp::from_second(
        first
            .as_second()
            .saturating_add((missed - 2).saturating_mul(interval)),
    )
    .unwrap_or(first);
    let times = std::iter::successors(schedule.next(start).filter(|time| *time <= now), |time| {
        schedule.next(*time).filter(|next| *next <= now)
    });
    Some((times.last().unwrap_or(second), missed))
}

/// The type of a Job's terminal condition. Mirrors getFinishedStatus.
fn finished_status(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let last = conditions.iter().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    })?;
    Some(last.type_.as_str())
}

/// The entry of a Job in the active list.
pub(super) fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        resource_version: job.resource_version(),
        ..job.object_ref(&())
    }
}

#[cfg(test)]
mod tests;
