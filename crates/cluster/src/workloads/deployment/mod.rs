//! Deployment controller.
//!
//! Input: Deployments, ReplicaSets, deleted pods. Output: ReplicaSets created, scaled and deleted;
//! the status of the Deployment.
//! Guarantees: the bounds of a rolling update, see [`scale`]. The name of a ReplicaSet contains the
//! hash of its template, so a reconcile repeated after a crash finds the ReplicaSet it created. A
//! name that is taken by another template increments the collision count, which enters the hash.

mod plan; // one step of a rollout
mod replica_sets; // old and new ReplicaSets
mod scale; // replicas of each ReplicaSet
mod status; // counts and conditions

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, ObjectKey, Outcome, ReconcileResult, Request,
    WallClock, controller_of,
};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::core::Selector;
use kube::{Client, ResourceExt};
use serde_json::json;

use super::api_writer::ApiWriter;
use super::claim::{self, claim_children, matches};
use super::enqueue::{ORPHAN_INDEX, add_orphan_index, deletions_only, owners_to_enqueue};
use super::events::{normal_event, warning_event};
use super::pods::is_terminal;
use super::template::equal_ignore_hash;
use crate::api_errors::{has_code, is_namespace_terminating, status_message};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use plan::{Plan, plan};
use replica_sets::{PlannedReplicaSet, REVISION_ANNOTATION, is_recreate};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "deployment-controller";

