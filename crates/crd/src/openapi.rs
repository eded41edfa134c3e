//! Validates the OpenAPI keywords of a schema, and their combinations.
//! In: a parsed schema. Out: its errors, parents first.

use bellerophon_apimachinery::field::{FieldError, Path};
use serde_json::{Value, json};

use super::{
    prune::META_FIELDS,
    rules,
    schema::{Additional, Items, Schema},
};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// What a schema inherits from its position.
#[derive(Clone, Copy, Default)]
struct Context<'a> {
    /// Why there may be no default here.
    no_defaults: Option<&'a str>,
    /// Whether the schema is of an object's type or metadata.
    inside_meta: bool,
    is_root: bool,
}

/// The errors of the keywords of a schema.
pub(super) fn validate(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    validate_node(
        schema,
        path,
        Context {
            is_root: true,
            ..Context::default()
        },
        errors,
    );
}

fn validate_node(
    schema: &Schema,
    path: &Path<'_>,
    context: Context<'_>,
    errors: &mut Vec<FieldError>,
) {
    validate_keywords(schema, path, context, errors);
    let below = Context {
        is_root: false,
        ..context
    };
    validate_fields(schema, path, context, errors);
    if let Some(not) = &schema.not {
        validate_node(not, &path.child("not"), below, errors);
    }
    for (name, list) in [
        ("allOf", &schema.all_of),
        ("oneOf", &schema.one_of),
        ("anyOf", &schema.any_of),
    ] {
        let at = path.child(name);
        list.iter()
            .enumerate()
            .for_each(|(i, junctor)| validate_node(junctor, &at.index(i), below, errors));
    }
    let items = path.child("items");
    match &schema.items {
        None => {}
        Some(Items::One(item)) => validate_node(item, &items, below, errors),
        Some(Items::Many(all)) => all
            .iter()
            .enumerate()
            .for_each(|(i, item)| validate_node(item, &items.index(i), below, errors)),
    }
    validate_preserving(schema, path, errors);
    validate_list_type(schema, path, errors);
    validate_map_keys(schema, path, errors);
    validate_keys_are_set(schema, path, errors);
    rules::validate_surface(schema, path, errors);
}

