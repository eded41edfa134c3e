//! Managed fields: which manager last set which field of an object, and server-side apply.
//! In: an object before and after a write, or a configuration to apply. Out:
//! `metadata.managedFields`, and the merged object.
//! Guarantees: the rules are those of structured-merge-diff; the cost is linear in the size of the
//! object; a write that changes nothing leaves the managed fields as they are.

mod apply; // server-side apply
mod collect; // the fields of a configuration
mod compare; // what a write changed
mod field_manager; // entries of managedFields
mod fields_v1; // the JSON form of a set
mod merge; // a configuration over an object
mod path_element; // a step of a path
mod reset_fields; // fields that the strategy resets
mod scale; // replicas written through `scale`
mod schema; // how the value at a path is owned
mod set; // a set of paths
mod track; // managed fields after an update
mod unmanaged; // apply configurations of mutating policies
mod validate;
mod versions; // managers in versions that a webhook converts // whether a configuration fits

#[cfg(test)]
mod tests;

pub(crate) use scale::ScaleManagedFields;
pub(crate) use track::{Tracker, claim};
pub(crate) use unmanaged::{check_entries, merge_configuration};
pub(crate) use versions::{ConflictResolution, settle_version, unsettled_versions};

use compare::Comparison;
use field_manager::{
    FieldManager, Operation, cap_updaters, read_managed_fields, write_managed_fields,
};
use path_element::PathElement;
use reset_fields::ResetFields;
use schema::Node;
use set::FieldSet;

/// The name of a manager that did not give one: the first word of its user agent.
pub(crate) fn manager_name(field_manager: &str, user_agent: &str) -> String {
    /// The longest name, in bytes.
    const MAX: usize = 128;
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let mut name = String::new();
    for c in user_agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
    {
        if name.len() + c.len_utf8() > MAX {
            break;
        }
        name.push(c);
    }
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name
    }
}
