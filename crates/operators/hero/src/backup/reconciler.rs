//! The reconcilers of Backups and ScheduledBackups: live reads, plan, one write.

use std::{sync::Arc, time::Duration};

use bellerophon::{client::WriteError, owner::set_controller_reference, prelude::*};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{ResourceExt as _, api::ListParams};

use super::{
    plan::{BackupObserved, BackupStep, TaskPod, plan},
    schedule::{self, SCHEDULE_LABEL, ScheduleStep},
};
use crate::{
    crd::{Backup, BackupPhase, BackupStatus, Bellerophon, ScheduledBackup},
    metrics::HeroMetrics,
    names, objects,
    observed::PodPhase,
};

/// The delay of the next observation after a write.
const NEXT_STEP: Duration = Duration::from_millis(10);

/// How long the deletion of a file may take.
const CLEANUP_SECONDS_MAX: i64 = 300;

/// Reconciles Backups.
pub(crate) struct BackupReconciler {
    pub(crate) metrics: HeroMetrics,
}

impl Reconciler<Backup> for BackupReconciler {
    async fn reconcile(&self, req: Request<Backup>) -> Result<Action, Error> {
        let Some(observed) = observe(&req).await? else {
            return Ok(Action::await_change());
        };
        let step = plan(&observed);
        if let BackupStep::Wait(after) = step {
            return Ok(if is_idle(&observed) {
                Action::await_change()
            } else {
                Action::requeue_after(after)
            });
        }
        self.apply(&req, &observed, step).await?;
        Ok(Action::requeue_after(NEXT_STEP))
    }
}

/// Whether nothing but a change of the object itself matters.
fn is_idle(observed: &BackupObserved) -> bool {
    let phase = observed.backup.status.as_ref().map(|status| status.phase);
    phase.is_some_and(BackupPhase::is_final)
        && observed.pod.is_none()
        && observed.backup.metadata.deletion_timestamp.is_none()
}

async fn observe(req: &Request<Backup>) -> Result<Option<BackupObserved>, WriteError> {
    let client = req.client();
    let Some(backup) = client.get::<Backup>(req.key()).await? else {
        return Ok(None);
    };
    let hero_key = ObjectKey::in_namespace_of(&*backup, &backup.spec.hero);
    let claim = names::backup_claim(&backup.spec.hero);
    let claim_key = ObjectKey::in_namespace_of(&*backup, &claim);
    let pod_name = objects::backup_pod_name(&backup);
    let pod_key = ObjectKey::in_namespace_of(&*backup, &pod_name);
    let cleanup_key = ObjectKey::in_namespace_of(&*backup, &format!("{pod_name}-cleanup"));
    let hero = client.get::<Bellerophon>(&hero_key).await?;
    let claim = client.get::<PersistentVolumeClaim>(&claim_key).await?;
    let pod = client.get::<Pod>(&pod_key).await?;
    let cleanup = client.get::<Pod>(&cleanup_key).await?;
    Ok(Some(BackupObserved {
        backup: Backup::clone(&backup),
        hero: hero.map(Arc::unwrap_or_clone),
        has_claim: claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none()),
        pod: pod.as_deref().map(task_pod),
        cleanup: cleanup.as_deref().map(task_pod),
        now: req.now(),
    }))
}

fn task_pod(pod: &Pod) -> TaskPod {
    let status = pod.status.as_ref();
    let terminated = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|all| {
            all.iter()
                .find(|status| status.name == objects::BACKUP_CONTAINER)
        })
        .and_then(|container| container.state.as_ref()?.terminated.as_ref());
    let message = terminated
        .and_then(|terminated| terminated.message.clone())
        .or_else(|| status?.message.clone());
    TaskPod {
        uid: pod.uid().unwrap_or_default(),
        phase: match status.and_then(|status| status.phase.as_deref()) {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some("Unknown") => PodPhase::Unknown,
            _ => PodPhase::Pending,
        },
        is_terminating: pod.metadata.deletion_timestamp.is_some(),
        message: message.unwrap_or_default(),
    }
}

