//! Ownership of a Deployment: the plan for it, and the conditions that report it.
//!
//! Inputs: the current and the desired Deployment. Outputs: what to write, and conditions.
//!
//! Guarantees: a Deployment that another object controls is never written, also if the cache does
//! not have it yet; a Deployment that already has every desired field is not written.

use bellerophon::{
    conditions::{ConditionStatus, ConditionUpdate, set_status_condition},
    owner::controller_of,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::Resource;
use serde_json::Value;

use crate::json::to_json;

/// What to do about a Deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum DeploymentAction {
    /// The current Deployment has every desired field.
    UpToDate,
    /// The Deployment does not exist or has drifted: write this one with
    /// [`create_or_apply`](bellerophon::client::ReconcileClient::create_or_apply), so that only the
    /// Deployment that the plan was made from is written.
    Apply(Box<Deployment>),
    /// A Deployment of this name exists and another object, or none, controls it.
    NotOwned,
}

impl DeploymentAction {
    /// Decides from the current Deployment of the desired name. `desired` has only the fields that
    /// its owner sets; fields of other managers are ignored.
    pub fn plan(current: Option<&Deployment>, desired: Deployment) -> Self {
        let owner_uid = controller_of(&desired).map(|owner| &owner.uid);
        match current {
            // Compared by UID: the Deployment of a deleted owner is not that of its successor of
            // the same name, and the garbage collector is about to delete it.
            Some(current) if controller_of(current).map(|owner| &owner.uid) != owner_uid => {
                Self::NotOwned
            }
            Some(current) if is_superset(&to_json(current), &to_json(&desired)) => Self::UpToDate,
            _ => Self::Apply(Box::new(desired)),
        }
    }
}

/// Whether `current` has every field of `desired` with the same value. Lists are compared item by
/// item.
fn is_superset(current: &Value, desired: &Value) -> bool {
    match (current, desired) {
        (Value::Object(current), Value::Object(desired)) => {
            desired.iter().all(|(name, desired)| {
                current
                    .get(name)
                    .is_some_and(|current| is_superset(current, desired))
            })
        }
        // Unlike a field, an item that another manager added is a difference: without the schema it
        // is not known which items belong together.
        (Value::Array(current), Value::Array(desired)) => {
            current.len() == desired.len()
                && current
                    .iter()
                    .zip(desired)
                    .all(|(current, desired)| is_superset(current, desired))
        }
        _ => current == desired,
    }
}

/// The progress of an owned Deployment's rollout.
#[derive(Clone, Copy, Debug)]
pub struct Rollout<'a> {
    /// The owned Deployment; `None` if it does not exist yet or is not owned.
    deployment: Option<&'a Deployment>,
    is_owned: bool,
}

impl<'a> Rollout<'a> {
    /// The rollout of the current Deployment of the desired name, after a plan for it.
    pub fn new(current: Option<&'a Deployment>, action: &DeploymentAction) -> Self {
        let is_owned = *action != DeploymentAction::NotOwned;
        Self {
            deployment: current.filter(|_| is_owned),
            is_owned,
        }
    }

    /// The number of available pods.
    pub fn available_replicas(self) -> i32 {
        self.count(|status| status.available_replicas)
    }

    /// Sets `Ready` (all desired pods are available) and `Progressing` (pods are being replaced).
    /// Their observed generation is that of the owner.
    pub fn set_conditions<K: Resource>(
        self,
        conditions: &mut Vec<Condition>,
        owner: &K,
        now: Timestamp,
    ) {
        for update in [self.ready(), self.progressing()] {
            set_status_condition(conditions, update.observed(owner), now);
        }
    }

    fn ready(self) -> ConditionUpdate {
        let not_ready = |reason| ConditionUpdate::new("Ready", ConditionStatus::False, reason);
        if !self.is_owned {
            return not_ready("ErrResourceExists")
                .message("a Deployment of this name exists and is not managed by this object");
        }
        if self.deployment.is_none() {
            return not_ready("NoDeployment").message("the Deployment is being created");
        }
        let available = self.available_replicas();
        let desired = self.desired_replicas();
        // Counts that were reported for an earlier spec do not count as readiness of this one.
        let update = if self.is_observed() && available >= desired {
            ConditionUpdate::new("Ready", ConditionStatus::True, "AllAvailable")
        } else {
            not_ready("PodsMissing")
        };
        update.message(format!("{available} of {desired} pods are available"))
    }

    /// Mirrors DeploymentComplete of the deployment controller, without the availability.
    fn progressing(self) -> ConditionUpdate {
        let updated = self.count(|status| status.updated_replicas);
        // Pods of former templates are in `replicas` and not in `updated`, so equality means that
        // none is left.
        let is_complete = self.is_observed()
            && updated >= self.desired_replicas()
            && self.count(|status| status.replicas) == updated;
        if is_complete {
            ConditionUpdate::new("Progressing", ConditionStatus::False, "RolledOut")
                .message("all pods have the current pod template")
        } else {
            ConditionUpdate::new("Progressing", ConditionStatus::True, "RollingOut")
                .message("pods are being replaced")
        }
    }

