//! Metadata inside custom resources, decoded with the error messages of Go.
//! In: JSON under `metadata`. Out: [`ObjectMeta`], the fields it does not know, or the text of a
//! decoding error.

use bellerophon_codec::object::ObjectMeta;
use serde_json::Value;

/// The type of a field of metadata.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    Integer,
    Time,
    TextsByName,
    Texts,
    /// Objects with these fields.
    Objects(&'static [&'static str]),
}

const FIELDS: &[(&str, Holds)] = &[
    ("name", Holds::Text),
    ("generateName", Holds::Text),
    ("namespace", Holds::Text),
    ("selfLink", Holds::Text),
    ("uid", Holds::Text),
    ("resourceVersion", Holds::Text),
    ("generation", Holds::Integer),
    ("creationTimestamp", Holds::Time),
    ("deletionTimestamp", Holds::Time),
    ("deletionGracePeriodSeconds", Holds::Integer),
    ("labels", Holds::TextsByName),
    ("annotations", Holds::TextsByName),
    (
        "ownerReferences",
        Holds::Objects(&[
            "apiVersion",
            "kind",
            "name",
            "uid",
            "controller",
            "blockOwnerDeletion",
        ]),
    ),
    ("finalizers", Holds::Texts),
    (
        "managedFields",
        Holds::Objects(&[
            "manager",
            "operation",
            "apiVersion",
            "time",
            "fieldsType",
            "fieldsV1",
            "subresource",
        ]),
    ),
];

/// Decodes metadata; unknown fields are dropped.
///
/// # Errors
/// Go's message for the first field of another type.
pub(super) fn decode(value: &Value) -> Result<ObjectMeta, String> {
    let map = match value {
        Value::Null => return Ok(ObjectMeta::default()),
        Value::Object(map) => map,
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
                type_name(other)
            ));
        }
    };
    let known = FIELDS
        .iter()
        .filter_map(|(name, holds)| Some((name, holds, map.get(*name).filter(|v| !v.is_null())?)));
    for (name, holds, value) in known {
        if let Some((found, wanted)) = mismatch(value, *holds) {
            return Err(format!(
                "json: cannot unmarshal {} into Go struct field ObjectMeta.{name} of type {wanted}",
                type_name(found)
            ));
        }
    }
    serde_json::from_value(value.clone()).map_err(|e| e.to_string())
}

/// The first value of another type, and the expected Go type.
fn mismatch(value: &Value, holds: Holds) -> Option<(&Value, &'static str)> {
    let not_text = |v: &&Value| !v.is_string() && !v.is_null();
    match (holds, value) {
        (Holds::Text | Holds::Time, Value::String(_)) => None,
        (Holds::Text | Holds::Time, other) => Some((other, "string")),
        (Holds::Integer, v) => (!v.is_i64()).then_some((v, "int64")),
        (Holds::TextsByName, Value::Object(map)) => {
            map.values().find(not_text).map(|v| (v, "string"))
        }
        (Holds::TextsByName, other) => Some((other, "map[string]string")),
        (Holds::Texts, Value::Array(list)) => list.iter().find(not_text).map(|v| (v, "string")),
        (Holds::Texts, other) => Some((other, "[]string")),
        (Holds::Objects(_), Value::Array(list)) => list
            .iter()
            .find(|v| !v.is_object())
            .map(|v| (v, "v1.OwnerReference")),
        (Holds::Objects(_), other) => Some((other, "[]v1.OwnerReference")),
    }
}

/// The unknown fields of metadata, as paths below it.
pub(super) fn unknown_fields(value: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        match FIELDS.iter().find(|(known, _)| known == name) {
            None => unknown.push(name.clone()),
            Some((_, Holds::Objects(fields))) => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    let strange = item
                        .as_object()
                        .into_iter()
                        .flat_map(|m| m.keys())
                        .filter(|k| !fields.contains(&k.as_str()));
                    unknown.extend(strange.map(|k| format!("{name}[{i}].{k}")));
                }
            }
            Some(_) => {}
        }
    }
    unknown
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn type_errors_are_those_of_go() {
        for (value, problem) in [
            (
                json!("x"),
                "json: cannot unmarshal string into Go value of type v1.ObjectMeta",
            ),
            (
                json!({"name": true}),
                "json: cannot unmarshal bool into Go struct field ObjectMeta.name of type string",
            ),
            (
                json!({"labels": {"a": 1}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            ),
            (
                json!({"finalizers": "x"}),
                "json: cannot unmarshal string into Go struct field ObjectMeta.finalizers of type []string",
            ),
        ] {
            assert_eq!(decode(&value).err().as_deref(), Some(problem));
        }
        assert!(decode(&Value::Null).is_ok());
    }

    #[test]
    fn unknown_fields_are_found_in_owner_references_too() {
        let value =
            json!({"name": "x", "color": 1, "ownerReferences": [{"name": "o", "shape": 1}]});
        assert_eq!(
            unknown_fields(&value),
            ["color", "ownerReferences[0].shape"]
        );
    }
}
