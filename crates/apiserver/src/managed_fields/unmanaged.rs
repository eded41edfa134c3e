//! Apply configurations of mutating policies: merged as server-side apply does, without field
//! managers. Mirrors `ApplyStructuredMergeDiff`.

use serde_json::Value;

use super::{
    merge::merge,
    read_managed_fields,
    schema::{Atom, Identity, Node},
    track::root,
    validate::validate,
};
use crate::registry::Resource;
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::ManagedFieldsEntry;

/// Validates entries after admission.
///
/// # Errors
/// Why they cannot be decoded.
pub(crate) fn check_entries(entries: &[ManagedFieldsEntry]) -> Result<(), String> {
    if read_managed_fields(entries).is_some() {
        return Ok(());
    }
    // Mirrors DecodeManagedFields, entry by entry.
    for (index, entry) in entries.iter().enumerate() {
        let entry = serde_json::to_value(entry).unwrap_or_default();
        if !["Apply", "Update"].contains(&entry.text("operation")) {
            return Err("operation must be `Apply` or `Update`".into());
        }
        if entry.text("apiVersion").is_empty() {
            return Err("apiVersion must not be empty".into());
        }
        match entry.text("fieldsType") {
            "FieldsV1" => {}
            "" => {
                return Err(format!(
                    "missing fieldsType in managed fields entry {index}"
                ));
            }
            other => {
                return Err(format!(
                    "invalid fieldsType {other:?} in managed fields entry {index}"
                ));
            }
        }
    }
    Err("error decoding manager from manager operations".into())
}

/// The object with a configuration over it.
///
/// # Errors
/// A configuration that does not fit the schema, or that would replace atomic values as a whole.
pub(crate) fn merge_configuration(
    resource: &Resource,
    live: &Value,
    configuration: &Value,
) -> Result<Value, String> {
    let root = root(resource);
    validate(root, configuration)
        .map_err(|why| format!("failed to convert patch object to typed object: {why}"))?;
    let mut atomics = Vec::new();
    find_atomics(root, configuration, "", &mut atomics);
    if !atomics.is_empty() {
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            atomics.join(", ")
        ));
    }
    Ok(merge(root, live, configuration))
}

/// The paths of atomic values. Mirrors `findAtomics`.
fn find_atomics(node: Node<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    match (node.atom(value), value) {
        (Atom::Map(map), Value::Object(entries)) => {
            if map.atomic {
                found.push(path.to_owned());
            }
            for (key, value) in entries {
                if let Some(child) = map.child(key) {
                    find_atomics(child.node, value, &format!("{path}.{key}"), found);
                }
            }
        }
        (Atom::List(list), Value::Array(items)) => {
            if matches!(list.identity, Identity::None) {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                find_atomics(list.items, item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}
