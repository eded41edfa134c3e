//! Digest: what tree and lists show of an object.
//!
//! In: a visible object. Out: owners, state in a word, node, generation, finalizers, operator fields.
//! Guarantees: bounded; a digest has no free text beyond [`TEXT_MAX_CHARS`] per member.

use serde::Serialize;
use serde_json::Value;

use crate::secret::Visible;

/// The length of a text.
const TEXT_MAX_CHARS: usize = 120;

/// The number of elements of each list.
const ELEMENTS_MAX: usize = 64;

/// How an object does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Health {
    Ok,
    Progressing,
    Failed,
    /// The kind has no status.
    None,
}

/// What is shown of an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Digest {
    uid: String,
    /// The uids of its owners, the controller first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    owners: Vec<String>,
    /// The state in a word or two: `2 of 4`, `Pending`, `Terminating`.
    #[serde(skip_serializing_if = "String::is_empty")]
    status: String,
    health: Health,
    #[serde(skip_serializing_if = "String::is_empty")]
    created: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    deleted: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    finalizers: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    generation: i64,
    #[serde(skip_serializing_if = "is_zero")]
    observed: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    node: String,
    /// Conditions: type, status, reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<[String; 3]>,
    /// Members that the panels of operators show.
    #[serde(skip_serializing_if = "Value::is_null")]
    details: Value,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Digest {
    pub(crate) fn of(kind: &str, object: &Visible) -> Self {
        let object = object.value();
        let metadata = &object["metadata"];
        let deleted = text(&metadata["deletionTimestamp"]);
        let finalizers: Vec<String> = list(&metadata["finalizers"]).map(text).collect();
        let (status, health) = if deleted.is_empty() {
            state(kind, object)
        } else {
            let health = match finalizers.is_empty() {
                true => Health::Progressing,
                false => Health::Failed,
            };
            ("Terminating".to_owned(), health)
        };
        Self {
            uid: text(&metadata["uid"]),
            owners: owners(metadata),
            status,
            health,
            created: text(&metadata["creationTimestamp"]),
            deleted,
            finalizers,
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            observed: object["status"]["observedGeneration"]
                .as_i64()
                .unwrap_or_default(),
            node: text(&object["spec"]["nodeName"]),
            conditions: list(&object["status"]["conditions"])
                .map(|condition| ["type", "status", "reason"].map(|name| text(&condition[name])))
                .collect(),
            details: details(kind, object),
        }
    }
}

/// A bounded text.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.chars().take(TEXT_MAX_CHARS).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(ELEMENTS_MAX)
}

fn owners(metadata: &Value) -> Vec<String> {
    let mut references: Vec<&Value> = list(&metadata["ownerReferences"]).collect();
    references.sort_by_key(|reference| reference["controller"] != true);
    references
        .into_iter()
        .map(|reference| text(&reference["uid"]))
        .collect()
}

/// The status of a condition.
fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    let mut conditions = list(&object["status"]["conditions"]);
    let found = conditions.find(|condition| condition["type"] == name)?;
    found["status"].as_str()
}

fn state(kind: &str, object: &Value) -> (String, Health) {
    let status = &object["status"];
    match kind {
        "Pod" => pod_state(object),
        "Node" => match condition(object, "Ready") {
            Some("True") => ("Ready".to_owned(), Health::Ok),
            _ => ("Not ready".to_owned(), Health::Failed),
        },
        "Job.batch" => match (condition(object, "Complete"), condition(object, "Failed")) {
            (Some("True"), _) => ("Complete".to_owned(), Health::Ok),
            (_, Some("True")) => ("Failed".to_owned(), Health::Failed),
            _ => ("Running".to_owned(), Health::Progressing),
        },
        "DaemonSet.apps" => replicas(
            status["desiredNumberScheduled"].as_i64(),
            status["numberReady"].as_i64(),
        ),
        "EndpointSlice.discovery.k8s.io" => {
            let endpoints = object["endpoints"].as_array().map_or(0, Vec::len);
            (format!("{endpoints} endpoints"), Health::Ok)
        }
        _ => generic_state(object),
    }
}

fn pod_state(object: &Value) -> (String, Health) {
    let phase = object["status"]["phase"].as_str().unwrap_or("Pending");
    match (phase, condition(object, "Ready")) {
        ("Running", Some("True")) => ("Ready".to_owned(), Health::Ok),
        ("Running", _) => ("Not ready".to_owned(), Health::Progressing),
        ("Succeeded", _) => ("Succeeded".to_owned(), Health::Ok),
        ("Failed", _) => ("Failed".to_owned(), Health::Failed),
        (phase, _) => (phase.to_owned(), Health::Progressing),
    }
}

fn replicas(desired: Option<i64>, ready: Option<i64>) -> (String, Health) {
    let desired = desired.unwrap_or_default();
    let ready = ready.unwrap_or_default();
    let health = match ready == desired {
        true => Health::Ok,
        false => Health::Progressing,
    };
    (format!("{ready} of {desired}"), health)
}

