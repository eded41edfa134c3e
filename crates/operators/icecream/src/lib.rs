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

pub use crd::{Icecream, IcecreamSpec, IcecreamStatus};

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, EventType, Failure, IndexError, Note, ObjectKey, Outcome, Predicate,
    ReconcileResult, Request, WallClock,
};
use bellerophon_operator::{
    DeploymentAction, INFORMER_VERBS, Operator, Placement, Setup, SetupError, allow,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
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
    placement: Placement::Deployment,
    feature_switches: &[],
    controllers: |setup| Ok(vec![controller(setup)?]),
};

fn controller(setup: &Setup) -> Result<Controller, SetupError> {
    let icecreams = setup.informer::<Icecream>();
    let deployments = setup.informer::<Deployment>();
    let replica_sets = setup.informer::<ReplicaSet>();
    let pods = setup.informer::<Pod>();
    setup.index_by_controller(&deployments)?;
    setup.index_by_controller(&replica_sets)?;
    setup.index_by_controller(&pods)?;
    let owners = OwnerIndex {
        deployments: deployments.lister(),
        replica_sets: replica_sets.lister(),
        pods: pods.lister(),
    };
    let replica_set_owners = owners.clone();
    let pod_owners = owners.clone();
    let reconciler = Arc::new(IcecreamReconciler {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(OPERATOR.name),
        owners,
    });
    // Of a pod's updates, only scheduling and termination change the status.
    let pod_moved = Predicate::changed(|old: &Pod, new: &Pod| {
        node_of(old) != node_of(new) || is_terminating(old) != is_terminating(new)
    });
    Ok(Controller::of(&icecreams)
        .with_predicate(Predicate::generation_changed())
        .owns(&deployments)
        .watches(&replica_sets, move |replica_set| {
            let key = replica_set_owners.icecream_of_replica_set(replica_set);
            key.into_iter().collect()
        })
        .watches_if(&pods, pod_moved, move |pod| {
            pod_owners.icecream_of_pod(pod).into_iter().collect()
        })
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| reconciler.clone().reconcile(request)))
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
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    owners: OwnerIndex,
}

impl IcecreamReconciler {
    async fn reconcile(self: Arc<Self>, request: Request<Icecream>) -> ReconcileResult {
        // The garbage collector deletes what a deleted Icecream owned.
        let Some(icecream) = request
            .object
            .clone()
            .filter(|icecream| icecream.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        if icecream.spec.deployment_name.is_empty() {
            // A retry cannot succeed before the spec changes.
            return Err(Failure::permanent(format!(
                "{}: deployment name must be specified",
                request.key
            )));
        }
        let owned = self.owners.deployments_of(&icecream)?;
        let pods = self.active_pods_of(&owned)?;
        let key = ObjectKey::beside(&*icecream, &icecream.spec.deployment_name);
        let observed = ObservedState {
            icecream: &icecream,
            named: self.owners.deployments.get(&key),
            owned,
            nodes: pods
                .iter()
                .filter_map(|pod| node_of(pod))
                .map(str::to_owned)
                .collect(),
        };
        let plan = plan(&observed, self.clock.now()).map_err(Failure::permanent)?;
        self.apply(&request, &icecream, &plan).await?;
        if plan.has_writes() {
            log_nodes(&pods);
            let message = "Icecream synced successfully".into();
            self.record(&icecream, EventType::Normal, "Synced", message);
        }
        info!(icecream = %request.key, "reconciled");
        Ok(Outcome::Done)
    }

    /// The pods of Deployments, without terminating ones.
    fn active_pods_of(&self, deployments: &[Arc<Deployment>]) -> Result<Vec<Arc<Pod>>, IndexError> {
        let mut pods = Vec::new();
        for deployment in deployments {
            pods.extend(self.owners.pods_of(deployment)?);
        }
        pods.retain(|pod| !is_terminating(pod));
        Ok(pods)
    }

    async fn apply(
        &self,
        request: &Request<Icecream>,
        icecream: &Icecream,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let namespace = icecream.namespace().unwrap_or_default();
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), &namespace);
        let writes = request.writes();
        if let DeploymentAction::Apply(desired) = &plan.deployment {
            writes.apply(&deployments, desired).await?;
        }
        for former in &plan.delete {
            writes.delete(&deployments, &**former).await?;
        }
        if let Some(status) = &plan.status {
            let updated = Icecream {
                status: Some(status.clone()),
                ..icecream.clone()
            };
            let icecreams = Api::namespaced(self.client.clone(), &namespace);
            writes.apply_status(&icecreams, &updated).await?;
        }
        if plan.deployment == DeploymentAction::NotOwned {
            let error = ResourceExists(icecream.spec.deployment_name.clone());
            let message = error.to_string();
            self.record(icecream, EventType::Warning, "ErrResourceExists", message);
            return Err(Failure::retry(error));
        }
        Ok(())
    }

    fn record(&self, icecream: &Icecream, type_: EventType, reason: &str, note: String) {
        let event = Note {
            type_,
            reason: reason.into(),
            action: "Synced".into(),
            note,
        };
        self.events.event(icecream, event);
    }
}

/// Logs the node of each pod.
fn log_nodes(pods: &[Arc<Pod>]) {
    for pod in pods {
        info!(pod = %ObjectKey::of(&**pod), node = node_of(pod), "pod of the icecream");
    }
}
