//! Lists in a strategic merge patch: their items and their order.
//! Guarantees: items of the patch are in the order of the patch, the others in theirs; both are
//! merged by the order of the object.

use std::collections::{HashMap, HashSet};

use bellerophon_apimachinery::{error::ApiError, field};
use serde_json::{Map, Value};

use super::{
    DIRECTIVE, ELEMENT_ORDER, bad_format, failed, merge_map,
    print::{GoList, GoMap},
    schema::{Found, Schema, Strategy},
    unknown_directive, without_directives,
};

/// Merges every list for which the patch gives an order, and takes list and order out of the patch.
pub(super) fn merge_ordered(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Schema,
) -> Result<(), ApiError> {
    let ordered: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ELEMENT_ORDER))
        .cloned()
        .collect();
    for directive in ordered {
        let order = items(patch.remove(&directive).unwrap_or_default())?;
        let name = directive[ELEMENT_ORDER.len()..]
            .strip_prefix('/')
            .ok_or(bad_format("setElementOrder list"))?;
        let before = object.get(name).cloned().map(items).transpose()?;
        let mut change = patch.get(name).cloned().map(items).transpose()?;
        let found = schema.list(name)?;
        check_order(change.as_deref().unwrap_or_default(), &order, found.key)?;
        let merged = match (before.clone(), &mut change) {
            (None, None) => continue,
            (Some(current), None) => current,
            (None, Some(change)) => change
                .iter()
                .cloned()
                .filter_map(without_directives)
                .collect(),
            (Some(mut current), Some(change)) if found.strategy == Strategy::Merge => {
                merge(&mut current, change, &found)?;
                current
            }
            (Some(_), Some(change)) => change.clone(),
        };
        let before = before.unwrap_or_default();
        element_type(&before, change.as_deref().unwrap_or_default())?;
        let sorted = in_order(merged, &order, &before, found.key)?;
        object.insert(name.to_owned(), Value::Array(sorted));
        patch.remove(name);
    }
    Ok(())
}

fn items(value: Value) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(type_error("[]interface {}", &other)),
    }
}

fn type_error(expected: &str, found: &Value) -> ApiError {
    failed(format!(
        "expected a {expected}, but received a {}",
        printed_type(found)
    ))
}

/// A Go type as kube-apiserver prints it.
fn printed_type(value: &Value) -> &'static str {
    field::go_type(value).unwrap_or("%!s(<nil>)")
}

/// Merges a patch list into the list of an object.
pub(super) fn merge(
    current: &mut Vec<Value>,
    patch: &mut [Value],
    field: &Found,
) -> Result<(), ApiError> {
    if current.is_empty() && patch.is_empty() {
        return Ok(());
    }
    if element_type(current, patch)? != "map[string]interface {}" {
        let before = std::mem::take(current);
        let mut seen = HashSet::new();
        let merged = before
            .iter()
            .chain(patch.iter())
            .filter(|value| seen.insert(value.to_string()))
            .cloned()
            .collect();
        *current = in_order(merged, patch, &before, field.key)?;
        return Ok(());
    }
    if field.key.is_empty() {
        return Err(failed(format!(
            "cannot merge lists without merge key for {}",
            field.schema.kind()
        )));
    }
    let Some(named) = follow_directives(current, patch, field.key)? else {
        return Ok(());
    };
    let before = current.clone();
    let mut places = Places::of(current, field.key);
    let mut order = Vec::with_capacity(named.len());
    for at in named {
        let item = patch[at]
            .as_object_mut()
            .expect("items were found to be maps");
        let key = item
            .get(field.key)
            .ok_or_else(|| no_key(item, field.key))?
            .clone();
        order.push(Value::Object(Map::from_iter([(
            field.key.to_owned(),
            key.clone(),
        )])));
        match places.find(&key).and_then(|i| current[i].as_object_mut()) {
            Some(there) => merge_map(there, item, field.schema)?,
            None => {
                places.add(&key, current.len());
                current.push(patch[at].clone());
            }
        }
    }
    *current = in_order(std::mem::take(current), &order, &before, field.key)?;
    Ok(())
}

