//! An API object: typed metadata, opaque body.
//! In: decoded bodies. Out: the bytes that get, list and watch share.
//! Guarantees: metadata is read and written only through [`ObjectMeta`]; the body is not
//! interpreted here.

mod build; // objects that the server itself creates
mod encode;
mod managed_fields;
mod meta;

pub use encode::{Draft, Encoded};
pub use managed_fields::{FieldsV1, ManagedFieldsEntry};
pub use meta::{ObjectMeta, OwnerReference};

use serde_json::{Map, Value};

/// One object of any kind, in the version named by `api_version`.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `Pod`.
    pub kind: String,
    /// Everything under `metadata`.
    pub meta: ObjectMeta,
    /// Every other top-level field: `spec`, `status`, `data`, …
    pub body: Map<String, Value>,
}

impl Object {
    /// Splits a JSON object. Unknown fields of `metadata` are dropped.
    ///
    /// # Errors
    /// A `metadata` that is no object, or a metadata field of another type.
    pub fn from_map(mut map: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let text = |v: Option<Value>| match v {
            Some(Value::String(s)) => s,
            _ => String::new(),
        };
        let meta = match map.remove("metadata") {
            None | Some(Value::Null) => ObjectMeta::default(),
            Some(value) => serde_json::from_value(value)?,
        };
        Ok(Self {
            api_version: text(map.remove("apiVersion")),
            kind: text(map.remove("kind")),
            meta,
            body: map,
        })
    }

    /// The whole object as JSON.
    pub fn to_value(&self) -> Value {
        let mut map = self.body.clone();
        map.insert("apiVersion".into(), Value::String(self.api_version.clone()));
        map.insert("kind".into(), Value::String(self.kind.clone()));
        map.insert("metadata".into(), self.meta.to_value());
        Value::Object(map)
    }

    /// The whole object as JSON; the body is moved.
    pub fn into_value(self) -> Value {
        let mut map = self.body;
        map.insert("metadata".into(), self.meta.to_value());
        map.insert("apiVersion".into(), Value::String(self.api_version));
        map.insert("kind".into(), Value::String(self.kind));
        Value::Object(map)
    }

    /// The value at a dotted path of the body: `spec.replicas`.
    pub fn at(&self, path: &str) -> Option<&Value> {
        let mut steps = path.split('.');
        let mut value = self.body.get(steps.next()?)?;
        for step in steps {
            value = value.get(step)?;
        }
        Some(value)
    }

    /// The string at a dotted path of the body, empty when there is none.
    pub fn str_at(&self, path: &str) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// The object at a field of the body, made when missing or of another type.
    pub fn section(&mut self, name: &str) -> &mut Map<String, Value> {
        let slot = self
            .body
            .entry(name)
            .or_insert_with(|| Value::Object(Map::new()));
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        slot.as_object_mut().expect("made an object above")
    }
}
