//! ReplicaSet and ReplicationController controllers.
//!
//! Input: sets, pods. Output: pods created, deleted, adopted and released; the status of the set.
//! Guarantees: a set is reconciled only when the cache has its previous writes (the controller's
//! gate, which replaces upstream's ControllerExpectations), so no pod is created twice because of a
//! stale cache. A crash between a write and its response may leave a surplus pod, which the next
//! reconcile deletes.

mod plan; // replicas to create or delete, and the status
mod status_throttle; // limits the reconciles of very large sets

use std::sync::Arc;
use std::time::Duration;

use bellerophon::client::WriteError;
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::index::Index;
use bellerophon::informer::InformerOptions;
use bellerophon::owner::controller_of;
use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
    ReplicationControllerStatus,
};
use kube::core::Selector;
use tokio::time::Instant;

use super::api_writer::{ApiWriter, StaticKind};
use super::batch::{run_concurrently, slow_start_batch};
use super::claim::{self, claim_children, matches};
use super::enqueue::{Children, owners_to_enqueue, pod_update_predicate};
use super::pod_control::PodControl;
use super::pods::{duration_from_seconds, is_active, is_terminating, next_availability_check};
use super::template::pod_from_template;
use crate::api_errors::status_message;
use crate::component::Component;
use crate::index;
use plan::{ReplicaAction, StatusInput, calculate_status, manage_replicas};
use status_throttle::StatusThrottle;

/// Sets reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Common interface of ReplicaSet and ReplicationController. Their statuses differ only in
/// `terminatingReplicas`.
pub(crate) trait ReplicatedWorkload: StaticKind {
    /// Name of the controller in events and metrics.
    const CONTROLLER: &'static str;
    /// Whether the status has `terminatingReplicas`.
    const HAS_TERMINATING_REPLICAS: bool;

    fn desired_replicas(&self) -> usize;
    fn min_ready(&self) -> Duration;
    fn selector(&self) -> Option<Selector>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> ReplicaSetStatus;
    fn set_status(&mut self, status: ReplicaSetStatus);
}

/// Adds the ReplicaSet and the ReplicationController controller.
pub(crate) fn setup(mgr: &mut Manager) {
    setup_controller::<ReplicaSet>(mgr);
    setup_controller::<ReplicationController>(mgr);
}

