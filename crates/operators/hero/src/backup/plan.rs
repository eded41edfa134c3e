//! The plan of a Backup: a pure function of the observed state.
//!
//! In: [`BackupObserved`]. Out: one [`BackupStep`].
//! Guarantees: `Completed` needs a verified checksum; `Completed` and `Failed` are final; a Pod
//! that vanished fails the backup; nothing waits beyond the deadline.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde::Deserialize;

use crate::{
    crd::{Backup, BackupPhase, BackupStatus, Bellerophon},
    names,
    objects::BackupFile,
    observed::PodPhase,
    plan::conditions::AVAILABLE,
};

/// The interval of observations: the deadline is met by at most this much.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// How long a Backup waits for its Bellerophon, and its file for its deletion.
const WAIT_MAX: SignedDuration = SignedDuration::from_mins(10);

/// The length of a SHA-256 in hexadecimal.
const CHECKSUM_LENGTH: usize = 64;

/// The observed state of one backup.
#[derive(Clone, Debug)]
pub(super) struct BackupObserved {
    pub(super) backup: Backup,
    pub(super) hero: Option<Bellerophon>,
    pub(super) has_claim: bool,
    pub(super) pod: Option<TaskPod>,
    pub(super) cleanup: Option<TaskPod>,
    pub(super) now: Timestamp,
}

/// A Pod that runs one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskPod {
    pub(super) uid: String,
    pub(super) phase: PodPhase,
    pub(super) is_terminating: bool,
    /// What the command wrote at its end.
    pub(super) message: String,
}

/// The one thing that a reconcile of a Backup does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BackupStep {
    Wait(Duration),
    WriteStatus(Box<BackupStatus>),
    AddFinalizer,
    RemoveFinalizer,
    CreateClaim,
    CreatePod(BackupFile),
    DeletePod,
    CreateCleanupPod(BackupFile),
}

/// The result that `bellerophon store backup --result` writes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BackupResult {
    checksum: String,
    revision: u64,
    bytes: u64,
}

/// The next step of a Backup.
pub(super) fn plan(observed: &BackupObserved) -> BackupStep {
    let backup = &observed.backup;
    let status = backup.status.clone().unwrap_or_default();
    let has_finalizer = backup
        .finalizers()
        .iter()
        .any(|name| name == names::BACKUP_FINALIZER);
    if backup.metadata.deletion_timestamp.is_some() {
        return if has_finalizer {
            delete(observed, &status)
        } else {
            BackupStep::Wait(INTERVAL)
        };
    }
    if !has_finalizer {
        return BackupStep::AddFinalizer;
    }
    match status.phase {
        BackupPhase::Pending => begin(observed, status),
        BackupPhase::Running => follow(observed, status),
        // The Pod has nothing to do any more.
        BackupPhase::Completed | BackupPhase::Failed => match &observed.pod {
            Some(pod) if !pod.is_terminating => BackupStep::DeletePod,
            _ => BackupStep::Wait(INTERVAL),
        },
    }
}

/// Begins a backup once its Bellerophon can be read.
fn begin(observed: &BackupObserved, mut status: BackupStatus) -> BackupStep {
    let name = observed.backup.name_any();
    let created = observed.backup.creation_timestamp().map(|time| time.0);
    let age = observed.now.duration_since(created.unwrap_or(observed.now));
    let available = observed.hero.as_ref().filter(|hero| is_available(hero));
    let Some(hero) = available else {
        let hero = &observed.backup.spec.hero;
        let message = format!("the Bellerophon {hero} does not exist or has no leader");
        if age >= WAIT_MAX {
            return fail(observed, status, &message);
        }
        return write_if_changed(observed, |status| status.message = Some(message));
    };
    if !observed.has_claim {
        return BackupStep::CreateClaim;
    }
    let timeout = SignedDuration::from_secs(hero.spec.backup.timeout_seconds);
    let deadline = observed.now.saturating_add(timeout).unwrap_or(observed.now);
    let hero_status = hero.status.clone().unwrap_or_default();
    status.phase = BackupPhase::Running;
    status.message = None;
    status.cluster_id = hero_status.cluster_id;
    status.image = hero_status.image.or_else(|| Some(hero.spec.image.clone()));
    status.claim = Some(names::backup_claim(&hero.name_any()));
    // The UID makes the name unique: a later Backup of this name has its own file.
    let uid = observed.backup.uid().unwrap_or_default();
    status.file = Some(format!("{name}-{uid}.snapshot"));
    status.started_at = Some(Time(observed.now));
    status.deadline_at = Some(Time(deadline));
    BackupStep::WriteStatus(Box::new(status))
}

