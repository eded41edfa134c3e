//! Strategic merge patch: a merge by the types of Kubernetes.
//! In: the JSON of a built-in object, a patch and the object's type. Out: the JSON of the patched
//! object.
//! Guarantees: lists merge by the patch keys of the type table; a directive is never left in the
//! object; after an error the object is unspecified.
//!
//! `$patch: replace` and `$patch: delete` act on a map or on an item of a list, `$retainKeys` names
//! the only keys that stay, `$setElementOrder/LIST` gives an order, `$deleteFromPrimitiveList/LIST`
//! takes values out.

mod list; // merging lists, and their order
mod print; // values as Go prints them
mod schema; // patch strategy of a field

pub use print::GoValue;

use std::collections::HashSet;

use bellerophon_apimachinery::error::ApiError;
use serde_json::{Map, Value};

use crate::types::Type;
use schema::{Schema, Strategy};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// Applies a patch to the JSON of an object. Applied directives are removed from the patch, as
/// kube-apiserver does before it prints the patch in an error.
///
/// # Errors
/// A malformed patch, with the messages of kube-apiserver: 400 for some, 422 or a nameless 500 for
/// the rest.
pub fn strategic_merge(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    ty: &'static Type,
) -> Result<(), ApiError> {
    merge_map(object, patch, Schema::Struct(ty))
}

fn merge_map(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Schema,
) -> Result<(), ApiError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return follow_directive(object, directive.clone(), patch);
    }
    retain_keys(object, patch)?;
    list::merge_ordered(object, patch, schema)?;
    for (key, change) in patch.iter_mut() {
        match key.strip_prefix(DELETE_FROM) {
            None => merge_field(object, key, change, schema)?,
            Some(rest) => {
                let name = rest.strip_prefix('/').ok_or(bad_format("primitive list"))?;
                delete_values(object, name, change, schema)?;
            }
        }
    }
    Ok(())
}

/// Applies the directive of a map to the whole map.
fn follow_directive(
    object: &mut Map<String, Value>,
    directive: Value,
    patch: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    match directive.as_str() {
        Some("replace") => {
            patch.remove(DIRECTIVE);
            *object = patch.clone();
            Ok(())
        }
        Some("delete") => {
            object.clear();
            Ok(())
        }
        _ => Err(unknown_directive(&directive, patch)),
    }
}

fn unknown_directive(directive: &Value, patch: &Map<String, Value>) -> ApiError {
    failed(format!(
        "unknown patch type: {} in map: {}",
        GoValue(directive),
        print::GoMap(patch)
    ))
}

/// Removes the fields that `$retainKeys` does not name. All other fields of the patch must be named
/// there.
fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = directive else {
        return Err(bad_format("retainKeys"));
    };
    let names: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let retained = |key: &str| names.contains(key);
    let is_parallel = |key: &str| key.starts_with(DELETE_FROM) || key.starts_with(ELEMENT_ORDER);
    if patch
        .iter()
        .any(|(key, change)| !change.is_null() && !is_parallel(key) && !retained(key))
    {
        return Err(bad_format("retainKeys"));
    }
    object.retain(|key, _| retained(key));
    Ok(())
}

fn merge_field(
    object: &mut Map<String, Value>,
    key: &str,
    change: &mut Value,
    schema: Schema,
) -> Result<(), ApiError> {
    if change.is_null() {
        object.remove(key);
        return Ok(());
    }
    match (object.get_mut(key), &mut *change) {
        (Some(Value::Object(current)), Value::Object(patch)) => {
            let field = schema.field(key)?;
            if field.strategy == Strategy::Replace {
                *current = patch.clone();
                return Ok(());
            }
            merge_map(current, patch, field.schema)
        }
        (Some(Value::Array(current)), Value::Array(patch)) => {
            let field = schema.list(key)?;
            if field.strategy == Strategy::Merge {
                list::merge(current, patch, &field)
            } else {
                replace(current, patch)
            }
        }
        _ => {
            discard_nulls(change);
            match without_directives(change.clone()) {
                Some(value) => object.insert(key.to_owned(), value),
                None => object.remove(key),
            };
            Ok(())
        }
    }
}

fn replace(current: &mut Vec<Value>, patch: &[Value]) -> Result<(), ApiError> {
    *current = patch.to_vec();
    Ok(())
}

fn delete_values(
    object: &mut Map<String, Value>,
    name: &str,
    change: &Value,
    schema: Schema,
) -> Result<(), ApiError> {
    match (object.get_mut(name), change) {
        (_, Value::Null) => {
            object.remove(name);
        }
        (Some(Value::Array(current)), Value::Array(values)) => {
            schema.list(name)?;
            let gone: HashSet<String> = values.iter().map(Value::to_string).collect();
            current.retain(|value| !gone.contains(&value.to_string()));
        }
        _ => {}
    }
    Ok(())
}

/// Removes nulls from maps: there is no field that they would remove.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// A value of a patch as the object takes it where it had none: maps with a directive go.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter_map(|(k, v)| Some((k, without_directives(v)?)))
                .collect(),
        )),
        Value::Array(items) => Some(Value::Array(
            items.into_iter().filter_map(without_directives).collect(),
        )),
        scalar => Some(scalar),
    }
}

/// 400 for a malformed directive.
fn bad_format(of: &str) -> ApiError {
    ApiError::BadRequest(format!("invalid patch format of {of}"))
}

/// 500 without a reason: most errors of such a patch have no name in kube-apiserver.
fn failed(why: String) -> ApiError {
    ApiError::Unnamed(why)
}

#[cfg(test)]
mod tests;
