//! What is to be done for one Icecream, decided from what is there.
//!
//! In: the Icecream, the Deployments it may mean, the nodes of its pods, the time. Out: a plan.
//! Holds: a Deployment that is not ours is never touched; what is as wanted is not written.

use std::{collections::BTreeSet, sync::Arc};

use bellerophon::{ConditionStatus, OwnerError, SetCondition, set_condition, set_controller_reference};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use kube::ResourceExt as _;
use serde_json::{Value, json};

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
    /// The Deployment as it should be, if it is not.
    pub(crate) apply: Option<Box<Deployment>>,
    /// Deployments of former names.
    pub(crate) remove: Vec<Arc<Deployment>>,
    /// The status as it should be, if it is not.
    pub(crate) status: Option<IcecreamStatus>,
    /// The wanted name belongs to somebody else.
    pub(crate) taken: bool,
}

impl Plan {
    /// Whether anything is written.
    pub(crate) fn writes(&self) -> bool {
        self.apply.is_some() || !self.remove.is_empty() || self.status.is_some()
    }
}

/// Decides.
///
/// # Errors
/// The Icecream has no identity yet, so that nothing can belong to it.
pub(crate) fn plan(view: &View<'_>, now: Timestamp) -> Result<Plan, OwnerError> {
    let wanted = wanted(view.icecream)?;
    let taken = view.named.as_ref().is_some_and(|found| !is_ours(view.icecream, found));
    let ours = view.named.as_ref().filter(|_| !taken);
    let apply = (!taken && ours.is_none_or(|found| !is_as(found, &wanted))).then(|| Box::new(wanted));
    // What had the old name stays until what has the new one can be made.
    let former = view.owned.iter().filter(|found| !taken && found.name_any() != view.icecream.spec.deployment_name);
    let remove = former.filter(|found| found.metadata.deletion_timestamp.is_none()).cloned().collect();
    let status = status(view, ours.map(|found| &**found), taken, now);
    Ok(Plan { apply, remove, taken, status: (view.icecream.status.as_ref() != Some(&status)).then_some(status) })
}

/// Whether the Icecream, and no other object of its name, controls the Deployment.
fn is_ours(icecream: &Icecream, deployment: &Deployment) -> bool {
    deployment.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == icecream.metadata.uid.as_ref())
}

/// The labels that find the pods of an Icecream.
fn labels(icecream: &Icecream) -> Value {
    json!({"app": "nginx", "controller": icecream.name_any()})
}

/// The Deployment of an Icecream; only what the operator decides is set.
fn wanted(icecream: &Icecream) -> Result<Deployment, OwnerError> {
    let labels = labels(icecream);
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
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("it is written as the type has it");
    set_controller_reference(icecream, &mut deployment)?;
    Ok(deployment)
}

/// Whether everything the operator decides is there; what others add does not count.
fn is_as(found: &Deployment, wanted: &Deployment) -> bool {
    covers(&json!(found), &json!(wanted))
}

/// Whether one value holds everything that the other says. Lists correspond item by item.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| found.get(name).is_some_and(|found| covers(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| covers(found, wanted))
        }
        _ => found == wanted,
    }
}

fn status(view: &View<'_>, ours: Option<&Deployment>, taken: bool, now: Timestamp) -> IcecreamStatus {
    let icecream = view.icecream;
    let mut status = icecream.status.clone().unwrap_or_default();
    let seen = ours.and_then(|found| found.status.as_ref());
    status.available_replicas = seen.and_then(|seen| seen.available_replicas).unwrap_or_default();
    status.nodes = view.nodes.iter().cloned().collect();
    status.selector = format!("app=nginx,controller={}", icecream.name_any());
    status.observed_generation = icecream.metadata.generation;
    for (type_, verdict) in [("Ready", ready(ours, taken)), ("Progressing", progressing(ours))] {
        let Verdict { holds, reason, message } = verdict;
        let status_ = if holds { ConditionStatus::True } else { ConditionStatus::False };
        let set = SetCondition { type_, status: status_, reason, message: &message, observed_generation: icecream.metadata.generation };
        set_condition(&mut status.conditions, &set, now);
    }
    status
}

/// Whether something holds, and why.
struct Verdict {
    holds: bool,
    reason: &'static str,
    message: String,
}

fn ready(ours: Option<&Deployment>, taken: bool) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict { holds, reason, message };
    if taken {
        return verdict(false, "ErrResourceExists", "the Deployment exists and is not managed by this Icecream".into());
    }
    let Some(found) = ours else { return verdict(false, "NoDeployment", "the Deployment is being created".into()) };
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = found.status.as_ref().and_then(|status| status.available_replicas).unwrap_or_default();
    let message = format!("{available} of {wanted} pods are available");
    if is_observed(found) && available >= wanted { verdict(true, "AllAvailable", message) } else { verdict(false, "PodsMissing", message) }
}

fn progressing(ours: Option<&Deployment>) -> Verdict {
    let rolled_out = ours.is_some_and(|found| {
        let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let status = found.status.as_ref();
        let count = |of: fn(&DeploymentStatus) -> Option<i32>| status.and_then(of).unwrap_or_default();
        is_observed(found) && count(|s| s.updated_replicas) >= wanted && count(|s| s.replicas) == count(|s| s.updated_replicas)
    });
    match rolled_out {
        true => Verdict { holds: false, reason: "RolledOut", message: "all pods are of the wanted kind".into() },
        false => Verdict { holds: true, reason: "RollingOut", message: "pods are being replaced".into() },
    }
}

