//! ReplicaSet and ReplicationController: so many equal pods, always.
//!
//! In: sets, pods. Out: pods created and deleted, adopted and released; the status of the set.
//! Holds: a set acts only on a cache that shows its own last writes (the gate of the controller, which replaces upstream's
//! expectations), so no pod is created twice because the first one was not seen yet. A process that dies between a write and
//! its answer may leave one pod too many, which the next pass deletes.

mod pace; // how often very large sets are looked at
mod plan; // what to do, and what to say

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, Outcome, ReconcileResult, Request, WallClock,
    controller_of,
};
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ReplicationController};
use kube::Client;
use kube::ResourceExt;
use kube::core::Selector;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::batch::{at_once, slow_start};
use super::claim::{self, claim_all, matches};
use super::hand::{Hand, Kind, Mould, reason};
use super::pod_control::PodControl;
use super::pods::{is_active, is_terminating, next_available, seconds};
use super::template::pod_from;
use super::wake::{ORPHANS, by_orphanage, owners, pod_changes};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use pace::Pace;
use plan::{Facts, Step, status, step};

/// How many sets are worked on at once, as upstream.
const WORKERS: usize = 5;

/// What the two kinds of sets have in common. Their statuses have one form, but for the pods on their way out.
pub(crate) trait Replicated:
    Kind + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// The name of the controller in events and metrics.
    const CONTROLLER: &'static str;
    /// Whether the status tells how many pods are on their way out.
    const TELLS_TERMINATING: bool;

    fn wanted(&self) -> usize;
    fn min_ready(&self) -> Duration;
    fn selector(&self) -> Option<Selector>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> ReplicaSetStatus;
}

/// The loop of ReplicaSets.
pub(crate) fn replica_sets(ctx: &Context) -> Loop {
    controller::<ReplicaSet>(ctx)
}

/// The loop of ReplicationControllers.
pub(crate) fn replication_controllers(ctx: &Context) -> Loop {
    controller::<ReplicationController>(ctx)
}

fn controller<S: Replicated>(ctx: &Context) -> Loop {
    let sets = ctx.informer::<S>();
    let pods = ctx.pods();
    add_controller_uid_index(&sets);
    add_controller_uid_index(&pods);
    by_orphanage(&pods);
    let replicas = Arc::new(Replicas {
        client: ctx.client(Component::ControllerManager),
        sets: sets.lister(),
        pods: pods.lister(),
        recorder: ctx.recorder(Component::ControllerManager, S::CONTROLLER),
        clock: ctx.clock,
        pace: Pace::default(),
    });
    let lister = sets.lister();
    Controller::of(&sets)
        .watches_if(&pods, pod_changes(), move |pod| {
            owners(&lister, pod, S::selector)
        })
        .with_options(ctx.options(S::CONTROLLER, WORKERS))
        .reconcile_with(move |request| replicas.clone().reconcile(request))
        .into()
}

struct Replicas<S> {
    client: Client,
    sets: Lister<S>,
    pods: Lister<Pod>,
    recorder: EventRecorder,
    clock: WallClock,
    pace: Pace,
}

impl<S: Replicated> Replicas<S> {
    async fn reconcile(self: Arc<Self>, request: Request<S>) -> ReconcileResult {
        let Some(set) = request.object.as_deref() else {
            self.pace.forget(&request.key);
            return Ok(Outcome::Done);
        };
        let is_told = set.status().observed_generation == set.meta().generation;
        if let Some(wait) = self
            .pace
            .wait(&request.key, Instant::now())
            .filter(|_| is_told)
        {
            return Ok(Outcome::RequeueAfter(wait));
        }
        // The server refuses invalid selectors; one that slipped in selects nothing.
        let Some(selector) = set.selector() else {
            return Ok(Outcome::Done);
        };
        let hand = Hand {
            client: &self.client,
            writes: request.writes(),
        };
        let (active, terminating) = self.read(set, &selector)?;
        let active = claim_all(&hand, set, active, |pod| matches(&selector, pod)).await?;
        let now = self.clock.now();
        let failure = match set.meta().deletion_timestamp {
            Some(_) => None,
            None => {
                let step = step(set.wanted(), &active, || self.related(set), now);
                self.pace.looked(
                    &request.key,
                    step == Step::Nothing,
                    active.len(),
                    Instant::now(),
                );
                self.apply(&hand, set, step).await.err()
            }
        };
        let next = self
            .tell(&hand, set, &active, terminating, failure.as_ref())
            .await?;
        match (failure, next) {
            (Some(failure), _) => Err(failure.into()),
            (None, Some(wait)) => Ok(Outcome::RequeueAfter(wait)),
            (None, None) => Ok(Outcome::Done),
        }
    }

