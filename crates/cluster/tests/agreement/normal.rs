//! What is the same in every run: objects without the names, times and addresses that chance or the clock gave them.
//!
//! In: everything on a cluster. Out: the objects of some namespaces by kind, in an order of their own.
//! Holds: owners, hashes of templates and made-up names stay recognisable: `<web:2>` is the hash of the template with that
//! image, `web-?` a name the server made up, `Job/batch` the uid of that job.

use std::collections::BTreeMap;

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Map, Value, json};

/// Kinds whose spec only people change, so that its generation says something.
const WRITTEN_BY_PEOPLE: [&str; 5] = ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];

/// What made-up names and hashes are written with.
const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// When something changed last, as noted by those who were fast enough to see it.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The state of some namespaces.
pub(crate) fn normal(seen: &[DynamicObject], namespaces: &[&str]) -> Value {
    let known = Known::of(seen);
    let mut kinds: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for object in seen.iter().filter(|object| is_theirs(object, namespaces)) {
        let kind = object.types.as_ref().map_or("", |types| &types.kind);
        kinds
            .entry(kind)
            .or_default()
            .push(known.object(kind, object));
    }
    for objects in kinds.values_mut() {
        objects.sort_by_cached_key(Value::to_string);
    }
    json!(kinds)
}

/// Whether an object is part of a scenario; what every namespace has is not.
fn is_theirs(object: &DynamicObject, namespaces: &[&str]) -> bool {
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

/// What stands for what.
#[derive(Default)]
struct Known {
    /// Kind and name by uid.
    uids: BTreeMap<String, String>,
    /// The image by the hash of its template.
    hashes: BTreeMap<String, String>,
}

impl Known {
    fn of(seen: &[DynamicObject]) -> Self {
        let mut known = Self::default();
        for object in seen {
            let kind = object.types.as_ref().map_or("", |types| &types.kind);
            if let Some(uid) = object.uid() {
                known
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
                known.hashes.insert(hash.to_owned(), format!("<{image}>"));
            }
        }
        known
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
        if !WRITTEN_BY_PEOPLE.contains(&kind) {
            metadata.remove("generation");
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(LAST_CHANGE);
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
                || "somebody who is gone".to_owned(),
                |known| self.text(known),
            );
        }
        let mut text = text.to_owned();
        for (from, to) in &self.hashes {
            if text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        made_up(&text)
    }
}

/// The part of a pod's status that others than its kubelet decide on, or wait for.
fn pod_status(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> = conditions
        .map(|c| json!({ "type": c["type"], "status": c["status"], "reason": c["reason"] }))
        .collect();
    json!({ "phase": status["phase"], "reason": status["reason"], "message": status["message"], "conditions": conditions })
}

fn is_uid(text: &str) -> bool {
    text.len() == 36
        && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// Replaces the parts of names that chance or the clock made.
fn made_up(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, part) in text.split('-').enumerate() {
        let end = part
            .find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit())
            .unwrap_or(part.len());
        let (word, rest) = part.split_at(end);
        let random = matches!(word.len(), 5 | 8..=10) && word.chars().all(|c| ALPHABET.contains(c));
        let minute = word.len() >= 8 && word.chars().all(|c| c.is_ascii_digit());
        if at > 0 {
            out.push('-');
        }
        out.push_str(if at > 0 && (random || minute) {
            "?"
        } else {
            word
        });
        out.push_str(rest);
    }
    out
}

#[test]
fn names_made_by_chance_become_alike() {
    for (from, to) in [
        ("web-6d4cf56db6-x2k8q", "web-?-?"),
        ("web-<web:1>-x2k8q", "web-<web:1>-?"),
        ("tick-29384751", "tick-?"),
        ("Created pod: batch-0-kz4vq", "Created pod: batch-0-?"),
        ("team-alpha", "team-alpha"),
        ("kube-api-access-24bcd", "kube-api-access-?"),
    ] {
        assert_eq!(made_up(from), to);
    }
}