/// Whether the Deployment's controller has seen its spec.
fn is_observed(found: &Deployment) -> bool {
    found.status.as_ref().and_then(|status| status.observed_generation) >= found.metadata.generation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn icecream(name: &str, replicas: Option<i32>) -> Icecream {
        let spec = json!({"deploymentName": name, "replicas": replicas});
        let metadata = json!({"name": "vanilla", "namespace": "default", "uid": "u1", "generation": 3});
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
            Value::Object(fields) => fields.iter().for_each(|(name, change)| lay_over(&mut value[name], change)),
            _ => *value = change.clone(),
        }
    }

    fn decide(icecream: &Icecream, named: Option<Arc<Deployment>>, owned: Vec<Arc<Deployment>>) -> Plan {
        plan(&View { icecream, named, owned, nodes: BTreeSet::new() }, Timestamp::UNIX_EPOCH).expect("a plan")
    }

    #[test]
    fn missing_deployment_is_made_and_belongs_to_the_icecream() {
        let icecream = icecream("shop", Some(3));
        let made = decide(&icecream, None, vec![]).apply.expect("a Deployment");
        let value = json!(made);
        assert_eq!((made.name_any(), made.namespace()), ("shop".into(), Some("default".into())));
        assert_eq!(value["spec"]["replicas"], 3);
        assert_eq!(value["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:latest");
        assert_eq!(value["metadata"]["labels"], json!({"app": "nginx", "controller": "vanilla"}));
        let owner = &made.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Icecream", "u1", Some(true)));
    }

    #[test]
    fn drift_is_repaired_and_only_drift() {
        let icecream = icecream("shop", Some(3));
        let cases = [
            ("as wanted", json!({}), false),
            ("replicas", json!({"spec": {"replicas": 5}}), true),
            ("image", json!({"spec": {"template": {"spec": {"containers": [{"name": "nginx", "image": "nginx:old"}]}}}}), true),
            ("a label of ours", json!({"metadata": {"labels": {"app": "other"}}}), true),
            ("a label of others", json!({"metadata": {"labels": {"team": "x"}}}), false),
            ("an annotation", json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": "1"}}}), false),
            ("pod labels", json!({"spec": {"template": {"metadata": {"labels": {"app": "other"}}}}}), true),
            ("defaults", json!({"spec": {"progressDeadlineSeconds": 600}}), false),
        ];
        for (what, change, repaired) in cases {
            let found = stored(&icecream, &change);
            assert_eq!(decide(&icecream, Some(found.clone()), vec![found]).apply.is_some(), repaired, "{what}");
        }
    }

    #[test]
    fn absent_replicas_are_left_alone() {
        let icecream = icecream("shop", None);
        let found = stored(&icecream, &json!({"spec": {"replicas": 7}}));
        assert_eq!(decide(&icecream, Some(found.clone()), vec![found]).apply, None);
    }

    #[test]
    fn deployment_of_others_is_never_touched() {
        let icecream = icecream("shop", Some(1));
        let strangers = [
            json!({"metadata": {"ownerReferences": []}}),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "name": "vanilla", "uid": "older", "controller": true}]}}),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "name": "vanilla", "uid": "u1"}]}}),
        ];
        for stranger in strangers {
            let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
            let plan = decide(&icecream, Some(stored(&icecream, &stranger)), vec![former]);
            assert!(plan.taken && plan.apply.is_none() && plan.remove.is_empty(), "{stranger}: {plan:?}");
            let status = plan.status.expect("people are told");
            assert_eq!((status.conditions[0].type_.as_str(), status.conditions[0].reason.as_str()), ("Ready", "ErrResourceExists"));
        }
    }

    #[test]
    fn former_deployment_goes_when_the_name_changes() {
        let icecream = icecream("new", Some(1));
        let former = stored(&icecream, &json!({"metadata": {"name": "old"}}));
        let going = stored(&icecream, &json!({"metadata": {"name": "older", "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let plan = decide(&icecream, None, vec![former.clone(), going]);
        assert_eq!((plan.apply.is_some(), plan.remove), (true, vec![former]));
    }

    #[test]
    fn status_tells_what_is_there_and_is_written_once() {
        let mut icecream = icecream("shop", Some(2));
        let status = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let found = stored(&icecream, &json!({"status": status}));
        let nodes: BTreeSet<String> = ["b", "a"].map(str::to_owned).into();
        let told = |icecream: &Icecream, second: i64| {
            let view = View { icecream, named: Some(found.clone()), owned: vec![found.clone()], nodes: nodes.clone() };
            plan(&view, Timestamp::from_second(second).expect("a time")).expect("a plan")
        };
        let status = told(&icecream, 1).status.expect("a status");
        assert_eq!(
            (status.available_replicas, &*status.nodes, status.observed_generation),
            (2, &["a".to_owned(), "b".to_owned()][..], Some(3))
        );
        let conditions: Vec<_> = status.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        assert_eq!(conditions, [("Ready", "True"), ("Progressing", "False")]);
        icecream.status = Some(status);
        assert!(!told(&icecream, 99).writes(), "what is told is not told again");
    }

    #[test]
    fn rollout_under_way_is_not_ready() {
        let icecream = icecream("shop", Some(2));
        for (what, status, ready, progressing) in [
            ("nothing yet", json!({}), "False", "True"),
            ("not seen", json!({"observedGeneration": 0, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}), "False", "True"),
            (
                "one missing",
                json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}),
                "False",
                "False",
            ),
            (
                "old ones left",
                json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 2}),
                "True",
                "True",
            ),
            ("done", json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}), "True", "False"),
        ] {
            let found = stored(&icecream, &json!({"status": status}));
            let told = decide(&icecream, Some(found.clone()), vec![found]).status.expect("a status");
            let conditions: Vec<_> = told.conditions.iter().map(|c| c.status.as_str()).collect();
            assert_eq!(conditions, [ready, progressing], "{what}");
        }
    }
}