fn is_available(hero: &Bellerophon) -> bool {
    let status = hero.status.as_ref();
    status.is_some_and(|status| {
        bellerophon::conditions::is_status_condition_true(&status.conditions, AVAILABLE)
    })
}

/// Follows the Pod of a backup to its end.
fn follow(observed: &BackupObserved, mut status: BackupStatus) -> BackupStep {
    let deadline = status.deadline_at.as_ref().map(|deadline| deadline.0);
    let is_late = deadline.is_none_or(|deadline| observed.now >= deadline);
    match &observed.pod {
        None if status.pod_uid.is_some() => fail(observed, status, "its Pod was deleted"),
        None if is_late => fail(observed, status, "it did not begin in time"),
        None => match file_of(&status) {
            Some(file) => BackupStep::CreatePod(file),
            None => fail(observed, status, "it has no file name"),
        },
        Some(pod) if status.pod_uid.as_ref() != Some(&pod.uid) => {
            if status.pod_uid.is_some() {
                return fail(observed, status, "its Pod was replaced");
            }
            status.pod_uid = Some(pod.uid.clone());
            BackupStep::WriteStatus(Box::new(status))
        }
        Some(pod) => match pod.phase {
            PodPhase::Succeeded => complete(observed, status, &pod.message),
            PodPhase::Failed => {
                let message = format!("its Pod failed: {}", pod.message);
                fail(observed, status, &message)
            }
            _ if is_late => fail(observed, status, "it did not end in time"),
            _ => BackupStep::Wait(INTERVAL),
        },
    }
}

/// Completes a backup whose command verified the checksum of the file.
fn complete(observed: &BackupObserved, mut status: BackupStatus, result: &str) -> BackupStep {
    let result: BackupResult = match serde_json::from_str(result) {
        Ok(result) => result,
        Err(_) => {
            return fail(
                observed,
                status,
                "its Pod ended without a verified checksum",
            );
        }
    };
    let is_checksum = result.checksum.len() == CHECKSUM_LENGTH
        && result
            .checksum
            .bytes()
            .all(|digit| digit.is_ascii_hexdigit());
    if !is_checksum {
        return fail(
            observed,
            status,
            "its Pod ended without a verified checksum",
        );
    }
    status.phase = BackupPhase::Completed;
    status.checksum = Some(result.checksum);
    status.revision = Some(result.revision);
    status.bytes = Some(result.bytes);
    status.ended_at = Some(Time(observed.now));
    BackupStep::WriteStatus(Box::new(status))
}

fn fail(observed: &BackupObserved, mut status: BackupStatus, message: &str) -> BackupStep {
    status.phase = BackupPhase::Failed;
    status.message = Some(message.to_owned());
    status.ended_at = Some(Time(observed.now));
    BackupStep::WriteStatus(Box::new(status))
}

fn write_if_changed(
    observed: &BackupObserved,
    change: impl FnOnce(&mut BackupStatus),
) -> BackupStep {
    let current = observed.backup.status.clone().unwrap_or_default();
    let mut status = current.clone();
    change(&mut status);
    if status == current {
        return BackupStep::Wait(INTERVAL);
    }
    BackupStep::WriteStatus(Box::new(status))
}

/// Deletes the file, then the finalizer.
fn delete(observed: &BackupObserved, status: &BackupStatus) -> BackupStep {
    match &observed.pod {
        Some(pod) if pod.is_terminating => return BackupStep::Wait(INTERVAL),
        Some(_) => return BackupStep::DeletePod,
        None => {}
    }
    let deleted = observed
        .backup
        .metadata
        .deletion_timestamp
        .as_ref()
        .map(|time| time.0);
    let age = observed.now.duration_since(deleted.unwrap_or(observed.now));
    // Without the claim there is no file. A file that cannot be deleted must not hold the object
    // forever.
    let Some(file) = file_of(status).filter(|_| observed.has_claim && age < WAIT_MAX) else {
        return BackupStep::RemoveFinalizer;
    };
    match &observed.cleanup {
        None => BackupStep::CreateCleanupPod(file),
        Some(pod) if pod.phase.is_terminal() => BackupStep::RemoveFinalizer,
        Some(_) => BackupStep::Wait(INTERVAL),
    }
}

