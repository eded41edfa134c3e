//! StatefulSet: members with names and storage of their own, in order.
//!
//! In: StatefulSets, pods, claims, revisions. Out: members and their claims; revisions; the status.
//! Holds: there is never more than one pod of a member, because its name is the member's: a second one is refused by the
//! server, whatever the cache shows.

mod claims; // storage of members, kept or given up
mod identity; // names of members
mod plan; // who comes and goes next

use std::collections::BTreeSet;
use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, ObjectKey, Outcome, ReconcileResult, Request,
    WallClock,
};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::Selector;
use kube::{Client, ResourceExt};

use super::batch::at_once;
use super::claim::{self, claim_all, matches};
use super::hand::{Hand, reason};
use super::note::{normal, warning};
use super::pods::{next_available, seconds};
use super::revision::{Present, Revisions, Snapshot, ensure, template_of};
use super::wake::{ORPHANS, by_orphanage, deletions, owners, pod_changes};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use plan::{Facts, Plan, Revision, Step, is_parallel, plan};

/// Its name in events and metrics.
const CONTROLLER: &str = "statefulset-controller";

/// How many StatefulSets are worked on at once, as upstream.
const WORKERS: usize = 5;

/// The label that tells a revision's hash.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// The loop of StatefulSets.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let sets = ctx.informer::<StatefulSet>();
    let pods = ctx.pods();
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let revisions = ctx.informer::<ControllerRevision>();
    add_controller_uid_index(&pods);
    by_orphanage(&pods);
    add_controller_uid_index(&revisions);
    by_orphanage(&revisions);
    let members = Arc::new(StatefulSets {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
        claims: claims.lister(),
        revisions: revisions.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let of_pods = sets.lister();
    let of_claims = sets.lister();
    let of_revisions = sets.lister();
    Controller::of(&sets)
        .watches_if(&pods, pod_changes(), move |pod| {
            owners(&of_pods, pod, selector)
        })
        .watches(&revisions, move |revision| {
            owners(&of_revisions, revision, selector)
        })
        .watches_if(&claims, deletions(), move |claim| {
            awaiting(&of_claims, claim)
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| members.clone().reconcile(request))
        .into()
}

fn selector(set: &StatefulSet) -> Option<Selector> {
    claim::selector(&set.spec.as_ref()?.selector)
}

/// The sets that may wait for a claim to be gone, to make it anew.
fn awaiting(sets: &Lister<StatefulSet>, claim: &PersistentVolumeClaim) -> Vec<ObjectKey> {
    let name = claim.name_any();
    let is_member = |set: &StatefulSet| {
        let templates = set
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_claim_templates.as_deref())
            .unwrap_or_default();
        templates.iter().any(|template| {
            name.starts_with(&format!("{}-{}-", template.name_any(), set.name_any()))
        })
    };
    let sets = sets.in_namespace(&claim.namespace().unwrap_or_default());
    sets.iter()
        .filter(|set| is_member(set))
        .map(|set| ObjectKey::of(&**set))
        .collect()
}

struct StatefulSets {
    client: Client,
    pods: Lister<Pod>,
    claims: Lister<PersistentVolumeClaim>,
    revisions: Lister<ControllerRevision>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl StatefulSets {
    async fn reconcile(self: Arc<Self>, request: Request<StatefulSet>) -> ReconcileResult {
        let Some(set) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let (Some(spec), Some(selector)) = (&set.spec, selector(set)) else {
            return Ok(Outcome::Done);
        };
        let hand = Hand {
            client: &self.client,
            writes: request.writes(),
        };
        let namespace = set.namespace().unwrap_or_default();
        let revisions = self.revisions(&hand, set, &selector).await?;
        let update = self.update_revision(&hand, set, &revisions).await?;
        let current = current_revision(set, &revisions).unwrap_or_else(|| update.clone());
        let pods = self.pods(&hand, set, &selector).await?;
        let claim = |name: &str| self.claims.get(&ObjectKey::namespaced(&namespace, name));
        let now = self.clock.now();
        let plan = plan(&Facts {
            set,
            current: &current,
            update: &update,
            pods: &pods,
            claim: &claim,
            now,
        });
        let applied = self.apply(&hand, set, &plan).await;
        hand.status(set, &set.status.clone().unwrap_or_default(), &plan.status)
            .await?;
        self.forget(
            &hand,
            set,
            &revisions,
            &[&current.name, &update.name],
            &pods,
        )
        .await?;
        applied?;
        let next = next_available(
            pods.iter().map(|pod| &**pod),
            seconds(spec.min_ready_seconds),
            now,
        );
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    async fn revisions(
        &self,
        hand: &Hand<'_>,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<Revisions, Failure> {
        let mut all = self
            .revisions
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())?;
        all.extend(
            self.revisions
                .by_index(ORPHANS, &set.namespace().unwrap_or_default())?,
        );
        let all = claim_all(hand, set, all, |revision| matches(selector, revision)).await?;
        let template = set
            .spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default();
        Ok(Revisions::of(&template, all))
    }

    /// The revision of the present template, made if need be. A set on its way out makes nothing new.
    async fn update_revision(
        &self,
        hand: &Hand<'_>,
        set: &StatefulSet,
        revisions: &Revisions,
    ) -> Result<Revision, Failure> {
        let template = set
            .spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default();
        if set.metadata.deletion_timestamp.is_some() {
            let name = set
                .status
                .as_ref()
                .and_then(|status| status.update_revision.clone())
                .unwrap_or_default();
            return Ok(Revision { name, template });
        }
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let snapshot = Snapshot {
            owner: set,
            template: &template,
            collisions: Some(collisions.unwrap_or(0)),
            hash_label: HASH_LABEL,
        };
        match ensure(hand, revisions, &snapshot).await? {
            Present::Is(revision) => Ok(Revision {
                name: revision.name_any(),
                template,
            }),
            Present::Collision => {
                let was = set.status.clone().unwrap_or_default();
                let mut told = was.clone();
                told.collision_count = Some(collisions.unwrap_or(0) + 1);
                hand.status(set, &was, &told).await?;
                Err(Failure::retry(
                    "the name of the revision is taken by another template; trying another one",
                ))
            }
        }
    }

    async fn pods(
        &self,
        hand: &Hand<'_>,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Failure> {
        let mut pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())?;
        pods.extend(
            self.pods
                .by_index(ORPHANS, &set.namespace().unwrap_or_default())?,
        );
        claim_all(hand, set, pods, |pod| {
            identity::ordinal(set, pod).is_some() && matches(selector, pod)
        })
        .await
    }

    async fn apply(&self, hand: &Hand<'_>, set: &StatefulSet, plan: &Plan) -> Result<(), Failure> {
        if is_parallel(set) {
            // A member's claims come before its pod; members do not wait for each other.
            let (pods, others): (Vec<_>, Vec<_>) = plan
                .steps
                .iter()
                .partition(|step| matches!(step, Step::CreatePod(_)));
            let (_, first) = at_once(
                others
                    .into_iter()
                    .map(|step| self.take(hand, set, step))
                    .collect(),
            )
            .await;
            let (_, second) = at_once(
                pods.into_iter()
                    .map(|step| self.take(hand, set, step))
                    .collect(),
            )
            .await;
            return first.or(second).map_or(Ok(()), Err);
        }
        for step in &plan.steps {
            self.take(hand, set, step).await?;
        }
        Ok(())
    }

    async fn take(&self, hand: &Hand<'_>, set: &StatefulSet, step: &Step) -> Result<(), Failure> {
        match step {
            Step::CreateClaim { claim, pod } => {
                let done = hand.create(&**claim).await.map(|_| ());
                let what = format!(
                    "Create Claim {} Pod {pod} in StatefulSet {}",
                    claim.name_any(),
                    set.name_any()
                );
                let failed = format!(
                    "Create Claim {} for Pod {pod} in StatefulSet {}",
                    claim.name_any(),
                    set.name_any()
                );
                self.tell(set, "Create", &format!("{what} success"), &failed, done)
            }
            Step::CreatePod(pod) => {
                self.tell_pod(set, "Create", pod, hand.create(&**pod).await.map(|_| ()))
            }
            Step::DeletePod(pod) => self.tell_pod(
                set,
                "Delete",
                pod,
                hand.delete(&**pod, Default::default()).await.map(|_| ()),
            ),
            Step::MendPod { from, to } => self.tell_pod(
                set,
                "Update",
                to,
                hand.change(&**from, &**to).await.map(|_| ()),
            ),
            Step::ChangeClaim { from, to } => Ok(hand.change(&**from, &**to).await.map(|_| ())?),
            Step::TellContested(claim) => {
                let note = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim"
                );
                self.recorder
                    .event(set, warning("ConflictingController", note));
                Ok(())
            }
            Step::Refuse { pod, why } => {
                let note = format!(
                    "Create Pod {pod} in StatefulSet {} failed error: {why}",
                    set.name_any()
                );
                self.recorder.event(set, warning("FailedCreate", note));
                Err(Failure::retry(why.clone()))
            }
        }
    }

    fn tell_pod(
        &self,
        set: &StatefulSet,
        verb: &str,
        pod: &Pod,
        done: Result<(), kube::Error>,
    ) -> Result<(), Failure> {
        let what = format!(
            "{verb} Pod {} in StatefulSet {}",
            pod.name_any(),
            set.name_any()
        );
        self.tell(set, verb, &format!("{what} successful"), &what, done)
    }

    fn tell(
        &self,
        set: &StatefulSet,
        verb: &str,
        success: &str,
        failed: &str,
        done: Result<(), kube::Error>,
    ) -> Result<(), Failure> {
        match done {
            Ok(()) => {
                self.recorder.event(
                    set,
                    normal(&format!("Successful{verb}"), success.to_owned()),
                );
                Ok(())
            }
            Err(error) => {
                self.recorder.event(
                    set,
                    warning(
                        &format!("Failed{verb}"),
                        format!("{failed} failed error: {}", reason(&error)),
                    ),
                );
                Err(error.into())
            }
        }
    }

    /// Deletes revisions beyond the history that neither the set nor a pod has.
    async fn forget(
        &self,
        hand: &Hand<'_>,
        set: &StatefulSet,
        revisions: &Revisions,
        named: &[&str],
        pods: &[Arc<Pod>],
    ) -> Result<(), kube::Error> {
        let live: BTreeSet<&str> = named
            .iter()
            .copied()
            .chain(pods.iter().map(|pod| identity::revision(pod)))
            .collect();
        let is_live = |revision: &ControllerRevision| {
            revision
                .metadata
                .name
                .as_deref()
                .is_some_and(|name| live.contains(name))
        };
        let limit = set
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit)
            .unwrap_or(10);
        // Those in use do not count.
        let in_use = revisions.old.iter().filter(|old| is_live(old)).count();
        let limit = limit.saturating_add(i32::try_from(in_use).unwrap_or(i32::MAX));
        for revision in revisions.surplus(Some(limit), is_live) {
            hand.delete(&*revision, Default::default()).await?;
        }
        Ok(())
    }
}

/// The revision that the status names, if it is still there.
fn current_revision(set: &StatefulSet, revisions: &Revisions) -> Option<Revision> {
    let name = set.status.as_ref()?.current_revision.as_ref()?;
    let revision = revisions
        .old
        .iter()
        .chain(&revisions.present)
        .find(|revision| revision.metadata.name.as_ref() == Some(name))?;
    Some(Revision {
        name: name.clone(),
        template: template_of(revision)?,
    })
}
