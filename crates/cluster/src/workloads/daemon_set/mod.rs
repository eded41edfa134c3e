//! DaemonSet: one pod on every node that has a place for it.
//!
//! In: DaemonSets, nodes, pods, revisions. Out: pods created and deleted node by node; revisions; the status.
//! Holds: like every loop here it waits for its own writes to show up before it acts again, so a node never gets a second
//! pod because the first was not seen yet.

mod backoff; // nodes that refuse a pod
mod place; // which nodes, and what a pod looks like there
mod plan; // pods that come and go

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, ObjectKey, Outcome, Predicate, ReconcileResult,
    Request, WallClock,
};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::Selector;
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::batch::{at_once, slow_start};
use super::claim::{self, claim_all, matches};
use super::hand::{Hand, Mould};
use super::pod_control::PodControl;
use super::pods::{is_deleting, is_finished, label};
use super::revision::{HASH, Present, Revisions, Snapshot, ensure};
use super::wake::{ORPHANS, by_orphanage, owners, pod_changes};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use backoff::Backoff;
use place::{Places, pod_for, target, template};
use plan::{ByNode, Facts, Plan, plan};

/// Its name in events and metrics.
const CONTROLLER: &str = "daemonset-controller";

/// How many DaemonSets are worked on at once, as upstream.
const WORKERS: usize = 2;

/// How many pods one pass creates or deletes at most, as upstream.
const BURST: usize = 250;

/// The loop of DaemonSets.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let sets = ctx.informer::<DaemonSet>();
    let pods = ctx.pods();
    let nodes = ctx.informer::<Node>();
    let revisions = ctx.informer::<ControllerRevision>();
    add_controller_uid_index(&pods);
    by_orphanage(&pods);
    add_controller_uid_index(&revisions);
    by_orphanage(&revisions);
    let recorder = ctx.recorder(Component::ControllerManager, CONTROLLER);
    let daemons = Arc::new(Daemons {
        client: ctx.client(Component::ControllerManager),
        nodes: nodes.lister(),
        pods: pods.lister(),
        revisions: revisions.lister(),
        recorder,
        clock: ctx.clock,
        backoff: Mutex::default(),
    });
    let of_pods = sets.lister();
    let of_nodes = sets.lister();
    let of_revisions = sets.lister();
    Controller::of(&sets)
        .watches_if(&pods, pod_changes(), move |pod| {
            owners(&of_pods, pod, selector)
        })
        .watches(&revisions, move |revision| {
            owners(&of_revisions, revision, selector)
        })
        .watches_if(&nodes, Predicate::changed(place_changed), move |_| {
            of_nodes
                .list()
                .iter()
                .map(|set| ObjectKey::of(&**set))
                .collect()
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| daemons.clone().reconcile(request))
        .into()
}

fn selector(set: &DaemonSet) -> Option<Selector> {
    claim::selector(&set.spec.as_ref()?.selector)
}

/// Heartbeats change nothing about places.
fn place_changed(old: &Node, new: &Node) -> bool {
    old.metadata.labels != new.metadata.labels || old.spec != new.spec
}

struct Daemons {
    client: Client,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    revisions: Lister<ControllerRevision>,
    recorder: EventRecorder,
    clock: WallClock,
    backoff: Mutex<Backoff>,
}

