//! From stored objects to visible ones: the only place where values of Secrets are removed.
//!
//! In: objects as JSON. Out: [`Visible`] objects, which nothing else can create.
//! Guarantees: of a Secret, only the names of its keys are visible, and whether a value changed. No
//! value, length or hash of a value is.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The kind whose values are hidden.
const SECRET: &str = "Secret";

/// Replaces a value.
const HIDDEN: &str = "hidden";

/// Replaces a value that the write changed.
const HIDDEN_CHANGED: &str = "hidden, changed";

/// The members of a Secret whose values are hidden.
const SECRET_MEMBERS: [&str; 2] = ["data", "stringData"];

/// An object without values of Secrets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Visible(Value);

impl Visible {
    pub(crate) fn value(&self) -> &Value {
        &self.0
    }

    /// A visible object of a test.
    #[cfg(test)]
    pub(crate) fn of(value: Value) -> Self {
        Self(value)
    }
}

/// The object before and after a write. Bytes that are not JSON are an empty object.
pub(crate) fn visible_pair(
    kind: &str,
    before: Option<&[u8]>,
    after: &[u8],
) -> (Option<Visible>, Visible) {
    let parse = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or_default();
    let mut before: Option<Value> = before.map(parse);
    let mut after: Value = parse(after);
    if kind == SECRET {
        hide(before.as_mut(), &mut after);
    }
    (before.map(Visible), Visible(after))
}

/// What the summary of a write is computed of. Managed fields are left out: they are half of an
/// object and change with every write.
pub(crate) struct Summarized {
    /// The members before the write that it changed; `None` if there was no object.
    pub(crate) before: Option<Visible>,
    /// The object after the write.
    pub(crate) after: Visible,
    /// The members that the write did not change.
    unchanged: Vec<String>,
}

impl Summarized {
    /// The members after the write that it changed.
    pub(crate) fn into_changed(self) -> (Option<Visible>, Visible) {
        let Visible(mut after) = self.after;
        if let Value::Object(members) = &mut after {
            members.retain(|name, _| !self.unchanged.contains(name));
        }
        (self.before, Visible(after))
    }
}

/// Reads what a summary needs. Most writes change the status or the spec, so the other members are
/// compared as bytes and not parsed twice.
pub(crate) fn summarized(kind: &str, before: Option<&[u8]>, after: &[u8]) -> Summarized {
    if kind == SECRET {
        let (before, after) = visible_pair(kind, before, after);
        let unchanged = Vec::new();
        return Summarized {
            before,
            after,
            unchanged,
        };
    }
    let texts = |bytes| serde_json::from_slice::<Texts<'_>>(bytes).unwrap_or_default();
    let old = before.map(texts);
    let new = texts(after);
    let is_same = |(name, text): &(&String, &&RawValue)| {
        let before = old.as_ref().and_then(|old| old.get(*name));
        before.is_some_and(|before| before.get() == text.get())
    };
    let unchanged: Vec<String> = new
        .iter()
        .filter(is_same)
        .map(|(name, _)| name.clone())
        .collect();
    let before = old.map(|mut old| {
        old.retain(|name, _| !unchanged.contains(name));
        Visible(parsed(&old))
    });
    let after = Visible(parsed(&new));
    Summarized {
        before,
        after,
        unchanged,
    }
}

/// The members of an object as texts.
type Texts<'a> = BTreeMap<String, &'a RawValue>;

/// An object of its members, without managed fields.
fn parsed(texts: &Texts<'_>) -> Value {
    let member = |(name, text): (&String, &&RawValue)| {
        let value = match name.as_str() {
            "metadata" => serde_json::from_str(text.get())
                .map_or(Value::Null, |Metadata(members)| Value::Object(members)),
            _ => serde_json::from_str(text.get()).unwrap_or_default(),
        };
        (name.clone(), value)
    };
    Value::Object(texts.iter().map(member).collect())
}

/// Metadata without managed fields.
struct Metadata(Map<String, Value>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor).map(Self)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "managedFields" {
                map.next_value::<IgnoredAny>()?;
            } else {
                members.insert(name, map.next_value()?);
            }
        }
        Ok(members)
    }
}

fn hide(mut before: Option<&mut Value>, after: &mut Value) {
    for member in SECRET_MEMBERS {
        let old = before.as_mut().and_then(|before| before.get_mut(member));
        hide_values(old, after.get_mut(member));
    }
    // `kubectl apply` keeps the applied object, values included, in an annotation.
    let annotations =
        |object: &mut Value| object.pointer_mut("/metadata/annotations").map(Value::take);
    let mut old = before.as_mut().and_then(|before| annotations(before));
    let mut new = annotations(after);
    hide_values(old.as_mut(), new.as_mut());
    let restore = |object: &mut Value, annotations: Option<Value>| {
        if let Some(annotations) = annotations {
            object["metadata"]["annotations"] = annotations;
        }
    };
    if let Some(before) = before {
        restore(before, old);
    }
    restore(after, new);
}

