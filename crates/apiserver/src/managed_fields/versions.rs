//! Managers that manage fields in other versions of a custom resource that a webhook converts.

use std::collections::BTreeSet;

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::{ManagedFieldsEntry, Object};

use super::{
    ResetFields,
    apply::Conflicts,
    read_managed_fields,
    track::{compare_objects, root},
    write_managed_fields,
};
use crate::registry::Resource;

/// The other versions in which fields of an object are managed, if a webhook converts between them.
pub(crate) fn unsettled_versions(
    resource: &Resource,
    entries: &[ManagedFieldsEntry],
) -> BTreeSet<String> {
    let is_converted = resource
        .custom()
        .is_some_and(|custom| custom.conversion.is_some());
    if !is_converted {
        return BTreeSet::new();
    }
    let own = resource.api_version();
    let managers = read_managed_fields(entries).unwrap_or_default();
    let versions = managers.into_iter().map(|manager| manager.api_version);
    versions.filter(|version| *version != own).collect()
}

/// What a write does with fields that it changes and that other managers manage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictResolution {
    /// It takes them from their managers: an update, or an apply with `force`.
    Force,
    /// It fails: an apply without `force`.
    Fail,
}

/// Takes what differs between two states of an object from the managers of that version.
///
/// # Errors
/// 409 with the fields that others manage, if conflicts fail.
pub(crate) fn settle_version(
    resource: &Resource,
    old: &Object,
    new: &Object,
    conflict_resolution: ConflictResolution,
    entries: &mut Vec<ManagedFieldsEntry>,
) -> Result<(), ApiError> {
    let Some(mut managers) = read_managed_fields(entries) else {
        return Ok(());
    };
    let comparison = compare_objects(root(resource), old, new);
    let changed = ResetFields::of(resource, "").keep_all(comparison);
    let written = changed.added.union(&changed.modified);
    let changed = written.union(&changed.removed);
    if changed.is_empty() {
        return Ok(());
    }
    let version = resource.api_version();
    if conflict_resolution == ConflictResolution::Fail {
        let others = managers.iter().filter(|other| other.api_version == version);
        let conflicts = Conflicts::between(others, &written);
        if !conflicts.is_empty() {
            return Err(conflicts.into_error());
        }
    }
    managers.retain_mut(|manager| {
        if manager.api_version == version {
            manager.fields = manager.fields.difference(&changed);
        }
        !manager.fields.is_empty()
    });
    *entries = write_managed_fields(managers);
    Ok(())
}
