//! An object as a source hands it over.
//! In: JSON of a server, or an object made in any other way. Out: the object, with its bytes if it has any.
//! Holds: bytes and object say the same.

use std::ops::Deref;

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use crate::cached::{Json, Outline};

/// An object that came from a source, decoded. If it came as JSON it brings the bytes along, so that a cache can keep
/// those instead.
///
/// Any object becomes one by `into()`; without bytes it is cached as it is.
#[derive(Clone)]
pub struct Received<K> {
    pub(crate) object: K,
    pub(crate) json: Option<Json<K>>,
}

impl<K> Received<K> {
    /// The object, without its bytes.
    pub fn into_object(self) -> K {
        self.object
    }
}

impl<K: DeserializeOwned> Received<K> {
    /// Decodes an object from its JSON and keeps both.
    ///
    /// # Errors
    /// The bytes are no JSON, or no object of this kind.
    pub fn from_json(bytes: impl Into<Box<[u8]>>) -> Result<Self, serde_json::Error> {
        let json = Json {
            bytes: bytes.into(),
            decode: |bytes| serde_json::from_slice(bytes),
        };
        Ok(Self {
            object: (json.decode)(&json.bytes)?,
            json: Some(json),
        })
    }

    /// Decodes what is left of the JSON without `metadata.managedFields`, which are not even looked into.
    pub(super) fn from_json_without_managed_fields(
        bytes: &[u8],
    ) -> Result<Self, serde_json::Error> {
        match Outline::of(bytes)
            .ok()
            .and_then(|outline| outline.managed_fields)
        {
            Some(cut) => Self::from_json([&bytes[..cut.start], &bytes[cut.end..]].concat()),
            None => Self::from_json(bytes),
        }
    }
}

impl<K: Serialize + DeserializeOwned> Received<K> {
    /// The same for an object that was changed; it has bytes only if they can be decoded again.
    pub(crate) fn repacked(object: K) -> Self {
        let bytes = serde_json::to_vec(&object).ok();
        bytes
            .and_then(|bytes| Self::from_json(bytes).ok())
            .unwrap_or_else(|| object.into())
    }
}

impl<K> From<K> for Received<K> {
    fn from(object: K) -> Self {
        Self { object, json: None }
    }
}

impl<K> Deref for Received<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.object
    }
}

impl<K: Resource> std::fmt::Debug for Received<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.json.as_ref().map(|json| json.bytes.len());
        f.debug_struct("Received")
            .field("key", &crate::ObjectKey::of(&self.object))
            .field("bytes", &bytes)
            .finish()
    }
}
