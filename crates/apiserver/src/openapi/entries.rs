//! The paths and schemas of a document, each written as soon as it is known.
//! Guarantees: no document is ever held as a tree, which would be ten times its size.

use std::collections::BTreeMap;

use serde_json::Value;

use super::gnostic;

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    /// Of version 2 only.
    Protobuf,
}

/// The kind of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Paths,
    Schemas,
}

/// Paths or schemas by name, written but not yet put together.
#[derive(Debug)]
pub(super) struct Entries {
    what: What,
    encoding: Encoding,
    written: BTreeMap<String, Vec<u8>>,
}

impl Entries {
    pub(super) fn paths(encoding: Encoding) -> Self {
        Self {
            what: What::Paths,
            encoding,
            written: BTreeMap::new(),
        }
    }

    pub(super) fn schemas(encoding: Encoding) -> Self {
        Self {
            what: What::Schemas,
            encoding,
            written: BTreeMap::new(),
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.written.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.written.keys()
    }

    /// Reserves a name before its value is known.
    pub(super) fn reserve(&mut self, name: &str) {
        self.written.insert(name.to_owned(), Vec::new());
    }

    pub(super) fn add(&mut self, name: &str, value: &Value) {
        let written = match (self.encoding, self.what) {
            (Encoding::Json, _) => member(name, value),
            (Encoding::Protobuf, What::Paths) => gnostic::path(name, value),
            (Encoding::Protobuf, What::Schemas) => gnostic::definition(name, value),
        };
        self.written.insert(name.to_owned(), written);
    }

    /// Leaves out all but these.
    pub(super) fn only(mut self, names: &[String]) -> Self {
        self.written.retain(|name, _| names.contains(name));
        self
    }

    /// All entries, without the enclosing value: members of a JSON object, or fields of a message.
    pub(super) fn joined(&self) -> Vec<u8> {
        let all: Vec<&[u8]> = self.written.values().map(Vec::as_slice).collect();
        self.encoding.joined(&all)
    }
}

impl Encoding {
    /// Puts stretches of entries together.
    pub(super) fn joined(self, stretches: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Json => stretches.join(&b','),
            Self::Protobuf => stretches.concat(),
        }
    }
}

/// A member of a JSON object.
fn member(name: &str, value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec(name).expect("a name is text");
    text.push(b':');
    serde_json::to_writer(&mut text, value).expect("a value has string keys, and memory takes it");
    text.shrink_to_fit();
    text
}

#[cfg(test)]
impl Entries {
    /// The encoded value, decoded again.
    pub(super) fn read(&self) -> Value {
        serde_json::from_slice(&[b"{", &*self.joined(), b"}"].concat()).expect("JSON was written")
    }
}
