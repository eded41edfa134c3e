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

use bellerophon::client::{Precondition, WriteError};
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::index::Index;
use bellerophon::informer::InformerOptions;
use bellerophon::owner::controller_of;
use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::Selector;

use super::api_writer::ApiWriter;
use super::claim::{self, claim_children, matches};
use super::enqueue::{Children, owners_to_enqueue};
use super::events::{normal_event, warning_event};
use super::pods::is_terminal;
use super::template::equal_ignore_hash;
use crate::api_errors::{has_code, is_namespace_terminating, status_message};
use crate::component::Component;
use crate::index;
use plan::{Plan, plan};
use replica_sets::{PlannedReplicaSet, REVISION_ANNOTATION, is_recreate};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "deployment-controller";

/// Deployments reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Adds the Deployment controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let sets = mgr.informer::<ReplicaSet>(InformerOptions::default());
    let pods = index::pods(mgr);
    let reconciler = DeploymentReconciler {
        sets: sets.lister(),
        children: Children::new(&sets),
        pods: index::by_controller_uid(&pods),
        recorder: Component::ControllerManager.recorder(mgr, CONTROLLER),
        clock: mgr.clock(),
    };
    let deployments_of_sets = mgr.lister::<Deployment>();
    let deployments_of_pods = deployments_of_sets.clone();
    let set_lister = sets.lister();
    mgr.controller::<Deployment>()
        .watches::<ReplicaSet>(move |set| owners_to_enqueue(&deployments_of_sets, set, selector))
        // Mirrors deletePod: a Recreate rollout waits for the deletion of old pods.
        .watches::<Pod>(move |pod| recreate_deployment_of(&deployments_of_pods, &set_lister, pod))
        .predicate(Predicate::deletions())
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
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
    let owner = |controller: &str| ObjectKey::in_namespace_of(pod, controller);
    let set = controller_of(pod).and_then(|set| sets.get(&owner(&set.name)));
    let deployment = set.and_then(|set| deployments.get(&owner(&controller_of(&*set)?.name)));
    deployment
        .filter(|deployment| deployment.spec.as_ref().is_some_and(is_recreate))
        .map(|deployment| ObjectKey::from_object(&*deployment))
        .into_iter()
        .collect()
}

struct DeploymentReconciler {
    sets: Lister<ReplicaSet>,
    children: Children<ReplicaSet>,
    /// By the uid of their controller.
    pods: Index<Pod>,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler<Deployment> for DeploymentReconciler {
    async fn reconcile(&self, req: Request<Deployment>) -> Result<Action, Error> {
        let Some(deployment) = req.object() else {
            return Ok(Action::await_change());
        };
        // Validation rejects invalid and empty selectors.
        let Some(selector) = selector(deployment) else {
            return Ok(Action::await_change());
        };
        let writer = ApiWriter {
            client: req.client(),
        };
        let sets = self.children.candidates(deployment);
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
            .map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl DeploymentReconciler {
    fn has_pods(&self, set: &ReplicaSet) -> bool {
        let pods = self.pods.get(&set.uid().unwrap_or_default());
        pods.iter().any(|pod| !is_terminal(pod))
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        plan: &Plan,
    ) -> Result<(), Error> {
        // The new ReplicaSet is last: if scaling down an old one fails, the new one is not scaled
        // up, and the sum of replicas stays within maxSurge.
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
            writer.delete(&**set, None).await?;
        }
        // The status strategy of Deployments resets spec and labels but not annotations, so the
        // revision annotation and the status are one request.
        let mut updated = deployment.clone();
        let current = current_status(deployment);
        if current != plan.status {
            updated.status = Some(plan.status.clone());
        }
        if let Some(revision) = plan.new_revision(deployment) {
            let annotations = updated.annotations_mut();
            annotations.insert(REVISION_ANNOTATION.to_owned(), revision);
        }
        writer
            .patch_status(deployment, &updated, Precondition::Uid)
            .await?;
        Ok(())
    }

    async fn update(
        &self,
        writer: &ApiWriter<'_>,
        deployment: &Deployment,
        replica_set: &PlannedReplicaSet,
        cached: &ReplicaSet,
    ) -> Result<(), WriteError> {
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
    ) -> Result<(), Error> {
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
            // As in getNewReplicaSet, the condition Progressing exists only with a progress
            // deadline.
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
                let current = current_status(deployment);
                writer
                    .update_status(deployment, &current, failed, set_status)
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
    ) -> Result<(), Error> {
        let key = ObjectKey::from_object(set);
        // Without the object it is unknown whether this is a collision. Counting one would create a
        // second ReplicaSet of the same template.
        let Some(existing) = self.sets.get(&key) else {
            return Err(Error::retry(format!(
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
        writer
            .update_status(deployment, &current, status, set_status)
            .await?;
        Err(Error::retry(format!(
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

fn set_status(deployment: &mut Deployment, status: DeploymentStatus) {
    deployment.status = Some(status);
}
