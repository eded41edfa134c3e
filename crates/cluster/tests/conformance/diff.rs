//! Differences of recorded and actual states, as text.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// All differences, one line each.
pub(crate) fn differences(recorded: &[Value], actual: &[Value]) -> Vec<String> {
    if recorded.len() != actual.len() {
        return vec![format!(
            "{} rounds were recorded, {} were run: record again",
            recorded.len(),
            actual.len()
        )];
    }
    let empty = Map::new();
    let mut out = Vec::new();
    for (round, (recorded, actual)) in recorded.iter().zip(actual).enumerate() {
        let recorded = recorded.as_object().unwrap_or(&empty);
        let actual = actual.as_object().unwrap_or(&empty);
        let kinds: BTreeSet<&String> = recorded.keys().chain(actual.keys()).collect();
        for kind in kinds {
            let objects = |state: &Map<String, Value>| {
                state
                    .get(kind)
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default()
            };
            diff_objects(
                &format!("round {}: {kind}", round + 1),
                objects(recorded),
                objects(actual),
                &mut out,
            );
        }
    }
    out
}

/// Compares two lists of objects: equal objects are matched first, the others by name.
fn diff_objects(
    title: &str,
    mut recorded: Vec<Value>,
    mut actual: Vec<Value>,
    out: &mut Vec<String>,
) {
    recorded.retain(
        |object| match actual.iter().position(|other| other == object) {
            Some(index) => {
                actual.remove(index);
                false
            }
            None => true,
        },
    );
    for object in recorded {
        match actual
            .iter()
            .position(|other| name(other) == name(&object) && object.is_object())
        {
            Some(index) => diff_values(
                &format!("{title} {}", name(&object)),
                &object,
                &actual.remove(index),
                out,
            ),
            None => out.push(format!("{title}: missing: {}", name(&object))),
        }
    }
    out.extend(
        actual
            .iter()
            .map(|object| format!("{title}: not recorded: {}", name(object))),
    );
}

fn name(object: &Value) -> String {
    match object {
        Value::String(text) => text.clone(),
        object => object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    }
}

fn diff_values(path: &str, recorded: &Value, actual: &Value, out: &mut Vec<String>) {
    match (recorded, actual) {
        (Value::Object(recorded), Value::Object(actual)) => {
            let keys: BTreeSet<&String> = recorded.keys().chain(actual.keys()).collect();
            for key in keys {
                let field =
                    |object: &Map<String, Value>| object.get(key).cloned().unwrap_or(Value::Null);
                diff_values(
                    &format!("{path}.{key}"),
                    &field(recorded),
                    &field(actual),
                    out,
                );
            }
        }
        (Value::Array(recorded), Value::Array(actual)) if recorded.len() == actual.len() => {
            recorded
                .iter()
                .zip(actual)
                .enumerate()
                .for_each(|(index, (recorded, actual))| {
                    diff_values(&format!("{path}[{index}]"), recorded, actual, out)
                });
        }
        _ if recorded == actual => {}
        _ => out.push(format!("{path}: recorded {recorded}, actual {actual}")),
    }
}
