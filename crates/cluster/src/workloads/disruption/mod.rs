//! Disruption controller: the status of PodDisruptionBudgets, by which the API server grants
//! evictions.
//!
//! Input: PodDisruptionBudgets, pods, their controllers. Output: the status.
//! Guarantees: the status is written with a resourceVersion precondition, because the eviction
//! subresource writes it too.

mod expected_scale; // desired replicas of the pods' controllers
mod plan; // healthy pods and allowed disruptions

use std::sync::Arc;

use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use kube::ResourceExt;
use kube::core::Selector;

use super::api_writer::ApiWriter;
use super::claim::matches;
use super::events::{normal_event, warning_event};
use super::pods::{has_deletion_timestamp, is_ready};
use crate::component::Component;
use crate::index;
use expected_scale::{ExpectedScale, ScaleFinder};
use plan::{fail_safe, needs_scale, plan};

/// Name of the controller in metrics.
const CONTROLLER: &str = "disruption-controller";

/// Reporting component of its events.
const EVENT_SOURCE: &str = "controllermanager";

/// Adds the disruption controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let scale_finder = ScaleFinder {
        client: Component::ControllerManager.kube_client(mgr, CONTROLLER),
        replica_sets: mgr.lister(),
        deployments: mgr.lister(),
        stateful_sets: mgr.lister(),
        replication_controllers: mgr.lister(),
    };
    let reconciler = DisruptionReconciler {
        pods: index::pods(mgr).lister(),
        scale_finder,
        recorder: Component::ControllerManager.recorder(mgr, EVENT_SOURCE),
        clock: mgr.clock(),
    };
    let pdbs = mgr.lister::<PodDisruptionBudget>();
    mgr.controller::<PodDisruptionBudget>()
        .watches::<Pod>(move |pod| budgets_for_pod(&pdbs, pod))
        .predicate(Predicate::on_update(pod_update_predicate))
        .name(CONTROLLER)
        .reconcile(reconciler);
}

fn pod_update_predicate(old: &Pod, new: &Pod) -> bool {
    is_ready(old) != is_ready(new)
        || has_deletion_timestamp(old) != has_deletion_timestamp(new)
        || old.metadata.labels != new.metadata.labels
        || old.metadata.owner_references != new.metadata.owner_references
}

/// The PodDisruptionBudgets whose selector matches a pod.
fn budgets_for_pod(pdbs: &Lister<PodDisruptionBudget>, pod: &Pod) -> Vec<ObjectKey> {
    let pdbs = pdbs.in_namespace(&pod.namespace().unwrap_or_default());
    let selects = |pdb: &PodDisruptionBudget| {
        selector(pdb.spec.as_ref()).is_some_and(|selector| matches(&selector, pod))
    };
    pdbs.iter()
        .filter(|pdb| selects(pdb))
        .map(|pdb| ObjectKey::from_object(&**pdb))
        .collect()
}

/// The parsed selector. An empty one matches every pod of the namespace, an absent one no pod.
fn selector(spec: Option<&PodDisruptionBudgetSpec>) -> Option<Selector> {
    Selector::try_from(spec?.selector.clone()?).ok()
}

struct DisruptionReconciler {
    pods: Lister<Pod>,
    scale_finder: ScaleFinder,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler<PodDisruptionBudget> for DisruptionReconciler {
    /// Mirrors trySync.
    async fn reconcile(&self, req: Request<PodDisruptionBudget>) -> Result<Action, Error> {
        let Some(pdb) = req.object() else {
            return Ok(Action::await_change());
        };
        let Some(spec) = &pdb.spec else {
            return Ok(Action::await_change());
        };
        let writer = ApiWriter {
            client: req.client(),
        };
        let current = pdb.status.clone().unwrap_or_default();
        let set_status = |pdb: &mut PodDisruptionBudget, status| pdb.status = Some(status);
        let pods = self.pods_for_pdb(pdb, spec);
        let expected = if needs_scale(spec) {
            self.scale_finder.expected_scale(&pods).await
        } else {
            Ok(ExpectedScale::default())
        };
        let expected = match expected {
            Ok(expected) => expected,
            Err(error) => {
                let message = format!("Failed to calculate the number of expected pods: {error}");
                self.recorder.event(
                    pdb,
                    warning_event("CalculateExpectedPodCountFailed", message),
                );
                let status = fail_safe(pdb, &error, self.clock.now());
                writer
                    .update_status_at_version(pdb, &current, status, set_status)
                    .await?;
                return Ok(Action::await_change());
            }
        };
        // Mirrors getExpectedPodCount: unmanaged pods are reported, not counted.
        if !expected.unmanaged.is_empty() {
            let message = "Pods selected by this PodDisruptionBudget were found to be unmanaged. \
                As a result, the status of the PDB cannot be calculated correctly, which may \
                result in undefined behavior. To account for these pods please set \
                \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder
                .event(pdb, warning_event("UnmanagedPods", message.into()));
        }
        let plan = plan(pdb, spec, &pods, expected.replicas, self.clock.now());
        // The eviction subresource decrements disruptionsAllowed concurrently. Without the version
        // precondition this write would grant the same disruption again.
        let desired = plan.status.clone();
        writer
            .update_status_at_version(pdb, &current, desired, set_status)
            .await?;
        let key = format!("{}/{}", pdb.namespace().unwrap_or_default(), pdb.name_any());
        for pod in &plan.not_deleted {
            let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            self.recorder
                .event(&**pod, warning_event("NotDeleted", message));
        }
        Ok(plan
            .requeue_after
            .map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl DisruptionReconciler {
    /// Mirrors getPodsForPdb.
    fn pods_for_pdb(
        &self,
        pdb: &PodDisruptionBudget,
        spec: &PodDisruptionBudgetSpec,
    ) -> Vec<Arc<Pod>> {
        let Some(selector) = selector(Some(spec)) else {
            return Vec::new();
        };
        let mut pods = self.pods.in_namespace(&pdb.namespace().unwrap_or_default());
        pods.retain(|pod| matches(&selector, &**pod));
        if pods.is_empty() {
            self.recorder
                .event(pdb, normal_event("NoPods", "No matching pods found".into()));
        }
        pods
    }
}
