//! Job controller.
//!
//! Input: Jobs, pods. Output: pods created, deleted, counted and released; the status of the Job.
//! Guarantees: every finished pod is counted once, also after a crash, because it keeps its
//! tracking finalizer until the status has it (see [`pod_counts`]). Pods of a finished or deleted
//! Job are released.

mod indexes; // completion indexes
mod job_pod; // pods of a Job
mod plan; // pods to create, delete and count, and the conditions
mod pod_counts; // counts of pods and indexes
mod policy; // pod failure policy and success policy

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, ObjectKey, Outcome, ReconcileResult, Request,
    WallClock, controller_of,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::core::Selector;
use kube::{Client, ResourceExt};
use serde_json::json;

use super::api_writer::{ApiWriter, ObjectTemplate};
use super::batch::{run_concurrently, slow_start_batch};
use super::claim::{self, claim_with_finalizers, matches};
use super::counts::{omit_zero, saturating_i32};
use super::enqueue::{ORPHAN_INDEX, add_orphan_index, owners_to_enqueue, pod_update_predicate};
use super::pod_control::PodControl;
use crate::api_errors::has_code;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{self, CONTROLLER_UID_INDEX, add_controller_uid_index};
use job_pod::{JobPodTemplate, TRACKING_FINALIZER, has_tracking_finalizer};
use plan::{Create, Plan, is_job_finished, plan};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "job-controller";

/// Jobs reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Value of `spec.managedBy` for this controller, and its default.
const MANAGED_BY: &str = "kubernetes.io/job-controller";

/// Index of pods with the tracking finalizer by the key of their Job, which may be deleted.
const TRACKED_PODS_INDEX: &str = "tracked-by-job";

