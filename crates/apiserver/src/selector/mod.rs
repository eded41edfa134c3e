//! Which objects a list, watch or collection delete is about.
//! In: `labelSelector` and `fieldSelector` of a request. Out: a decision per object, without
//! reading its bytes where possible.

mod field;
mod label;

pub(crate) use field::FieldSelector;
pub(crate) use label::LabelSelector;

use crate::store::Stored;

/// Labels and fields together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    /// What labels must be like.
    pub(crate) labels: LabelSelector,
    /// What fields must be like.
    pub(crate) fields: FieldSelector,
}

impl Selector {
    /// Whether everything is selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether this object is selected.
    pub(crate) fn matches(&self, object: &Stored) -> bool {
        self.labels.matches(&object.attributes.labels) && self.fields.matches(object)
    }
}
