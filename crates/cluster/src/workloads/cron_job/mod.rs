//! CronJob: a Job at the times of a schedule.
//!
//! In: CronJobs, the Jobs they own, the time. Out: Jobs started, replaced and forgotten; the status.
//! Holds: a process that dies after starting a Job and before telling so finds it by its name, which is its time.

mod plan; // what is due
mod schedule; // when

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

/// Its name in events and metrics.
const CONTROLLER: &str = "cronjob-controller";

/// How many CronJobs are worked on at once, as upstream.
const WORKERS: usize = 5;

/// The loop of CronJobs.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let crons = ctx.informer::<CronJob>();
    let jobs = ctx.informer::<Job>();
    add_controller_uid_index(&jobs);
    let loop_ = Arc::new(CronJobs {
        client: ctx.client(Component::ControllerManager),
        jobs: jobs.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    Controller::of(&crons)
        .owns(&jobs)
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| loop_.clone().reconcile(request))
        .into()
}

struct CronJobs {
    client: Client,
    jobs: Lister<Job>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl CronJobs {
    async fn reconcile(self: Arc<Self>, request: Request<CronJob>) -> ReconcileResult {
        let Some(cron) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let jobs = self
            .jobs
            .by_index(CONTROLLER_UID_INDEX, &cron.uid().unwrap_or_default())?;
        let plan = plan(cron, &jobs, self.clock.now());
        self.apply(&writer, cron, &plan).await?;
        Ok(plan.next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        cron: &CronJob,
        plan: &Plan,
    ) -> Result<(), Failure> {
        for note in &plan.notes {
            self.recorder.event(cron, note.clone());
        }
        for job in plan.forget.iter().chain(&plan.replace) {
            self.delete(writer, cron, job).await?;
        }
        let mut status = plan.status.clone();
        if let Some(job) = &plan.start {
            match self.start(writer, cron, job).await? {
                Some(job) => status.active.get_or_insert_default().push(reference(&job)),
                // Somebody else's Job has the name of this time; it is theirs to tell of.
                None => return Ok(()),
            }
        }
        writer
            .update_status(cron, &cron.status.clone().unwrap_or_default(), &status)
            .await?;
        Ok(())
    }

    async fn delete(
        &self,
        writer: &ApiWriter<'_>,
        cron: &CronJob,
        job: &Job,
    ) -> Result<(), Failure> {
        match writer.delete(job, DeleteParams::background()).await {
            Ok(_) => {
                self.recorder.event(
                    cron,
                    normal_event(
                        "SuccessfulDelete",
                        format!("Deleted job {}", job.name_any()),
                    ),
                );
                Ok(())
            }
            Err(error) => {
                self.recorder.event(
                    cron,
                    warning_event(
                        "FailedDelete",
                        format!("Deleted job: {}", status_message(&error)),
                    ),
                );
                Err(error.into())
            }
        }
    }

    /// Starts a Job, or finds the one that an earlier pass started for this time.
    async fn start(
        &self,
        writer: &ApiWriter<'_>,
        cron: &CronJob,
        job: &Job,
    ) -> Result<Option<Job>, Failure> {
        match writer.create(job).await {
            Ok(created) => {
                self.recorder.event(
                    cron,
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
                let there = jobs.get(&job.name_any()).await?;
                let ours = controller_of(&there)
                    .is_some_and(|owner| Some(&owner.uid) == cron.metadata.uid.as_ref());
                Ok(ours.then_some(there))
            }
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    self.recorder.event(
                        cron,
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