fn validate_keywords(
    schema: &Schema,
    path: &Path<'_>,
    context: Context<'_>,
    errors: &mut Vec<FieldError>,
) {
    if !schema.type_name.is_empty() && !TYPES.contains(&schema.type_name.as_str()) {
        errors.push(FieldError::not_supported(
            path.child("type"),
            &schema.type_name,
            &TYPES,
        ));
    }
    if let Some(reason) = context.no_defaults.filter(|_| schema.default.is_some()) {
        errors.push(FieldError::forbidden(
            path.child("default"),
            &format!("must not be set {reason}"),
        ));
    }
    let marks = &schema.marks;
    let unsupported = [
        (marks.id, "id"),
        (marks.additional_items, "additionalItems"),
        (marks.pattern_properties, "patternProperties"),
        (marks.definitions, "definitions"),
        (marks.dependencies, "dependencies"),
        (marks.reference, "$ref"),
    ];
    for (_, keyword) in unsupported.iter().filter(|(there, _)| *there) {
        errors.push(FieldError::forbidden(
            path.child(keyword),
            &format!("{keyword} is not supported"),
        ));
    }
    let forbidden = [
        (
            schema.type_name == "null",
            "type",
            "type cannot be set to null, use nullable as an alternative",
        ),
        (
            matches!(schema.items, Some(Items::Many(_))),
            "items",
            "items must be a schema object and not an array",
        ),
        (
            context.inside_meta && schema.embedded_resource,
            "x-kubernetes-embedded-resource",
            "must not be used inside of resource meta",
        ),
        (
            marks.unique_items,
            "uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
    ];
    for (_, keyword, detail) in forbidden.iter().filter(|(there, ..)| *there) {
        errors.push(FieldError::forbidden(path.child(keyword), detail));
    }
}

fn validate_fields(
    schema: &Schema,
    path: &Path<'_>,
    context: Context<'_>,
    errors: &mut Vec<FieldError>,
) {
    let below = Context {
        is_root: false,
        ..context
    };
    if let Some(additional) = &schema.additional_properties {
        let at = path.child("additionalProperties");
        if !schema.properties.is_empty() && !matches!(additional, Additional::Any(true)) {
            errors.push(FieldError::forbidden(
                at,
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if let Additional::Schema(additional) = additional {
            let ambiguous = context
                .inside_meta
                .then_some("inside additionalProperties applying to object metadata");
            validate_node(
                additional,
                &at,
                Context {
                    no_defaults: ambiguous.or(below.no_defaults),
                    ..below
                },
                errors,
            );
        }
    }
    let properties = path.child("properties");
    for (name, property) in &schema.properties {
        let is_meta =
            (context.is_root || schema.embedded_resource) && META_FIELDS.contains(&name.as_str());
        let reason = format!("in top-level {name}");
        let no_defaults = (is_meta && context.is_root)
            .then_some(reason.as_str())
            .or(below.no_defaults);
        let context = Context {
            no_defaults,
            inside_meta: below.inside_meta || is_meta,
            is_root: false,
        };
        validate_node(property, &properties.key(name), context, errors);
    }
}

/// A type that must be `wanted` because of an extension.
fn validate_type(
    schema: &Schema,
    wanted: &str,
    extension: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let at = path.child("type");
    let detail = format!("must be {wanted} if {extension} is specified");
    if schema.type_name.is_empty() {
        errors.push(FieldError::required(at, &detail));
    } else if schema.type_name != wanted {
        errors.push(FieldError::invalid(at, &schema.type_name, &detail));
    }
}

fn validate_preserving(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if schema.preserve_unknown_fields == Some(false) {
        errors.push(FieldError::invalid(
            path.child("x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    if let Some(map_type) = &schema.map_type {
        validate_type(schema, "object", "x-kubernetes-map-type", path, errors);
        if !["atomic", "granular"].contains(&map_type.as_str()) {
            errors.push(FieldError::not_supported(
                path.child("x-kubernetes-map-type"),
                map_type,
                &["atomic", "granular"],
            ));
        }
    }
}

fn validate_list_type(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let at = path.child("x-kubernetes-list-type");
    if let Some(list_type) = &schema.list_type {
        validate_type(schema, "array", "x-kubernetes-list-type", path, errors);
        if schema.type_name == "array" && list_type == "set" {
            validate_set_item(schema, path, errors);
        }
        if !["atomic", "set", "map"].contains(&list_type.as_str()) {
            errors.push(FieldError::not_supported(
                at,
                list_type,
                &["atomic", "set", "map"],
            ));
        }
    }
    let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
    match schema.list_type.as_deref() {
        _ if schema.list_map_keys.is_empty() => {}
        None => errors.push(FieldError::required(at, detail)),
        Some("map") => {}
        Some(other) => errors.push(FieldError::invalid(at, other, detail)),
    }
}

/// Items of a set are compared as a whole. The value shown is the item's list type in both cases,
/// as in Kubernetes.
fn validate_set_item(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(item) = schema.item() else { return };
    let extension = match item.type_name.as_str() {
        "array" if item.list_type.as_deref().is_some_and(|t| t != "atomic") => {
            "x-kubernetes-list-type"
        }
        "object" if item.map_type.as_deref() != Some("atomic") => "x-kubernetes-map-type",
        _ => return,
    };
    let shown = item.list_type.as_ref().map_or(Value::Null, |t| json!(t));
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    errors.push(FieldError::invalid(
        path.child("items").child(extension),
        &shown,
        detail,
    ));
}

fn validate_map_keys(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if schema.list_type.as_deref() != Some("map") {
        return;
    }
    let at = path.child("x-kubernetes-list-map-keys");
    let items = path.child("items");
    if schema.list_map_keys.is_empty() {
        errors.push(FieldError::required(
            at,
            "must not be empty if x-kubernetes-list-type is map",
        ));
    }
    let item = match &schema.items {
        None => {
            return errors.push(FieldError::required(
                items,
                "must have a schema if x-kubernetes-list-type is map",
            ));
        }
        Some(Items::Many(_)) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            return errors.push(FieldError::invalid(items, &json!([]), detail));
        }
        Some(Items::One(item)) => item,
    };
    if item.type_name != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        return errors.push(FieldError::invalid(
            items.child("type"),
            &item.type_name,
            detail,
        ));
    }
    let keys = &schema.list_map_keys;
    let properties = items.child("properties");
    for (i, key) in keys.iter().enumerate() {
        match item.properties.get(key) {
            Some(field) if field.type_name == "array" || field.type_name == "object" => {
                let detail =
                    "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(
                    properties.key(key).child("type"),
                    &item.type_name,
                    detail,
                ));
            }
            Some(_) => {}
            None => errors.push(FieldError::invalid(
                at,
                &json!(keys),
                "entries must all be names of item properties",
            )),
        }
        if keys[..i].contains(key) {
            errors.push(FieldError::invalid(
                at,
                &json!(keys),
                "must not contain duplicate entries",
            ));
        }
    }
}

/// Items of sets and maps are never null, and the keys of maps are always there.
fn validate_keys_are_set(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let (Some(item), Some(list_type @ ("set" | "map"))) =
        (schema.item(), schema.list_type.as_deref())
    else {
        return;
    };
    let items = path.child("items");
    if item.nullable {
        errors.push(FieldError::forbidden(
            items.child("nullable"),
            &format!("cannot be nullable when x-kubernetes-list-type is {list_type}"),
        ));
    }
    let properties = items.child("properties");
    for key in schema.list_map_keys.iter().filter(|_| list_type == "map") {
        let Some(field) = item.properties.get(key) else {
            continue;
        };
        let at = properties.key(key);
        if !item.required.contains(key) && field.default.is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(at.child("default"), detail));
        }
        if field.nullable {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(at.child("nullable"), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_field(schema: Value, expected: &[&str]) {
        let parsed = Schema::parse(&json!({"type": "object", "properties": {"a": schema}}))
            .expect("it is well typed");
        let mut errors = Vec::new();
        validate(&parsed, &Path::ROOT, &mut errors);
        let errors: Vec<String> = errors
            .iter()
            .map(|e| e.to_string().replacen("properties[a].", "", 1))
            .collect();
        assert_eq!(errors, expected, "{schema}");
    }

    #[test]
    fn keywords_without_support_are_refused() {
        check_field(
            json!({"type": "text"}),
            &[
                "type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        );
        check_field(
            json!({"type": "array", "uniqueItems": true}),
            &[
                "uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        );
        check_field(
            json!({"$ref": "#/x"}),
            &["$ref: Forbidden: $ref is not supported"],
        );
        check_field(
            json!({"items": [{"type": "string"}]}),
            &["items: Forbidden: items must be a schema object and not an array"],
        );
        check_field(
            json!({"properties": {"b": {}}, "additionalProperties": {}}),
            &[
                "additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ],
        );
        check_field(json!({"additionalProperties": false}), &[]);
    }

    #[test]
    fn list_and_map_types_must_fit() {
        check_field(
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            &[
                "type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
            ],
        );
        check_field(
            json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {}}),
            &[
                "x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
            ],
        );
        check_field(
            json!({"type": "object", "x-kubernetes-map-type": "loose"}),
            &[
                "x-kubernetes-map-type: Unsupported value: \"loose\": supported values: \"atomic\", \"granular\"",
            ],
        );
        check_field(
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
            &[
                "items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        );
        check_field(
            json!({"x-kubernetes-preserve-unknown-fields": false}),
            &[
                "x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
            ],
        );
    }

    #[test]
    fn map_keys_are_required_scalars_of_the_items() {
        let list = |keys: Value, items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items});
        let item = |field: Value, required: Value| json!({"type": "object", "properties": {"n": field}, "required": required});
        let text = json!({"type": "string"});
        check_field(list(json!(["n"]), item(text.clone(), json!(["n"]))), &[]);
        check_field(
            list(json!(["m"]), item(text.clone(), json!(["n"]))),
            &[
                "x-kubernetes-list-map-keys: Invalid value: [\"m\"]: entries must all be names of item properties",
            ],
        );
        check_field(
            list(json!(["n", "n"]), item(text.clone(), json!(["n"]))),
            &[
                "x-kubernetes-list-map-keys: Invalid value: [\"n\",\"n\"]: must not contain duplicate entries",
            ],
        );
        check_field(
            list(json!(["n"]), item(text, json!([]))),
            &[
                "items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        );
        check_field(
            list(json!(["n"]), item(json!({"type": "object"}), json!(["n"]))),
            &[
                "items.properties[n].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
            ],
        );
        check_field(
            list(json!(["n"]), json!({"type": "string"})),
            &[
                "items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            ],
        );
    }

    #[test]
    fn top_level_metadata_has_no_defaults() {
        let schema =
            Schema::parse(&json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}})).expect("well typed");
        let mut errors = Vec::new();
        validate(&schema, &Path::ROOT, &mut errors);
        assert_eq!(
            errors[0].to_string(),
            "properties[metadata].default: Forbidden: must not be set in top-level metadata"
        );
    }
}