fn file_of(status: &BackupStatus) -> Option<BackupFile> {
    Some(BackupFile {
        claim: status.claim.clone()?,
        name: status.file.clone()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::BackupSpec;

    const RESULT: &str = r#"{"checksum":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","revision":7,"bytes":9}"#;

    fn running(pod: Option<(&str, PodPhase, &str)>, now: i64) -> BackupObserved {
        let mut backup = Backup::new(
            "daily",
            BackupSpec {
                hero: "icarus".into(),
            },
        );
        backup.metadata.finalizers = Some(vec![names::BACKUP_FINALIZER.into()]);
        backup.status = Some(BackupStatus {
            phase: BackupPhase::Running,
            claim: Some("icarus-backup".into()),
            file: Some("daily.snapshot".into()),
            pod_uid: Some("p1".into()),
            started_at: Some(Time(Timestamp::UNIX_EPOCH)),
            deadline_at: Some(Time(Timestamp::from_second(600).unwrap())),
            ..BackupStatus::default()
        });
        BackupObserved {
            backup,
            hero: None,
            has_claim: true,
            pod: pod.map(|(uid, phase, message)| TaskPod {
                uid: uid.into(),
                phase,
                is_terminating: false,
                message: message.into(),
            }),
            cleanup: None,
            now: Timestamp::from_second(now).unwrap(),
        }
    }

    #[test]
    fn backup_ends_as_its_pod_does() {
        use PodPhase::{Failed, Running, Succeeded};
        for (pod, now, expected) in [
            (Some(("p1", Running, "")), 599, None),
            (
                Some(("p1", Running, "")),
                600,
                Some((BackupPhase::Failed, "it did not end in time")),
            ),
            (
                Some(("p1", Succeeded, RESULT)),
                1,
                Some((BackupPhase::Completed, "")),
            ),
            (
                Some(("p1", Succeeded, "")),
                1,
                Some((
                    BackupPhase::Failed,
                    "its Pod ended without a verified checksum",
                )),
            ),
            (
                Some((
                    "p1",
                    Succeeded,
                    r#"{"checksum":"short","revision":1,"bytes":1}"#,
                )),
                1,
                Some((
                    BackupPhase::Failed,
                    "its Pod ended without a verified checksum",
                )),
            ),
            (
                Some(("p1", Failed, "disk full")),
                1,
                Some((BackupPhase::Failed, "its Pod failed: disk full")),
            ),
            (
                Some(("p2", Succeeded, RESULT)),
                1,
                Some((BackupPhase::Failed, "its Pod was replaced")),
            ),
            (None, 1, Some((BackupPhase::Failed, "its Pod was deleted"))),
        ] {
            let step = plan(&running(pod, now));
            let ended = match &step {
                BackupStep::WriteStatus(status) => {
                    Some((status.phase, status.message.as_deref().unwrap_or_default()))
                }
                _ => None,
            };
            assert_eq!(ended, expected, "{pod:?} at {now}");
        }
    }

    #[test]
    fn final_phase_never_changes() {
        for phase in [BackupPhase::Completed, BackupPhase::Failed] {
            for pod in [
                None,
                Some(("p1", PodPhase::Succeeded, RESULT)),
                Some(("p1", PodPhase::Failed, "")),
            ] {
                let mut observed = running(pod, 10_000);
                let status = observed.backup.status.as_mut().expect("a status");
                status.phase = phase;
                let step = plan(&observed);
                assert!(
                    !matches!(step, BackupStep::WriteStatus(_)),
                    "{phase:?} {pod:?}: {step:?}"
                );
            }
        }
    }

    #[test]
    fn file_is_deleted_before_the_object() {
        let mut observed = running(None, 1000);
        observed.backup.metadata.deletion_timestamp =
            Some(Time(Timestamp::from_second(990).unwrap()));
        assert!(matches!(plan(&observed), BackupStep::CreateCleanupPod(_)));
        let cleanup = |phase| {
            Some(TaskPod {
                uid: "c1".into(),
                phase,
                is_terminating: false,
                message: String::new(),
            })
        };
        observed.cleanup = cleanup(PodPhase::Running);
        assert_eq!(plan(&observed), BackupStep::Wait(INTERVAL));
        observed.cleanup = cleanup(PodPhase::Succeeded);
        assert_eq!(plan(&observed), BackupStep::RemoveFinalizer);
        observed.cleanup = None;
        observed.has_claim = false;
        assert_eq!(plan(&observed), BackupStep::RemoveFinalizer);
    }
}
