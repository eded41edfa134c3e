//! The plan of one Icecream: a pure function of the observed state.
//!
//! Inputs: the Icecream, its Deployments, the nodes of its pods, the time. Output: the writes.
//!
//! Guarantees: a Deployment of another owner is never written; nothing is written that is already
//! as desired.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bellerophon::owner::{OwnerError, set_controller_reference};
use bellerophon_operator::{DeploymentAction, Rollout};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::ResourceExt as _;

use crate::crd::{Icecream, IcecreamStatus};

/// The container image of every Icecream.
const IMAGE: &str = "nginx:latest";

/// The cached objects that a plan depends on.
pub(crate) struct ObservedState<'a> {
    pub(crate) icecream: &'a Icecream,
    /// The Deployment of the desired name, with any owner.
    pub(crate) named: Option<Arc<Deployment>>,
    /// The Deployments that the Icecream controls, whatever their names.
    pub(crate) owned: Vec<Arc<Deployment>>,
    /// The nodes that its pods are scheduled on.
    pub(crate) nodes: BTreeSet<String>,
}

/// The writes of one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The action for the Deployment of the desired name.
    pub(crate) deployment: DeploymentAction,
    /// Owned Deployments of former names, to be deleted.
    pub(crate) delete: Vec<Arc<Deployment>>,
    /// The desired status, if it differs from the current one.
    pub(crate) status: Option<IcecreamStatus>,
}

impl Plan {
    pub(crate) fn has_writes(&self) -> bool {
        matches!(self.deployment, DeploymentAction::Apply(_))
            || !self.delete.is_empty()
            || self.status.is_some()
    }
}

/// Plans the writes of one reconcile.
///
/// # Errors
/// The Icecream has no name or UID, so that it cannot own a Deployment.
pub(crate) fn plan(observed: &ObservedState<'_>, now: Timestamp) -> Result<Plan, OwnerError> {
    let icecream = observed.icecream;
    let deployment =
        DeploymentAction::plan(observed.named.as_deref(), desired_deployment(icecream)?);
    let mut delete = observed.owned.clone();
    delete.retain(|former| {
        former.name_any() != icecream.spec.deployment_name
            && former.metadata.deletion_timestamp.is_none()
    });
    if deployment == DeploymentAction::NotOwned {
        // The Deployment of the former name stays until one of the new name can be created.
        delete.clear();
    }
    let status = desired_status(observed, &deployment, now);
    let is_current = icecream.status.as_ref() == Some(&status);
    Ok(Plan {
        deployment,
        delete,
        status: (!is_current).then_some(status),
    })
}

