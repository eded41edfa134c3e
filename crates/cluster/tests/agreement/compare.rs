//! Where two states differ, in words.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Every difference between what was recorded and what is here, one line each.
pub(crate) fn differences(recorded: &[Value], ours: &[Value]) -> Vec<String> {
    if recorded.len() != ours.len() {
        return vec![format!(
            "{} rounds were recorded, {} are played: record again",
            recorded.len(),
            ours.len()
        )];
    }
    let empty = Map::new();
    let mut out = Vec::new();
    for (round, (theirs, ours)) in recorded.iter().zip(ours).enumerate() {
        let theirs = theirs.as_object().unwrap_or(&empty);
        let ours = ours.as_object().unwrap_or(&empty);
        let kinds: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        for kind in kinds {
            let list = |side: &Map<String, Value>| {
                side.get(kind)
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default()
            };
            objects(
                &format!("round {}: {kind}", round + 1),
                list(theirs),
                list(ours),
                &mut out,
            );
        }
    }
    out
}

/// Two lists of objects: equal ones meet first, the rest by name.
fn objects(title: &str, mut theirs: Vec<Value>, mut ours: Vec<Value>, out: &mut Vec<String>) {
    theirs.retain(
        |object| match ours.iter().position(|other| other == object) {
            Some(at) => {
                ours.remove(at);
                false
            }
            None => true,
        },
    );
    for object in theirs {
        match ours
            .iter()
            .position(|other| name(other) == name(&object) && object.is_object())
        {
            Some(at) => values(
                &format!("{title} {}", name(&object)),
                &object,
                &ours.remove(at),
                out,
            ),
            None => out.push(format!("{title}: only there: {}", name(&object))),
        }
    }
    out.extend(
        ours.iter()
            .map(|object| format!("{title}: only here: {}", name(object))),
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

fn values(path: &str, theirs: &Value, ours: &Value, out: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
            for key in keys {
                let side =
                    |side: &Map<String, Value>| side.get(key).cloned().unwrap_or(Value::Null);
                values(&format!("{path}.{key}"), &side(theirs), &side(ours), out);
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            theirs
                .iter()
                .zip(ours)
                .enumerate()
                .for_each(|(at, (theirs, ours))| {
                    values(&format!("{path}[{at}]"), theirs, ours, out)
                });
        }
        _ if theirs == ours => {}
        _ => out.push(format!("{path}: there {theirs}, here {ours}")),
    }
}
