//! Reset fields: changes of a write that the strategy discards and no manager owns.
//! In: a resource and the subresource that is written. Out: a filter for sets of fields.

use super::{Comparison, FieldSet};
use crate::registry::Resource;

/// The fields that a write cannot own, with what lies below them.
pub(super) struct ResetFields(FieldSet);

impl ResetFields {
    /// The filter for writes to a subresource; empty for the object itself.
    pub(super) fn of(resource: &Resource, subresource: &str) -> Self {
        let own = resource.strategy.reset_fields.iter();
        let own = own.clone().find(|(name, _)| *name == subresource);
        let paths: &[&[&str]] = match (own, subresource) {
            (Some((_, paths)), _) => paths,
            (None, "") if resource.subresource("status").is_some() => &[&["status"]],
            (None, "status") if resource.is_custom() => &[&["metadata"], &["spec"]],
            (None, "status") => &[&["spec"]],
            // Other subresources own what they send, even what they cannot change.
            _ => &[],
        };
        Self(FieldSet::of_paths(paths))
    }

    pub(super) fn keep(&self, set: FieldSet) -> FieldSet {
        if self.0.is_empty() {
            set
        } else {
            set.without(&self.0)
        }
    }

    pub(super) fn keep_all(&self, comparison: Comparison) -> Comparison {
        let Comparison {
            added,
            modified,
            removed,
        } = comparison;
        Comparison {
            added: self.keep(added),
            modified: self.keep(modified),
            removed: self.keep(removed),
        }
    }
}
