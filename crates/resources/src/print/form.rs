//! The metadata of a list, in tables and metadata-only forms.

use bellerophon_codec::object::Object;
use serde::Serialize;

/// The metadata of a list; what is empty is not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// The version the list is of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Where the next page starts; empty on the last.
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// How many objects are on later pages, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

impl ListMeta {
    /// The metadata of a table about one object: its version.
    pub fn of(object: &Object) -> Self {
        Self {
            resource_version: object.meta.resource_version.clone(),
            ..Self::default()
        }
    }
}

/// A version of group `meta.k8s.io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetaVersion {
    /// `meta.k8s.io/v1`.
    #[default]
    V1,
    /// `meta.k8s.io/v1beta1`, which clients before Kubernetes 1.15 request.
    V1Beta1,
}

impl MetaVersion {
    /// The version in an `Accept` header; `None` when Kubernetes has no such version.
    pub fn parse(version: &str) -> Option<Self> {
        match version {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        }
    }

    /// The `apiVersion` of the answer.
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}
