//! CronJob controller.
//!
//! Input: CronJobs, their Jobs, the time. Output: Jobs created, replaced and deleted; the status.
//! Guarantees: a scheduled time creates at most one Job, because the Job's name contains it. A
//! reconcile repeated after a crash finds the Job it created.

mod plan; // the Job to create, and Jobs to delete

use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::index::{Index, controller_uid};
use bellerophon::owner::controller_of;
use bellerophon::prelude::*;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::ResourceExt;
use kube::api::PropagationPolicy;

use super::api_writer::ApiWriter;
use super::events::{normal_event, warning_event};
use crate::api_errors::{has_code, is_namespace_terminating, status_message};
use crate::component::Component;
use plan::{Plan, plan, reference};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "cronjob-controller";

/// CronJobs reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Adds the CronJob controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let reconciler = CronJobReconciler {
        jobs: mgr.index("controller-uid", controller_uid::<Job>),
        recorder: Component::ControllerManager.recorder(mgr, CONTROLLER),
        clock: mgr.clock(),
    };
    mgr.controller::<CronJob>()
        .owns::<Job>()
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

struct CronJobReconciler {
    /// By the uid of their controller.
    jobs: Index<Job>,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler<CronJob> for CronJobReconciler {
    /// Mirrors syncCronJob.
    async fn reconcile(&self, req: Request<CronJob>) -> Result<Action, Error> {
        let Some(cron_job) = req.object() else {
            return Ok(Action::await_change());
        };
        let writer = ApiWriter {
            client: req.client(),
        };
        let jobs = self.jobs.get(&cron_job.uid().unwrap_or_default());
        let plan = plan(cron_job, &jobs, self.clock.now());
        self.apply(&writer, cron_job, &plan).await?;
        Ok(plan
            .requeue_after
            .map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl CronJobReconciler {
    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        cron_job: &CronJob,
        plan: &Plan,
    ) -> Result<(), Error> {
        for event in &plan.events {
            self.recorder.event(cron_job, event.clone());
        }
        // Replaced Jobs are deleted before the new one is created, as in syncCronJob.
        for job in plan.cleanup.iter().chain(&plan.replace) {
            self.delete(writer, cron_job, job).await?;
        }
        let mut status = plan.status.clone();
        if let Some(job) = &plan.create {
            match self.create(writer, cron_job, job).await? {
                Some(job) => status.active.get_or_insert_default().push(reference(&job)),
                // A Job of another owner has the name; the status is not updated.
                None => return Ok(()),
            }
        }
        let current = cron_job.status.clone().unwrap_or_default();
        let set_status = |cron_job: &mut CronJob, status| cron_job.status = Some(status);
        writer
            .update_status(cron_job, &current, status, set_status)
            .await?;
        Ok(())
    }

    async fn delete(
        &self,
        writer: &ApiWriter<'_>,
        cron_job: &CronJob,
        job: &Job,
    ) -> Result<(), Error> {
        match writer
            .delete(job, Some(PropagationPolicy::Background))
            .await
        {
            Ok(_) => {
                self.recorder.event(
                    cron_job,
                    normal_event(
                        "SuccessfulDelete",
                        format!("Deleted job {}", job.name_any()),
                    ),
                );
                Ok(())
            }
            Err(error) => {
                self.recorder.event(
                    cron_job,
                    warning_event(
                        "FailedDelete",
                        format!("Deleted job: {}", status_message(&error)),
                    ),
                );
                Err(error.into())
            }
        }
    }

    /// Creates a Job, or finds the one that an earlier reconcile created for this time. Returns
    /// `None` if the name is taken by a Job of another owner.
    async fn create(
        &self,
        writer: &ApiWriter<'_>,
        cron_job: &CronJob,
        job: &Job,
    ) -> Result<Option<Job>, Error> {
        match writer.create(job).await {
            Ok(created) => {
                self.recorder.event(
                    cron_job,
                    normal_event(
                        "SuccessfulCreate",
                        format!("Created job {}", job.name_any()),
                    ),
                );
                Ok(Some(Job {
                    metadata: created.metadata().clone(),
                    ..Job::default()
                }))
            }
            Err(error) if has_code(&error, 409) && !is_namespace_terminating(&error) => {
                let key = ObjectKey::from_object(job);
                let Some(existing) = writer.client.get::<Job>(&key).await? else {
                    return Err(error.into());
                };
                let is_controlled = controller_of(&*existing)
                    .is_some_and(|owner| Some(&owner.uid) == cron_job.metadata.uid.as_ref());
                Ok(is_controlled.then(|| Job::clone(&existing)))
            }
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    self.recorder.event(
                        cron_job,
                        warning_event(
                            "FailedCreate",
                            format!("Error creating job: {}", status_message(&error)),
                        ),
                    );
                }
                Err(error.into())
            }
        }
    }
}