/// Applies the directives among the items, and returns the indexes of the other items. `None` when
/// the list was replaced.
fn follow_directives(
    current: &mut Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<Option<Vec<usize>>, ApiError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut deleted = HashSet::new();
    let mut replaces = false;
    for (at, item) in patch.iter().enumerate() {
        let item = item.as_object().expect("items were found to be maps");
        let Some(directive) = item.get(DIRECTIVE) else {
            plain.push(at);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                deleted.insert(item.get(key).ok_or_else(|| no_key(item, key))?.to_string());
            }
            Some("replace") => replaces = true,
            Some("merge") => {
                return Err(failed(
                    "merging lists cannot yet be specified in the patch".into(),
                ));
            }
            _ => return Err(unknown_directive(directive, item)),
        }
    }
    if !deleted.is_empty() {
        current.retain(|there| {
            there
                .get(key)
                .is_none_or(|value| !deleted.contains(&value.to_string()))
        });
    }
    if replaces {
        *current = plain.into_iter().map(|at| patch[at].clone()).collect();
        *current = in_order(std::mem::take(current), &[], &current.clone(), key)?;
        return Ok(None);
    }
    Ok(Some(plain))
}

fn no_key(item: &Map<String, Value>, key: &str) -> ApiError {
    failed(format!(
        "map: {} does not contain declared merge key: {key}",
        GoMap(item)
    ))
}

/// The type that all items have.
fn element_type(left: &[Value], right: &[Value]) -> Result<&'static str, ApiError> {
    let mut types = left.iter().chain(right).map(printed_type);
    let Some(first) = types.next() else {
        return Err(failed("no elements in any of the given slices".into()));
    };
    if first == "[]interface {}" {
        return Err(ApiError::Unprocessable(
            "lists of lists are not supported".into(),
        ));
    }
    if types.any(|ty| ty != first) {
        return Err(failed(format!(
            "list element types are not identical: [{} {}]",
            GoList(left),
            GoList(right)
        )));
    }
    Ok(first)
}

/// Whether the items of a patch list are in the order that the patch specifies.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), ApiError> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let mut found = false;
        for next in rest.by_ref() {
            if same(item, next, key)? {
                found = true;
                break;
            }
        }
        if !found {
            return Err(failed(format!(
                "The order in patch list:\n{}\n doesn't match {ELEMENT_ORDER} list:\n{}\n",
                GoList(patch),
                GoList(order)
            )));
        }
    }
    Ok(())
}

fn same(left: &Value, right: &Value, key: &str) -> Result<bool, ApiError> {
    if key.is_empty() {
        return Ok(left == right);
    }
    Ok(identity(left, key)? == identity(right, key)?)
}

/// The identity of an item: the value of its key, or the item itself.
fn identity<'v>(item: &'v Value, key: &str) -> Result<&'v Value, ApiError> {
    if key.is_empty() {
        return Ok(item);
    }
    let map = item
        .as_object()
        .ok_or_else(|| type_error("map[string]interface {}", item))?;
    map.get(key).ok_or_else(|| no_key(map, key))
}

/// The index of each item in a list, by its identity; of equal ones the first.
struct Places(HashMap<String, usize>);

impl Places {
    fn of(list: &[Value], key: &str) -> Self {
        let mut places = Self(HashMap::with_capacity(list.len()));
        for (at, item) in list.iter().enumerate() {
            if let Some(identity) = if key.is_empty() {
                Some(item)
            } else {
                item.get(key)
            } {
                places.add(identity, at);
            }
        }
        places
    }

    fn add(&mut self, identity: &Value, at: usize) {
        self.0.entry(identity.to_string()).or_insert(at);
    }

    fn find(&self, identity: &Value) -> Option<usize> {
        self.0.get(&identity.to_string()).copied()
    }
}

/// Puts the items that `order` names into its order, weaves the others in between by the order they
/// had, and puts in front of them what was not there before.
fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    key: &str,
) -> Result<Vec<Value>, ApiError> {
    for item in order.iter().chain(before) {
        identity(item, key)?;
    }
    let wanted = Places::of(order, key);
    let had = Places::of(before, key);
    let mut named = Vec::new();
    let mut others = Vec::new();
    for item in merged {
        let identity = identity(&item, key)?;
        let was = had.find(identity);
        match wanted.find(identity) {
            Some(rank) => named.push((rank, was, item)),
            None => others.push((was, item)),
        }
    }
    named.sort_by_key(|(rank, _, _)| *rank);
    others.sort_by_key(|(was, _)| *was);
    let mut sorted = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, was, item) in named {
        while let Some((_, other)) = others
            .next_if(|(other, _)| matches!((other, was), (Some(other), Some(was)) if *other < was))
        {
            sorted.push(other);
        }
        sorted.push(item);
    }
    sorted.extend(others.map(|(_, item)| item));
    Ok(sorted)
}
