//! What is to be done for one Icecream, decided from what is there.
//!
//! In: the Icecream, the Deployments it may mean, the nodes of its pods, the time. Out: a plan.
//! Holds: a Deployment that is not ours is never touched; what is as wanted is not written.

use std::{collections::BTreeSet, sync::Arc};

use bellerophon::{OwnerError, set_controller_reference};
use bellerophon_operator::{Rollout, Step};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde_json::json;

use crate::crd::{Icecream, IcecreamStatus};

/// The flavour everybody gets.
const IMAGE: &str = "nginx:latest";

/// What is there.
pub(crate) struct View<'a> {
    pub(crate) icecream: &'a Icecream,
    /// The Deployment of the wanted name, whoever owns it.
    pub(crate) named: Option<Arc<Deployment>>,
    /// The Deployments this Icecream owns, whatever their names.
    pub(crate) owned: Vec<Arc<Deployment>>,
    /// The nodes its pods were scheduled on.
    pub(crate) nodes: BTreeSet<String>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// About the Deployment of the wanted name.
    pub(crate) step: Step,
    /// Deployments of former names.
    pub(crate) remove: Vec<Arc<Deployment>>,
    /// The status as it should be, if it is not.
    pub(crate) status: Option<IcecreamStatus>,
}

impl Plan {
    /// Whether anything is written.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.step, Step::Apply(_)) || !self.remove.is_empty() || self.status.is_some()
    }
}

/// Decides.
///
/// # Errors
/// The Icecream has no identity yet, so that nothing can belong to it.
pub(crate) fn plan(view: &View<'_>, now: Timestamp) -> Result<Plan, OwnerError> {
    let step = Step::decide(view.named.as_deref(), wanted(view.icecream)?);
    let taken = step == Step::Taken;
    // What had the old name stays until what has the new one can be made.
    let former = view
        .owned
        .iter()
        .filter(|found| !taken && found.name_any() != view.icecream.spec.deployment_name);
    let remove = former
        .filter(|found| found.metadata.deletion_timestamp.is_none())
        .cloned()
        .collect();
    let status = status(view, taken, now);
    Ok(Plan {
        step,
        remove,
        status: (view.icecream.status.as_ref() != Some(&status)).then_some(status),
    })
}

/// The Deployment of an Icecream; only what the operator decides is set.
fn wanted(icecream: &Icecream) -> Result<Deployment, OwnerError> {
    let labels = json!({"app": "nginx", "controller": icecream.name_any()});
    let mut spec = json!({
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "nginx", "image": IMAGE}]},
        },
    });
    if let Some(replicas) = icecream.spec.replicas {
        spec["replicas"] = json!(replicas);
    }
    let metadata = json!({"name": icecream.spec.deployment_name, "namespace": icecream.namespace(), "labels": labels});
    let mut deployment: Deployment =
        serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
            .expect("it is written as the type has it");
    set_controller_reference(icecream, &mut deployment)?;
    Ok(deployment)
}