fn setup_controller<S: ReplicatedWorkload>(mgr: &mut Manager) {
    let sets = mgr.informer::<S>(InformerOptions::default());
    let pods = index::pods(mgr);
    let reconciler = ReplicaSetReconciler {
        sets: index::by_controller_uid(&sets),
        pods: Children::new(&pods),
        recorder: Component::ControllerManager.recorder(mgr, S::CONTROLLER),
        clock: mgr.clock(),
        throttle: StatusThrottle::default(),
    };
    let sets = sets.lister();
    mgr.controller::<S>()
        .watches::<Pod>(move |pod| owners_to_enqueue(&sets, pod, S::selector))
        .predicate(pod_update_predicate())
        .name(S::CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

struct ReplicaSetReconciler<S> {
    /// By the uid of their controller.
    sets: Index<S>,
    pods: Children<Pod>,
    recorder: EventRecorder,
    clock: Clock,
    throttle: StatusThrottle,
}

impl<S: ReplicatedWorkload> Reconciler<S> for ReplicaSetReconciler<S> {
    /// Mirrors syncReplicaSet.
    async fn reconcile(&self, req: Request<S>) -> Result<Action, Error> {
        let Some(set) = req.object() else {
            self.throttle.forget(req.key());
            return Ok(Action::await_change());
        };
        // A change of the spec is never delayed by the throttle.
        let has_observed_generation = set.status().observed_generation == set.meta().generation;
        if let Some(delay) = self
            .throttle
            .delay(req.key(), Instant::now())
            .filter(|_| has_observed_generation)
        {
            return Ok(Action::requeue_after(delay));
        }
        // Validation rejects invalid selectors.
        let Some(selector) = set.selector() else {
            return Ok(Action::await_change());
        };
        let writer = ApiWriter {
            client: req.client(),
        };
        let (active, terminating) = self.candidates(set, &selector);
        let active = claim_children(&writer, set, active, |pod| matches(&selector, pod)).await?;
        let now = self.clock.now();
        // Mirrors syncReplicaSet: a terminating set only updates its status; the garbage collector
        // deletes its pods.
        let failure = match set.meta().deletion_timestamp {
            Some(_) => None,
            None => {
                let related = || self.related_pods(set);
                let action = manage_replicas(set.desired_replicas(), &active, related, now);
                self.throttle.reconciled(
                    req.key(),
                    action == ReplicaAction::Nothing,
                    active.len(),
                    Instant::now(),
                );
                self.apply(&writer, set, action).await.err()
            }
        };
        // The status is updated after a failure too: its condition ReplicaFailure reports it.
        let next_check = self
            .update_status(&writer, set, &active, terminating, failure.as_ref())
            .await?;
        match (failure, next_check) {
            (Some(failure), _) => Err(failure.into()),
            (None, Some(delay)) => Ok(Action::requeue_after(delay)),
            (None, None) => Ok(Action::await_change()),
        }
    }
}

impl<S: ReplicatedWorkload> ReplicaSetReconciler<S> {
    /// The active pods of the set and active orphans, and the number of the set's terminating pods.
    fn candidates(&self, set: &S, selector: &Selector) -> (Vec<Arc<Pod>>, usize) {
        let of_set = self.pods.of(set);
        let terminating = of_set
            .iter()
            .filter(|pod| is_terminating(pod) && matches(selector, &***pod))
            .count();
        let mut active = self.pods.candidates(set);
        active.retain(|pod| is_active(pod));
        (active, terminating)
    }

    /// The pods of all sets with the same controller, such as the old and new ReplicaSets of a
    /// Deployment. Mirrors getIndirectlyRelatedPods.
    fn related_pods(&self, set: &S) -> Vec<Arc<Pod>> {
        let Some(owner) = controller_of(set) else {
            return Vec::new();
        };
        let sets = self.sets.get(&owner.uid);
        sets.iter().flat_map(|set| self.pods.of(&**set)).collect()
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        set: &S,
        action: ReplicaAction,
    ) -> Result<(), WriteError> {
        let control = PodControl {
            writer: *writer,
            owner: set,
            recorder: &self.recorder,
        };
        let failure = match action {
            ReplicaAction::Nothing => None,
            ReplicaAction::Create(count) => {
                let Some(template) = set.template() else {
                    return Ok(());
                };
                let pod = &writer.template(&pod_from_template(template, set)).await?;
                slow_start_batch(count, |_| control.create(pod)).await.1
            }
            ReplicaAction::Delete(pods) => {
                run_concurrently(pods.iter().map(|pod| control.delete(pod)).collect())
                    .await
                    .1
            }
        };
        failure.map_or(Ok(()), Err)
    }

    /// Updates the status. Returns the time until the next pod becomes available.
    async fn update_status(
        &self,
        writer: &ApiWriter<'_>,
        set: &S,
        active: &[Arc<Pod>],
        terminating: usize,
        failure: Option<&WriteError>,
    ) -> Result<Option<Duration>, WriteError> {
        let labels = set
            .template()
            .and_then(|template| template.metadata.as_ref()?.labels.clone())
            .unwrap_or_default();
        let current = set.status();
        let failure = failure.map(status_message);
        let now = self.clock.now();
        let desired = calculate_status(&StatusInput {
            current: &current,
            generation: set.meta().generation,
            desired: set.desired_replicas(),
            active,
            terminating: S::HAS_TERMINATING_REPLICAS.then_some(terminating),
            labels: &labels,
            min_ready: set.min_ready(),
            failure: failure.as_deref(),
            now,
        });
        writer
            .update_status(set, &current, desired, S::set_status)
            .await?;
        Ok(next_availability_check(
            active.iter().map(|pod| &**pod),
            set.min_ready(),
            now,
        ))
    }
}

/// `spec.replicas`, whose default is 1.
fn replicas_or_default(replicas: Option<i32>) -> usize {
    replicas.map_or(1, |replicas| usize::try_from(replicas).unwrap_or(0))
}

impl ReplicatedWorkload for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const HAS_TERMINATING_REPLICAS: bool = true;

    fn desired_replicas(&self) -> usize {
        replicas_or_default(self.spec.as_ref().and_then(|spec| spec.replicas))
    }

    fn min_ready(&self) -> Duration {
        duration_from_seconds(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
    }

    fn selector(&self) -> Option<Selector> {
        claim::non_empty_selector(&self.spec.as_ref()?.selector)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        self.status = Some(status);
    }
}

// Upstream likewise runs the ReplicaSet controller on converted objects
// (pkg/controller/replication/conversion.go).
impl ReplicatedWorkload for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";
    const HAS_TERMINATING_REPLICAS: bool = false;

    fn desired_replicas(&self) -> usize {
        replicas_or_default(self.spec.as_ref().and_then(|spec| spec.replicas))
    }

    fn min_ready(&self) -> Duration {
        duration_from_seconds(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
    }

    fn selector(&self) -> Option<Selector> {
        let labels = self
            .spec
            .as_ref()?
            .selector
            .clone()
            .filter(|labels| !labels.is_empty())?;
        Some(labels.into_iter().collect())
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        let Some(status) = &self.status else {
            return ReplicaSetStatus::default();
        };
        let conditions = status.conditions.as_ref().map(|conditions| {
            let conditions = conditions.iter().cloned().map(|condition| {
                k8s_openapi::api::apps::v1::ReplicaSetCondition {
                    type_: condition.type_,
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    last_transition_time: condition.last_transition_time,
                }
            });
            conditions.collect()
        });
        ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions,
        }
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        let condition = |condition: k8s_openapi::api::apps::v1::ReplicaSetCondition| {
            ReplicationControllerCondition {
                type_: condition.type_,
                status: condition.status,
                reason: condition.reason,
                message: condition.message,
                last_transition_time: condition.last_transition_time,
            }
        };
        let conditions = status.conditions;
        self.status = Some(ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: conditions.map(|all| all.into_iter().map(condition).collect()),
        });
    }
}
