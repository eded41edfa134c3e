//! Which changes of a write count: those the kind takes over, not those it resets.
//! In: a resource and the part that is written. Out: a filter for sets of fields.

use super::{Difference, Element, FieldSet};
use crate::registry::Resource;

/// What of a set of fields is kept.
pub(super) enum Filter {
    /// All but these and what lies below them.
    Without(FieldSet),
    /// Only what lies on the way to or below these; `*` is any step.
    Below(&'static [&'static [&'static str]]),
}

/// Kinds whose status writes leave metadata alone.
const STATUS_KEEPS_METADATA: [&str; 11] = [
    "validatingadmissionpolicies",
    "storageversions",
    "flowschemas",
    "prioritylevelconfigurations",
    "servicecidrs",
    "devicetaintrules",
    "resourceclaims",
    "volumeattachments",
    "storageversionmigrations",
    "apiservices",
    "customresourcedefinitions",
];

impl Filter {
    /// The filter for writes to a part of a resource; empty for the object itself.
    pub(super) fn of(resource: &Resource, part: &str) -> Self {
        let without = |paths: &[&[&str]]| Self::Without(FieldSet::of_paths(paths));
        match (part, resource.plural.as_str()) {
            ("", "certificatesigningrequests") => without(&[&["spec"], &["status"]]),
            ("", _) if resource.part("status").is_some() => without(&[&["status"]]),
            ("status", "deployments") => without(&[&["spec"], &["metadata", "labels"]]),
            ("status", "pods") => without(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]),
            ("status", "certificatesigningrequests") => without(&[&["spec"], &["status", "conditions"]]),
            ("status", plural) if resource.items_name_kind() || STATUS_KEEPS_METADATA.contains(&plural) => {
                without(&[&["metadata"], &["spec"]])
            }
            ("status", _) => without(&[&["spec"]]),
            ("approval", _) => without(&[&["spec"], &["status", "certificate"]]),
            ("finalize", _) => without(&[&["status"]]),
            ("ephemeralcontainers", _) => Self::Below(&[&["spec", "ephemeralContainers"]]),
            ("resize", _) => Self::Below(&[
                &["spec", "containers", "*", "resources"],
                &["spec", "containers", "*", "resizePolicy"],
                &["spec", "initContainers", "*", "resources"],
                &["spec", "initContainers", "*", "resizePolicy"],
            ]),
            _ => Self::Without(FieldSet::default()),
        }
    }

    pub(super) fn keep(&self, set: FieldSet) -> FieldSet {
        match self {
            Self::Without(fields) if fields.is_empty() => set,
            Self::Without(fields) => set.without(fields),
            Self::Below(paths) => set.below(paths),
        }
    }

    pub(super) fn keep_all(&self, difference: Difference) -> Difference {
        let Difference { added, modified, removed } = difference;
        Difference { added: self.keep(added), modified: self.keep(modified), removed: self.keep(removed) }
    }
}

impl FieldSet {
    fn below(&self, paths: &[&[&str]]) -> Self {
        let entries = self.entries().iter().filter_map(|entry| {
            let name = match &entry.element {
                Element::Field(name) => name.as_str(),
                _ => "*",
            };
            let rest: Vec<&[&str]> = paths.iter().filter(|path| path[0] == name || path[0] == "*").map(|path| &path[1..]).collect();
            let children = match rest.iter().any(|path| path.is_empty()) {
                _ if rest.is_empty() => return None,
                true => entry.children.clone(),
                false => entry.children.below(&rest),
            };
            Some(super::set::Entry { children, ..entry.clone() })
        });
        Self::from_entries(entries.collect())
    }
}
