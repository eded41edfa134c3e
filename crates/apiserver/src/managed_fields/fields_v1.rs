//! The JSON form of a field set: `{"f:data":{".":{},"f:a":{}}}`.
//! Guarantees: what is written reads back as the same set; keys are sorted.

use std::fmt;

use bellerophon_codec::object::FieldsV1;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Unexpected, Visitor};

use super::{FieldSet, PathElement, path_element::Unread, set::Entry};

impl FieldSet {
    /// The set as `fieldsV1`.
    pub(crate) fn to_fields_v1(&self) -> FieldsV1 {
        let mut json = String::with_capacity(256);
        self.write(Dot::Absent, &mut json);
        FieldsV1::new(json)
    }

    fn write(&self, dot: Dot, json: &mut String) {
        json.push('{');
        if dot == Dot::Present {
            json.push_str("\".\":{}");
        }
        let entries = self.entries();
        let count = entries.partition_point(|e| matches!(e.element, PathElement::Field(_)));
        let (fields, others) = entries.split_at(count);
        for entry in fields {
            if let PathElement::Field(name) = &entry.element {
                begin_member("f:", name, json);
                entry.write_below(json);
            }
        }
        // Fields are sorted by their names; other elements are sorted among themselves.
        let mut others: Vec<(String, &Entry)> = others
            .iter()
            .map(|entry| (entry.element.spelling(), entry))
            .collect();
        others.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (spelling, entry) in others {
            begin_member("", &spelling, json);
            entry.write_below(json);
        }
        json.push('}');
    }

    /// Parses `fieldsV1`.
    ///
    /// # Errors
    /// A value that is no field set.
    pub(crate) fn from_fields_v1(fields: &FieldsV1) -> Result<Self, NotAFieldSet> {
        let mut reader = serde_json::Deserializer::from_str(fields.text());
        // Field sets are as deep as objects, which may be deeper than the default limit of the
        // reader.
        reader.disable_recursion_limit();
        match SetReader.deserialize(&mut reader) {
            Ok(read) => Ok(read.set),
            Err(_) => Err(NotAFieldSet),
        }
    }
}

/// Whether the path itself is a member besides those below it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dot {
    Present,
    Absent,
}

/// Writes a key and its colon.
fn begin_member(prefix: &str, name: &str, json: &mut String) {
    if !json.ends_with('{') {
        json.push(',');
    }
    let is_plain = name
        .bytes()
        .all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
    if is_plain {
        for piece in ["\"", prefix, name, "\":"] {
            json.push_str(piece);
        }
    } else {
        let quoted = serde_json::to_string(&[prefix, name].concat()).expect("text is JSON");
        json.push_str(&quoted);
        json.push(':');
    }
}

impl Entry {
    fn write_below(&self, json: &mut String) {
        let dot = if self.member && !self.children.is_empty() {
            Dot::Present
        } else {
            Dot::Absent
        };
        self.children.write(dot, json);
    }
}

/// JSON that is no field set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAFieldSet;

/// A set, and whether it has the key `.`.
struct ReadSet {
    set: FieldSet,
    dot: bool,
}

/// Reads one level of a set.
struct SetReader;

impl<'de> DeserializeSeed<'de> for SetReader {
    type Value = ReadSet;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ReadSet, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SetReader {
    type Value = ReadSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field set")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadSet, A::Error> {
        let mut entries = Vec::new();
        let mut dot = false;
        while let Some(key) = map.next_key_seed(KeyReader)? {
            match key {
                Key::Dot => {
                    map.next_value::<IgnoredAny>()?;
                    dot = true;
                }
                Key::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
                Key::Element(element) => {
                    let below = map.next_value_seed(SetReader)?;
                    entries.push(Entry {
                        element,
                        member: below.set.is_empty() || below.dot,
                        children: below.set,
                    });
                }
            }
        }
        Ok(ReadSet {
            set: FieldSet::from_sent(entries),
            dot,
        })
    }
}

/// A key of a set.
enum Key {
    Dot,
    Element(PathElement),
    /// Of a kind that later versions may know.
    Unknown,
}

struct KeyReader;

impl<'de> DeserializeSeed<'de> for KeyReader {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyReader {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path element")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Key, E> {
        if text == "." {
            return Ok(Key::Dot);
        }
        match PathElement::parse(text) {
            Ok(element) => Ok(Key::Element(element)),
            Err(Unread::Unknown) => Ok(Key::Unknown),
            Err(Unread::Broken) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}
