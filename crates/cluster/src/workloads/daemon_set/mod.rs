//! DaemonSet controller.
//!
//! Input: DaemonSets, nodes, pods, ControllerRevisions. Output: pods created and deleted per node;
//! revisions; the status.
//! Guarantees: a DaemonSet is reconciled only when the cache has its previous writes, so a node
//! does not get a second pod because of a stale cache.

mod backoff; // back-off of failed daemon pods
mod daemon_pod; // eligible nodes, and the pod of a node
mod plan; // pods to create and delete, and the status

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bellerophon::client::WriteError;
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec};
use kube::ResourceExt;
use kube::core::Selector;
use tokio::time::Instant;

use super::api_writer::ApiWriter;
use super::batch::{run_concurrently, slow_start_batch};
use super::claim::{self, claim_children, matches};
use super::enqueue::{Children, owners_to_enqueue, pod_update_predicate};
use super::pod_control::PodControl;
use super::pods::{has_deletion_timestamp, is_terminal, label};
use super::revision::{CONTROLLER_REVISION_HASH_LABEL, RevisionOwner, Revisions};
use crate::component::Component;
use crate::index;
use backoff::FailedPodsBackoff;
use daemon_pod::{
    DaemonPodSpec, NodeEligibility, daemon_pod_template, pod_for_node, target_node_name,
};
use plan::{DaemonSetState, Plan, PodsByNode, plan};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "daemonset-controller";

/// DaemonSets reconciled concurrently, as upstream.
const WORKERS: usize = 2;

/// Maximum number of pods created or deleted in one reconcile, as upstream.
const BURST_REPLICAS: usize = 250;

/// Adds the DaemonSet controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let revisions = mgr.informer::<ControllerRevision>(InformerOptions::default());
    let reconciler = DaemonSetReconciler {
        nodes: mgr.lister(),
        pods: Children::new(&index::pods(mgr)),
        revisions: Children::new(&revisions),
        recorder: Component::ControllerManager.recorder(mgr, CONTROLLER),
        clock: mgr.clock(),
        failed_pods_backoff: Mutex::default(),
    };
    let sets = mgr.lister::<DaemonSet>();
    let sets_of_pods = sets.clone();
    let sets_of_revisions = sets.clone();
    mgr.controller::<DaemonSet>()
        .watches::<Pod>(move |pod| owners_to_enqueue(&sets_of_pods, pod, selector))
        .predicate(pod_update_predicate())
        .watches::<ControllerRevision>(move |revision| {
            owners_to_enqueue(&sets_of_revisions, revision, selector)
        })
        .watches::<Node>(move |_| sets.keys())
        .predicate(Predicate::on_update(node_update_predicate))
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

fn selector(set: &DaemonSet) -> Option<Selector> {
    claim::non_empty_selector(&set.spec.as_ref()?.selector)
}

/// Mirrors shouldIgnoreNodeUpdate: heartbeats do not affect eligibility.
fn node_update_predicate(old: &Node, new: &Node) -> bool {
    old.metadata.labels != new.metadata.labels || old.spec != new.spec
}

impl RevisionOwner for DaemonSet {
    const HASH_LABEL: &'static str = CONTROLLER_REVISION_HASH_LABEL;

    fn template(&self) -> PodTemplateSpec {
        self.spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default()
    }

    fn collision_count(&self) -> Option<i32> {
        self.status.as_ref()?.collision_count
    }
}

struct DaemonSetReconciler {
    nodes: Lister<Node>,
    pods: Children<Pod>,
    revisions: Children<ControllerRevision>,
    recorder: EventRecorder,
    clock: Clock,
    failed_pods_backoff: Mutex<FailedPodsBackoff>,
}

