//! `metadata` of every object, typed.
//! Guarantees: what is empty is not written, as in Kubernetes.

use std::collections::BTreeMap;

use bellerophon_apimachinery::time::Time;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::ManagedFieldsEntry;

/// The metadata every object has. Field order is the order in which Kubernetes prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Unique in its namespace and resource.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub name: String,
    /// The prefix of a name that the server generates if `name` is empty.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub generate_name: String,
    /// Empty for cluster-scoped objects.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub namespace: String,
    /// Not used since Kubernetes 1.20; clients may still send it.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub self_link: String,
    /// Assigned by the server at creation, never again.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub uid: String,
    /// Opaque to clients; empty until the object is stored.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub resource_version: String,
    /// Grows with changes of the desired state; 0 for kinds that keep none.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "or_default")]
    pub generation: i64,
    /// When the server created the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Set while the object is terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// The grace period of the deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels, which selectors match.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "or_default"
    )]
    pub labels: BTreeMap<String, String>,
    /// Arbitrary strings of clients.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "or_default"
    )]
    pub annotations: BTreeMap<String, String>,
    /// The owners; the object is garbage collected when all are deleted.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
    /// The object is not removed while there are any.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub finalizers: Vec<String>,
    /// Which manager set which field.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

impl ObjectMeta {
    /// The metadata as JSON.
    pub fn to_value(&self) -> Value {
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
pub struct OwnerReference {
    /// Group and version of the owner.
    #[serde(deserialize_with = "or_default")]
    pub api_version: String,
    /// The kind of the owner.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    /// The name of the owner, in the same namespace or cluster-scoped.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The owner itself, and no other object of its name.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// Whether the owner is the managing controller; at most one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
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
