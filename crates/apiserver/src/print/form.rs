//! The metadata of a list, in tables and metadata-only forms.

use serde::Serialize;

use crate::object::Object;

/// The metadata of a list; what is empty is not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// The version the list is of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) resource_version: String,
    /// Where the next page starts; empty on the last.
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub(crate) continue_token: String,
    /// How many objects are on later pages, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_item_count: Option<i64>,
}

impl ListMeta {
    /// The metadata of a table about one object: its version.
    pub(crate) fn of(object: &Object) -> Self {
        Self {
            resource_version: object.meta.resource_version.clone(),
            ..Self::default()
        }
    }
}
