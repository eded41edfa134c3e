//! Resources inside a custom resource: their `apiVersion`, `kind` and `metadata`.
//! In: a custom resource. Out: embedded metadata without unknown fields, and its errors.
//! Guarantees: only schemas with `x-kubernetes-embedded-resource` are read; the metadata of the
//! root is handled by the caller.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    names,
};
use bellerophon_codec::object::ObjectMeta;
use serde_json::{Map, Value};

use super::{metadata, schema::Schema};

/// Normalizes embedded metadata and returns the fields it dropped, in alphabetical order.
///
/// # Errors
/// An `apiVersion` or `kind` that is no string, or metadata of another type.
pub(crate) fn coerce(
    map: &mut Map<String, Value>,
    schema: &Schema,
) -> Result<Vec<String>, FieldError> {
    let mut unknown = Vec::new();
    coerce_map(map, schema, false, &Path::ROOT, &mut unknown)?;
    unknown.sort();
    Ok(unknown)
}

/// Like [`coerce`], for an object that is itself a resource.
pub(super) fn coerce_resource(
    map: &mut Map<String, Value>,
    schema: &Schema,
) -> Result<(), FieldError> {
    coerce_map(map, schema, true, &Path::ROOT, &mut Vec::new())
}

/// Like [`coerce`], for a value at `path` that may itself be a resource; what it drops is not
/// reported.
pub(super) fn coerce_value(
    value: &mut Value,
    schema: &Schema,
    path: &Path<'_>,
) -> Result<(), FieldError> {
    coerce_in(value, schema, path, &mut Vec::new())
}

fn coerce_in(
    value: &mut Value,
    schema: &Schema,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    match value {
        Value::Object(map) => coerce_map(map, schema, schema.embedded_resource, path, unknown),
        Value::Array(list) => {
            let Some(item) = schema.item() else {
                return Ok(());
            };
            list.iter_mut()
                .enumerate()
                .try_for_each(|(i, value)| coerce_in(value, item, &path.index(i), unknown))
        }
        _ => Ok(()),
    }
}

fn coerce_map(
    map: &mut Map<String, Value>,
    schema: &Schema,
    is_resource: bool,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    for (name, value) in map.iter_mut() {
        match name.as_str() {
            "apiVersion" | "kind" if is_resource && !value.is_string() => {
                return Err(FieldError::invalid(
                    path.child(name),
                    &*value,
                    "must be a string",
                ));
            }
            "metadata" if is_resource => coerce_metadata(value, &path.child(name), unknown)?,
            _ => {}
        }
        if let Some(property) = schema.properties.get(name) {
            coerce_in(value, property, &path.child(name), unknown)?;
        } else if let Some(additional) = schema.additional() {
            coerce_in(value, additional, &path.key(name), unknown)?;
        }
    }
    Ok(())
}

fn coerce_metadata(
    value: &mut Value,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    let meta =
        metadata::decode(value).map_err(|problem| FieldError::invalid(path, &*value, &problem))?;
    unknown.extend(
        metadata::unknown_fields(value)
            .into_iter()
            .map(|field| format!("{path}.{field}")),
    );
    *value = meta.to_value();
    Ok(())
}

/// The errors of the embedded resources of a custom resource.
pub(crate) fn validate(
    map: &Map<String, Value>,
    schema: &Schema,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    validate_map(map, schema, false, path, errors);
}

/// Like [`validate`], for an object that is itself a resource.
pub(super) fn validate_resource_at_root(
    map: &Map<String, Value>,
    schema: &Schema,
    errors: &mut Vec<FieldError>,
) {
    validate_map(map, schema, true, &Path::ROOT, errors);
}

/// Like [`validate`], for a value that may itself be a resource.
pub(super) fn validate_value(
    value: &Value,
    schema: &Schema,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    match value {
        Value::Object(map) => validate_map(map, schema, schema.embedded_resource, path, errors),
        Value::Array(list) => {
            if let Some(item) = schema.item() {
                list.iter()
                    .enumerate()
                    .for_each(|(i, value)| validate_value(value, item, &path.index(i), errors));
            }
        }
        _ => {}
    }
}

fn validate_map(
    map: &Map<String, Value>,
    schema: &Schema,
    is_resource: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if is_resource {
        validate_resource(map, path, errors);
    }
    for (name, value) in map {
        if let Some(property) = schema.properties.get(name) {
            validate_value(value, property, &path.child(name), errors);
        } else if let Some(additional) = schema.additional() {
            validate_value(value, additional, &path.key(name), errors);
        }
    }
}

