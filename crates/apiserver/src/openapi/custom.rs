//! The schemas of custom resources, as their definitions publish them.
//! Guarantees: version 2 cannot express every schema; what old clients would misread is left out
//! there.

use serde_json::{Map, Value, json};

use super::{
    descriptions,
    form::Form,
    paths::kind_of,
    schemas::{Schemas, described},
};
use crate::registry::Resource;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// Adds the schema of a custom resource and of its list. Returns references to both.
pub(super) fn add(schemas: &mut Schemas, resource: &Resource) -> (Value, Value) {
    let list_metadata = schemas.of_field("PodList", "metadata");
    let metadata = schemas.of_field("Pod", "metadata");
    let [name, list_name] = names(resource);
    let writer = Writer {
        form: schemas.form,
        metadata,
    };
    let object = schemas.add(&name, &writer.object(resource));
    let items = json!({"type": "array", "items": object});
    let list = schemas.add(&list_name, &writer.list(resource, items, list_metadata));
    (object, list)
}

/// The names of the schemas of a custom resource and of its list: `com.example.v1.Knob` for a
/// `Knob` of `example.com/v1`.
pub(super) fn names(resource: &Resource) -> [String; 2] {
    let reversed: Vec<&str> = resource.group.rsplit('.').collect();
    let prefix = format!("{}.{}", reversed.join("."), resource.version);
    [&resource.kind, &resource.list_kind].map(|kind| format!("{prefix}.{kind}"))
}

/// Writes the schemas of one resource.
struct Writer {
    form: Form,
    /// A reference to the metadata that every object has.
    metadata: Value,
}

impl Writer {
    fn object(&self, resource: &Resource) -> Value {
        let source = resource
            .custom()
            .and_then(|custom| custom.schema_source.as_object());
        let any_object = || Map::from_iter([("type".into(), "object".into())]);
        let mut schema = match source {
            None => any_object(),
            // Old clients refuse unknown fields as soon as they know any.
            Some(source) if self.form == Form::V2 && is_true(source, PRESERVE) => any_object(),
            Some(source) => {
                let mut schema = source.clone();
                self.publish(&mut schema);
                self.add_meta(&mut schema);
                schema
            }
        };
        mark(&mut schema, resource, &resource.kind);
        schema.into()
    }

    fn list(&self, resource: &Resource, items: Value, metadata: Value) -> Value {
        let Resource {
            kind, list_kind, ..
        } = resource;
        let field = |name: &str, schema: Value| {
            (
                name.to_owned(),
                self.field(descriptions::of_list_field(kind, name), schema),
            )
        };
        let text = || json!({"type": "string"});
        let properties: Map<String, Value> = [
            field("apiVersion", text()),
            field("kind", text()),
            field("metadata", metadata),
            field("items", items),
        ]
        .into_iter()
        .collect();
        let mut schema = Map::from_iter([
            (
                "description".into(),
                format!("{list_kind} is a list of {kind} objects.").into(),
            ),
            ("type".into(), "object".into()),
            ("required".into(), json!(["items"])),
            ("properties".into(), properties.into()),
        ]);
        mark(&mut schema, resource, list_kind);
        schema.into()
    }

    /// The fields that every object has.
    fn add_meta(&self, schema: &mut Map<String, Value>) {
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            for (name, field) in [
                ("apiVersion", json!({"type": "string"})),
                ("kind", json!({"type": "string"})),
                ("metadata", self.metadata.clone()),
            ] {
                properties.insert(
                    name.to_owned(),
                    self.field(descriptions::of_any_kind(name), field),
                );
            }
        }
    }

    fn field(&self, about: Option<std::borrow::Cow<'static, str>>, schema: Value) -> Value {
        match schema {
            Value::Object(schema) => self.form.whole(described(about, schema)),
            other => other,
        }
    }

    /// Turns a schema and all below it into what the OpenAPI version can express of it.
    fn publish(&self, schema: &mut Map<String, Value>) {
        match self.form {
            Form::V2 => reduce(schema),
            Form::V3 => unfold(schema),
        }
        for (key, value) in schema.iter_mut() {
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    properties
                        .values_mut()
                        .filter_map(Value::as_object_mut)
                        .for_each(|property| self.publish(property));
                }
                ("items" | "additionalProperties", Value::Object(below)) => self.publish(below),
                _ => {}
            }
        }
        if is_true(schema, EMBEDDED) && !(self.form == Form::V2 && is_true(schema, PRESERVE)) {
            self.add_meta(schema);
            require(schema, &["kind", "apiVersion"]);
        }
    }
}

fn is_true(schema: &Map<String, Value>, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

/// Writes an extension as OpenAPI keywords.
fn unfold(schema: &mut Map<String, Value>) {
    let has_any_of = schema.get("anyOf").is_some()
        || schema
            .get("allOf")
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(|s| s["anyOf"].is_array()));
    if is_true(schema, INT_OR_STRING) && !has_any_of {
        schema.insert(
            "anyOf".into(),
            json!([{"type": "integer"}, {"type": "string"}]),
        );
    }
}

