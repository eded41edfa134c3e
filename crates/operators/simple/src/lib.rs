//! The BellerophonSimple operator: a winged horse's name, an image and a number of replicas become
//! a Deployment; the status reports the number of available pods.
//!
//! The operator is stateless: Deployment and ReplicaSet do the rest.

mod crd; // the custom resource
mod plan; // the desired writes of one object

pub use crd::{BellerophonSimple, BellerophonSimpleSpec, BellerophonSimpleStatus};

use bellerophon::prelude::*;
use bellerophon_operator::{
    DeploymentAction, INFORMER_VERBS, Operator, Placement, RoleAggregation, Switches, allow,
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{CustomResourceExt as _, ResourceExt as _};
use tracing::info;

use crate::plan::{Plan, plan};

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
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::Deployment,
    feature_switches: &[],
    webhooks: None,
    setup,
};

fn setup(mgr: &mut Manager, _switches: &Switches) {
    let reconciler = SimpleReconciler {
        deployments: mgr.lister(),
    };
    mgr.controller::<BellerophonSimple>()
        // The status that this controller writes does not enqueue its own object again.
        .predicate(Predicate::generation_changed())
        .owns::<Deployment>()
        .name(OPERATOR.name)
        .reconcile(reconciler);
}

/// Reconciles one BellerophonSimple: reads the cache, plans and applies.
struct SimpleReconciler {
    deployments: Lister<Deployment>,
}

impl Reconciler<BellerophonSimple> for SimpleReconciler {
    async fn reconcile(&self, req: Request<BellerophonSimple>) -> Result<Action, Error> {
        // The garbage collector deletes what a deleted object owned.
        let Some(shero) = req
            .object()
            .filter(|shero| shero.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Action::await_change());
        };
        let current = self.deployments.get(req.key());
        let plan = plan(shero, current.as_deref(), req.now()).map_err(Error::permanent)?;
        apply(&req, shero, current.as_deref(), &plan).await?;
        info!(shero = %req.key(), horse = %shero.spec.winged_horse_name, "reconciled");
        Ok(Action::await_change())
    }
}

async fn apply(
    req: &Request<BellerophonSimple>,
    shero: &BellerophonSimple,
    current: Option<&Deployment>,
    plan: &Plan,
) -> Result<(), Error> {
    if let DeploymentAction::Apply(desired) = &plan.deployment {
        req.client().create_or_apply(current, &**desired).await?;
        let note = format!("applied Deployment {}", desired.name_any());
        req.recorder()
            .event(shero, Event::normal("Applied", "Apply", note));
    }
    // Before the error below: the status is where a user looks for the reason.
    if let Some(status) = &plan.status {
        req.client().apply_status(shero, status).await?;
    }
    if plan.deployment == DeploymentAction::NotOwned {
        let note = format!(
            "Resource {:?} already exists and is not managed by BellerophonSimple",
            req.key().name()
        );
        let event = Event::warning("ErrResourceExists", "Apply", note.clone());
        req.recorder().event(shero, event);
        // Retried: the deletion of a Deployment of another owner enqueues no BellerophonSimple.
        return Err(Error::retry(note));
    }
    Ok(())
}
