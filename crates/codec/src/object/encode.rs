//! Encoded objects: encoded once per version of an object, then shared by every get, list and
//! watch.
//! Guarantees: `apiVersion` and `kind` come first and `metadata.resourceVersion` right behind them,
//! so that a list item is a slice of the bytes and a new revision is a splice. The protobuf form is
//! encoded for the first client that requests it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::{Object, ObjectMeta};
use crate::protobuf;

/// An object's JSON without its resourceVersion.
#[derive(Clone, Debug)]
pub struct Draft {
    text: Vec<u8>,
    item_at: u32,
    revision_at: u32,
}

/// An object's JSON with its resourceVersion in place.
#[derive(Clone, Debug)]
pub struct Encoded {
    bytes: Bytes,
    /// Where the part begins that a list item has: behind `kind` and `apiVersion`.
    item_at: u32,
    /// Where the digits of the resourceVersion begin.
    revision_at: u32,
    /// How many digits there are.
    revision_len: u32,
    /// The same object as a protobuf message, after the first request for it.
    message: Arc<OnceLock<Bytes>>,
}

impl Object {
    /// The bytes of this object, waiting for a revision.
    pub fn draft(&self) -> Draft {
        let mut text = Vec::with_capacity(512);
        text.extend_from_slice(b"{\"kind\":");
        push_json(&mut text, &self.kind);
        text.extend_from_slice(b",\"apiVersion\":");
        push_json(&mut text, &self.api_version);
        text.push(b',');
        let item_at = text.len() as u32;
        text.extend_from_slice(b"\"metadata\":{\"resourceVersion\":\"");
        let revision_at = text.len() as u32;
        text.push(b'"');
        let meta_at = text.len();
        if self.meta.resource_version.is_empty() {
            push_json(&mut text, &self.meta);
        } else {
            push_json(
                &mut text,
                &ObjectMeta {
                    resource_version: String::new(),
                    ..self.meta.clone()
                },
            );
        }
        if text[meta_at..] == *b"{}" {
            text.truncate(meta_at);
            text.push(b'}');
        } else {
            text[meta_at] = b',';
        }
        for (key, value) in &self.body {
            text.push(b',');
            push_json(&mut text, key);
            text.push(b':');
            push_json(&mut text, value);
        }
        text.push(b'}');
        Draft {
            text,
            item_at,
            revision_at,
        }
    }
}

fn push_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value)
        .expect("writing to memory does not fail and all keys are strings");
}

impl Draft {
    /// Puts the revision in.
    pub fn at(&self, revision: u64) -> Encoded {
        let digits = revision.to_string();
        let split = self.revision_at as usize;
        let mut bytes = Vec::with_capacity(self.text.len() + digits.len());
        bytes.extend_from_slice(&self.text[..split]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.text[split..]);
        Encoded {
            bytes: bytes.into(),
            item_at: self.item_at,
            revision_at: self.revision_at,
            revision_len: digits.len() as u32,
            message: Arc::default(),
        }
    }
}

impl Encoded {
    /// The whole object.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The object without `kind` and `apiVersion`, and without its opening brace.
    pub fn item(&self) -> Bytes {
        self.bytes.slice(self.item_at as usize..)
    }

    /// The size of [`Encoded::item`].
    pub fn item_len(&self) -> usize {
        self.bytes.len() - self.item_at as usize
    }

    /// The object as a protobuf message without an envelope; empty when its kind has none.
    pub fn message(&self) -> &Bytes {
        self.message.get_or_init(|| match self.decode().to_value() {
            Value::Object(map) => protobuf::message(&map).unwrap_or_default().into(),
            _ => Bytes::new(),
        })
    }

    /// The same object with another revision.
    pub fn with_revision(&self, revision: u64) -> Self {
        let digits = revision.to_string();
        let start = self.revision_at as usize;
        let end = (self.revision_at + self.revision_len) as usize;
        let mut bytes = Vec::with_capacity(self.bytes.len() + digits.len());
        bytes.extend_from_slice(&self.bytes[..start]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.bytes[end..]);
        Self {
            bytes: bytes.into(),
            revision_len: digits.len() as u32,
            message: Arc::default(),
            ..*self
        }
    }

    /// The object read back.
    pub fn decode(&self) -> Object {
        let mut reader = serde_json::Deserializer::from_slice(&self.bytes);
        // Stored objects are as deep as bodies may be, which is deeper than the default limit of
        // the reader.
        reader.disable_recursion_limit();
        Object::deserialize(&mut reader).expect("stored bytes were written from an object")
    }

    /// Whether two encodings hold the same object, apart from the revision.
    pub fn holds(&self, draft: &Draft) -> bool {
        let start = self.revision_at as usize;
        let end = (self.revision_at + self.revision_len) as usize;
        self.bytes[..start] == draft.text[..draft.revision_at as usize]
            && self.bytes[end..] == draft.text[draft.revision_at as usize..]
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut api_version = String::new();
        let mut kind = String::new();
        let mut meta = ObjectMeta::default();
        let mut body = Map::<String, Value>::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => {
                    api_version = map.next_value::<Option<String>>()?.unwrap_or_default()
                }
                "kind" => kind = map.next_value::<Option<String>>()?.unwrap_or_default(),
                "metadata" => meta = map.next_value::<Option<ObjectMeta>>()?.unwrap_or_default(),
                _ => {
                    body.insert(key, map.next_value()?);
                }
            }
        }
        Ok(Object {
            api_version,
            kind,
            meta,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        serde_json::from_str(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"u"},"data":{"k":"v"}}"#).expect("valid")
    }

    #[test]
    fn encoded_object_reads_back_with_its_revision() {
        let encoded = object().draft().at(41);
        let back = encoded.decode();
        assert_eq!(back.meta.resource_version, "41");
        assert_eq!(
            Object {
                meta: ObjectMeta {
                    resource_version: String::new(),
                    ..back.meta.clone()
                },
                ..back
            },
            object()
        );
    }

    #[test]
    fn new_revision_changes_nothing_else() {
        let encoded = object().draft().at(9);
        assert_eq!(
            encoded.with_revision(1000).bytes(),
            object().draft().at(1000).bytes()
        );
        assert!(encoded.holds(&object().draft()));
    }

    #[test]
    fn list_item_has_no_type() {
        let encoded = object().draft().at(7);
        let item = [b"{", &encoded.item()[..]].concat();
        let value: Value = serde_json::from_slice(&item).expect("an item is JSON");
        assert_eq!(value["metadata"]["resourceVersion"], "7");
        assert!(value.get("kind").is_none() && value.get("apiVersion").is_none());
    }

    #[test]
    fn object_without_metadata_still_carries_a_revision() {
        let bare = Object {
            api_version: "v1".into(),
            kind: "X".into(),
            meta: ObjectMeta::default(),
            body: Map::new(),
        };
        assert_eq!(
            bare.draft().at(3).bytes().as_ref(),
            br#"{"kind":"X","apiVersion":"v1","metadata":{"resourceVersion":"3"}}"#
        );
    }
}
