//! The plan of a ScheduledBackup: which Backups are created and deleted.
//!
//! In: the object, its Backups, the time. Out: one [`ScheduleStep`].
//! Guarantees: the name of a Backup is a function of its scheduled time, so none is created twice;
//! of several missed times only the latest counts; the newest completed Backups are kept.

use std::{cmp::Reverse, time::Duration};

use bellerophon::conditions::{ConditionStatus, ConditionUpdate, set_status_condition};
use bellerophon_apimachinery::cron::Schedule;
use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::crd::{Backup, BackupPhase, BackupSpec, ScheduledBackup, ScheduledBackupStatus};

/// The label of Backups with the name of their ScheduledBackup.
pub(crate) const SCHEDULE_LABEL: &str = "stable.bellerophon.io/schedule";

/// The longest wait: clocks may be set.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The number of missed times that are looked at. More are as good as one.
const MISSED_MAX: usize = 1000;

/// The one thing that a reconcile of a ScheduledBackup does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScheduleStep {
    Wait(Duration),
    WriteStatus(Box<ScheduledBackupStatus>),
    Create(Box<Backup>),
    Delete(String),
}

/// The next step of a ScheduledBackup.
pub(super) fn plan(schedule: &ScheduledBackup, backups: &[Backup], now: Timestamp) -> ScheduleStep {
    let current = schedule.status.clone().unwrap_or_default();
    let mut status = current.clone();
    status.observed_generation = schedule.metadata.generation;
    status.last_completed_at = last_completed(backups).or(status.last_completed_at);
    let parsed = Schedule::parse(&schedule.spec.schedule, TimeZone::UTC);
    let (validity, reason, message) = match &parsed {
        Ok(_) => (ConditionStatus::True, "Parsed", String::new()),
        Err(error) => (ConditionStatus::False, "InvalidSchedule", error.to_string()),
    };
    let update = ConditionUpdate::new("Valid", validity, reason)
        .message(message)
        .observed(schedule);
    set_status_condition(&mut status.conditions, update, now);
    let created = schedule.creation_timestamp().map_or(now, |time| time.0);
    let last = status
        .last_scheduled_at
        .as_ref()
        .map_or(created, |last| last.0);
    let due = parsed
        .as_ref()
        .ok()
        .and_then(|parsed| latest(parsed, last, now));
    if let Some(due) = due.filter(|_| !schedule.spec.suspend) {
        let backup = backup_at(schedule, due);
        let is_created = backups
            .iter()
            .any(|known| known.name_any() == backup.name_any());
        let is_running = backups.iter().any(|known| !phase(known).is_final());
        if !is_created && !is_running {
            return ScheduleStep::Create(Box::new(backup));
        }
        if is_created {
            status.last_scheduled_at = Some(Time(due));
        }
    }
    if status != current {
        return ScheduleStep::WriteStatus(Box::new(status));
    }
    if let Some(name) = expired(backups, schedule.spec.keep) {
        return ScheduleStep::Delete(name);
    }
    let next = parsed.ok().and_then(|parsed| parsed.next(now));
    let wait = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
    ScheduleStep::Wait(
        wait.unwrap_or(WAIT_MAX)
            .clamp(Duration::from_secs(1), WAIT_MAX),
    )
}

/// The latest time of a schedule after `last` that has passed.
fn latest(schedule: &Schedule, last: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let mut latest = None;
    let mut after = last;
    for _ in 0..MISSED_MAX {
        match schedule.next(after) {
            Some(next) if next <= now => {
                latest = Some(next);
                after = next;
            }
            _ => break,
        }
    }
    latest
}

fn backup_at(schedule: &ScheduledBackup, due: Timestamp) -> Backup {
    let spec = BackupSpec {
        hero: schedule.spec.hero.clone(),
    };
    let mut backup = Backup::new(
        &format!("{}-{}", schedule.name_any(), due.as_second()),
        spec,
    );
    backup.metadata.namespace = schedule.namespace();
    backup
        .labels_mut()
        .insert(SCHEDULE_LABEL.to_owned(), schedule.name_any());
    backup
}

