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

use bellerophon::client::WriteError;
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::index::Index;
use bellerophon::owner::controller_of;
use bellerophon::prelude::*;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::Selector;
use serde_json::json;

use super::api_writer::ApiWriter;
use super::batch::{run_concurrently, slow_start_batch};
use super::claim::{self, claim_with_finalizers, matches};
use super::counts::{omit_zero, saturating_i32};
use super::enqueue::{Children, owners_to_enqueue, pod_update_predicate};
use super::pod_control::PodControl;
use crate::api_errors::has_code;
use crate::component::Component;
use crate::index;
use job_pod::{JobPodTemplate, TRACKING_FINALIZER, has_tracking_finalizer};
use plan::{Create, Plan, is_job_finished, plan};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "job-controller";

/// Jobs reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Value of `spec.managedBy` for this controller, and its default.
const MANAGED_BY: &str = "kubernetes.io/job-controller";

/// Adds the Job controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let pods = index::pods(mgr);
    let reconciler = JobReconciler {
        pods: Children::new(&pods),
        tracked_pods: pods.index("tracked-by-job", |pod| {
            let job = tracking_job(pod);
            job.map(|key| key.to_string()).into_iter().collect()
        }),
        recorder: Component::ControllerManager.recorder(mgr, CONTROLLER),
        clock: mgr.clock(),
    };
    let jobs = mgr.lister::<Job>();
    mgr.controller::<Job>()
        // By the name in the owner reference: the Job may be deleted, and its pods still have to
        // lose the finalizer.
        .watches::<Pod>(move |pod| match tracking_job(pod) {
            Some(key) => vec![key],
            None => owners_to_enqueue(&jobs, pod, selector),
        })
        .predicate(pod_update_predicate())
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

fn selector(job: &Job) -> Option<Selector> {
    claim::non_empty_selector(job.spec.as_ref()?.selector.as_ref()?)
}

/// Key of the controlling Job of a pod with the tracking finalizer.
fn tracking_job(pod: &Pod) -> Option<ObjectKey> {
    let controller =
        controller_of(pod).filter(|owner| owner.kind == "Job" && has_tracking_finalizer(pod))?;
    Some(ObjectKey::in_namespace_of(pod, &controller.name))
}

struct JobReconciler {
    pods: Children<Pod>,
    /// Pods with the tracking finalizer by the key of their Job, which may be deleted.
    tracked_pods: Index<Pod>,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler<Job> for JobReconciler {
    /// Mirrors syncJob.
    async fn reconcile(&self, req: Request<Job>) -> Result<Action, Error> {
        let writer = ApiWriter {
            client: req.client(),
        };
        let job = req.object();
        if job
            .and_then(|job| job.spec.as_ref()?.managed_by.as_deref())
            .is_some_and(|manager| manager != MANAGED_BY)
        {
            return Ok(Action::await_change());
        }
        // Also for a finished Job: after a crash between its last status update and the release,
        // its pods still have the finalizer.
        self.release_orphan_pods(&writer, req.key(), job).await?;
        let Some(job) = job.filter(|job| !is_job_finished(job)) else {
            return Ok(Action::await_change());
        };
        let (Some(spec), Some(selector)) = (&job.spec, selector(job)) else {
            return Ok(Action::await_change());
        };
        let pods = self.pods.candidates(job);
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
            .map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl JobReconciler {
    /// Removes the finalizer of pods whose Job is deleted, replaced or finished. Mirrors
    /// syncOrphanPod.
    async fn release_orphan_pods(
        &self,
        writer: &ApiWriter<'_>,
        key: &ObjectKey,
        job: Option<&Job>,
    ) -> Result<(), Error> {
        let active_uid = job
            .filter(|job| !is_job_finished(job))
            .and_then(|job| job.metadata.uid.as_ref());
        let mut orphans = self.tracked_pods.get(&key.to_string());
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

    async fn apply(&self, writer: &ApiWriter<'_>, job: &Job, plan: &Plan) -> Result<(), Error> {
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
        // The status is written before finalizers are removed. In the other order a crash in
        // between would lose the pods that are not counted yet.
        let current = job.status.clone().unwrap_or_default();
        let set_status = |job: &mut Job, status| job.status = Some(status);
        writer
            .update_status(job, &current, status, set_status)
            .await?;
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
    ) -> Result<(usize, Option<WriteError>), Error> {
        let template = &JobPodTemplate::of(job);
        Ok(match &plan.create {
            Create::NonIndexed(0) => (0, None),
            Create::NonIndexed(count) => {
                let pod = &control.writer.template(&template.pod()).await?;
                slow_start_batch(*count, |_| control.create(pod)).await
            }
            Create::Indexed(indexes) => {
                let create = |position: usize| async move {
                    let (index, failures) = indexes[position];
                    let pod = template.pod_for_index(index, failures);
                    let pod = control.writer.template(&pod).await?;
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
async fn discard(control: PodControl<'_, Job>, pod: &Pod) -> Result<(), WriteError> {
    // Mirrors deleteJobPods: with the finalizer, the deleted pod would be counted as failed.
    remove_tracking_finalizer(&control.writer, pod).await?;
    control.delete(pod).await
}

/// Removes the tracking finalizer. A pod that is gone is no error. Mirrors
/// removeTrackingFinalizerFromPods.
async fn remove_tracking_finalizer(writer: &ApiWriter<'_>, pod: &Pod) -> Result<(), WriteError> {
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
