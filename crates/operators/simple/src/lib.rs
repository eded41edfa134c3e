//! The BellerophonSimple operator: what Kubernetes can keep by itself.
//!
//! A winged horse's name, an image and a number become a Deployment; the status tells how many pods are available. There is
//! no state to keep beyond that, so that all the rest is left to Deployment and ReplicaSet.

mod crd; // the kind
mod plan; // what is to be done

pub use crd::{BellerophonSimple, BellerophonSimpleSpec, BellerophonSimpleStatus};

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, EventType, Failure, Lister, Note, Outcome, Predicate,
    ReconcileResult, Request, WallClock,
};
use bellerophon_operator::{Operator, Place, Rights, Setup, Step, allow};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use tracing::info;

use crate::plan::plan;

/// The operator, for whoever runs it.
pub const OPERATOR: Operator = Operator {
    name: "simple",
    summary: "a BellerophonSimple becomes a Deployment with the name of its winged horse",
    definitions: || vec![BellerophonSimple::crd()],
    rights: || {
        let group = "stable.simple-bellerophon.io";
        vec![
            allow(Rights::CACHE, group, "sheroes"),
            allow(&["patch"], group, "sheroes/status"),
            allow(&["list", "watch", "create", "patch"], "apps", "deployments"),
        ]
    },
    guards: Vec::new,
    place: Place::Anywhere,
    switches: &[],
    controllers: |setup| Ok(vec![controller(setup)]),
};

fn controller(setup: &Setup) -> Controller {
    let (sheroes, deployments) = (
        setup.informer::<BellerophonSimple>(),
        setup.informer::<Deployment>(),
    );
    let events = setup.recorder(OPERATOR.name);
    let stable = Arc::new(Stable {
        client: setup.client.clone(),
        clock: setup.clock,
        events,
        deployments: deployments.lister(),
    });
    Controller::of(&sheroes)
        .with_predicate(Predicate::generation_changed())
        .owns(&deployments)
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| stable.clone().reconcile(request))
}

/// Reads, plans, applies.
struct Stable {
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    deployments: Lister<Deployment>,
}

impl Stable {
    async fn reconcile(self: Arc<Self>, request: Request<BellerophonSimple>) -> ReconcileResult {
        // What a heroine owned goes with her, by the owner reference.
        let Some(shero) = request
            .object
            .clone()
            .filter(|shero| shero.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let plan = plan(
            &shero,
            self.deployments.get(&request.key).as_deref(),
            self.clock.now(),
        )
        .map_err(Failure::permanent)?;
        let (namespace, writes) = (shero.namespace().unwrap_or_default(), request.writes());
        if let Step::Apply(wanted) = &plan.step {
            writes
                .apply(&Api::namespaced(self.client.clone(), &namespace), &**wanted)
                .await?;
            self.tell(
                &shero,
                EventType::Normal,
                "Applied",
                format!("Deployment {} is as wanted", wanted.name_any()),
            );
        }
        if let Some(status) = plan.status {
            let told = BellerophonSimple {
                status: Some(status),
                ..(*shero).clone()
            };
            writes
                .apply_status(&Api::namespaced(self.client.clone(), &namespace), &told)
                .await?;
        }
        if plan.step == Step::Taken {
            let why = format!(
                "Resource {:?} already exists and is not managed by BellerophonSimple",
                request.key.name()
            );
            self.tell(&shero, EventType::Warning, "ErrResourceExists", why.clone());
            return Err(Failure::retry(why));
        }
        info!("{} rides {}", request.key, shero.spec.winged_horse_name);
        Ok(Outcome::Done)
    }

    fn tell(&self, shero: &BellerophonSimple, type_: EventType, reason: &str, note: String) {
        self.events.event(
            shero,
            Note {
                type_,
                reason: reason.into(),
                action: "Apply".into(),
                note,
            },
        );
    }
}
