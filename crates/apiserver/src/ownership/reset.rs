//! Which changes of a write count: those the kind takes over, not those it resets.
//! In: a resource and the part that is written. Out: a filter for sets of fields.

use super::{Difference, FieldSet};
use crate::registry::Resource;

/// The fields that a write cannot own, with what lies below them.
pub(super) struct Filter(FieldSet);

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
        let without = |paths: &[&[&str]]| Self(FieldSet::of_paths(paths));
        match (part, resource.plural.as_str()) {
            ("", "certificatesigningrequests") => without(&[&["spec"], &["status"]]),
            ("", _) if resource.part("status").is_some() => without(&[&["status"]]),
            ("status", "deployments") => without(&[&["spec"], &["metadata", "labels"]]),
            ("status", "pods") => without(&[
                &["spec"],
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ]),
            ("status", "certificatesigningrequests") => {
                without(&[&["spec"], &["status", "conditions"]])
            }
            ("status", plural)
                if resource.items_name_kind() || STATUS_KEEPS_METADATA.contains(&plural) =>
            {
                without(&[&["metadata"], &["spec"]])
            }
            ("status", _) => without(&[&["spec"]]),
            ("approval", _) => without(&[&["spec"], &["status", "certificate"]]),
            ("finalize", _) => without(&[&["status"]]),
            // Parts of a pod own what they send, even what they cannot change.
            _ => Self(FieldSet::default()),
        }
    }

    pub(super) fn keep(&self, set: FieldSet) -> FieldSet {
        if self.0.is_empty() {
            set
        } else {
            set.without(&self.0)
        }
    }

    pub(super) fn keep_all(&self, difference: Difference) -> Difference {
        let Difference {
            added,
            modified,
            removed,
        } = difference;
        Difference {
            added: self.keep(added),
            modified: self.keep(modified),
            removed: self.keep(removed),
        }
    }
}
