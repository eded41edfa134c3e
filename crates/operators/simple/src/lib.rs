//! The BellerophonSimple operator: a winged horse's name, an image and a number of replicas become
//! a Deployment; the status reports the number of available pods.
//!
//! The operator keeps no state of its own: Deployment and ReplicaSet do all the rest.

mod crd; // the custom resource
mod plan; // the desired writes of one object

pub use crd::{BellerophonSimple, BellerophonSimpleSpec, BellerophonSimpleStatus};

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, EventType, Failure, Lister, Note, Outcome, Predicate,
    ReconcileResult, Request, WallClock,
};
use bellerophon_operator::{DeploymentAction, INFORMER_VERBS, Operator, Placement, Setup, allow};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use tracing::info;

use crate::plan::plan;

/// The operator's description: CRD, permissions and controllers.
pub const OPERATOR: Operator = Operator {
    name: "simple",
    summary: "a BellerophonSimple becomes a Deployment with the name of its winged horse",
    crds: || vec![BellerophonSimple::crd()],
    permissions: || {
        let group = "stable.simple-bellerophon.io";
        vec![
            allow(INFORMER_VERBS, group, "sheroes"),
            allow(&["patch"], group, "sheroes/status"),
            allow(&["list", "watch", "create", "patch"], "apps", "deployments"),
        ]
    },
    admission_policies: Vec::new,
    placement: Placement::Deployment,
    feature_switches: &[],
    controllers: |setup| Ok(vec![controller(setup)]),
};

fn controller(setup: &Setup) -> Controller {
    let sheroes = setup.informer::<BellerophonSimple>();
    let deployments = setup.informer::<Deployment>();
    let reconciler = Arc::new(SimpleReconciler {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(OPERATOR.name),
        deployments: deployments.lister(),
    });
    Controller::of(&sheroes)
        .with_predicate(Predicate::generation_changed())
        .owns(&deployments)
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
}

/// Reconciles one BellerophonSimple: reads the cache, plans and applies.
struct SimpleReconciler {
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    deployments: Lister<Deployment>,
}

impl SimpleReconciler {
    async fn reconcile(self: Arc<Self>, request: Request<BellerophonSimple>) -> ReconcileResult {
        // The garbage collector deletes what a deleted object owned.
        let Some(shero) = request
            .object
            .clone()
            .filter(|shero| shero.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let current = self.deployments.get(&request.key);
        let plan =
            plan(&shero, current.as_deref(), self.clock.now()).map_err(Failure::permanent)?;
        let namespace = shero.namespace().unwrap_or_default();
        let writes = request.writes();
        if let DeploymentAction::Apply(desired) = &plan.deployment {
            let deployments = Api::namespaced(self.client.clone(), &namespace);
            writes.apply(&deployments, &**desired).await?;
            let message = format!("applied Deployment {}", desired.name_any());
            self.record(&shero, EventType::Normal, "Applied", message);
        }
        if let Some(status) = plan.status {
            let updated = BellerophonSimple {
                status: Some(status),
                ..(*shero).clone()
            };
            let sheroes = Api::namespaced(self.client.clone(), &namespace);
            writes.apply_status(&sheroes, &updated).await?;
        }
        if plan.deployment == DeploymentAction::NotOwned {
            let message = format!(
                "Resource {:?} already exists and is not managed by BellerophonSimple",
                request.key.name()
            );
            self.record(
                &shero,
                EventType::Warning,
                "ErrResourceExists",
                message.clone(),
            );
            return Err(Failure::retry(message));
        }
        info!(shero = %request.key, horse = %shero.spec.winged_horse_name, "reconciled");
        Ok(Outcome::Done)
    }

    fn record(&self, shero: &BellerophonSimple, type_: EventType, reason: &str, note: String) {
        let event = Note {
            type_,
            reason: reason.into(),
            action: "Apply".into(),
            note,
        };
        self.events.event(shero, event);
    }
}
