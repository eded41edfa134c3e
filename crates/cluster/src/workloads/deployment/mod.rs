//! Deployment: one template at a time, rolled out set by set.
//!
//! In: Deployments, ReplicaSets, pods that are gone. Out: ReplicaSets created, scaled and forgotten; the Deployment's status.
//! Holds: see [`scale`] for how far a rollout may go at once. A set's name is made from its template, so a pass that is
//! repeated after a crash finds what it made instead of making it twice; a name that is taken by another template is counted
//! as a collision, and the next name is tried.

mod family; // the new set and the old ones
mod plan; // one step of a rollout
mod scale; // how many pods each set has
mod status; // what is told

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

use super::claim::{self, claim_all, matches};
use super::hand::{Hand, is_code, is_namespace_terminating, reason};
use super::note::{normal, warning};
use super::pods::is_finished;
use super::template::same_template;
use super::wake::{ORPHANS, by_orphanage, deletions, owners};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use family::{Member, REVISION, is_recreate};
use plan::{Plan, plan};

/// Its name in events and metrics.
const CONTROLLER: &str = "deployment-controller";

/// How many Deployments are worked on at once, as upstream.
const WORKERS: usize = 5;

/// The loop of Deployments.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let deployments = ctx.informer::<Deployment>();
    let sets = ctx.informer::<ReplicaSet>();
    let pods = ctx.pods();
    add_controller_uid_index(&sets);
    by_orphanage(&sets);
    add_controller_uid_index(&pods);
    let loop_ = Arc::new(Deployments {
        client: ctx.client(Component::ControllerManager),
        sets: sets.lister(),
        pods: pods.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let of_sets = deployments.lister();
    let of_pods = deployments.lister();
    let set_lister = sets.lister();
    Controller::of(&deployments)
        .watches(&sets, move |set| owners(&of_sets, set, selector))
        .watches_if(&pods, deletions(), move |pod| {
            awaiting(&of_pods, &set_lister, pod)
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| loop_.clone().reconcile(request))
        .into()
}

fn selector(deployment: &Deployment) -> Option<Selector> {
    claim::selector(&deployment.spec.as_ref()?.selector)
}

/// The Deployment that waits for a pod to be gone before it makes new ones.
fn awaiting(
    deployments: &Lister<Deployment>,
    sets: &Lister<ReplicaSet>,
    pod: &Pod,
) -> Vec<ObjectKey> {
    let owner = |controller: &str| ObjectKey::beside(pod, controller);
    let set = controller_of(pod).and_then(|set| sets.get(&owner(&set.name)));
    let deployment = set.and_then(|set| deployments.get(&owner(&controller_of(&*set)?.name)));
    let waits = deployment.filter(|deployment| deployment.spec.as_ref().is_some_and(is_recreate));
    waits
        .map(|deployment| ObjectKey::of(&*deployment))
        .into_iter()
        .collect()
}

struct Deployments {
    client: Client,
    sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl Deployments {
    async fn reconcile(self: Arc<Self>, request: Request<Deployment>) -> ReconcileResult {
        let Some(deployment) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        // The server refuses selectors that are invalid or select everything.
        let Some(selector) = selector(deployment) else {
            return Ok(Outcome::Done);
        };
        let hand = Hand {
            client: &self.client,
            writes: request.writes(),
        };
        let mut sets = self
            .sets
            .by_index(CONTROLLER_UID_INDEX, &deployment.uid().unwrap_or_default())?;
        sets.extend(
            self.sets
                .by_index(ORPHANS, &deployment.namespace().unwrap_or_default())?,
        );
        let sets = claim_all(&hand, deployment, sets, |set| matches(&selector, set)).await?;
        let plan = plan(
            deployment,
            &sets,
            |set| self.has_pods(set),
            self.clock.now(),
        );
        self.apply(&hand, deployment, &plan).await?;
        Ok(plan.next_look.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    fn has_pods(&self, set: &ReplicaSet) -> bool {
        let pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())
            .unwrap_or_default();
        pods.iter().any(|pod| !is_finished(pod))
    }

    async fn apply(
        &self,
        hand: &Hand<'_>,
        deployment: &Deployment,
        plan: &Plan,
    ) -> Result<(), Failure> {
        for member in plan.family.all() {
            match &member.read {
                Some(read) => self.change(hand, deployment, member, read).await?,
                None => self.create(hand, deployment, member, plan).await?,
            }
        }
        for set in &plan.forgotten {
            hand.delete(&**set, Default::default()).await?;
        }
        let annotations = plan
            .new_revision(deployment)
            .map_or(json!({}), |revision| json!({ REVISION: revision }));
        hand.status_and(deployment, &before(deployment), &plan.status, annotations)
            .await?;
        Ok(())
    }

    async fn change(
        &self,
        hand: &Hand<'_>,
        deployment: &Deployment,
        member: &Member,
        read: &ReplicaSet,
    ) -> Result<(), kube::Error> {
        if hand.change(read, &member.wanted).await? {
            self.tell_scaling(deployment, member);
        }
        Ok(())
    }

    async fn create(
        &self,
        hand: &Hand<'_>,
        deployment: &Deployment,
        member: &Member,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let set = &member.wanted;
        let Err(error) = hand.create(set).await else {
            self.tell_scaling(deployment, member);
            return Ok(());
        };
        if is_code(&error, 409) && !is_namespace_terminating(&error) {
            return self.resolve_collision(hand, deployment, set).await;
        }
        if !is_namespace_terminating(&error) {
            let message = format!(
                "Failed to create new replica set \"{}\": {}",
                set.name_any(),
                reason(&error)
            );
            self.recorder.event(
                deployment,
                warning("ReplicaSetCreateError", message.clone()),
            );
            if status::deadline(deployment).is_some() {
                let mut told = DeploymentStatus {
                    conditions: plan.status.conditions.clone(),
                    ..before(deployment)
                };
                let now = self.clock.now();
                status::set(
                    &mut told,
                    status::condition(
                        status::PROGRESSING,
                        "False",
                        "ReplicaSetCreateError",
                        message,
                        now,
                    ),
                );
                hand.status(deployment, &before(deployment), &told).await?;
            }
        }
        Err(error.into())
    }

    /// The name is taken: by what an earlier pass made, which is fine, or by something else, which asks for another name.
    async fn resolve_collision(
        &self,
        hand: &Hand<'_>,
        deployment: &Deployment,
        set: &ReplicaSet,
    ) -> Result<(), Failure> {
        let key = ObjectKey::of(set);
        let Some(taken) = self.sets.get(&key) else {
            return Err(Failure::retry(format!(
                "ReplicaSet {key} is there, but not yet in the cache"
            )));
        };
        let ours = controller_of(&*taken)
            .is_some_and(|owner| Some(&owner.uid) == deployment.metadata.uid.as_ref());
        let template = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.template.clone());
        if ours && same_template(template(&taken).as_ref(), template(set).as_ref()) {
            return Ok(());
        }
        let mut told = before(deployment);
        told.collision_count = Some(told.collision_count.unwrap_or(0) + 1);
        hand.status(deployment, &before(deployment), &told).await?;
        Err(Failure::retry(format!(
            "ReplicaSet {key} is there with another template; trying another name"
        )))
    }

    fn tell_scaling(&self, deployment: &Deployment, member: &Member) {
        let from = member.replicas_before();
        let to = member.replicas();
        if from != to {
            let direction = if from < to { "up" } else { "down" };
            let note = format!(
                "Scaled {direction} replica set {} from {from} to {to}",
                member.wanted.name_any()
            );
            self.recorder
                .event(deployment, normal("ScalingReplicaSet", note));
        }
    }
}

fn before(deployment: &Deployment) -> DeploymentStatus {
    deployment.status.clone().unwrap_or_default()
}
