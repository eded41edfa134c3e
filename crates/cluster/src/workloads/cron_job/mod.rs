//! CronJob controller.
//!
//! Input: CronJobs, their Jobs, the time. Output: Jobs created, replaced and deleted; the status.
//! Guarantees: a scheduled time creates at most one Job, because the Job's name contains it. A
//! reconcile repeated after a crash finds the Job it created.

mod plan; // the Job to create, and Jobs to delete
mod schedule; // cron schedules

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, Outcome, ReconcileResult, Request, WallClock,
    controller_of,
};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};

use super::api_writer::ApiWriter;
use super::events::{normal_event, warning_event};
use crate::api_errors::{has_code, is_namespace_terminating, status_message};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use plan::{Plan, plan, reference};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "cronjob-controller";

/// CronJobs reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// The CronJob controller.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let cron_jobs = ctx.informer::<CronJob>();
    let jobs = ctx.informer::<Job>();
    add_controller_uid_index(&jobs);
    let reconciler = Arc::new(CronJobReconciler {
        client: ctx.client(Component::ControllerManager),
        jobs: jobs.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    Controller::of(&cron_jobs)
        .owns(&jobs)
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

struct CronJobReconciler {
    client: Client,
    jobs: Lister<Job>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl CronJobReconciler {
    /// Mirrors syncCronJob.
    async fn reconcile(self: Arc<Self>, request: Request<CronJob>) -> ReconcileResult {
        let Some(cron_job) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let jobs = self
            .jobs
            .by_index(CONTROLLER_UID_INDEX, &cron_job.uid().unwrap_or_default())?;
        let plan = plan(cron_job, &jobs, self.clock.now());
        self.apply(&writer, cron_job, &plan).await?;
        Ok(plan
            .requeue_after
            .map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        cron_job: &CronJob,
        plan: &Plan,
    ) -> Result<(), Failure> {
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
        writer
            .update_status(
                cron_job,
                &cron_job.status.clone().unwrap_or_default(),
                &status,
            )
            .await?;
        Ok(())
    }

    async fn delete(
        &self,
        writer: &ApiWriter<'_>,
        cron_job: &CronJob,
        job: &Job,
    ) -> Result<(), Failure> {
        match writer.delete(job, DeleteParams::background()).await {
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
    ) -> Result<Option<Job>, Failure> {
        match writer.create(job).await {
            Ok(created) => {
                self.recorder.event(
                    cron_job,
                    normal_event(
                        "SuccessfulCreate",
                        format!("Created job {}", created.name_any()),
                    ),
                );
                Ok(Some(Job {
                    metadata: created.metadata,
                    ..Job::default()
                }))
            }
            Err(error) if has_code(&error, 409) && !is_namespace_terminating(&error) => {
                let jobs = Api::<Job>::namespaced(
                    writer.client.clone(),
                    &job.namespace().unwrap_or_default(),
                );
                let existing = jobs.get(&job.name_any()).await?;
                let is_controlled = controller_of(&existing)
                    .is_some_and(|owner| Some(&owner.uid) == cron_job.metadata.uid.as_ref());
                Ok(is_controlled.then_some(existing))
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
