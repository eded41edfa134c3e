//! Patch: what a mutation changed, as operations on the object that the API server sent.
//!
//! In: the object as it was sent, and its typed form before and after the mutation. Out: a JSON
//! patch.
//! Guarantees: a field that the type does not know is on neither typed side, so it is not touched;
//! an item of a list keeps its unknown fields wherever the mutation moves it.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};

/// One operation of a JSON patch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Operation {
    op: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// The patch that makes the change from `before` to `after` in `raw`.
pub(crate) fn patch(raw: &Value, before: &Value, after: &Value) -> Vec<Operation> {
    let mut operations = Vec::new();
    difference(
        &mut String::new(),
        raw,
        &merge(raw, before, after),
        &mut operations,
    );
    operations
}

/// `raw` with the change from `before` to `after`, which are encodings of the same type.
pub(crate) fn merge(raw: &Value, before: &Value, after: &Value) -> Value {
    if before == after {
        return raw.clone();
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => {
            Value::Object(merge_object(raw, before, after))
        }
        (Value::Array(raw), Value::Array(before), Value::Array(after))
            if raw.len() == before.len() =>
        {
            Value::Array(merge_list(raw, before, after))
        }
        _ => after.clone(),
    }
}

fn merge_object(
    raw: &Map<String, Value>,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Map<String, Value> {
    let mut merged = Map::new();
    for (name, raw) in raw {
        let value = match (before.get(name), after.get(name)) {
            (None, None) => raw.clone(),
            (Some(_), None) => continue,
            (Some(before), Some(after)) => merge(raw, before, after),
            (None, Some(after)) => after.clone(),
        };
        merged.insert(name.clone(), value);
    }
    for (name, after) in after {
        // A default that decoding added stays out of the patch, as long as it is unchanged.
        if !raw.contains_key(name) && before.get(name) != Some(after) {
            merged.insert(name.clone(), after.clone());
        }
    }
    merged
}

fn merge_list(raw: &[Value], before: &[Value], after: &[Value]) -> Vec<Value> {
    let origins = origins(before, after);
    let items = after.iter().zip(origins);
    items
        .map(|(item, origin)| match origin {
            Some(origin) => merge(&raw[origin], &before[origin], item),
            None => item.clone(),
        })
        .collect()
}

/// Which item of `before` each item of `after` was: the equal one, else the one of the same name,
/// else, for items without names, the one at the same index. An item of `before` is the origin of
/// one item at most.
fn origins(before: &[Value], after: &[Value]) -> Vec<Option<usize>> {
    let mut origins = vec![None; after.len()];
    let mut is_taken = vec![false; before.len()];
    let mut take = |origins: &mut Vec<Option<usize>>, index: usize, origin: usize| {
        if origins[index].is_none() && !is_taken[origin] {
            origins[index] = Some(origin);
            is_taken[origin] = true;
        }
    };
    let shared = before.len().min(after.len());
    for index in (0..shared).filter(|index| before[*index] == after[*index]) {
        take(&mut origins, index, index);
    }
    for identity in [Value::to_string as fn(&Value) -> String, name_of] {
        let mut candidates: HashMap<String, Vec<usize>> = HashMap::new();
        // In reverse, so that the first of several equal items is popped first.
        for (origin, item) in before.iter().enumerate().rev() {
            candidates.entry(identity(item)).or_default().push(origin);
        }
        candidates.remove("");
        for (index, item) in after.iter().enumerate() {
            if origins[index].is_some() {
                continue;
            }
            let Some(candidates) = candidates.get_mut(&identity(item)) else {
                continue;
            };
            while let Some(origin) = candidates.pop() {
                take(&mut origins, index, origin);
                if origins[index].is_some() {
                    break;
                }
            }
        }
    }
    // Items of other names are other items, also in the same place.
    for index in (0..shared).filter(|index| name_of(&before[*index]) == name_of(&after[*index])) {
        take(&mut origins, index, index);
    }
    origins
}

/// The `name` of an item, which most lists of objects in Kubernetes are keyed by; empty if it has
/// none.
fn name_of(item: &Value) -> String {
    let name = item.get("name").and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

/// The operations that make `old` equal to `new`. `path` is a buffer that is restored.
fn difference(path: &mut String, old: &Value, new: &Value, operations: &mut Vec<Operation>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                at(path, name, |path| {
                    operations.push(operation("remove", path, None))
                });
            }
            for (name, new) in new {
                at(path, name, |path| match old.get(name) {
                    Some(old) => difference(path, old, new, operations),
                    None => operations.push(operation("add", path, Some(new))),
                });
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                at(path, &index.to_string(), |path| {
                    difference(path, old, new, operations);
                });
            }
            // From the end, so that the indexes of the others stay.
            for index in (new.len()..old.len()).rev() {
                at(path, &index.to_string(), |path| {
                    operations.push(operation("remove", path, None));
                });
            }
            for (index, new) in new.iter().enumerate().skip(old.len()) {
                at(path, &index.to_string(), |path| {
                    operations.push(operation("add", path, Some(new)));
                });
            }
        }
        _ => operations.push(operation("replace", path, Some(new))),
    }
}

/// Calls a function with one more segment at the end of the path.
fn at(path: &mut String, segment: &str, call: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    for character in segment.chars() {
        match character {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            other => path.push(other),
        }
    }
    call(path);
    path.truncate(length);
}

fn operation(op: &'static str, path: &str, value: Option<&Value>) -> Operation {
    Operation {
        op,
        path: path.to_owned(),
        value: value.cloned(),
    }
}

#[cfg(test)]
mod tests;