    /// The pods that are or may become this set's, and how many of its own are on their way out.
    fn read(&self, set: &S, selector: &Selector) -> Result<(Vec<Arc<Pod>>, usize), Failure> {
        let mut pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())?;
        let terminating = pods
            .iter()
            .filter(|pod| is_terminating(pod) && matches(selector, &***pod))
            .count();
        pods.extend(
            self.pods
                .by_index(ORPHANS, &set.namespace().unwrap_or_default())?,
        );
        pods.retain(|pod| is_active(pod));
        Ok((pods, terminating))
    }

    /// The pods of all sets that one owner has: those of the old and new sets of a Deployment crowd the same nodes.
    fn related(&self, set: &S) -> Vec<Arc<Pod>> {
        let Some(owner) = controller_of(set) else {
            return Vec::new();
        };
        let sets = self
            .sets
            .by_index(CONTROLLER_UID_INDEX, &owner.uid)
            .unwrap_or_default();
        sets.iter()
            .flat_map(|set| {
                self.pods
                    .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())
                    .unwrap_or_default()
            })
            .collect()
    }

    async fn apply(&self, hand: &Hand<'_>, set: &S, step: Step) -> Result<(), kube::Error> {
        let control = PodControl {
            hand: *hand,
            owner: set,
            recorder: &self.recorder,
        };
        let failure = match step {
            Step::Nothing => None,
            Step::Create(count) => {
                let Some(template) = set.template() else {
                    return Ok(());
                };
                let mould = &Mould::of(&pod_from(template, set))?;
                slow_start(count, |_| control.create(mould)).await.1
            }
            Step::Delete(pods) => {
                at_once(pods.iter().map(|pod| control.delete(pod)).collect())
                    .await
                    .1
            }
        };
        failure.map_or(Ok(()), Err)
    }

    /// Writes the status, and says when it will change by itself.
    async fn tell(
        &self,
        hand: &Hand<'_>,
        set: &S,
        active: &[Arc<Pod>],
        terminating: usize,
        failure: Option<&kube::Error>,
    ) -> Result<Option<Duration>, kube::Error> {
        let labels = set
            .template()
            .and_then(|template| template.metadata.as_ref()?.labels.clone())
            .unwrap_or_default();
        let was = set.status();
        let failure = failure.map(reason);
        let now = self.clock.now();
        let facts = Facts {
            was: &was,
            generation: set.meta().generation,
            wanted: set.wanted(),
            active,
            terminating: S::TELLS_TERMINATING.then_some(terminating),
            labels: &labels,
            min_ready: set.min_ready(),
            failure: failure.as_deref(),
            now,
        };
        hand.status(set, &was, &status(&facts)).await?;
        Ok(next_available(
            active.iter().map(|pod| &**pod),
            set.min_ready(),
            now,
        ))
    }
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const TELLS_TERMINATING: bool = true;

    fn wanted(&self) -> usize {
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .map_or(1, |replicas| usize::try_from(replicas).unwrap_or(0))
    }

    fn min_ready(&self) -> Duration {
        seconds(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
    }

    fn selector(&self) -> Option<Selector> {
        claim::selector(&self.spec.as_ref()?.selector)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";
    const TELLS_TERMINATING: bool = false;

    fn wanted(&self) -> usize {
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .map_or(1, |replicas| usize::try_from(replicas).unwrap_or(0))
    }

    fn min_ready(&self) -> Duration {
        seconds(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
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
}