/// The Job controller.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let jobs = ctx.informer::<Job>();
    let pods = ctx.pods();
    add_controller_uid_index(&pods);
    add_orphan_index(&pods);
    index::add_index(&pods, TRACKED_PODS_INDEX, |pod| {
        tracking_job(pod)
            .map(|key| key.to_string())
            .into_iter()
            .collect()
    });
    let reconciler = Arc::new(JobReconciler {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let lister = jobs.lister();
    Controller::of(&jobs)
        .watches_if(
            &pods,
            pod_update_predicate(),
            move |pod| match tracking_job(pod) {
                Some(key) => vec![key],
                None => owners_to_enqueue(&lister, pod, selector),
            },
        )
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

fn selector(job: &Job) -> Option<Selector> {
    claim::non_empty_selector(job.spec.as_ref()?.selector.as_ref()?)
}

/// Key of the controlling Job of a pod with the tracking finalizer.
fn tracking_job(pod: &Pod) -> Option<ObjectKey> {
    let controller =
        controller_of(pod).filter(|owner| owner.kind == "Job" && has_tracking_finalizer(pod))?;
    Some(ObjectKey::beside(pod, &controller.name))
}

struct JobReconciler {
    client: Client,
    pods: Lister<Pod>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl JobReconciler {
    /// Mirrors syncJob.
    async fn reconcile(self: Arc<Self>, request: Request<Job>) -> ReconcileResult {
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let job = request.object.as_deref();
        if job
            .and_then(|job| job.spec.as_ref()?.managed_by.as_deref())
            .is_some_and(|manager| manager != MANAGED_BY)
        {
            return Ok(Outcome::Done);
        }
        // First, because a deleted or finished Job is not planned.
        self.release_orphan_pods(&writer, &request.key, job).await?;
        let Some(job) = job.filter(|job| !is_job_finished(job)) else {
            return Ok(Outcome::Done);
        };
        let (Some(spec), Some(selector)) = (&job.spec, selector(job)) else {
            return Ok(Outcome::Done);
        };
        let mut pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &job.uid().unwrap_or_default())?;
        pods.extend(
            self.pods
                .by_index(ORPHAN_INDEX, &job.namespace().unwrap_or_default())?,
        );
        let mut pods = claim_with_finalizers(
            &writer,
            job,
            pods,
            |pod| matches(&selector, pod),
            &[TRACKING_FINALIZER],
        )
        .await?;
        // As in trackJobStatusAndRemoveFinalizers, pods are processed in index order.
        pods.sort_by_cached_key(|pod| (job_pod::completion_index(pod), pod.name_any()));
        let plan = plan(job, spec, &pods, self.clock.now());
        self.apply(&writer, job, &plan).await?;
        Ok(plan
            .requeue_after
            .map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Removes the finalizer of pods whose Job is deleted, replaced or finished. Mirrors
    /// syncOrphanPod.
    async fn release_orphan_pods(
        &self,
        writer: &ApiWriter<'_>,
        key: &ObjectKey,
        job: Option<&Job>,
    ) -> Result<(), Failure> {
        let active_uid = job
            .filter(|job| !is_job_finished(job))
            .and_then(|job| job.metadata.uid.as_ref());
        let mut orphans = self.pods.by_index(TRACKED_PODS_INDEX, &key.to_string())?;
        orphans
            .retain(|pod| controller_of(&**pod).is_none_or(|owner| Some(&owner.uid) != active_uid));
        let (_, failure) = run_concurrently(
            orphans
                .iter()
                .map(|pod| remove_tracking_finalizer(writer, pod))
                .collect(),
        )
        .await;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    async fn apply(&self, writer: &ApiWriter<'_>, job: &Job, plan: &Plan) -> Result<(), Failure> {
        let control = PodControl {
            writer: *writer,
            owner: job,
            recorder: &self.recorder,
        };
        let (created, create_error) = self.create(control, job, plan).await?;
        let (deleted, delete_error) =
            run_concurrently(plan.delete.iter().map(|pod| control.delete(pod)).collect()).await;
        let (discarded, discard_error) = run_concurrently(
            plan.discard
                .iter()
                .map(|pod| discard(control, pod))
                .collect(),
        )
        .await;
        let failure = create_error.or(delete_error).or(discard_error);
        // The active count is corrected by the writes that failed.
        let not_created = saturating_i32(planned_creations(plan) - created);
        let not_deleted =
            saturating_i32(plan.delete.len() + plan.discard.len() - deleted - discarded);
        let mut status = plan.status.clone();
        status.active = omit_zero(status.active.unwrap_or(0) - not_created + not_deleted);
        let current = job.status.clone().unwrap_or_default();
        writer.update_status(job, &current, &status).await?;
        for event in &plan.events {
            self.recorder.event(job, event.clone());
        }
        // Finalizers are kept while an active pod could not be deleted: it would not be counted.
        if failure.is_none() || plan.delete.is_empty() {
            let (_, release_error) = run_concurrently(
                plan.release
                    .iter()
                    .map(|pod| remove_tracking_finalizer(writer, pod))
                    .collect(),
            )
            .await;
            release_error.map_or(Ok(()), Err)?;
        }
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    async fn create(
        &self,
        control: PodControl<'_, Job>,
        job: &Job,
        plan: &Plan,
    ) -> Result<(usize, Option<kube::Error>), Failure> {
        let template = &JobPodTemplate::of(job);
        Ok(match &plan.create {
            Create::NonIndexed(0) => (0, None),
            Create::NonIndexed(count) => {
                let pod = &ObjectTemplate::new(&template.pod())?;
                slow_start_batch(*count, |_| control.create(pod)).await
            }
            Create::Indexed(indexes) => {
                let create = |position: usize| async move {
                    let (index, failures) = indexes[position];
                    let pod = ObjectTemplate::new(&template.pod_for_index(index, failures))?;
                    control.create(&pod).await
                };
                slow_start_batch(indexes.len(), create).await
            }
        })
    }
}

fn planned_creations(plan: &Plan) -> usize {
    match &plan.create {
        Create::NonIndexed(count) => *count,
        Create::Indexed(indexes) => indexes.len(),
    }
}

/// Deletes a pod without counting it.
async fn discard(control: PodControl<'_, Job>, pod: &Pod) -> Result<(), kube::Error> {
    remove_tracking_finalizer(&control.writer, pod).await?;
    control.delete(pod).await
}

/// Removes the tracking finalizer. A pod that is gone is no error. Mirrors
/// removeTrackingFinalizerFromPods.
async fn remove_tracking_finalizer(writer: &ApiWriter<'_>, pod: &Pod) -> Result<(), kube::Error> {
    if !has_tracking_finalizer(pod) {
        return Ok(());
    }
    let patch = json!({
        "metadata": {
            "uid": pod.uid(),
            "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
        },
    });
    match writer.patch(pod, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(()),
        Err(error) => Err(error),
    }
}
