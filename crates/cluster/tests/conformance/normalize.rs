//! Normalization: replaces generated names, hashes, uids, times and addresses, which differ between
//! runs.
//!
//! Input: all objects of a cluster. Output: the objects of some namespaces by kind, sorted.
//! Notation: `<web:2>` is the hash of the template with that image, `web-?` a generated name,
//! `Job/batch` the uid of that Job.

use std::collections::BTreeMap;

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Map, Value, json};

/// Kinds whose spec no controller changes, so that their generation is comparable.
const KINDS_WITH_GENERATION: [&str; 5] =
    ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];

/// Characters of generated names and hashes.
const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Annotation that upstream sets only if it observes the change in time.
const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The normalized objects of some namespaces.
pub(crate) fn normalize(objects: &[DynamicObject], namespaces: &[&str]) -> Value {
    let normalizer = Normalizer::of(objects);
    let mut kinds: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for object in objects
        .iter()
        .filter(|object| belongs_to_scenario(object, namespaces))
    {
        let kind = object.types.as_ref().map_or("", |types| &types.kind);
        kinds
            .entry(kind)
            .or_default()
            .push(normalizer.object(kind, object));
    }
    for objects in kinds.values_mut() {
        objects.sort_by_cached_key(Value::to_string);
    }
    json!(kinds)
}

/// Whether an object belongs to a scenario. Default objects of namespaces do not.
fn belongs_to_scenario(object: &DynamicObject, namespaces: &[&str]) -> bool {
    let kind = object.types.as_ref().map_or("", |types| &types.kind);
    let name = object.name_any();
    match kind {
        "Node" => false,
        "Namespace" => namespaces[0] == name,
        "PersistentVolume" => name.starts_with(namespaces[0]),
        "ServiceAccount" if name == "default" => false,
        "ConfigMap" if name == "kube-root-ca.crt" => false,
        _ => object
            .namespace()
            .is_some_and(|namespace| namespaces.contains(&&*namespace)),
    }
}

/// Replacements of uids and hashes.
#[derive(Default)]
struct Normalizer {
    /// `kind/name` by uid.
    uids: BTreeMap<String, String>,
    /// Image by the hash of its template.
    hashes: BTreeMap<String, String>,
}

impl Normalizer {
    fn of(objects: &[DynamicObject]) -> Self {
        let mut normalizer = Self::default();
        for object in objects {
            let kind = object.types.as_ref().map_or("", |types| &types.kind);
            if let Some(uid) = object.uid() {
                normalizer
                    .uids
                    .insert(uid, format!("{kind}/{}", object.name_any()));
            }
            let (label, template) = match kind {
                "ReplicaSet" => ("pod-template-hash", "/spec/template"),
                "ControllerRevision" => ("controller.kubernetes.io/hash", "/data/spec/template"),
                _ => continue,
            };
            let hash = object
                .labels()
                .get(label)
                .or_else(|| object.labels().get("controller-revision-hash"));
            let hash = hash.map(|hash| hash.rsplit('-').next().unwrap_or_default());
            let image = object
                .data
                .pointer(&format!("{template}/spec/containers/0/image"))
                .and_then(Value::as_str);
            if let (Some(hash), Some(image)) = (hash, image) {
                normalizer
                    .hashes
                    .insert(hash.to_owned(), format!("<{image}>"));
            }
        }
        normalizer
    }

    fn object(&self, kind: &str, object: &DynamicObject) -> Value {
        let mut value = serde_json::to_value(object).expect("an object is JSON");
        let generation = value["metadata"]["generation"].clone();
        if let Some(observed) = value.pointer_mut("/status/observedGeneration") {
            *observed = if *observed == generation {
                json!("current")
            } else {
                json!("stale")
            };
        }
        let metadata = value["metadata"]
            .as_object_mut()
            .expect("metadata is an object");
        for field in ["uid", "managedFields", "creationTimestamp"] {
            metadata.remove(field);
        }
        if !KINDS_WITH_GENERATION.contains(&kind) {
            metadata.remove("generation");
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(LAST_CHANGE_TRIGGER_TIME);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        if kind == "Pod" {
            value["status"] = pod_status(&value["status"]);
        }
        let mut value = self.value(value);
        for list in [
            "/endpoints",
            "/subsets/0/addresses",
            "/subsets/0/notReadyAddresses",
        ] {
            if let Some(list) = value.pointer_mut(list).and_then(Value::as_array_mut) {
                list.sort_by_cached_key(Value::to_string);
            }
        }
        value
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                let fields = fields
                    .into_iter()
                    .filter(|(key, _)| key != "resourceVersion");
                fields
                    .map(|(key, value)| (key, self.value(value)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            other => other,
        }
    }

    fn text(&self, text: &str) -> String {
        if text.parse::<jiff::Timestamp>().is_ok() {
            return "TIME".to_owned();
        }
        if text.parse::<std::net::IpAddr>().is_ok() {
            return "ADDRESS".to_owned();
        }
        if ["node-1", "node-2", "node-3"].contains(&text) {
            return "node".to_owned();
        }
        if ["zone-a", "zone-b", "zone-c"].contains(&text) {
            return "zone".to_owned();
        }
        if is_uid(text) {
            return self.uids.get(text).map_or_else(
                // The recordings contain this text.
                || concat!("some", "body who is gone").to_owned(),
                |object| self.text(object),
            );
        }
        let mut text = text.to_owned();
        for (from, to) in &self.hashes {
            if text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        replace_generated_names(&text)
    }
}

/// The part of a pod's status that controllers write or depend on.
fn pod_status(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> = conditions
        .map(|c| json!({ "type": c["type"], "status": c["status"], "reason": c["reason"] }))
        .collect();
    json!({
        "phase": status["phase"],
        "reason": status["reason"],
        "message": status["message"],
        "conditions": conditions,
    })
}

fn is_uid(text: &str) -> bool {
    text.len() == 36
        && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// Replaces generated suffixes of names by `?`.
fn replace_generated_names(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, segment) in text.split('-').enumerate() {
        let end = segment
            .find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit())
            .unwrap_or(segment.len());
        let (word, rest) = segment.split_at(end);
        let is_random =
            matches!(word.len(), 5 | 8..=10) && word.chars().all(|c| ALPHABET.contains(c));
        let is_minute = word.len() >= 8 && word.chars().all(|c| c.is_ascii_digit());
        if index > 0 {
            out.push('-');
        }
        out.push_str(if index > 0 && (is_random || is_minute) {
            "?"
        } else {
            word
        });
        out.push_str(rest);
    }
    out
}

#[test]
fn generated_names_are_replaced() {
    for (from, to) in [
        ("web-6d4cf56db6-x2k8q", "web-?-?"),
        ("web-<web:1>-x2k8q", "web-<web:1>-?"),
        ("tick-29384751", "tick-?"),
        ("Created pod: batch-0-kz4vq", "Created pod: batch-0-?"),
        ("team-alpha", "team-alpha"),
        ("kube-api-access-24bcd", "kube-api-access-?"),
    ] {
        assert_eq!(replace_generated_names(from), to);
    }
}
