//! Selects objects for a list, watch or collection delete.
//! In: `labelSelector` and `fieldSelector` of a request. Out: a decision per object, without
//! reading its bytes where possible.

use bellerophon_apimachinery::label_selector::LabelSelector;

use crate::{FieldSelector, Stored};

/// Labels and fields together.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// The label selector.
    pub labels: LabelSelector,
    /// The field selector.
    pub fields: FieldSelector,
}

impl Selector {
    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether this object is selected.
    pub fn matches(&self, object: &Stored) -> bool {
        self.labels.matches(&object.attributes.labels) && self.fields.matches(object)
    }
}
