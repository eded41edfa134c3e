//! The JSON form of a field set: `{"f:data":{".":{},"f:a":{}}}`.
//! Holds: what is written reads back as the same set.

use serde_json::{Map, Value};

use super::{Element, FieldSet, element::Unread, set::Entry};

impl FieldSet {
    /// The set as `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        Value::Object(self.to_map())
    }

    fn to_map(&self) -> Map<String, Value> {
        let inner = |entry: &Entry| {
            let mut map = entry.children.to_map();
            if entry.member && !map.is_empty() {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            Value::Object(map)
        };
        self.entries()
            .iter()
            .map(|entry| (entry.element.spelling(), inner(entry)))
            .collect()
    }

    /// Reads `fieldsV1`.
    ///
    /// # Errors
    /// What is no field set.
    pub(crate) fn from_json(value: &Value) -> Result<Self, NotAFieldSet> {
        let Value::Object(map) = value else {
            return Err(NotAFieldSet);
        };
        let mut entries = Vec::with_capacity(map.len());
        for (name, inner) in map.iter().filter(|(name, _)| *name != ".") {
            let element = match Element::parse(name) {
                Ok(element) => element,
                Err(Unread::Unknown) => continue,
                Err(Unread::Broken) => return Err(NotAFieldSet),
            };
            let children = Self::from_json(inner)?;
            entries.push(Entry {
                element,
                member: children.is_empty() || inner.get(".").is_some(),
                children,
            });
        }
        Ok(Self::from_entries(entries))
    }
}

/// JSON that is no field set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAFieldSet;