/// The Deployment of an Icecream, with only the fields that the operator manages.
fn desired_deployment(icecream: &Icecream) -> Result<Deployment, OwnerError> {
    let labels = BTreeMap::from([
        ("app".to_owned(), "nginx".to_owned()),
        ("controller".to_owned(), icecream.name_any()),
    ]);
    let container = Container {
        name: "nginx".to_owned(),
        image: Some(IMAGE.to_owned()),
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
            name: Some(icecream.spec.deployment_name.clone()),
            namespace: icecream.namespace(),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: icecream.spec.replicas,
            selector: LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    set_controller_reference(icecream, &mut deployment)?;
    Ok(deployment)
}

fn desired_status(
    observed: &ObservedState<'_>,
    deployment: &DeploymentAction,
    now: Timestamp,
) -> IcecreamStatus {
    let icecream = observed.icecream;
    let rollout = Rollout::new(observed.named.as_deref(), deployment);
    // Starts from the current one, whose conditions have the times of their last transitions.
    let mut status = icecream.status.clone().unwrap_or_default();
    status.available_replicas = rollout.available_replicas();
    status.nodes = observed.nodes.iter().cloned().collect();
    status.selector = format!("app=nginx,controller={}", icecream.name_any());
    status.observed_generation = icecream.metadata.generation;
    rollout.set_conditions(&mut status.conditions, icecream, now);
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn icecream(deployment_name: &str, replicas: Option<i32>) -> Icecream {
        serde_json::from_value(json!({
            "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream",
            "metadata": {
                "name": "vanilla", "namespace": "default", "uid": "u1", "generation": 3,
            },
            "spec": {"deploymentName": deployment_name, "replicas": replicas},
        }))
        .expect("an Icecream")
    }

    /// The desired Deployment as the server stores it, with changes.
    fn stored(icecream: &Icecream, change: &Value) -> Arc<Deployment> {
        let mut value = json!(desired_deployment(icecream).expect("a Deployment"));
        value["metadata"]["uid"] = json!("d1");
        value["metadata"]["generation"] = json!(1);
        value["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        merge(&mut value, change);
        Arc::new(serde_json::from_value(value).expect("a Deployment"))
    }

    fn merge(value: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, change)| merge(&mut value[name], change)),
            _ => *value = change.clone(),
        }
    }

    fn plan_without_nodes(
        icecream: &Icecream,
        named: Option<Arc<Deployment>>,
        owned: Vec<Arc<Deployment>>,
    ) -> Plan {
        let observed = ObservedState {
            icecream,
            named,
            owned,
            nodes: BTreeSet::new(),
        };
        plan(&observed, Timestamp::UNIX_EPOCH).expect("a plan")
    }

    #[test]
    fn missing_deployment_is_created_and_owned() {
        let icecream = icecream("shop", Some(3));
        let plan = plan_without_nodes(&icecream, None, vec![]);
        let DeploymentAction::Apply(deployment) = plan.deployment else {
            panic!("the Deployment is not applied")
        };
        assert_eq!(deployment.name_any(), "shop");
        assert_eq!(deployment.namespace().as_deref(), Some("default"));
        let value = json!(deployment);
        assert_eq!(value["spec"]["replicas"], 3);
        let container = &value["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "nginx:latest");
        let labels = json!({"app": "nginx", "controller": "vanilla"});
        assert_eq!(value["metadata"]["labels"], labels);
        assert_eq!(value["spec"]["selector"]["matchLabels"], labels);
        assert_eq!(value["spec"]["template"]["metadata"]["labels"], labels);
        let owner = &deployment.owner_references()[0];
        assert_eq!(owner.kind, "Icecream");
        assert_eq!(owner.uid, "u1");
        assert_eq!(owner.controller, Some(true));
    }

    #[test]
    fn unset_replicas_are_not_changed() {
        let icecream = icecream("shop", None);
        let current = stored(&icecream, &json!({"spec": {"replicas": 7}}));
        let plan = plan_without_nodes(&icecream, Some(current.clone()), vec![current]);
        assert_eq!(plan.deployment, DeploymentAction::UpToDate);
    }

    #[test]
    fn former_deployment_stays_while_the_new_name_is_not_available() {
        let icecream = icecream("shop", Some(1));
        let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
        let foreign = stored(&icecream, &json!({"metadata": {"ownerReferences": []}}));
        let plan = plan_without_nodes(&icecream, Some(foreign), vec![former]);
        assert_eq!(plan.deployment, DeploymentAction::NotOwned);
        assert_eq!(plan.delete, []);
        let status = plan.status.expect("a status");
        assert_eq!(status.conditions[0].type_, "Ready");
        assert_eq!(status.conditions[0].reason, "ErrResourceExists");
    }

    #[test]
    fn former_deployment_is_deleted_when_the_name_changes() {
        let icecream = icecream("new", Some(1));
        let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
        let terminating = stored(
            &icecream,
            &json!({"metadata": {"name": "older", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let plan = plan_without_nodes(&icecream, None, vec![former.clone(), terminating]);
        assert!(matches!(plan.deployment, DeploymentAction::Apply(_)));
        assert_eq!(plan.delete, [former]);
    }

    #[test]
    fn status_is_written_once() {
        let mut icecream = icecream("shop", Some(2));
        let status = json!({
            "observedGeneration": 1, "replicas": 2,
            "updatedReplicas": 2, "availableReplicas": 2,
        });
        let current = stored(&icecream, &json!({"status": status}));
        let plan_at = |icecream: &Icecream, second: i64| {
            let observed = ObservedState {
                icecream,
                named: Some(current.clone()),
                owned: vec![current.clone()],
                nodes: ["b", "a"].map(str::to_owned).into(),
            };
            plan(&observed, Timestamp::from_second(second).expect("a time")).expect("a plan")
        };
        let status = plan_at(&icecream, 1).status.expect("a status");
        assert_eq!(status.available_replicas, 2);
        assert_eq!(status.nodes, ["a", "b"]);
        assert_eq!(status.observed_generation, Some(3));
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
            .collect();
        assert_eq!(conditions, [("Ready", "True"), ("Progressing", "False")]);
        icecream.status = Some(status);
        assert!(!plan_at(&icecream, 99).has_writes());
    }
}
