//! Validates the replica counts and selectors of the scale subresource, on every write.
//! In: their paths, and an object. Out: their errors, by path.

use bellerophon_apimachinery::field::{FieldError, go_type};
use serde_json::Value;

use super::definition::Scale;

/// The errors of the wanted number of replicas.
pub(super) fn validate_spec(scale: &Scale, object: &Value, errors: &mut Vec<FieldError>) {
    replicas(&scale.spec_replicas_path, object, errors);
}

/// The errors of the number of replicas there are, and with the selector that finds them.
pub(super) fn validate_status(scale: &Scale, object: &Value, errors: &mut Vec<FieldError>) {
    replicas(&scale.status_replicas_path, object, errors);
    if let Some(path) = &scale.label_selector_path
        && let Err(problem) = nested(object, path, "string", Value::is_string)
    {
        errors.push(FieldError::invalid(path, "", &problem));
    }
}

fn replicas(path: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let count = match nested(object, path, "int64", Value::is_i64) {
        Ok(count) => count.and_then(Value::as_i64).unwrap_or(0),
        Err(problem) => return errors.push(FieldError::invalid(path, 0i64, &problem)),
    };
    if count < 0 {
        errors.push(FieldError::invalid(
            path,
            count,
            "should be a non-negative integer",
        ));
    } else if count > i64::from(i32::MAX) {
        errors.push(FieldError::invalid(
            path,
            count,
            &format!("should be less than or equal to {}", i32::MAX),
        ));
    }
}

/// The value at a dotted path, if there is one and it has the wanted type.
fn nested<'a>(
    object: &'a Value,
    path: &str,
    wanted: &str,
    is_wanted: fn(&Value) -> bool,
) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    let path = path.strip_prefix('.').unwrap_or(path);
    let errs = |value: &Value, wanted: &str| {
        Err(format!(
            ".{path} accessor error: {} is of the type {}, expected {wanted}",
            printed(value),
            go_type(value).unwrap_or("<nil>")
        ))
    };
    for step in path.split('.') {
        match value {
            Value::Object(map) => match map.get(step) {
                Some(next) => value = next,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return errs(other, "map[string]interface{}"),
        }
    }
    if is_wanted(value) {
        Ok(Some(value))
    } else {
        errs(value, wanted)
    }
}

fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_are_counts_and_the_selector_a_text() {
        let scale = Scale {
            spec_replicas_path: ".spec.replicas".into(),
            status_replicas_path: ".status.replicas".into(),
            label_selector_path: Some(".status.selector".into()),
        };
        for (object, expected) in [
            (json!({}), ""),
            (
                json!({"spec": {"replicas": 3}, "status": {"replicas": 0, "selector": "a=b"}}),
                "",
            ),
            (
                json!({"spec": {"replicas": -1}}),
                ".spec.replicas: Invalid value: -1: should be a non-negative integer",
            ),
            (
                json!({"spec": {"replicas": 2_147_483_648_i64}}),
                ".spec.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647",
            ),
            (
                json!({"spec": {"replicas": "x"}}),
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
            ),
            (
                json!({"spec": 1}),
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1 is of the type int64, expected map[string]interface{}",
            ),
            (
                json!({"status": {"selector": 1}}),
                ".status.selector: Invalid value: \"\": .status.selector accessor error: 1 is of the type int64, expected string",
            ),
        ] {
            let mut errors = Vec::new();
            validate_spec(&scale, &object, &mut errors);
            validate_status(&scale, &object, &mut errors);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join("; "), expected, "{object}");
        }
    }
}