    /// The API server's default for `spec.replicas` is 1.
    fn desired_replicas(self) -> i32 {
        self.deployment
            .and_then(|deployment| deployment.spec.as_ref()?.replicas)
            .unwrap_or(1)
    }

    fn count(self, field: fn(&DeploymentStatus) -> Option<i32>) -> i32 {
        self.deployment
            .and_then(|deployment| field(deployment.status.as_ref()?))
            .unwrap_or_default()
    }

    /// Whether the deployment controller has observed the current spec.
    fn is_observed(self) -> bool {
        self.deployment.is_some_and(|deployment| {
            let status = deployment.status.as_ref();
            status.and_then(|status| status.observed_generation) >= deployment.metadata.generation
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn desired() -> Deployment {
        let labels = json!({"app": "a"});
        serde_json::from_value(json!({
            "metadata": {
                "name": "d", "labels": labels,
                "ownerReferences": [owner_reference("u1", true)],
            },
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "i:1"}]},
                },
            },
        }))
        .expect("a Deployment")
    }

    fn owner_reference(uid: &str, controller: bool) -> Value {
        json!({
            "apiVersion": "example.dev/v1", "kind": "Shop", "name": "a",
            "uid": uid, "controller": controller,
        })
    }

    /// The desired Deployment as the server stores it, with changes.
    fn current(change: &Value) -> Deployment {
        let mut value = json!(desired());
        value["metadata"]["generation"] = json!(1);
        value["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        merge(&mut value, change);
        serde_json::from_value(value).expect("a Deployment")
    }

    fn merge(value: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, change)| merge(&mut value[name], change)),
            _ => *value = change.clone(),
        }
    }

    fn containers(containers: Value) -> Value {
        json!({"spec": {"template": {"spec": {"containers": containers}}}})
    }

    #[test]
    fn missing_deployment_is_applied() {
        let action = DeploymentAction::plan(None, desired());
        assert_eq!(action, DeploymentAction::Apply(Box::new(desired())));
    }

    #[test]
    fn drift_of_desired_fields_is_repaired() {
        for (what, change) in [
            ("replicas", json!({"spec": {"replicas": 5}})),
            (
                "image",
                containers(json!([{"name": "c", "image": "i:old"}])),
            ),
            (
                "second container",
                containers(json!([{"name": "c", "image": "i:1"}, {"name": "d"}])),
            ),
            (
                "a desired label",
                json!({"metadata": {"labels": {"app": "other"}}}),
            ),
            (
                "pod labels",
                json!({"spec": {"template": {"metadata": {"labels": {"app": "other"}}}}}),
            ),
        ] {
            let action = DeploymentAction::plan(Some(&current(&change)), desired());
            assert_eq!(
                action,
                DeploymentAction::Apply(Box::new(desired())),
                "{what}"
            );
        }
    }

    #[test]
    fn fields_of_other_managers_are_ignored() {
        let revision = json!({"deployment.kubernetes.io/revision": "1"});
        for (what, change) in [
            ("no change", json!({})),
            (
                "another label",
                json!({"metadata": {"labels": {"team": "x"}}}),
            ),
            (
                "an annotation",
                json!({"metadata": {"annotations": revision}}),
            ),
            (
                "a default",
                json!({"spec": {"progressDeadlineSeconds": 600}}),
            ),
        ] {
            let action = DeploymentAction::plan(Some(&current(&change)), desired());
            assert_eq!(action, DeploymentAction::UpToDate, "{what}");
        }
    }

    #[test]
    fn deployment_of_another_owner_is_not_written() {
        for owners in [
            json!([]),
            json!([owner_reference("older", true)]),
            json!([owner_reference("u1", false)]),
        ] {
            let change = json!({"metadata": {"ownerReferences": owners}});
            let action = DeploymentAction::plan(Some(&current(&change)), desired());
            assert_eq!(action, DeploymentAction::NotOwned, "{owners}");
        }
    }

    #[test]
    fn conditions_follow_the_rollout() {
        let counts = |observed: i64, replicas: i32, updated: i32, available: i32| {
            json!({"status": {
                "observedGeneration": observed, "replicas": replicas,
                "updatedReplicas": updated, "availableReplicas": available,
            }})
        };
        for (what, change, ready, progressing) in [
            ("no status", json!({}), "False", "True"),
            ("not observed", counts(0, 3, 3, 3), "False", "True"),
            ("one unavailable", counts(1, 3, 3, 2), "False", "False"),
            ("old pods left", counts(1, 4, 3, 3), "True", "True"),
            ("complete", counts(1, 3, 3, 3), "True", "False"),
        ] {
            let mut conditions = Vec::new();
            let current = current(&change);
            let rollout = Rollout::new(Some(&current), &DeploymentAction::UpToDate);
            rollout.set_conditions(&mut conditions, &current, Timestamp::UNIX_EPOCH);
            let statuses: Vec<_> = conditions
                .iter()
                .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
                .collect();
            assert_eq!(
                statuses,
                [("Ready", ready), ("Progressing", progressing)],
                "{what}"
            );
        }
    }
}
