//! Disruption budgets: how many pods may be taken away at a time.
//!
//! In: PodDisruptionBudgets, pods, what owns them. Out: the status that evictions are granted by.
//! Holds: the status is only written over the version it was made from, because granting an eviction writes it too.

mod plan; // what may be taken away
mod scale; // how many pods there should be

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, Lister, ObjectKey, Outcome, Predicate, ReconcileResult, Request,
    WallClock,
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use kube::core::Selector;
use kube::{Client, ResourceExt};

use super::api_writer::ApiWriter;
use super::claim::matches;
use super::events::{normal_event, warning_event};
use super::pods::{has_deletion_timestamp, is_ready};
use crate::component::Component;
use crate::context::{Context, Loop};
use plan::{fail_safe, needs_scale, plan};
use scale::{Owners, Wanted};

/// Its name in metrics.
const CONTROLLER: &str = "disruption-controller";

/// Its name in events.
const SOURCE: &str = "controllermanager";

/// The loop of PodDisruptionBudgets.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let budgets = ctx.informer::<PodDisruptionBudget>();
    let pods = ctx.pods();
    let client = ctx.client(Component::ControllerManager);
    let owners = Owners {
        client: client.clone(),
        replica_sets: ctx.informer::<ReplicaSet>().lister(),
        deployments: ctx.informer::<Deployment>().lister(),
        stateful_sets: ctx.informer::<StatefulSet>().lister(),
        replication_controllers: ctx.informer::<ReplicationController>().lister(),
    };
    let recorder = ctx.recorder(Component::ControllerManager, SOURCE);
    let loop_ = Arc::new(Budgets {
        client,
        pods: pods.lister(),
        owners,
        recorder,
        clock: ctx.clock,
    });
    let lister = budgets.lister();
    Controller::of(&budgets)
        .watches_if(&pods, Predicate::changed(health_changed), move |pod| {
            concerned(&lister, pod)
        })
        .with_options(ctx.options(CONTROLLER, 1))
        .reconcile_with(move |request| loop_.clone().reconcile(request))
        .into()
}

fn health_changed(old: &Pod, new: &Pod) -> bool {
    is_ready(old) != is_ready(new)
        || has_deletion_timestamp(old) != has_deletion_timestamp(new)
        || old.metadata.labels != new.metadata.labels
        || old.metadata.owner_references != new.metadata.owner_references
}

/// The budgets that a pod counts for.
fn concerned(budgets: &Lister<PodDisruptionBudget>, pod: &Pod) -> Vec<ObjectKey> {
    let budgets = budgets.in_namespace(&pod.namespace().unwrap_or_default());
    let counts = |budget: &PodDisruptionBudget| {
        selector(budget.spec.as_ref()).is_some_and(|selector| matches(&selector, pod))
    };
    budgets
        .iter()
        .filter(|budget| counts(budget))
        .map(|budget| ObjectKey::of(&**budget))
        .collect()
}

/// An empty selector means every pod of the namespace, none means no pod.
fn selector(spec: Option<&PodDisruptionBudgetSpec>) -> Option<Selector> {
    Selector::try_from(spec?.selector.clone()?).ok()
}

struct Budgets {
    client: Client,
    pods: Lister<Pod>,
    owners: Owners,
    recorder: EventRecorder,
    clock: WallClock,
}

impl Budgets {
    async fn reconcile(self: Arc<Self>, request: Request<PodDisruptionBudget>) -> ReconcileResult {
        let Some(budget) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let Some(spec) = &budget.spec else {
            return Ok(Outcome::Done);
        };
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
        };
        let was = budget.status.clone().unwrap_or_default();
        let pods = self.read(budget, spec);
        let wanted = if needs_scale(spec) {
            self.owners.wanted(&pods).await
        } else {
            Ok(Wanted::default())
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(why) => {
                let note = format!("Failed to calculate the number of expected pods: {why}");
                self.recorder.event(
                    budget,
                    warning_event("CalculateExpectedPodCountFailed", note),
                );
                writer
                    .update_status_at_version(
                        budget,
                        &was,
                        &fail_safe(budget, &why, self.clock.now()),
                    )
                    .await?;
                return Ok(Outcome::Done);
            }
        };
        if !wanted.unmanaged.is_empty() {
            let note = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder
                .event(budget, warning_event("UnmanagedPods", note.into()));
        }
        let plan = plan(budget, spec, &pods, wanted.replicas, self.clock.now());
        writer
            .update_status_at_version(budget, &was, &plan.status)
            .await?;
        let which = format!(
            "{}/{}",
            budget.namespace().unwrap_or_default(),
            budget.name_any()
        );
        for pod in &plan.spared {
            let note = format!("Pod was expected by PDB {which} to be deleted but it wasn't");
            self.recorder
                .event(&**pod, warning_event("NotDeleted", note));
        }
        Ok(plan.next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    fn read(&self, budget: &PodDisruptionBudget, spec: &PodDisruptionBudgetSpec) -> Vec<Arc<Pod>> {
        let Some(selector) = selector(Some(spec)) else {
            return Vec::new();
        };
        let mut pods = self
            .pods
            .in_namespace(&budget.namespace().unwrap_or_default());
        pods.retain(|pod| matches(&selector, &**pod));
        if pods.is_empty() {
            self.recorder.event(
                budget,
                normal_event("NoPods", "No matching pods found".into()),
            );
        }
        pods
    }
}