impl Daemons {
    async fn reconcile(self: Arc<Self>, request: Request<DaemonSet>) -> ReconcileResult {
        let Some(set) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = selector(set) else {
            return Ok(Outcome::Done);
        };
        // Its revisions may be gone before its pods, and without them nothing can be told.
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let hand = Hand {
            client: &self.client,
            writes: request.writes(),
        };
        let revisions = self.revisions(&hand, set, &selector).await?;
        let hash = self.present_hash(&hand, set, &revisions).await?;
        let pods = self.pods(&hand, set, &selector).await?;
        let by_node = by_node(&pods);
        let places = self.places(set);
        let facts = Facts {
            set,
            hash: &hash,
            places: &places,
            pods: &by_node,
            now: self.clock.now(),
        };
        let plan = plan(&facts, |node| self.hold_back(set, node));
        let applied = self.apply(&hand, set, &hash, &plan).await;
        if applied.is_ok() {
            self.forget(&hand, set, &revisions, &pods).await?;
        }
        let was = set.status.clone().unwrap_or_default();
        hand.status(set, &was, &facts.status()).await?;
        applied?;
        Ok(plan.next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    async fn revisions(
        &self,
        hand: &Hand<'_>,
        set: &DaemonSet,
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

    async fn present_hash(
        &self,
        hand: &Hand<'_>,
        set: &DaemonSet,
        revisions: &Revisions,
    ) -> Result<String, Failure> {
        let template = set
            .spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default();
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let snapshot = Snapshot {
            owner: set,
            template: &template,
            collisions,
            hash_label: HASH,
        };
        match ensure(hand, revisions, &snapshot).await? {
            Present::Is(revision) => Ok(revision.labels().get(HASH).cloned().unwrap_or_default()),
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
        set: &DaemonSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Failure> {
        let mut pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())?;
        pods.extend(
            self.pods
                .by_index(ORPHANS, &set.namespace().unwrap_or_default())?,
        );
        claim_all(hand, set, pods, |pod| matches(selector, pod)).await
    }

    fn places(&self, set: &DaemonSet) -> BTreeMap<String, place::Place> {
        let places = Places::of(set);
        self.nodes
            .list()
            .iter()
            .map(|node| (node.name_any(), places.on(node)))
            .collect()
    }

    fn hold_back(&self, set: &DaemonSet, node: &str) -> Option<std::time::Duration> {
        let generation = set
            .status
            .as_ref()
            .and_then(|status| status.observed_generation)
            .unwrap_or(0);
        let spot = (set.uid().unwrap_or_default(), generation, node.to_owned());
        self.backoff
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hold_back(spot, Instant::now())
    }

    async fn apply(
        &self,
        hand: &Hand<'_>,
        set: &DaemonSet,
        hash: &str,
        plan: &Plan,
    ) -> Result<(), kube::Error> {
        for note in &plan.notes {
            self.recorder.event(set, note.clone());
        }
        let control = PodControl {
            hand: *hand,
            owner: set,
            recorder: &self.recorder,
        };
        let template = &template(set, hash);
        let create = |index: usize| async move {
            let mould = Mould::of(&pod_for(template, set, &plan.create[index]))?;
            control.create(&mould).await
        };
        let (_, refused) = slow_start(plan.create.len().min(BURST), create).await;
        let (_, kept) = at_once(
            plan.delete
                .iter()
                .take(BURST)
                .map(|pod| control.delete(pod))
                .collect(),
        )
        .await;
        refused.or(kept).map_or(Ok(()), Err)
    }

    /// Deletes revisions beyond the history that no pod has.
    async fn forget(
        &self,
        hand: &Hand<'_>,
        set: &DaemonSet,
        revisions: &Revisions,
        pods: &[Arc<Pod>],
    ) -> Result<(), kube::Error> {
        let is_live = |revision: &ControllerRevision| {
            let hash = revision.labels().get(HASH).map(String::as_str);
            hash.is_some() && pods.iter().any(|pod| label(pod, HASH) == hash)
        };
        for revision in revisions.surplus(
            set.spec
                .as_ref()
                .and_then(|spec| spec.revision_history_limit),
            is_live,
        ) {
            hand.delete(&*revision, Default::default()).await?;
        }
        Ok(())
    }
}

/// Pods by node. Those that ended and are being deleted are nobody's business any more.
fn by_node(pods: &[Arc<Pod>]) -> ByNode {
    let mut by_node = ByNode::new();
    for pod in pods
        .iter()
        .filter(|pod| !(is_finished(pod) && is_deleting(pod)))
    {
        if let Some(node) = target(pod) {
            by_node
                .entry(node.to_owned())
                .or_default()
                .push(pod.clone());
        }
    }
    by_node
}