fn generic_state(object: &Value) -> (String, Health) {
    let status = &object["status"];
    let spec = &object["spec"];
    let ready = ["readyReplicas", "availableReplicas", "readyMembers"];
    let counted = ready.iter().find_map(|name| status[*name].as_i64());
    let desired = ["replicas", "members"]
        .iter()
        .find_map(|name| spec[*name].as_i64());
    if counted.is_some() && desired.is_some() {
        return replicas(desired, counted);
    }
    for name in ["Ready", "Available", "Synced"] {
        match condition(object, name) {
            Some("True") => return (name.to_owned(), Health::Ok),
            Some(_) => return (format!("Not {}", name.to_lowercase()), Health::Progressing),
            None => {}
        }
    }
    match text(&status["phase"]) {
        phase if phase.is_empty() => (String::new(), Health::None),
        phase => {
            let health = match phase.as_str() {
                "Active" | "Bound" | "Available" | "Ready" | "Running" | "Succeeded" => Health::Ok,
                "Failed" | "Lost" => Health::Failed,
                _ => Health::Progressing,
            };
            (phase, health)
        }
    }
}

/// The members that the panels of operators show, by the group of the kind.
fn details(kind: &str, object: &Value) -> Value {
    let status = &object["status"];
    let is_custom = kind
        .split_once('.')
        .is_some_and(|(_, group)| group.contains('.') && !group.ends_with("k8s.io"));
    match kind {
        "Node" => {
            let annotations = object["metadata"]["annotations"].as_object();
            let reboot = annotations
                .into_iter()
                .flatten()
                .filter(|(name, _)| name.contains("reboot"));
            let reboot = reboot.take(ELEMENTS_MAX);
            let reboot = reboot.map(|(name, value)| (name.clone(), Value::from(text(value))));
            Value::Object(reboot.collect())
        }
        "Lease.coordination.k8s.io" => {
            let spec = &object["spec"];
            serde_json::json!({
                "holder": text(&spec["holderIdentity"]),
                "renewed": text(&spec["renewTime"]),
                "transitions": spec["leaseTransitions"],
            })
        }
        _ if is_custom && status.is_object() => bounded(status, 3),
        _ => Value::Null,
    }
}

/// A value with bounded texts, lists and depth.
fn bounded(value: &Value, depth: usize) -> Value {
    match value {
        Value::String(_) => Value::from(text(value)),
        Value::Array(_) | Value::Object(_) if depth == 0 => Value::Null,
        Value::Array(_) => list(value)
            .map(|element| bounded(element, depth - 1))
            .collect(),
        Value::Object(members) => {
            let members = members.iter().take(ELEMENTS_MAX);
            let members = members.map(|(name, value)| (name.clone(), bounded(value, depth - 1)));
            Value::Object(members.collect())
        }
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn state_depends_on_the_kind() {
        let ready = |status: &str| json!([{ "type": "Ready", "status": status }]);
        for (kind, object, status, health) in [
            (
                "Deployment.apps",
                json!({ "spec": { "replicas": 4 }, "status": { "readyReplicas": 2 } }),
                "2 of 4",
                Health::Progressing,
            ),
            (
                "Hero.example.com",
                json!({ "spec": { "replicas": 2 }, "status": { "conditions": ready("True") } }),
                "Ready",
                Health::Ok,
            ),
            ("Pod", json!({}), "Pending", Health::Progressing),
            (
                "Pod",
                json!({ "status": { "phase": "Running", "conditions": ready("True") } }),
                "Ready",
                Health::Ok,
            ),
            (
                "Pod",
                json!({ "metadata": { "deletionTimestamp": "t" } }),
                "Terminating",
                Health::Progressing,
            ),
            (
                "Secret",
                json!({ "metadata": { "deletionTimestamp": "t", "finalizers": ["a"] } }),
                "Terminating",
                Health::Failed,
            ),
            ("ConfigMap", json!({}), "", Health::None),
            (
                "Namespace",
                json!({ "status": { "phase": "Active" } }),
                "Active",
                Health::Ok,
            ),
            (
                "Hero.example.com",
                json!({ "status": { "conditions": ready("False") } }),
                "Not ready",
                Health::Progressing,
            ),
        ] {
            let digest = Digest::of(kind, &Visible::of(object.clone()));
            assert_eq!(digest.status, status, "{kind} {object}");
            assert_eq!(digest.health, health, "{kind} {object}");
        }
    }

    #[test]
    fn controller_is_the_first_owner() {
        let object = json!({ "metadata": { "ownerReferences": [
            { "uid": "1" }, { "uid": "2", "controller": true },
        ] } });
        assert_eq!(Digest::of("Pod", &Visible::of(object)).owners, ["2", "1"]);
    }
}
