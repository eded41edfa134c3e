//! Job: pods that are to end well, so many times.
//!
//! In: Jobs, pods. Out: pods created, ended, counted and released; the Job's status.
//! Holds: every pod that ends is counted once, whatever dies meanwhile: it is held by a finalizer until the status has it
//! (see [`tally`]). Pods of a Job that is gone or over are released, so that they can go.

mod indexes; // sets of completion indexes
mod member; // pods of a Job
mod plan; // what comes next
mod policy; // what failure and success mean
mod tally; // what ran and what runs

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
use super::enqueue::{ORPHAN_INDEX, add_orphan_index, owners_to_enqueue, pod_update_predicate};
use super::pod_control::PodControl;
use crate::api_errors::has_code;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{self, CONTROLLER_UID_INDEX, add_controller_uid_index};
use member::{Mother, TRACKING, is_tracked};
use plan::{Create, Plan, is_terminal, plan};

/// Its name in events and metrics.
const CONTROLLER: &str = "job-controller";

/// How many Jobs are worked on at once, as upstream.
const WORKERS: usize = 5;

/// Who manages a Job that names nobody.
const MANAGER: &str = "kubernetes.io/job-controller";

/// Tracked pods by the key of the Job they name, which may be gone.
const TRACKED: &str = "tracked-by-job";

/// The loop of Jobs.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let jobs = ctx.informer::<Job>();
    let pods = ctx.pods();
    add_controller_uid_index(&pods);
    add_orphan_index(&pods);
    index::add_index(&pods, TRACKED, |pod| {
        tracked_by(pod)
            .map(|key| key.to_string())
            .into_iter()
            .collect()
    });
    let loop_ = Arc::new(Jobs {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let lister = jobs.lister();
    Controller::of(&jobs)
        .watches_if(&pods, pod_update_predicate(), move |pod| {
            match tracked_by(pod) {
                Some(key) => vec![key],
                None => owners_to_enqueue(&lister, pod, selector),
            }
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| loop_.clone().reconcile(request))
        .into()
}

fn selector(job: &Job) -> Option<Selector> {
    claim::non_empty_selector(job.spec.as_ref()?.selector.as_ref()?)
}

/// The Job that a tracked pod names as its controller, there or not.
fn tracked_by(pod: &Pod) -> Option<ObjectKey> {
    let controller = controller_of(pod).filter(|owner| owner.kind == "Job" && is_tracked(pod))?;
    Some(ObjectKey::beside(pod, &controller.name))
}

struct Jobs {
    client: Client,
    pods: Lister<Pod>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl Jobs {
    async fn reconcile(self: Arc<Self>, request: Request<Job>) -> ReconcileResult {
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let job = request.object.as_deref();
        if job
            .and_then(|job| job.spec.as_ref()?.managed_by.as_deref())
            .is_some_and(|manager| manager != MANAGER)
        {
            return Ok(Outcome::Done);
        }
        self.release_strays(&writer, &request.key, job).await?;
        let Some(job) = job.filter(|job| !is_terminal(job)) else {
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
            &[TRACKING],
        )
        .await?;
        pods.sort_by_cached_key(|pod| (member::index(pod), pod.name_any()));
        let plan = plan(job, spec, &pods, self.clock.now());
        self.apply(&writer, job, &plan).await?;
        Ok(plan.next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Releases pods of another Job of this name, or of one that is over.
    async fn release_strays(
        &self,
        writer: &ApiWriter<'_>,
        key: &ObjectKey,
        job: Option<&Job>,
    ) -> Result<(), Failure> {
        let alive = job
            .filter(|job| !is_terminal(job))
            .and_then(|job| job.metadata.uid.as_ref());
        let mut strays = self.pods.by_index(TRACKED, &key.to_string())?;
        strays.retain(|pod| controller_of(&**pod).is_none_or(|owner| Some(&owner.uid) != alive));
        let (_, failure) =
            run_concurrently(strays.iter().map(|pod| release(writer, pod)).collect()).await;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    async fn apply(&self, writer: &ApiWriter<'_>, job: &Job, plan: &Plan) -> Result<(), Failure> {
        let control = PodControl {
            writer: *writer,
            owner: job,
            recorder: &self.recorder,
        };
        let (created, refused) = self.create(control, job, plan).await?;
        let (ended, kept) =
            run_concurrently(plan.end.iter().map(|pod| control.delete(pod)).collect()).await;
        let (discarded, stayed) = run_concurrently(
            plan.discard
                .iter()
                .map(|pod| discard(control, pod))
                .collect(),
        )
        .await;
        let failure = refused.or(kept).or(stayed);
        // What is told is what came about, not what was planned.
        let short = tally::number(created_by(plan) - created);
        let over = tally::number(plan.end.len() + plan.discard.len() - ended - discarded);
        let mut status = plan.status.clone();
        status.active = tally::some(status.active.unwrap_or(0) - short + over);
        let was = job.status.clone().unwrap_or_default();
        writer.update_status(job, &was, &status).await?;
        self.tell(job, plan);
        // A Job is not over before all its pods are ended: they would not be counted.
        if failure.is_none() || plan.end.is_empty() {
            let (_, held) = run_concurrently(
                plan.release
                    .iter()
                    .map(|pod| release(writer, pod))
                    .collect(),
            )
            .await;
            held.map_or(Ok(()), Err)?;
        }
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    async fn create(
        &self,
        control: PodControl<'_, Job>,
        job: &Job,
        plan: &Plan,
    ) -> Result<(usize, Option<kube::Error>), Failure> {
        let mother = &Mother::of(job);
        Ok(match &plan.create {
            Create::Plain(0) => (0, None),
            Create::Plain(count) => {
                let mould = &ObjectTemplate::new(&mother.pod())?;
                slow_start_batch(*count, |_| control.create(mould)).await
            }
            Create::Indexed(indexes) => {
                let create = |position: usize| async move {
                    let (index, failures) = indexes[position];
                    control
                        .create(&ObjectTemplate::new(&mother.pod_of(index, failures))?)
                        .await
                };
                slow_start_batch(indexes.len(), create).await
            }
        })
    }

    fn tell(&self, job: &Job, plan: &Plan) {
        for note in &plan.notes {
            self.recorder.event(job, note.clone());
        }
    }
}

fn created_by(plan: &Plan) -> usize {
    match &plan.create {
        Create::Plain(count) => *count,
        Create::Indexed(indexes) => indexes.len(),
    }
}

/// Ends a pod that is not to be counted.
async fn discard(control: PodControl<'_, Job>, pod: &Pod) -> Result<(), kube::Error> {
    release(&control.writer, pod).await?;
    control.delete(pod).await
}

/// Takes the finalizer off a pod; one that is gone has none.
async fn release(writer: &ApiWriter<'_>, pod: &Pod) -> Result<(), kube::Error> {
    if !is_tracked(pod) {
        return Ok(());
    }
    let patch = json!({ "metadata": { "uid": pod.uid(), "$deleteFromPrimitiveList/finalizers": [TRACKING] } });
    match writer.patch(pod, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(()),
        Err(error) => Err(error),
    }
}