/// Deployments reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// The Deployment controller.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let deployments = ctx.informer::<Deployment>();
    let sets = ctx.informer::<ReplicaSet>();
    let pods = ctx.pods();
    add_controller_uid_index(&sets);
    add_orphan_index(&sets);
    add_controller_uid_index(&pods);
    let reconciler = Arc::new(DeploymentReconciler {
        client: ctx.client(Component::ControllerManager),
        sets: sets.lister(),
        pods: pods.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let deployments_of_sets = deployments.lister();
    let deployments_of_pods = deployments.lister();
    let set_lister = sets.lister();
    Controller::of(&deployments)
        .watches(&sets, move |set| {
            owners_to_enqueue(&deployments_of_sets, set, selector)
        })
        // Mirrors deletePod: a Recreate rollout waits for the deletion of old pods.
        .watches_if(&pods, deletions_only(), move |pod| {
            recreate_deployment_of(&deployments_of_pods, &set_lister, pod)
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

fn selector(deployment: &Deployment) -> Option<Selector> {
    claim::non_empty_selector(&deployment.spec.as_ref()?.selector)
}

/// The Deployment of a pod if its strategy is Recreate.
fn recreate_deployment_of(
    deployments: &Lister<Deployment>,
    sets: &Lister<ReplicaSet>,
    pod: &Pod,
) -> Vec<ObjectKey> {
    let owner = |controller: &str| ObjectKey::beside(pod, controller);
    let set = controller_of(pod).and_then(|set| sets.get(&owner(&set.name)));
    let deployment = set.and_then(|set| deployments.get(&owner(&controller_of(&*set)?.name)));
    deployment
        .filter(|deployment| deployment.spec.as_ref().is_some_and(is_recreate))
        .map(|deployment| ObjectKey::of(&*deployment))
        .into_iter()
        .collect()
}

struct DeploymentReconciler {
    client: Client,
    sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl DeploymentReconciler {
    async fn reconcile(self: Arc<Self>, request: Request<Deployment>) -> ReconcileResult {
        let Some(deployment) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        // Validation rejects invalid and empty selectors.
        let Some(selector) = selector(deployment) else {
            return Ok(Outcome::Done);
        };
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let mut sets = self
            .sets
            .by_index(CONTROLLER_UID_INDEX, &deployment.uid().unwrap_or_default())?;
        sets.extend(
            self.sets
                .by_index(ORPHAN_INDEX, &deployment.namespace().unwrap_or_default())?,
        );
        let sets = claim_children(&writer, deployment, sets, |set| matches(&selector, set)).await?;
        let plan = plan(
            deployment,
            &sets,
            |set| self.has_pods(set),
            self.clock.now(),
        );
        self.apply(&writer, deployment, &plan).await?;
        Ok(plan
            .requeue_after
            .map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    fn has_pods(&self, set: &ReplicaSet) -> bool {
        let pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())
            .unwrap_or_default();
        pods.iter().any(|pod| !is_terminal(pod))
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        plan: &Plan,
    ) -> Result<(), Failure> {
        for replica_set in plan.replica_sets.all() {
            match &replica_set.cached {
                Some(cached) => {
                    self.update(writer, deployment, replica_set, cached).await?;
                }
                None => self.create(writer, deployment, replica_set, plan).await?,
            }
        }
        // After the updates, so that a failed update keeps the revision history.
        for set in &plan.delete {
            writer.delete(&**set, Default::default()).await?;
        }
        let annotations = plan.new_revision(deployment).map_or(
            json!({}),
            |revision| json!({ REVISION_ANNOTATION: revision }),
        );
        writer
            .update_status_and_annotations(
                deployment,
                &current_status(deployment),
                &plan.status,
                annotations,
            )
            .await?;
        Ok(())
    }

    async fn update(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        replica_set: &PlannedReplicaSet,
        cached: &ReplicaSet,
    ) -> Result<(), kube::Error> {
        if writer.update(cached, &replica_set.desired).await? {
            self.record_scaling(deployment, replica_set);
        }
        Ok(())
    }

    async fn create(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        replica_set: &PlannedReplicaSet,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let set = &replica_set.desired;
        let Err(error) = writer.create(set).await else {
            self.record_scaling(deployment, replica_set);
            return Ok(());
        };
        if has_code(&error, 409) && !is_namespace_terminating(&error) {
            return self.resolve_collision(writer, deployment, set).await;
        }
        if !is_namespace_terminating(&error) {
            let message = format!(
                "Failed to create new replica set \"{}\": {}",
                set.name_any(),
                status_message(&error)
            );
            self.recorder.event(
                deployment,
                warning_event("ReplicaSetCreateError", message.clone()),
            );
            if status::progress_deadline(deployment).is_some() {
                let mut failed = DeploymentStatus {
                    conditions: plan.status.conditions.clone(),
                    ..current_status(deployment)
                };
                let now = self.clock.now();
                status::set_progressing(
                    &mut failed,
                    "False",
                    "ReplicaSetCreateError",
                    message,
                    now,
                );
                writer
                    .update_status(deployment, &current_status(deployment), &failed)
                    .await?;
            }
        }
        Err(error.into())
    }

    /// Handles a create that failed with 409. A ReplicaSet of this Deployment with an equal
    /// template was created by an earlier reconcile; any other one is a hash collision. Mirrors
    /// getNewReplicaSet.
    async fn resolve_collision(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        set: &ReplicaSet,
    ) -> Result<(), Failure> {
        let key = ObjectKey::of(set);
        let Some(existing) = self.sets.get(&key) else {
            return Err(Failure::retry(format!(
                "ReplicaSet {key} exists, but is not in the cache yet"
            )));
        };
        let is_controlled = controller_of(&*existing)
            .is_some_and(|owner| Some(&owner.uid) == deployment.metadata.uid.as_ref());
        let template = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.template.clone());
        if is_controlled && equal_ignore_hash(template(&existing).as_ref(), template(set).as_ref())
        {
            return Ok(());
        }
        let current = current_status(deployment);
        let collision_count = current.collision_count.unwrap_or(0) + 1;
        let status = DeploymentStatus {
            collision_count: Some(collision_count),
            ..current.clone()
        };
        writer.update_status(deployment, &current, &status).await?;
        Err(Failure::retry(format!(
            "ReplicaSet {key} exists with another template, retrying with collision count \
                {collision_count}"
        )))
    }

    fn record_scaling(&self, deployment: &Deployment, replica_set: &PlannedReplicaSet) {
        let from = replica_set.cached_replicas();
        let to = replica_set.replicas();
        if from != to {
            let direction = if from < to { "up" } else { "down" };
            let message = format!(
                "Scaled {direction} replica set {} from {from} to {to}",
                replica_set.desired.name_any()
            );
            self.recorder
                .event(deployment, normal_event("ScalingReplicaSet", message));
        }
    }
}

fn current_status(deployment: &Deployment) -> DeploymentStatus {
    deployment.status.clone().unwrap_or_default()
}
