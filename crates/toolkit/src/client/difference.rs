//! Merge patches between two states of an object.

use serde_json::{Map, Value};

/// The smallest merge patch (RFC 7386) from one JSON value to the other; `None` if they are equal.
///
/// A merge patch cannot express a `null` inside an object: it removes the field.
pub(crate) fn difference(from: &Value, to: &Value) -> Option<Value> {
    match (from, to) {
        _ if from == to => None,
        (Value::Object(from), Value::Object(to)) => {
            let gone = from
                .keys()
                .filter(|key| !to.contains_key(*key))
                .map(|key| (key.clone(), Value::Null));
            let new = to.iter().filter_map(|(key, value)| match from.get(key) {
                Some(known) => difference(known, value).map(|patch| (key.clone(), patch)),
                None => Some((key.clone(), value.clone())),
            });
            Some(Value::Object(gone.chain(new).collect::<Map<_, _>>()))
        }
        // Lists are replaced as a whole: a merge patch has no other way to change one.
        _ => Some(to.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_is_the_smallest_merge_patch() {
        for (from, to, patch) in [
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2}))),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"a": 1, "b": {"c": 1}}),
                Some(json!({"b": {"d": null}})),
            ),
            (
                json!({"a": [1, 2]}),
                json!({"a": [1]}),
                Some(json!({"a": [1]})),
            ),
            (
                json!({}),
                json!({"a": {"b": 1}}),
                Some(json!({"a": {"b": 1}})),
            ),
        ] {
            assert_eq!(difference(&from, &to), patch, "{from} -> {to}");
        }
    }
}