fn phase(backup: &Backup) -> BackupPhase {
    backup
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

fn last_completed(backups: &[Backup]) -> Option<Time> {
    let completed = backups
        .iter()
        .filter(|backup| phase(backup) == BackupPhase::Completed);
    completed
        .filter_map(|backup| backup.status.as_ref()?.ended_at.clone())
        .max_by_key(|time| time.0)
}

/// A Backup that is no longer kept: a completed one beyond the newest `keep`, or a failed one that
/// is older than all that are kept, or beyond the newest `keep` failed ones.
fn expired(backups: &[Backup], keep: i32) -> Option<String> {
    let keep = usize::try_from(keep).unwrap_or(1).max(1);
    let ended = |expected: BackupPhase| {
        let mut ended: Vec<&Backup> = backups
            .iter()
            .filter(|backup| {
                phase(backup) == expected && backup.metadata.deletion_timestamp.is_none()
            })
            .collect();
        ended.sort_by_key(|backup| Reverse(ended_at(backup)));
        ended
    };
    let completed = ended(BackupPhase::Completed);
    let failed = ended(BackupPhase::Failed);
    let oldest_kept = completed.get(keep - 1).map(|backup| ended_at(backup));
    let is_old = |backup: &&&Backup| oldest_kept.is_some_and(|oldest| ended_at(backup) < oldest);
    let expired = completed
        .get(keep)
        .or_else(|| failed.iter().find(is_old))
        .or_else(|| failed.get(keep));
    expired.map(|backup| backup.name_any())
}

fn ended_at(backup: &Backup) -> Option<Timestamp> {
    let status = backup.status.as_ref()?;
    status.ended_at.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::{BackupStatus, ScheduledBackupSpec};

    fn schedule(text: &str, last: Option<i64>) -> ScheduledBackup {
        let spec = ScheduledBackupSpec {
            hero: "icarus".into(),
            schedule: text.into(),
            keep: 2,
            suspend: false,
        };
        let mut schedule = ScheduledBackup::new("daily", spec);
        schedule.metadata.creation_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        schedule.status = last.map(|last| ScheduledBackupStatus {
            last_scheduled_at: Some(Time(Timestamp::from_second(last).unwrap())),
            ..ScheduledBackupStatus::default()
        });
        schedule
    }

    fn backup(name: &str, phase: BackupPhase, ended: i64) -> Backup {
        let mut backup = Backup::new(
            name,
            BackupSpec {
                hero: "icarus".into(),
            },
        );
        backup.status = Some(BackupStatus {
            phase,
            ended_at: Some(Time(Timestamp::from_second(ended).unwrap())),
            ..BackupStatus::default()
        });
        backup
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn latest_missed_time_creates_one_backup() {
        let step = plan(&schedule("@hourly", Some(0)), &[], at(4 * 3600 + 5));
        let ScheduleStep::Create(created) = step else {
            panic!("{step:?}")
        };
        assert_eq!(created.name_any(), "daily-14400");
    }

    /// A schedule used to be stuck when its Backup existed already.
    #[test]
    fn existing_backup_counts_as_created() {
        let existing = [backup("daily-14400", BackupPhase::Completed, 14_500)];
        let step = plan(&schedule("@hourly", Some(0)), &existing, at(14_600));
        let ScheduleStep::WriteStatus(status) = step else {
            panic!("{step:?}")
        };
        assert_eq!(status.last_scheduled_at, Some(Time(at(14_400))));
    }

    #[test]
    fn nothing_is_created_while_a_backup_runs() {
        let running = [backup("daily-10800", BackupPhase::Running, 0)];
        let step = plan(&schedule("@hourly", Some(10_800)), &running, at(14_600));
        assert!(!matches!(step, ScheduleStep::Create(_)), "{step:?}");
    }

    #[test]
    fn newest_completed_backups_are_kept() {
        let all = [
            backup("a", BackupPhase::Completed, 10),
            backup("b", BackupPhase::Completed, 30),
            backup("c", BackupPhase::Completed, 20),
            backup("d", BackupPhase::Failed, 5),
            backup("e", BackupPhase::Failed, 40),
        ];
        assert_eq!(expired(&all, 2).as_deref(), Some("a"));
        assert_eq!(expired(&all[1..], 2).as_deref(), Some("d"));
        assert_eq!(
            expired(&[all[1].clone(), all[2].clone(), all[4].clone()], 2),
            None
        );
    }

    #[test]
    fn malformed_schedule_is_reported_once() {
        let mut schedule = schedule("often", None);
        let ScheduleStep::WriteStatus(status) = plan(&schedule, &[], at(0)) else {
            panic!("no status")
        };
        assert_eq!(status.conditions[0].status, "False");
        schedule.status = Some(*status);
        assert!(matches!(
            plan(&schedule, &[], at(60)),
            ScheduleStep::Wait(_)
        ));
    }
}
