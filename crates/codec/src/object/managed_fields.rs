//! The entries of `metadata.managedFields`, as objects carry them.
//! Guarantees: the fields of an entry stay text, so that an object can be decoded, cloned and encoded
//! without looking into them. Only `managed_fields/` does.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};

use super::meta::or_default;

/// One entry. What is empty is not written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedFieldsEntry {
    /// The version of the API that the field set is about.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub api_version: String,
    /// `FieldsV1`, the only format there is.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub fields_type: String,
    /// The field set, undecoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields_v1: Option<FieldsV1>,
    /// The name of the field manager.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub manager: String,
    /// `Apply` or `Update`.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub operation: String,
    /// The subresource that was written; empty for the object itself.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub subresource: String,
    /// When the field set or the fields in it changed last.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub time: String,
}

impl ManagedFieldsEntry {
    /// The entry as JSON, however deep its fields are.
    pub(super) fn to_value(&self) -> Value {
        let texts = [
            ("apiVersion", &self.api_version),
            ("fieldsType", &self.fields_type),
            ("manager", &self.manager),
            ("operation", &self.operation),
            ("subresource", &self.subresource),
            ("time", &self.time),
        ];
        let mut map: Map<String, Value> = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (name.to_owned(), text.as_str().into()))
            .collect();
        if let Some(fields) = &self.fields_v1 {
            map.insert("fieldsV1".to_owned(), fields.to_value());
        }
        Value::Object(map)
    }
}

/// The text of a field set: `{"f:data":{".":{},"f:a":{}}}`. Clones share it.
#[derive(Clone, Debug)]
pub struct FieldsV1(Arc<RawValue>);

impl FieldsV1 {
    /// Takes JSON.
    ///
    /// # Panics
    /// If the text is no JSON.
    pub fn new(json: String) -> Self {
        let raw = RawValue::from_string(json).expect("a field set is written as JSON");
        Self(raw.into())
    }

    /// The JSON.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    fn to_value(&self) -> Value {
        let mut reader = serde_json::Deserializer::from_str(self.text());
        // Bodies may be deeper than the default limit of the reader.
        reader.disable_recursion_limit();
        Value::deserialize(&mut reader).expect("it was read or written as JSON")
    }
}

impl PartialEq for FieldsV1 {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.text() == other.text()
    }
}

impl Serialize for FieldsV1 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FieldsV1 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entry_reads_back_as_it_was_written() {
        let value = json!({
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}},
            "manager": "m", "operation": "Apply", "time": "2026-01-02T03:04:05Z",
        });
        let entry: ManagedFieldsEntry = serde_json::from_value(value.clone()).expect("an entry");
        let text = serde_json::to_string(&entry).expect("string keys");
        assert_eq!(text, value.to_string());
        assert_eq!(entry.to_value(), value);
        let back: ManagedFieldsEntry = serde_json::from_str(&text).expect("an entry");
        assert_eq!(back, entry);
    }

    #[test]
    fn deep_fields_are_read_and_written() {
        let deep = 200;
        let fields = format!("{}{}{}", "{\"f:a\":".repeat(deep), "{}", "}".repeat(deep));
        let text = format!("{{\"fieldsV1\":{fields}}}");
        let entry: ManagedFieldsEntry = serde_json::from_str(&text).expect("an entry");
        assert_eq!(entry.to_value().to_string(), text);
        assert_eq!(serde_json::to_string(&entry).expect("string keys"), text);
    }

    #[test]
    fn empty_entry_is_the_default() {
        let entry: ManagedFieldsEntry =
            serde_json::from_value(json!({"manager": null})).expect("an entry");
        assert_eq!(entry, ManagedFieldsEntry::default());
        assert_eq!(entry.to_value(), json!({}));
    }
}