/// Replaces each value of both maps. A value that differs has another replacement in the second.
fn hide_values(before: Option<&mut Value>, after: Option<&mut Value>) {
    let mut no_before = Value::Null;
    let before = before.unwrap_or(&mut no_before);
    if let Some(after) = after {
        hide_after(before.as_object(), after);
    }
    match before {
        Value::Object(members) => members.values_mut().for_each(hide_value),
        Value::Null => {}
        other => hide_value(other),
    }
}

fn hide_after(before: Option<&Map<String, Value>>, after: &mut Value) {
    let Value::Object(members) = after else {
        if !after.is_null() {
            hide_value(after);
        }
        return;
    };
    for (name, value) in members {
        let old = before.and_then(|before| before.get(name));
        let is_changed = old.is_some_and(|old| old != value);
        *value = Value::from(if is_changed { HIDDEN_CHANGED } else { HIDDEN });
    }
}

fn hide_value(value: &mut Value) {
    *value = Value::from(HIDDEN);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A value that must not be anywhere.
    const CANARY: &str = "Y2FuYXJ5LTQ3MTE=";

    fn secret(data: Value) -> Vec<u8> {
        let annotation = json!({ "data": data }).to_string();
        let annotations = json!({ "kubectl.kubernetes.io/last-applied-configuration": annotation });
        let metadata = json!({ "name": "login", "annotations": annotations });
        json!({ "kind": "Secret", "metadata": metadata, "data": data, "stringData": data })
            .to_string()
            .into_bytes()
    }

    #[test]
    fn values_of_a_secret_are_hidden_in_both_states() {
        let cases = [
            (None, json!({ "a": CANARY })),
            (Some(json!({ "a": CANARY })), json!({ "a": "b3RoZXI=" })),
            (Some(json!({ "a": "b3RoZXI=" })), json!({ "a": CANARY })),
            (Some(json!({ "a": CANARY })), json!({})),
            (Some(json!({ "a": CANARY })), json!(CANARY)),
            (Some(json!(CANARY)), json!({ "a": [CANARY] })),
        ];
        for (before, after) in cases {
            let before = before.map(secret);
            let after = secret(after);
            let pair = visible_pair("Secret", before.as_deref(), &after);
            let summary = summarized("Secret", before.as_deref(), &after);
            let text = format!("{pair:?} {:?} {:?}", summary.before, summary.after);
            assert!(!text.contains(CANARY), "{text}");
        }
    }

    #[test]
    fn changed_key_differs_and_others_do_not() {
        let before = secret(json!({ "a": "MQ==", "b": "MQ==" }));
        let after = secret(json!({ "a": "Mg==", "b": "MQ==", "c": "MQ==" }));
        let (old, new) = visible_pair("Secret", Some(&before), &after);
        assert_eq!(
            old.unwrap().value()["data"],
            json!({ "a": HIDDEN, "b": HIDDEN })
        );
        assert_eq!(
            new.value()["data"],
            json!({ "a": HIDDEN_CHANGED, "b": HIDDEN, "c": HIDDEN })
        );
    }

    #[test]
    fn objects_of_other_kinds_are_unchanged() {
        let map = secret(json!({ "a": "MQ==" }));
        let (_, new) = visible_pair("ConfigMap", None, &map);
        assert_eq!(new.value()["data"], json!({ "a": "MQ==" }));
    }

    #[test]
    fn summary_has_what_changed_without_managed_fields() {
        let object = |version: &str, replicas: u32| {
            let managed = json!([{ "manager": version }]);
            let metadata =
                json!({ "name": "a", "resourceVersion": version, "managedFields": managed });
            json!({ "kind": "Pod", "metadata": metadata, "spec": { "replicas": replicas },
                "status": { "managedFields": 1 } })
        };
        let bytes = |object: &Value| object.to_string().into_bytes();
        let before = object("1", 2);
        let after = object("2", 3);
        let summary = summarized("Pod", Some(&bytes(&before)), &bytes(&after));
        let mut expected = after;
        expected["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(*summary.after.value(), expected);
        let (old, new) = summary.into_changed();
        let changed = |version: &str, replicas: u32| {
            json!({ "metadata": { "name": "a", "resourceVersion": version },
                "spec": { "replicas": replicas } })
        };
        assert_eq!(*old.unwrap().value(), changed("1", 2));
        assert_eq!(*new.value(), changed("2", 3));
        for text in ["", "[]", "7"] {
            let summary = summarized("Pod", None, text.as_bytes());
            assert_eq!(*summary.after.value(), json!({}), "{text}");
        }
    }
}
