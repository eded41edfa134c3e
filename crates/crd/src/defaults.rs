//! Validates the defaults of a schema against the schema.
//! In: a structural schema. Out: the errors of its defaults.
//! Guarantees: a default inside the metadata of a resource is validated as part of a whole
//! resource.

use bellerophon_apimachinery::field::{FieldError, Path};
use serde_json::{Map, Value, json};

use super::{embedded, prune, schema::Schema, validate};

/// The steps from a resource to a schema in it.
#[derive(Clone, Copy)]
struct SchemaPath<'a> {
    /// The step before; none at the resource itself.
    parent: Option<&'a SchemaPath<'a>>,
    /// A field's name, or none for the items of a list.
    step: Option<&'a str>,
}

/// The innermost resource around a schema.
#[derive(Clone, Copy)]
struct Resource<'a> {
    schema: &'a Schema,
    inside_meta: bool,
}

/// The errors of the defaults of a schema.
pub(super) fn validate_defaults(schema: &Schema, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let resource = Resource {
        schema,
        inside_meta: false,
    };
    validate_node(
        schema,
        resource,
        SchemaPath {
            parent: None,
            step: None,
        },
        true,
        path,
        &mut errors,
    );
    errors
}

fn validate_node(
    schema: &Schema,
    around: Resource<'_>,
    steps: SchemaPath<'_>,
    is_root: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let is_resource = is_root || schema.embedded_resource;
    let around = if is_resource {
        Resource {
            schema,
            inside_meta: false,
        }
    } else {
        around
    };
    let steps = if is_resource {
        SchemaPath {
            parent: None,
            step: None,
        }
    } else {
        steps
    };
    if let Some(default) = &schema.default {
        let at = path.child("default");
        if around.inside_meta {
            validate_in_metadata(default, schema, around.schema, &steps, &at, errors);
        } else {
            validate_default(default, schema, is_resource, &at, errors);
        }
    }
    if let Some(item) = schema.item() {
        validate_node(
            item,
            around,
            SchemaPath {
                parent: Some(&steps),
                step: None,
            },
            false,
            &path.child("items"),
            errors,
        );
    }
    let properties = path.child("properties");
    for (name, property) in &schema.properties {
        let is_meta = is_resource && prune::META_FIELDS.contains(&name.as_str());
        let around = Resource {
            inside_meta: around.inside_meta || is_meta,
            ..around
        };
        validate_node(
            property,
            around,
            SchemaPath {
                parent: Some(&steps),
                step: Some(name),
            },
            false,
            &properties.key(name),
            errors,
        );
    }
}

fn validate_default(
    default: &Value,
    schema: &Schema,
    is_resource: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut pruned = default.clone();
    match &mut pruned {
        Value::Object(map) if is_resource => drop(prune::prune_resource(map, schema)),
        other => prune::prune_value(other, schema),
    }
    if pruned != *default {
        errors.push(FieldError::invalid(
            path,
            default,
            "must not have unknown fields",
        ));
    }
    let mut coerced = default.clone();
    if let Err(error) = embedded::coerce_value(&mut coerced, schema, path) {
        return errors.push(error);
    }
    let mut errs = Vec::new();
    embedded::validate_value(&coerced, schema, path, &mut errs);
    if errs.is_empty() {
        errs = validate::validate(&coerced, None, schema, Some(path));
    }
    errors.append(&mut errs);
}

fn validate_in_metadata(
    default: &Value,
    schema: &Schema,
    resource_schema: &Schema,
    steps: &SchemaPath<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut resource = steps.surround(default.clone());
    let problem = match embedded::coerce_resource(&mut resource, resource_schema) {
        Err(error) => Some(error.to_string()),
        Ok(()) => {
            let mut errs = Vec::new();
            embedded::validate_resource_at_root(&resource, resource_schema, &mut errs);
            (!errs.is_empty()).then(|| aggregate(&errs))
        }
    };
    match problem {
        Some(problem) => errors.push(FieldError::invalid(
            path,
            default,
            &format!("must result in valid metadata: {problem}"),
        )),
        None => errors.extend(validate::validate(default, None, schema, Some(path))),
    }
}

/// Several errors as one text.
pub(super) fn aggregate(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.dedup();
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

impl SchemaPath<'_> {
    /// The resource that has `value` at this path.
    fn surround(&self, value: Value) -> Map<String, Value> {
        let mut value = value;
        let mut at = self;
        while let Some(parent) = at.parent {
            value = match at.step {
                Some(name) => json!({ name: value }),
                None => json!([value]),
            };
            at = parent;
        }
        let mut map = match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        map.entry("apiVersion")
            .or_insert_with(|| "validation/v1".into());
        map.entry("kind").or_insert_with(|| "Validation".into());
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_field(schema: Value, expected: &[&str]) {
        let parsed = Schema::parse(&json!({"type": "object", "properties": {"a": schema}}))
            .expect("it is well typed");
        let errors: Vec<String> = validate_defaults(&parsed, &Path::field("s"))
            .iter()
            .map(|e| e.to_string().replacen("s.properties[a].", "", 1))
            .collect();
        assert_eq!(errors, expected, "{schema}");
    }

    #[test]
    fn defaults_must_fit_their_own_schema() {
        check_field(
            json!({"type": "string", "default": 5}),
            &["default: Invalid value: \"integer\":  in body must be of type string: \"integer\""],
        );
        check_field(
            json!({"type": "integer", "maximum": 3, "default": 9}),
            &["default: Invalid value: 9:  in body should be less than or equal to 3"],
        );
        check_field(
            json!({"type": "string", "enum": ["x", "y"], "default": "z"}),
            &["default: Unsupported value: \"z\": supported values: \"x\", \"y\""],
        );
        check_field(
            json!({"type": "array", "items": {"type": "string"}, "default": ["x", 2]}),
            &[
                "default.[1]: Invalid value: \"integer\": [1] in body must be of type string: \"integer\"",
            ],
        );
        check_field(
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"b": "x", "c": 1}}),
            &["default: Invalid value: {\"b\":\"x\",\"c\":1}: must not have unknown fields"],
        );
        check_field(
            json!({"type": "object", "required": ["b"], "properties": {"b": {"type": "string", "default": "x"}}, "default": {}}),
            &["default.b: Required value"],
        );
        check_field(
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "default": {"k": "x"}}),
            &[
                "default.k: Invalid value: \"string\": .k in body must be of type integer: \"string\"",
            ],
        );
    }

    #[test]
    fn defaults_in_embedded_metadata_make_a_valid_resource() {
        let embedded = |name: &str| {
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "default": name}}}}})
        };
        check_field(embedded("x"), &[]);
        check_field(
            embedded("a/b"),
            &[
                "properties[metadata].properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'",
            ],
        );
    }
}