impl BackupReconciler {
    async fn apply(
        &self,
        req: &Request<Backup>,
        observed: &BackupObserved,
        step: BackupStep,
    ) -> Result<(), Error> {
        let client = req.client();
        let backup = &observed.backup;
        match step {
            BackupStep::Wait(_) => {}
            BackupStep::WriteStatus(status) => {
                let mut desired = backup.clone();
                desired.status = Some((*status).clone());
                client.patch_status_from(backup, &desired).await?;
                self.record(req, observed, &status);
            }
            BackupStep::AddFinalizer => {
                let mut desired = backup.clone();
                desired
                    .finalizers_mut()
                    .push(names::BACKUP_FINALIZER.to_owned());
                client.patch_from(backup, &desired).await?;
            }
            BackupStep::RemoveFinalizer => {
                let mut desired = backup.clone();
                desired
                    .finalizers_mut()
                    .retain(|name| name != names::BACKUP_FINALIZER);
                client.patch_from(backup, &desired).await?;
            }
            BackupStep::CreateClaim => {
                if let Some(hero) = &observed.hero {
                    create(client.create(&objects::backup_claim(hero)).await)?;
                }
            }
            BackupStep::CreatePod(file) => {
                if let Some(hero) = &observed.hero {
                    let seconds = hero.spec.backup.timeout_seconds;
                    let pod = objects::backup_pod(hero, backup, &file, seconds)?;
                    client.create(&pod).await?;
                }
            }
            BackupStep::DeletePod => {
                let key = ObjectKey::in_namespace_of(backup, &objects::backup_pod_name(backup));
                if let Some(pod) = client.get::<Pod>(&key).await? {
                    client.delete(&*pod).await?;
                }
            }
            BackupStep::CreateCleanupPod(file) => {
                let image = backup
                    .status
                    .as_ref()
                    .and_then(|status| status.image.clone());
                let pod = objects::cleanup_pod(
                    backup,
                    image.unwrap_or_default(),
                    &file,
                    CLEANUP_SECONDS_MAX,
                )?;
                client.create(&pod).await?;
            }
        }
        Ok(())
    }

    fn record(&self, req: &Request<Backup>, observed: &BackupObserved, status: &BackupStatus) {
        let hero = ObjectKey::in_namespace_of(&observed.backup, &observed.backup.spec.hero);
        let event = match status.phase {
            BackupPhase::Completed => {
                self.metrics.backup_completed(&hero, observed.now);
                let note = format!(
                    "revision {} in {}",
                    status.revision.unwrap_or_default(),
                    status.file.as_deref().unwrap_or_default()
                );
                Event::normal("BackupDone", "Backup", note)
            }
            BackupPhase::Failed => {
                self.metrics.backup_failed(&hero);
                Event::warning(
                    "BackupFailed",
                    "Backup",
                    status.message.clone().unwrap_or_default(),
                )
            }
            BackupPhase::Pending | BackupPhase::Running => return,
        };
        req.recorder().event(&observed.backup, event.clone());
        if let Some(hero) = &observed.hero {
            req.recorder().event(hero, event);
        }
    }
}

/// What exists already is as good as created.
fn create<T>(result: Result<T, WriteError>) -> Result<(), WriteError> {
    match result {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Reconciles ScheduledBackups.
pub(crate) struct ScheduleReconciler;

impl Reconciler<ScheduledBackup> for ScheduleReconciler {
    async fn reconcile(&self, req: Request<ScheduledBackup>) -> Result<Action, Error> {
        let client = req.client();
        let found = client.get::<ScheduledBackup>(req.key()).await?;
        let Some(schedule) =
            found.filter(|schedule| schedule.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Action::await_change());
        };
        let own = ListParams::default().labels(&format!("{SCHEDULE_LABEL}={}", req.key().name()));
        let backups = client.list::<Backup>(req.key().namespace(), &own).await?;
        let backups: Vec<Backup> = backups.into_iter().map(Arc::unwrap_or_clone).collect();
        match schedule::plan(&schedule, &backups, req.now()) {
            ScheduleStep::Wait(after) => return Ok(Action::requeue_after(after)),
            ScheduleStep::WriteStatus(status) => {
                let mut desired = ScheduledBackup::clone(&schedule);
                desired.status = Some(*status);
                client.patch_status_from(&*schedule, &desired).await?;
            }
            ScheduleStep::Create(mut backup) => {
                set_controller_reference(&*schedule, &mut *backup)?;
                create(client.create(&*backup).await)?;
            }
            ScheduleStep::Delete(name) => {
                if let Some(backup) = backups.iter().find(|backup| backup.name_any() == name) {
                    client.delete(backup).await?;
                }
            }
        }
        Ok(Action::requeue_after(NEXT_STEP))
    }
}