/// Leaves out keywords that version 2 does not have, and those that make old clients reject objects
/// that the server accepts.
fn reduce(schema: &mut Map<String, Value>) {
    let nullable = |schema: Option<&Value>| schema.is_some_and(|schema| schema["nullable"] == true);
    let nullable_fields: Vec<String> = schema
        .get("properties")
        .and_then(Value::as_object)
        .map(|fields| {
            fields
                .iter()
                .filter(|(_, field)| nullable(Some(field)))
                .map(|(name, _)| name.clone())
                .collect()
        })
        .unwrap_or_default();
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !nullable_fields.iter().any(|field| name == field));
        if required.is_empty() {
            schema.remove("required");
        }
    }
    if nullable(schema.get("additionalProperties")) {
        schema.remove("required");
    }
    for key in ["allOf", "anyOf", "default", "not", "oneOf"] {
        schema.remove(key);
    }
    let open = is_true(schema, PRESERVE);
    let null = schema.remove("nullable") == Some(Value::Bool(true));
    if open || null {
        schema.remove("items");
        schema.remove("properties");
    }
    let type_ = schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if null || open && type_ == "object" || type_ == "array" && !schema.contains_key("items") {
        schema.remove("type");
    }
}

/// Adds names to those that must be there.
fn require(schema: &mut Map<String, Value>, names: &[&str]) {
    if let Value::Array(required) = schema.entry("required").or_insert_with(|| json!([])) {
        for name in names {
            if !required.iter().any(|known| known == name) {
                required.push((*name).into());
            }
        }
    }
}

/// Marks a schema with its kind, and with what selectors may name.
fn mark(schema: &mut Map<String, Value>, resource: &Resource, kind: &str) {
    let Resource { group, version, .. } = resource;
    schema.insert(
        "x-kubernetes-group-version-kind".into(),
        json!([kind_of(group, version, kind)]),
    );
    let fields: Vec<Value> = resource
        .custom()
        .into_iter()
        .flat_map(|custom| custom.selectable_names())
        .map(|name| json!({"fieldPath": name}))
        .collect();
    if !fields.is_empty() {
        schema.insert("x-kubernetes-selectable-fields".into(), fields.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(form: Form, source: Value) -> Value {
        let metadata = form.refer("Meta");
        let mut schema = source;
        Writer { form, metadata }.publish(schema.as_object_mut().expect("a schema is an object"));
        strip(&mut schema);
        schema
    }

    /// Without prose, which there may or may not be.
    fn strip(value: &mut Value) {
        if let Value::Object(map) = value {
            map.remove("description");
            map.values_mut().for_each(strip);
        }
    }

    #[test]
    fn version_2_leaves_out_what_it_cannot_express() {
        for (source, wanted) in [
            (
                json!({"type": "string", "nullable": true, "maxLength": 5}),
                json!({"maxLength": 5}),
            ),
            (
                json!({"type": "object", PRESERVE: true, "properties": {"a": {"type": "string"}}}),
                json!({PRESERVE: true}),
            ),
            (
                json!({"type": "array", "items": {"type": "string", "default": "a"}}),
                json!({"type": "array", "items": {"type": "string"}}),
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "atomic"}),
                json!({"x-kubernetes-list-type": "atomic"}),
            ),
            (
                json!({INT_OR_STRING: true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
                json!({INT_OR_STRING: true}),
            ),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"nullable": true}, "b": {"oneOf": []}}, "not": {}}),
                json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {}}}),
            ),
            (
                json!({"type": "object", "required": ["a"], "additionalProperties": {"type": "string", "nullable": true}}),
                json!({"type": "object", "additionalProperties": {}}),
            ),
            (
                json!({"type": "object", EMBEDDED: true, PRESERVE: true}),
                json!({EMBEDDED: true, PRESERVE: true}),
            ),
        ] {
            assert_eq!(published(Form::V2, source.clone()), wanted, "{source}");
        }
    }

    #[test]
    fn version_3_has_all_extensions() {
        let text = json!({"type": "string"});
        for (source, wanted) in [
            (
                json!({"type": "string", "nullable": true, "default": "a"}),
                json!({"type": "string", "nullable": true, "default": "a"}),
            ),
            (
                json!({INT_OR_STRING: true}),
                json!({INT_OR_STRING: true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            (
                json!({"type": "object", EMBEDDED: true, "properties": {"spec": {"type": "string"}}}),
                json!({
                    "type": "object",
                    EMBEDDED: true,
                    "required": ["kind", "apiVersion"],
                    "properties": {"apiVersion": text, "kind": text, "metadata": Form::V3.refer("Meta"), "spec": text},
                }),
            ),
        ] {
            let mut published = published(Form::V3, source.clone());
            if let Some(metadata) = published
                .pointer_mut("/properties/metadata")
                .filter(|m| m["allOf"].is_array())
            {
                *metadata = metadata["allOf"][0].clone();
            }
            assert_eq!(published, wanted, "{source}");
        }
    }
}