impl Reconciler<DaemonSet> for DaemonSetReconciler {
    /// Mirrors syncDaemonSet.
    async fn reconcile(&self, req: Request<DaemonSet>) -> Result<Action, Error> {
        let Some(set) = req.object() else {
            return Ok(Action::await_change());
        };
        let Some(selector) = selector(set) else {
            return Ok(Action::await_change());
        };
        // The garbage collector may have deleted the revisions already, without which the status
        // cannot be computed.
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let writer = ApiWriter {
            client: req.client(),
        };
        let revisions = Revisions::claim(&writer, &self.revisions, set, &selector).await?;
        let current = revisions.ensure_current(&writer, set).await?;
        let hash = current
            .labels()
            .get(CONTROLLER_REVISION_HASH_LABEL)
            .cloned()
            .unwrap_or_default();
        let pods = self.pods(&writer, set, &selector).await?;
        let pods_by_node = pods_by_node(&pods);
        let nodes = self.node_eligibility(set);
        let state = DaemonSetState {
            set,
            hash: &hash,
            nodes: &nodes,
            pods: &pods_by_node,
            now: self.clock.now(),
        };
        let plan = plan(&state, |node| self.backoff(set, node));
        let result = self.apply(&writer, set, &hash, &plan).await;
        // As upstream, the history is cleaned up only after a successful sync.
        if result.is_ok() {
            self.cleanup_history(&writer, set, &revisions, &pods)
                .await?;
        }
        let current_status = set.status.clone().unwrap_or_default();
        let set_status = |set: &mut DaemonSet, status| set.status = Some(status);
        let desired = state.status();
        writer
            .update_status(set, &current_status, desired, set_status)
            .await?;
        result?;
        Ok(plan
            .requeue_after
            .map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl DaemonSetReconciler {
    async fn pods(
        &self,
        writer: &ApiWriter<'_>,
        set: &DaemonSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let pods = self.pods.candidates(set);
        claim_children(writer, set, pods, |pod| matches(selector, pod)).await
    }

    fn node_eligibility(&self, set: &DaemonSet) -> BTreeMap<String, NodeEligibility> {
        let spec = DaemonPodSpec::of(set);
        self.nodes
            .list()
            .iter()
            .map(|node| (node.name_any(), spec.node_eligibility(node)))
            .collect()
    }

    fn backoff(&self, set: &DaemonSet, node: &str) -> Option<std::time::Duration> {
        let generation = set
            .status
            .as_ref()
            .and_then(|status| status.observed_generation)
            .unwrap_or(0);
        let key = (set.uid().unwrap_or_default(), generation, node.to_owned());
        self.failed_pods_backoff
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remaining_or_start(key, Instant::now())
    }

    /// Creates and deletes pods. Mirrors syncNodes.
    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        set: &DaemonSet,
        hash: &str,
        plan: &Plan,
    ) -> Result<(), WriteError> {
        for event in &plan.events {
            self.recorder.event(set, event.clone());
        }
        let control = PodControl {
            writer: *writer,
            owner: set,
            recorder: &self.recorder,
        };
        let template = &daemon_pod_template(set, hash);
        let create = |index: usize| async move {
            let pod = pod_for_node(template, set, &plan.create[index]);
            let pod = writer.template(&pod).await?;
            control.create(&pod).await
        };
        // Mirrors syncNodes: an error of the creations does not prevent the deletions.
        let (_, create_error) =
            slow_start_batch(plan.create.len().min(BURST_REPLICAS), create).await;
        let (_, delete_error) = run_concurrently(
            plan.delete
                .iter()
                .take(BURST_REPLICAS)
                .map(|pod| control.delete(pod))
                .collect(),
        )
        .await;
        create_error.or(delete_error).map_or(Ok(()), Err)
    }

    /// Deletes revisions beyond the history limit that no pod has. Mirrors cleanupHistory.
    async fn cleanup_history(
        &self,
        writer: &ApiWriter<'_>,
        set: &DaemonSet,
        revisions: &Revisions,
        pods: &[Arc<Pod>],
    ) -> Result<(), WriteError> {
        let is_live = |revision: &ControllerRevision| {
            let hash = revision
                .labels()
                .get(CONTROLLER_REVISION_HASH_LABEL)
                .map(String::as_str);
            hash.is_some()
                && pods
                    .iter()
                    .any(|pod| label(pod, CONTROLLER_REVISION_HASH_LABEL) == hash)
        };
        for revision in revisions.surplus(
            set.spec
                .as_ref()
                .and_then(|spec| spec.revision_history_limit),
            is_live,
        ) {
            writer.delete(&*revision, None).await?;
        }
        Ok(())
    }
}

/// Pods by target node, without terminal pods that have a deletion timestamp. Mirrors
/// getNodesToDaemonPods.
fn pods_by_node(pods: &[Arc<Pod>]) -> PodsByNode {
    // A terminal pod under deletion waits for its finalizers. If it were kept here, its replacement
    // would not be created until then.
    let mut by_node = PodsByNode::new();
    for pod in pods
        .iter()
        .filter(|pod| !(is_terminal(pod) && has_deletion_timestamp(pod)))
    {
        if let Some(node) = target_node_name(pod) {
            by_node
                .entry(node.to_owned())
                .or_default()
                .push(pod.clone());
        }
    }
    by_node
}
