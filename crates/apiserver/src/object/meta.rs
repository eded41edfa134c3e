//! `metadata` of every object, typed.
//! Guarantees: what is empty is not written, as in Kubernetes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{ManagedFieldsEntry, Time};

/// The metadata every object has. Field order is the order in which Kubernetes prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObjectMeta {
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) name: String,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) generate_name: String,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) namespace: String,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) self_link: String,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) uid: String,
    /// Opaque to clients; empty until the object is stored.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) resource_version: String,
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub(crate) generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) creation_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deletion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub(crate) owner_references: Vec<OwnerReference>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub(crate) finalizers: Vec<String>,
    /// Which manager set which field.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub(crate) managed_fields: Vec<ManagedFieldsEntry>,
}

impl ObjectMeta {
    /// The metadata as JSON.
    pub(crate) fn to_value(&self) -> Value {
        let rest = Self {
            managed_fields: Vec::new(),
            ..self.clone()
        };
        let mut map: Map<String, Value> =
            match serde_json::to_value(rest).expect("metadata has string keys only") {
                Value::Object(map) => map,
                _ => Map::new(),
            };
        if !self.managed_fields.is_empty() {
            let entries = self.managed_fields.iter();
            let entries = entries.map(ManagedFieldsEntry::to_value).collect();
            map.insert("managedFields".to_owned(), Value::Array(entries));
        }
        Value::Object(map)
    }
}

/// An object that this one belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OwnerReference {
    #[serde(deserialize_with = "or_default")]
    pub(crate) api_version: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block_owner_deletion: Option<bool>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// JSON `null` means absent in Kubernetes.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}
