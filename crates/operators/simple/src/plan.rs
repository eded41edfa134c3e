//! The plan of one BellerophonSimple: a pure function of the observed state.
//!
//! Inputs: the object, the Deployment of its name, the time. Output: the writes.

use std::collections::BTreeMap;

use bellerophon::owner::{OwnerError, set_controller_reference};
use bellerophon_operator::{DeploymentAction, Rollout};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, EnvVar, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::ResourceExt as _;

use crate::crd::{BellerophonSimple, BellerophonSimpleStatus};

/// The writes of one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The action for the Deployment of the object's name.
    pub(crate) deployment: DeploymentAction,
    /// The desired status, if it differs from the current one.
    pub(crate) status: Option<BellerophonSimpleStatus>,
}

/// Plans the writes of one reconcile.
///
/// # Errors
/// The object has no name or UID, so that it cannot own a Deployment.
pub(crate) fn plan(
    shero: &BellerophonSimple,
    current: Option<&Deployment>,
    now: Timestamp,
) -> Result<Plan, OwnerError> {
    // The status depends on the action: a Deployment of another owner is not counted.
    let deployment = DeploymentAction::plan(current, desired_deployment(shero)?);
    let rollout = Rollout::new(current, &deployment);
    // Starts from the current one, whose conditions have the times of their last transitions.
    let mut status = shero.status.clone().unwrap_or_default();
    status.replicas = rollout.available_replicas();
    status.selector = format!("shero={}", shero.name_any());
    status.observed_generation = shero.metadata.generation;
    rollout.set_conditions(&mut status.conditions, shero, now);
    let is_current = shero.status.as_ref() == Some(&status);
    Ok(Plan {
        deployment,
        status: (!is_current).then_some(status),
    })
}

/// The Deployment of a BellerophonSimple, with only the fields that the operator manages.
fn desired_deployment(shero: &BellerophonSimple) -> Result<Deployment, OwnerError> {
    let labels = BTreeMap::from([("shero".to_owned(), shero.name_any())]);
    let container = Container {
        name: "horse".to_owned(),
        image: Some(shero.spec.image.clone()),
        env: Some(vec![EnvVar {
            name: "WINGED_HORSE_NAME".to_owned(),
            value: Some(shero.spec.winged_horse_name.clone()),
            ..EnvVar::default()
        }]),
        ..Container::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
    };
    let mut deployment = Deployment {
        metadata: ObjectMeta {
            name: Some(shero.name_any()),
            namespace: shero.namespace(),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(shero.spec.replicas),
            selector: LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    set_controller_reference(shero, &mut deployment)?;
    Ok(deployment)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shero() -> BellerophonSimple {
        serde_json::from_value(json!({
            "apiVersion": "stable.simple-bellerophon.io/v444beta989", "kind": "BellerophonSimple",
            "metadata": {"name": "philonoe", "namespace": "default", "uid": "u1", "generation": 2},
            "spec": {"winged_horse_name": "pegasus", "image": "horse:1", "replicas": 2},
        }))
        .expect("a BellerophonSimple")
    }

    #[test]
    fn horse_name_is_set_in_the_environment() {
        let plan = plan(&shero(), None, Timestamp::UNIX_EPOCH).expect("a plan");
        let DeploymentAction::Apply(deployment) = plan.deployment else {
            panic!("the Deployment is not applied")
        };
        let value = json!(deployment);
        let container = &value["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["env"],
            json!([{"name": "WINGED_HORSE_NAME", "value": "pegasus"}])
        );
        assert_eq!(container["image"], "horse:1");
        assert_eq!(value["spec"]["replicas"], 2);
        let labels = json!({"shero": "philonoe"});
        assert_eq!(value["metadata"]["labels"], labels);
        assert_eq!(value["spec"]["selector"]["matchLabels"], labels);
        assert_eq!(value["spec"]["template"]["metadata"]["labels"], labels);
    }

    #[test]
    fn status_is_written_once() {
        let mut shero = shero();
        let mut current = desired_deployment(&shero).expect("a Deployment");
        current.metadata.generation = Some(1);
        let status = json!({
            "observedGeneration": 1, "replicas": 2,
            "updatedReplicas": 2, "availableReplicas": 2,
        });
        current.status = serde_json::from_value(status).expect("a status");
        let first = plan(&shero, Some(&current), Timestamp::UNIX_EPOCH).expect("a plan");
        assert_eq!(first.deployment, DeploymentAction::UpToDate);
        let status = first.status.expect("a status");
        assert_eq!(status.replicas, 2);
        assert_eq!(status.observed_generation, Some(2));
        shero.status = Some(status);
        assert_eq!(
            plan(&shero, Some(&current), Timestamp::MAX).expect("a plan"),
            Plan {
                deployment: DeploymentAction::UpToDate,
                status: None
            }
        );
    }

    #[test]
    fn changed_horse_name_is_rolled_out() {
        let mut shero = shero();
        let current = desired_deployment(&shero).expect("a Deployment");
        shero.spec.winged_horse_name = "arion".into();
        let plan = plan(&shero, Some(&current), Timestamp::UNIX_EPOCH).expect("a plan");
        assert!(matches!(plan.deployment, DeploymentAction::Apply(_)));
    }
}
