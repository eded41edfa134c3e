//! Owning a Deployment: what to do about it, and what to say of it.
//!
//! In: the Deployment as it is and as it should be. Out: what to write, and conditions.
//! Holds: a Deployment that is not the owner's is never touched; what is as wanted is not written.

use bellerophon::{ConditionStatus, SetCondition, controller_of, set_condition};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use serde_json::{Value, json};

/// What to do about a Deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as wanted.
    Keep,
    /// It is missing or has drifted: apply this.
    Apply(Box<Deployment>),
    /// The name belongs to somebody else.
    Taken,
}

impl Step {
    /// Decides on the Deployment of the wanted name. Of `wanted`, only what the owner decides is set; what others add is left alone.
    pub fn decide(found: Option<&Deployment>, wanted: Deployment) -> Self {
        let uid = controller_of(&wanted).map(|owner| &owner.uid);
        match found {
            Some(found) if controller_of(found).map(|owner| &owner.uid) != uid => Self::Taken,
            Some(found) if covers(&json!(found), &json!(wanted)) => Self::Keep,
            _ => Self::Apply(Box::new(wanted)),
        }
    }
}

/// Whether one value holds everything that the other says. Lists correspond item by item.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, wanted)| found.get(name).is_some_and(|found| covers(found, wanted))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| covers(found, wanted))
        }
        _ => found == wanted,
    }
}

/// How far a Deployment of ours has come.
#[derive(Clone, Copy, Debug)]
pub struct Rollout<'a>(pub Option<&'a Deployment>);

impl Rollout<'_> {
    /// How many pods are available.
    pub fn available(self) -> i32 {
        self.count(|status| status.available_replicas)
    }

    /// Sets `Ready` (all wanted pods are available) and `Progressing` (pods are being replaced).
    pub fn set_conditions(
        self,
        taken: bool,
        generation: Option<i64>,
        conditions: &mut Vec<Condition>,
        now: Timestamp,
    ) {
        for (type_, (holds, reason, message)) in [
            ("Ready", self.ready(taken)),
            ("Progressing", self.progressing()),
        ] {
            let status = if holds {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            };
            set_condition(
                conditions,
                &SetCondition {
                    type_,
                    status,
                    reason,
                    message: &message,
                    observed_generation: generation,
                },
                now,
            );
        }
    }

    fn ready(self, taken: bool) -> (bool, &'static str, String) {
        if taken {
            return (
                false,
                "ErrResourceExists",
                "a Deployment of this name exists and is not managed by this object".into(),
            );
        }
        if self.0.is_none() {
            return (
                false,
                "NoDeployment",
                "the Deployment is being created".into(),
            );
        }
        let (available, wanted) = (self.available(), self.wanted());
        let message = format!("{available} of {wanted} pods are available");
        match self.is_observed() && available >= wanted {
            true => (true, "AllAvailable", message),
            false => (false, "PodsMissing", message),
        }
    }

    fn progressing(self) -> (bool, &'static str, String) {
        let updated = self.count(|status| status.updated_replicas);
        match self.is_observed()
            && updated >= self.wanted()
            && self.count(|status| status.replicas) == updated
        {
            true => (false, "RolledOut", "all pods are of the wanted kind".into()),
            false => (true, "RollingOut", "pods are being replaced".into()),
        }
    }

    fn wanted(self) -> i32 {
        self.0
            .and_then(|found| found.spec.as_ref()?.replicas)
            .unwrap_or(1)
    }

    fn count(self, of: fn(&DeploymentStatus) -> Option<i32>) -> i32 {
        self.0
            .and_then(|found| of(found.status.as_ref()?))
            .unwrap_or_default()
    }

    /// Whether the Deployment's controller has seen its spec.
    fn is_observed(self) -> bool {
        self.0.is_some_and(|found| {
            found
                .status
                .as_ref()
                .and_then(|status| status.observed_generation)
                >= found.metadata.generation
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Deployment {
        let owner = json!({"apiVersion": "example.dev/v1", "kind": "Shop", "name": "a", "uid": "u1", "controller": true});
        let spec = json!({"replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": {
            "metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}});
        serde_json::from_value(json!({"metadata": {"name": "d", "labels": {"app": "a"}, "ownerReferences": [owner]}, "spec": spec}))
            .expect("a Deployment")
    }

    /// The Deployment as a server has it, changed.
    fn found(change: &Value) -> Deployment {
        let mut value = json!(wanted());
        value["metadata"]["generation"] = json!(1);
        value["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        lay_over(&mut value, change);
        serde_json::from_value(value).expect("a Deployment")
    }

    fn lay_over(value: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, change)| lay_over(&mut value[name], change)),
            _ => *value = change.clone(),
        }
    }

    #[test]
    fn drift_is_repaired_and_only_drift() {
        let apply = || Step::Apply(Box::new(wanted()));
        assert_eq!(Step::decide(None, wanted()), apply());
        for (what, change, step) in [
            ("as wanted", json!({}), Step::Keep),
            ("replicas", json!({"spec": {"replicas": 5}}), apply()),
            (
                "image",
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:old"}]}}}}),
                apply(),
            ),
            (
                "second container",
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d"}]}}}}),
                apply(),
            ),
            (
                "a label of ours",
                json!({"metadata": {"labels": {"app": "other"}}}),
                apply(),
            ),
            (
                "pod labels",
                json!({"spec": {"template": {"metadata": {"labels": {"app": "other"}}}}}),
                apply(),
            ),
            (
                "a label of others",
                json!({"metadata": {"labels": {"team": "x"}}}),
                Step::Keep,
            ),
            (
                "an annotation",
                json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": "1"}}}),
                Step::Keep,
            ),
            (
                "defaults",
                json!({"spec": {"progressDeadlineSeconds": 600}}),
                Step::Keep,
            ),
        ] {
            assert_eq!(
                Step::decide(Some(&found(&change)), wanted()),
                step,
                "{what}"
            );
        }
    }

    #[test]
    fn deployment_of_others_is_never_touched() {
        let owner = |uid: &str, controller: bool| json!({"metadata": {"ownerReferences": [{"apiVersion": "example.dev/v1", "kind": "Shop", "name": "a", "uid": uid, "controller": controller}]}});
        for stranger in [
            json!({"metadata": {"ownerReferences": []}}),
            owner("older", true),
            owner("u1", false),
        ] {
            assert_eq!(
                Step::decide(Some(&found(&stranger)), wanted()),
                Step::Taken,
                "{stranger}"
            );
        }
    }

    #[test]
    fn conditions_follow_the_rollout() {
        let counts = |observed: i64, replicas: i32, updated: i32, available: i32| json!({"status": {"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available}});
        for (what, change, ready, progressing) in [
            ("nothing yet", json!({}), "False", "True"),
            ("not seen", counts(0, 3, 3, 3), "False", "True"),
            ("one missing", counts(1, 3, 3, 2), "False", "False"),
            ("old ones left", counts(1, 4, 3, 3), "True", "True"),
            ("done", counts(1, 3, 3, 3), "True", "False"),
        ] {
            let (mut conditions, found) = (Vec::new(), found(&change));
            Rollout(Some(&found)).set_conditions(
                false,
                Some(1),
                &mut conditions,
                Timestamp::UNIX_EPOCH,
            );
            let told: Vec<_> = conditions
                .iter()
                .map(|c| (c.type_.as_str(), c.status.as_str()))
                .collect();
            assert_eq!(
                told,
                [("Ready", ready), ("Progressing", progressing)],
                "{what}"
            );
        }
    }
}