fn status(view: &View<'_>, taken: bool, now: Timestamp) -> IcecreamStatus {
    let icecream = view.icecream;
    let rollout = Rollout(view.named.as_deref().filter(|_| !taken));
    let mut status = icecream.status.clone().unwrap_or_default();
    status.available_replicas = rollout.available();
    status.nodes = view.nodes.iter().cloned().collect();
    status.selector = format!("app=nginx,controller={}", icecream.name_any());
    status.observed_generation = icecream.metadata.generation;
    rollout.set_conditions(
        taken,
        icecream.metadata.generation,
        &mut status.conditions,
        now,
    );
    status
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn icecream(name: &str, replicas: Option<i32>) -> Icecream {
        let spec = json!({"deploymentName": name, "replicas": replicas});
        let metadata =
            json!({"name": "vanilla", "namespace": "default", "uid": "u1", "generation": 3});
        serde_json::from_value(
            json!({"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": metadata, "spec": spec}),
        )
        .expect("an icecream")
    }

    /// The Deployment as the server has it, changed by a patch.
    fn stored(icecream: &Icecream, change: &Value) -> Arc<Deployment> {
        let mut value = json!(wanted(icecream).expect("a Deployment"));
        value["metadata"]["uid"] = json!("d1");
        value["metadata"]["generation"] = json!(1);
        value["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        lay_over(&mut value, change);
        Arc::new(serde_json::from_value(value).expect("a Deployment"))
    }

    fn lay_over(value: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, change)| lay_over(&mut value[name], change)),
            _ => *value = change.clone(),
        }
    }

    fn decide(
        icecream: &Icecream,
        named: Option<Arc<Deployment>>,
        owned: Vec<Arc<Deployment>>,
    ) -> Plan {
        plan(
            &View {
                icecream,
                named,
                owned,
                nodes: BTreeSet::new(),
            },
            Timestamp::UNIX_EPOCH,
        )
        .expect("a plan")
    }

    #[test]
    fn missing_deployment_is_made_and_belongs_to_the_icecream() {
        let icecream = icecream("shop", Some(3));
        let Step::Apply(made) = decide(&icecream, None, vec![]).step else {
            panic!("it is made")
        };
        let value = json!(made);
        assert_eq!(
            (made.name_any(), made.namespace()),
            ("shop".into(), Some("default".into()))
        );
        assert_eq!(value["spec"]["replicas"], 3);
        assert_eq!(
            value["spec"]["template"]["spec"]["containers"][0]["image"],
            "nginx:latest"
        );
        assert_eq!(
            value["metadata"]["labels"],
            json!({"app": "nginx", "controller": "vanilla"})
        );
        let owner = &made.owner_references()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
            ("Icecream", "u1", Some(true))
        );
    }

    #[test]
    fn absent_replicas_are_left_alone() {
        let icecream = icecream("shop", None);
        let found = stored(&icecream, &json!({"spec": {"replicas": 7}}));
        assert_eq!(
            decide(&icecream, Some(found.clone()), vec![found]).step,
            Step::Keep
        );
    }

    #[test]
    fn nothing_is_removed_while_the_new_name_is_taken() {
        let icecream = icecream("shop", Some(1));
        let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
        let plan = decide(
            &icecream,
            Some(stored(
                &icecream,
                &json!({"metadata": {"ownerReferences": []}}),
            )),
            vec![former],
        );
        assert!(
            plan.step == Step::Taken && plan.remove.is_empty(),
            "{plan:?}"
        );
        let status = plan.status.expect("people are told");
        assert_eq!(
            (
                status.conditions[0].type_.as_str(),
                status.conditions[0].reason.as_str()
            ),
            ("Ready", "ErrResourceExists")
        );
    }

    #[test]
    fn former_deployment_goes_when_the_name_changes() {
        let icecream = icecream("new", Some(1));
        let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
        let going = stored(
            &icecream,
            &json!({"metadata": {"name": "older", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let plan = decide(&icecream, None, vec![former.clone(), going]);
        assert_eq!(
            (matches!(plan.step, Step::Apply(_)), plan.remove),
            (true, vec![former])
        );
    }

    #[test]
    fn status_tells_what_is_there_and_is_written_once() {
        let mut icecream = icecream("shop", Some(2));
        let status = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let found = stored(&icecream, &json!({"status": status}));
        let nodes: BTreeSet<String> = ["b", "a"].map(str::to_owned).into();
        let told = |icecream: &Icecream, second: i64| {
            let view = View {
                icecream,
                named: Some(found.clone()),
                owned: vec![found.clone()],
                nodes: nodes.clone(),
            };
            plan(&view, Timestamp::from_second(second).expect("a time")).expect("a plan")
        };
        let status = told(&icecream, 1).status.expect("a status");
        assert_eq!(
            (
                status.available_replicas,
                &*status.nodes,
                status.observed_generation
            ),
            (2, &["a".to_owned(), "b".to_owned()][..], Some(3))
        );
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str()))
            .collect();
        assert_eq!(conditions, [("Ready", "True"), ("Progressing", "False")]);
        icecream.status = Some(status);
        assert!(
            !told(&icecream, 99).writes(),
            "what is told is not told again"
        );
    }
}
