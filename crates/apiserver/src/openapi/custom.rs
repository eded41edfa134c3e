//! The schemas of custom resources, as their definitions publish them.

use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use crate::registry::Resource;

/// Adds the schema of a custom resource and of its list. Returns references to both.
pub(super) fn add(schemas: &mut Schemas, resource: &Resource) -> (Value, Value) {
    let (metadata, list_metadata) = (schemas.of_field("Pod", "metadata"), schemas.of_field("PodList", "metadata"));
    let object = schemas.add(&name(resource, &resource.kind), schema(metadata, resource));
    let list = json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": list_metadata,
            "items": {"type": "array", "items": object},
        },
        "x-kubernetes-group-version-kind": [kind_of(resource, &resource.list_kind)],
    });
    (object, schemas.add(&name(resource, &resource.list_kind), list))
}

/// The published schema, with the fields that every object has.
fn schema(metadata: Value, resource: &Resource) -> Value {
    let mut schema = match resource.custom().map(|custom| &custom.schema_source) {
        Some(Value::Object(schema)) => schema.clone(),
        _ => Map::from_iter([("type".into(), "object".into()), ("x-kubernetes-preserve-unknown-fields".into(), true.into())]),
    };
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.insert("apiVersion".into(), json!({"type": "string"}));
        properties.insert("kind".into(), json!({"type": "string"}));
        properties.insert("metadata".into(), metadata);
    }
    schema.insert("x-kubernetes-group-version-kind".into(), json!([kind_of(resource, &resource.kind)]));
    schema.into()
}

fn kind_of(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": kind})
}

/// `com.example.v1.Knob` for a `Knob` of `example.com/v1`.
fn name(resource: &Resource, kind: &str) -> String {
    let reversed: Vec<&str> = resource.group.rsplit('.').collect();
    format!("{}.{}.{kind}", reversed.join("."), resource.version)
}