fn validate_resource(map: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        if !map.contains_key(name) {
            errors.push(FieldError::required(path.child(name), ""));
        }
    }
    if let Some(version) = map.get("apiVersion") {
        errors.extend(
            text_problem(version, api_version_problem)
                .map(|p| FieldError::invalid(path.child("apiVersion"), version, &p)),
        );
    }
    if let Some(kind) = map.get("kind") {
        errors.extend(
            text_problem(kind, kind_problem)
                .map(|p| FieldError::invalid(path.child("kind"), kind, &p)),
        );
    }
    if let Some(value) = map.get("metadata") {
        let path = path.child("metadata");
        match metadata::decode(value) {
            Ok(meta) => validate_metadata(&meta, &path, errors),
            Err(problem) => errors.push(FieldError::invalid(path, value, &problem)),
        }
    }
}

fn text_problem(value: &Value, validate: fn(&str) -> Option<String>) -> Option<String> {
    match value.as_str() {
        None => Some("must be a string".into()),
        Some("") => Some("must not be empty".into()),
        Some(text) => validate(text),
    }
}

fn api_version_problem(version: &str) -> Option<String> {
    (version.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {version}"))
}

fn kind_problem(kind: &str) -> Option<String> {
    let errs = names::dns_1035_label(&kind.to_lowercase());
    (!errs.is_empty()).then(|| {
        format!(
            "may have mixed case, but should otherwise match: {}",
            errs.join(",")
        )
    })
}

/// An embedded object needs no name, and a namespace only if it has one.
fn validate_metadata(meta: &ObjectMeta, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut texts = |field: &str, text: &str, errs: Vec<String>| {
        errors.extend(
            errs.iter()
                .map(|problem| FieldError::invalid(path.child(field), text, problem)),
        );
    };
    texts(
        "generateName",
        &meta.generate_name,
        names::path_segment(&meta.generate_name),
    );
    texts("name", &meta.name, names::path_segment(&meta.name));
    if !meta.namespace.is_empty() {
        texts(
            "namespace",
            &meta.namespace,
            names::dns_label(&meta.namespace),
        );
    }
    for (key, value) in &meta.labels {
        texts("labels", key, names::qualified_name(key));
        texts("labels", value, names::label_value(value));
    }
    for key in meta.annotations.keys() {
        texts(
            "annotations",
            key,
            names::qualified_name(&key.to_lowercase()),
        );
    }
    let empty = |text: &str| {
        if text.is_empty() {
            vec!["must not be empty".to_owned()]
        } else {
            Vec::new()
        }
    };
    for owner in &meta.owner_references {
        texts("ownerReferences.kind", &owner.kind, empty(&owner.kind));
        texts("ownerReferences.name", &owner.name, empty(&owner.name));
        texts("ownerReferences.uid", &owner.uid, empty(&owner.uid));
    }
    for finalizer in &meta.finalizers {
        texts("finalizers", finalizer, names::qualified_name(finalizer));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {"tmpl": {
            "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}))
        .expect("a valid schema")
    }

    #[test]
    fn embedded_metadata_loses_unknown_fields() {
        let mut value = json!({"tmpl": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "x", "bogus": 1, "creationTimestamp": null}}});
        let map = value.as_object_mut().expect("an object");
        assert_eq!(
            coerce(map, &schema()).expect("well typed"),
            ["tmpl.metadata.bogus"]
        );
        assert_eq!(value["tmpl"]["metadata"], json!({"name": "x"}));
    }

    #[test]
    fn embedded_fields_of_another_type_cannot_be_decoded() {
        for (tmpl, error) in [
            (
                json!({"kind": 1}),
                "tmpl.kind: Invalid value: 1: must be a string",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "tmpl.metadata: Invalid value: {\"labels\":{\"a\":1}}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            ),
        ] {
            let mut value = json!({"tmpl": tmpl});
            let refused = coerce(value.as_object_mut().expect("an object"), &schema())
                .expect_err("it is badly typed");
            assert_eq!(refused.to_string(), error);
        }
    }

    #[test]
    fn embedded_resource_needs_type_and_valid_metadata() {
        for (tmpl, expected) in [
            (
                json!({"apiVersion": "v1"}),
                vec!["tmpl.kind: Required value"],
            ),
            (
                json!({"apiVersion": "a/b/c", "kind": "K"}),
                vec![
                    "tmpl.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                ],
            ),
            (
                json!({"apiVersion": "v1", "kind": "", "metadata": {"name": "a/b"}}),
                vec![
                    "tmpl.kind: Invalid value: \"\": must not be empty",
                    "tmpl.metadata.name: Invalid value: \"a/b\": may not contain '/'",
                ],
            ),
            (
                json!({"apiVersion": "v1", "kind": "K", "metadata": {"namespace": "x"}}),
                vec![],
            ),
        ] {
            let mut errors = Vec::new();
            validate(
                json!({"tmpl": tmpl}).as_object().expect("an object"),
                &schema(),
                &Path::ROOT,
                &mut errors,
            );
            assert_eq!(
                errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
                expected
            );
        }
    }
}
