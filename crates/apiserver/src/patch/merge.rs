//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Lays a patch over an object: maps are merged, `null` removes, anything else replaces.
pub(crate) fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let map = target.as_object_mut().expect("made an object above");
    for (key, change) in patch {
        if change.is_null() {
            map.remove(&key);
        } else {
            merge(map.entry(key).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_merge_lists_replace_and_null_removes() {
        for (target, patch, expected) in [
            (json!({"a": 1, "b": {"c": 2}}), json!({"b": {"d": 3}}), json!({"a": 1, "b": {"c": 2, "d": 3}})),
            (json!({"a": 1}), json!({"a": null, "x": null}), json!({})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": "text"}), json!({"a": {"b": 1, "c": null}}), json!({"a": {"b": 1}})),
        ] {
            let mut outcome = target.clone();
            merge(&mut outcome, patch.clone());
            assert_eq!(outcome, expected, "{target} + {patch}");
        }
    }
}
