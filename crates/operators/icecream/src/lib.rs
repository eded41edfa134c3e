//! The Icecream operator: owns a Deployment and reports the nodes its pods run on.
//!
//! ```text
//! Icecream ─ owns → Deployment ─ owns → ReplicaSet ─ owns → Pod ─ runs on → node
//!     └────────────────────────── status.nodes ←───────────────────────────────┘
//! ```
//!
//! Each reconcile reads the caches, makes a plan and applies it. Pods are found by their owner
//! references, not by labels.

mod crd; // the custom resource
mod owner_index; // from an Icecream to its pods and back, by owner references
mod plan; // the desired writes of one Icecream
mod webhook; // refuses names of other Deployments

pub use crd::{Icecream, IcecreamSpec, IcecreamStatus};

use std::sync::Arc;

use bellerophon::prelude::*;
use bellerophon_operator::{
    DeploymentAction, INFORMER_VERBS, Operator, Placement, RoleAggregation, Switches, allow,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::CustomResourceExt as _;
use thiserror::Error;
use tracing::info;

use crate::{
    owner_index::OwnerIndex,
    plan::{ObservedState, Plan, plan},
};

/// The operator's description: CRD, permissions and controllers.
pub const OPERATOR: Operator = Operator {
    name: "icecream",
    summary: "an Icecream owns a Deployment and reports the nodes its pods run on",
    crds: || vec![Icecream::crd()],
    permissions: || {
        let group = "controller.nicoleh.io";
        vec![
            allow(INFORMER_VERBS, group, "icecreams"),
            allow(&["patch"], group, "icecreams/status"),
            allow(
                &["list", "watch", "patch", "create", "delete"],
                "apps",
                "deployments",
            ),
            allow(INFORMER_VERBS, "apps", "replicasets"),
            allow(INFORMER_VERBS, "", "pods"),
        ]
    },
    admission_policies: Vec::new,
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::Deployment,
    feature_switches: &[],
    webhooks: Some(webhook::declare),
    setup,
};

fn setup(mgr: &mut Manager, _switches: &Switches) {
    let owners = OwnerIndex::new(mgr);
    let replica_set_owners = owners.clone();
    let pod_owners = owners.clone();
    // Of a pod's updates, only scheduling and termination change the status.
    let pod_moved = Predicate::on_update(|old: &Pod, new: &Pod| {
        node_of(old) != node_of(new) || is_terminating(old) != is_terminating(new)
    });
    mgr.controller::<Icecream>()
        // The status that this controller writes does not enqueue its own object again.
        .predicate(Predicate::generation_changed())
        .owns::<Deployment>()
        .watches::<ReplicaSet>(move |replica_set| {
            let key = replica_set_owners.icecream_of_replica_set(replica_set);
            key.into_iter().collect()
        })
        .watches::<Pod>(move |pod| pod_owners.icecream_of_pod(pod).into_iter().collect())
        .predicate(pod_moved)
        .name(OPERATOR.name)
        .reconcile(IcecreamReconciler { owners });
}

/// The node a pod is scheduled on.
fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|node| !node.is_empty())
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// A Deployment of the desired name exists and another object controls it.
#[derive(Debug, Error)]
#[error("Resource {0:?} already exists and is not managed by Icecream")]
struct ResourceExists(String);

/// Reconciles one Icecream: reads the caches, plans and applies.
struct IcecreamReconciler {
    owners: OwnerIndex,
}

impl Reconciler<Icecream> for IcecreamReconciler {
    async fn reconcile(&self, req: Request<Icecream>) -> Result<Action, Error> {
        // The garbage collector deletes what a deleted Icecream owned.
        let Some(icecream) = req
            .object()
            .filter(|icecream| icecream.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Action::await_change());
        };
        if icecream.spec.deployment_name.is_empty() {
            // A retry cannot succeed before the spec changes.
            return Err(Error::permanent(format!(
                "{}: deployment name must be specified",
                req.key()
            )));
        }
        let owned = self.owners.deployments_of(icecream);
        let pods = self.active_pods_of(&owned);
        let key = ObjectKey::in_namespace_of(icecream, &icecream.spec.deployment_name);
        let observed = ObservedState {
            icecream,
            named: self.owners.deployment(&key),
            owned,
            nodes: pods
                .iter()
                .filter_map(|pod| node_of(pod))
                .map(str::to_owned)
                .collect(),
        };
        let plan = plan(&observed, req.now()).map_err(Error::permanent)?;
        apply(&req, &observed, &plan).await?;
        // Events are for changes. A reconcile after a resync changes nothing.
        if plan.has_writes() {
            log_nodes(&pods);
            let event = Event::normal("Synced", "Synced", "Icecream synced successfully");
            req.recorder().event(icecream, event);
        }
        info!(icecream = %req.key(), "reconciled");
        Ok(Action::await_change())
    }
}

impl IcecreamReconciler {
    /// The pods of Deployments, without terminating ones.
    fn active_pods_of(&self, deployments: &[Arc<Deployment>]) -> Vec<Arc<Pod>> {
        let mut pods: Vec<_> = deployments
            .iter()
            .flat_map(|deployment| self.owners.pods_of(deployment))
            .collect();
        pods.retain(|pod| !is_terminating(pod));
        pods
    }
}

async fn apply(
    req: &Request<Icecream>,
    observed: &ObservedState<'_>,
    plan: &Plan,
) -> Result<(), Error> {
    let icecream = observed.icecream;
    if let DeploymentAction::Apply(desired) = &plan.deployment {
        let current = observed.named.as_deref();
        req.client().create_or_apply(current, &**desired).await?;
    }
    // After the new Deployment exists, so that a crash in between leaves too many pods and not too
    // few.
    for former in &plan.delete {
        req.client().delete(&**former).await?;
    }
    if let Some(status) = &plan.status {
        req.client().apply_status(icecream, status).await?;
    }
    if plan.deployment == DeploymentAction::NotOwned {
        let error = ResourceExists(icecream.spec.deployment_name.clone());
        let event = Event::warning("ErrResourceExists", "Synced", error.to_string());
        req.recorder().event(icecream, event);
        // Retried: the deletion of a Deployment of another owner enqueues no Icecream.
        return Err(Error::retry(error));
    }
    Ok(())
}

/// Logs the node of each pod.
fn log_nodes(pods: &[Arc<Pod>]) {
    for pod in pods {
        info!(pod = %ObjectKey::from_object(&**pod), node = node_of(pod), "pod of the icecream");
    }
}
