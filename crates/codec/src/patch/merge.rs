//! JSON merge patch (RFC 7386).
//! Guarantees: a value that replaces something other than a map loses the nulls inside its maps,
//! also of maps in lists, as in kube-apiserver.

use serde_json::Value;

use crate::types::Opened;

/// Applies a patch to an object: maps are merged, `null` removes, any other value replaces.
pub fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(map), Value::Object(patch)) => {
            for (key, change) in patch {
                if change.is_null() {
                    map.remove(&key);
                } else {
                    merge(map.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (target @ Value::Object(_), patch) => *target = patch,
        (target, patch) => *target = without_nulls(patch),
    }
}

/// The value without the fields that are null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, without_nulls(v)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// The maps that a patch looks into: those it holds itself.
pub fn opened_by(patch: &Value) -> Opened {
    fn open(place: &mut Opened, patch: &Value) {
        for (key, change) in patch
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, change)| change.is_object())
        {
            open(place.open(key), change);
        }
    }
    let mut opened = Opened::default();
    open(&mut opened, patch);
    opened
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_merge_lists_replace_and_null_removes() {
        for (target, patch, expected) in [
            (
                json!({"a": 1, "b": {"c": 2}}),
                json!({"b": {"d": 3}}),
                json!({"a": 1, "b": {"c": 2, "d": 3}}),
            ),
            (json!({"a": 1}), json!({"a": null, "x": null}), json!({})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!({"a": "text"}),
                json!({"a": {"b": 1, "c": null}}),
                json!({"a": {"b": 1}}),
            ),
            (
                json!({}),
                json!({"a": [null, {"b": null, "c": [{"d": null}]}]}),
                json!({"a": [null, {"c": [{}]}]}),
            ),
            (
                json!({"a": [1]}),
                json!({"a": [{"b": null}]}),
                json!({"a": [{}]}),
            ),
            (
                json!({"a": {"x": 1}}),
                json!({"a": [{"b": null}]}),
                json!({"a": [{"b": null}]}),
            ),
        ] {
            let mut outcome = target.clone();
            merge(&mut outcome, patch.clone());
            assert_eq!(outcome, expected, "{target} + {patch}");
        }
    }
}
