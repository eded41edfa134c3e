//! What is to be done for one heroine, decided from what is there.
//!
//! In: the object, the Deployment of its name, the time. Out: a plan.

use bellerophon::{OwnerError, set_controller_reference};
use bellerophon_operator::{Rollout, Step};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde_json::json;

use crate::crd::{BellerophonSimple, BellerophonSimpleStatus};

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// About the Deployment.
    pub(crate) step: Step,
    /// The status as it should be, if it is not.
    pub(crate) status: Option<BellerophonSimpleStatus>,
}

/// Decides.
///
/// # Errors
/// The object has no identity yet, so that nothing can belong to it.
pub(crate) fn plan(
    shero: &BellerophonSimple,
    found: Option<&Deployment>,
    now: Timestamp,
) -> Result<Plan, OwnerError> {
    let step = Step::decide(found, wanted(shero)?);
    let taken = step == Step::Taken;
    let rollout = Rollout(found.filter(|_| !taken));
    let mut status = shero.status.clone().unwrap_or_default();
    status.replicas = rollout.available();
    status.selector = format!("shero={}", shero.name_any());
    status.observed_generation = shero.metadata.generation;
    rollout.set_conditions(
        taken,
        shero.metadata.generation,
        &mut status.conditions,
        now,
    );
    Ok(Plan {
        step,
        status: (shero.status.as_ref() != Some(&status)).then_some(status),
    })
}

/// The Deployment of a heroine; only what the operator decides is set.
fn wanted(shero: &BellerophonSimple) -> Result<Deployment, OwnerError> {
    let labels = json!({"shero": shero.name_any()});
    let environment = json!([{"name": "WINGED_HORSE_NAME", "value": shero.spec.winged_horse_name}]);
    let spec = json!({
        "replicas": shero.spec.replicas,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "horse", "image": shero.spec.image, "env": environment}]},
        },
    });
    let metadata =
        json!({"name": shero.name_any(), "namespace": shero.namespace(), "labels": labels});
    let mut deployment: Deployment =
        serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
            .expect("it is written as the type has it");
    set_controller_reference(shero, &mut deployment)?;
    Ok(deployment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shero() -> BellerophonSimple {
        serde_json::from_value(json!({
            "apiVersion": "stable.simple-bellerophon.io/v444beta989", "kind": "BellerophonSimple",
            "metadata": {"name": "philonoe", "namespace": "default", "uid": "u1", "generation": 2},
            "spec": {"winged_horse_name": "pegasus", "image": "horse:1", "replicas": 2},
        }))
        .expect("a heroine")
    }

    #[test]
    fn horse_is_named_in_the_environment() {
        let Step::Apply(made) = plan(&shero(), None, Timestamp::UNIX_EPOCH)
            .expect("a plan")
            .step
        else {
            panic!("it is made")
        };
        let container = &json!(made)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["env"],
            json!([{"name": "WINGED_HORSE_NAME", "value": "pegasus"}])
        );
        assert_eq!(
            (
                &container["image"],
                made.spec.and_then(|spec| spec.replicas)
            ),
            (&json!("horse:1"), Some(2))
        );
    }

    #[test]
    fn status_is_written_once() {
        let mut shero = shero();
        let mut found = wanted(&shero).expect("a Deployment");
        found.metadata.generation = Some(1);
        found.status =
            serde_json::from_value(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2})).ok();
        let first = plan(&shero, Some(&found), Timestamp::UNIX_EPOCH).expect("a plan");
        assert_eq!(first.step, Step::Keep);
        shero.status = first.status;
        assert_eq!(
            shero
                .status
                .as_ref()
                .map(|status| (status.replicas, status.observed_generation)),
            Some((2, Some(2)))
        );
        assert_eq!(
            plan(&shero, Some(&found), Timestamp::MAX).expect("a plan"),
            Plan {
                step: Step::Keep,
                status: None
            }
        );
    }

    #[test]
    fn renamed_horse_is_rolled_out() {
        let mut shero = shero();
        let found = wanted(&shero).expect("a Deployment");
        shero.spec.winged_horse_name = "arion".into();
        assert!(matches!(
            plan(&shero, Some(&found), Timestamp::UNIX_EPOCH)
                .expect("a plan")
                .step,
            Step::Apply(_)
        ));
    }
}
