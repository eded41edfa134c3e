//! Objects that the server itself creates.

use serde_json::{Map, Value};

use super::{Object, ObjectMeta};

impl Object {
    /// An object of a kind; `place` is `name` or `namespace/name`. A `body` that is no map is
    /// empty.
    pub fn named(api_version: &str, kind: &str, place: &str, body: Value) -> Self {
        let (namespace, name) = place.split_once('/').unwrap_or(("", place));
        let meta = ObjectMeta {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            ..ObjectMeta::default()
        };
        let body = match body {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            meta,
            body,
        }
    }

    /// The object with a label.
    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.meta.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The object with an annotation.
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.meta
            .annotations
            .insert(key.to_owned(), value.to_owned());
        self
    }

    /// The object with generation 1, for kinds that count changes of their spec.
    pub fn first_generation(mut self) -> Self {
        self.meta.generation = 1;
        self
    }
}
