//! Structural schemas: types everywhere, and junctors that only add constraints.
//! In: a parsed schema. Out: its errors, sorted by message.
//! Guarantees: a structural schema determines for every field whether it is known and its type,
//! without the values.

use bellerophon_apimachinery::field::{FieldError, Path};

use super::schema::{Additional, Items, Marks, Schema};

/// The position of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The keyword that prevents reading a schema as a structural one; `None` when there is none.
pub(super) fn unreadable(schema: &Schema) -> Option<String> {
    let mut found = None;
    schema.walk(&mut |s| {
        if found.is_none() {
            found = unreadable_here(s);
        }
    });
    found
}

fn unreadable_here(schema: &Schema) -> Option<String> {
    let Marks {
        id,
        schema: url,
        reference,
        pattern_properties,
        dependencies,
        additional_items,
        definitions,
        ..
    } = schema.marks;
    let keywords = [
        (id, "id"),
        (url, "schema"),
        (reference, "$ref"),
        (pattern_properties, "patternProperties"),
        (dependencies, "dependencies"),
        (additional_items, "additionalItems"),
        (definitions, "definitions"),
    ];
    if let Some((_, keyword)) = keywords.iter().find(|(there, _)| *there) {
        return Some(format!("OpenAPIV3Schema '{keyword}' is not supported"));
    }
    if schema.preserve_unknown_fields == Some(false) {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
                .into(),
        );
    }
    matches!(schema.items, Some(Items::Many(_)))
        .then(|| "OpenAPIV3Schema 'items' must be a schema, but is an array".into())
}

/// The violations of the rules of structural schemas.
pub(super) fn validate(schema: &Schema, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_node(schema, Level::Root, path, &mut errors);
    junctors(schema).for_each(|(name, index, junctor)| {
        let at = path.child(name);
        validate_complete(
            junctor,
            Some(schema),
            path,
            &index.map_or(at, |i| at.index(i)),
            &mut errors,
        );
    });
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

/// The schemas that `not`, `allOf`, `anyOf` and `oneOf` hold, with their place.
fn junctors(schema: &Schema) -> impl Iterator<Item = (&'static str, Option<usize>, &Schema)> {
    let lists = [
        ("allOf", &schema.all_of),
        ("anyOf", &schema.any_of),
        ("oneOf", &schema.one_of),
    ];
    let listed = lists.into_iter().flat_map(|(name, list)| {
        list.iter()
            .enumerate()
            .map(move |(i, s)| (name, Some(i), s))
    });
    schema
        .not
        .as_deref()
        .map(|s| ("not", None, s))
        .into_iter()
        .chain(listed)
}

fn validate_node(schema: &Schema, level: Level, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if schema.type_name == "array" && schema.items.is_none() {
        errors.push(FieldError::required(
            path.child("items"),
            "must be specified",
        ));
    }
    if let Some(item) = schema.item() {
        validate_node(item, Level::Item, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &schema.properties {
        validate_node(property, Level::Field, &properties.key(name), errors);
    }
    validate_additional(schema, level, path, errors);
    validate_extensions(schema, path, errors);
    let skip_any_of = is_int_or_string_pair(&schema.any_of);
    let skip_first = schema
        .all_of
        .first()
        .is_some_and(|first| is_int_or_string_pair(&first.any_of));
    validate_values(schema, skip_any_of, skip_first, path, errors);
    validate_type(schema, level, path, errors);
    validate_meta_fields(schema, level, path, errors);
    if schema.embedded_resource && !schema.preserves() && schema.properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(path.child("properties"), detail));
    }
}

fn validate_additional(
    schema: &Schema,
    level: Level,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(additional) = &schema.additional_properties else {
        return;
    };
    let at = path.child("additionalProperties");
    if level == Level::Root {
        errors.push(FieldError::forbidden(at, "must not be used at the root"));
    }
    if let Additional::Schema(additional) = additional {
        validate_node(additional, Level::Field, &at, errors);
    }
    if schema.embedded_resource {
        errors.push(FieldError::forbidden(
            at,
            "must not be used if x-kubernetes-embedded-resource is set",
        ));
    }
}

fn validate_extensions(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let detail = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && schema.preserves() {
        errors.push(FieldError::invalid(
            path.child("x-kubernetes-preserve-unknown-fields"),
            true,
            detail,
        ));
    }
    if schema.int_or_string && schema.embedded_resource {
        errors.push(FieldError::invalid(
            path.child("x-kubernetes-embedded-resource"),
            true,
            detail,
        ));
    }
}

fn validate_type(schema: &Schema, level: Level, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let at = path.child("type");
    let type_name = schema.type_name.as_str();
    if schema.embedded_resource && type_name != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if type_name.is_empty() {
            FieldError::required(at, detail)
        } else {
            FieldError::invalid(at, type_name, detail)
        });
    } else if type_name.is_empty() && !schema.int_or_string && !schema.preserves() {
        let place = match level {
            Level::Root => "at the root",
            Level::Item => "for specified array items",
            Level::Field => "for specified object fields",
        };
        errors.push(FieldError::required(
            at,
            &format!("must not be empty {place}"),
        ));
    }
    if level == Level::Root && !type_name.is_empty() && type_name != "object" {
        errors.push(FieldError::invalid(
            at,
            type_name,
            "must be object at the root",
        ));
    }
}

/// The root and embedded resources have metadata whether a schema declares it or not; it may only
/// restrict their names.
fn validate_meta_fields(
    schema: &Schema,
    level: Level,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let is_resource = level == Level::Root || schema.embedded_resource;
    let properties = path.child("properties");
    let mut must_be = |name: &str, wanted: &str| {
        let field = schema
            .properties
            .get(name)
            .filter(|field| is_resource && field.type_name != wanted);
        let error = |f: &Schema| {
            FieldError::invalid(
                properties.key(name).child("type"),
                &f.type_name,
                &format!("must be {wanted}"),
            )
        };
        errors.extend(field.map(error));
    };
    must_be("kind", "string");
    must_be("apiVersion", "string");
    must_be("metadata", "object");
    if level == Level::Root
        && schema
            .properties
            .get("metadata")
            .is_some_and(restricts_more_than_names)
    {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(properties.key("metadata"), detail));
    }
}

fn restricts_more_than_names(metadata: &Schema) -> bool {
    let names_only = metadata
        .properties
        .keys()
        .all(|name| name == "name" || name == "generateName");
    let Schema {
        nullable,
        format,
        allowed,
        required,
        marks,
        pattern,
        ..
    } = metadata;
    let bounds = [metadata.maximum, metadata.minimum, metadata.multiple_of]
        .iter()
        .any(Option::is_some);
    let counts = [
        metadata.max_length,
        metadata.min_length,
        metadata.max_items,
        metadata.min_items,
        metadata.max_properties,
        metadata.min_properties,
    ];
    let extensions = metadata.preserves()
        || metadata.embedded_resource
        || metadata.int_or_string
        || metadata.list_type.is_some()
        || metadata.map_type.is_some()
        || !metadata.list_map_keys.is_empty()
        || !metadata.rules.is_empty();
    !names_only
        || *nullable
        || !format.is_empty()
        || !allowed.is_empty()
        || !required.is_empty()
        || *marks != Marks::default()
        || pattern.is_some()
        || bounds
        || metadata.exclusive_maximum
        || metadata.exclusive_minimum
        || counts.iter().any(Option::is_some)
        || extensions
        || metadata.additional_properties.is_some()
        || metadata.items.is_some()
        || junctors(metadata).next().is_some()
}

/// `anyOf: [{type: integer}, {type: string}]`, the only types that are allowed in a junctor.
fn is_int_or_string_pair(schemas: &[Schema]) -> bool {
    let only_type = |schema: &Schema, name: &str| {
        schema.type_name == name
            && schema.properties.is_empty()
            && schema.default.is_none()
            && !restricts_more_than_names(&Schema {
                type_name: String::new(),
                ..schema.clone()
            })
    };
    matches!(schemas, [integer, string] if only_type(integer, "integer") && only_type(string, "string"))
}

fn validate_values(
    schema: &Schema,
    skip_any_of: bool,
    skip_first_any_of: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (name, index, junctor) in junctors(schema) {
        if skip_any_of && name == "anyOf" {
            continue;
        }
        let at = path.child(name);
        validate_nested(
            junctor,
            skip_first_any_of && name == "allOf" && index == Some(0),
            &index.map_or(at, |i| at.index(i)),
            errors,
        );
    }
    if let Some((pattern, problem)) = schema
        .pattern
        .as_ref()
        .and_then(|p| Some((p, p.problem()?)))
    {
        let detail = format!("must be a valid regular expression, but isn't: {problem}");
        errors.push(FieldError::invalid(
            path.child("pattern"),
            &pattern.source,
            &detail,
        ));
    }
}

/// A schema inside a junctor may only constrain values.
fn validate_nested(
    schema: &Schema,
    skip_any_of: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    validate_values(schema, skip_any_of, false, path, errors);
    if let Some(item) = schema.item() {
        validate_nested(item, false, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &schema.properties {
        validate_nested(property, false, &properties.key(name), errors);
    }
    let additional = !matches!(
        schema.additional_properties,
        None | Some(Additional::Any(false))
    );
    let forbidden = [
        (!schema.type_name.is_empty(), "type", "empty"),
        (additional, "additionalProperties", "undefined"),
        (schema.default.is_some(), "default", "undefined"),
        (schema.marks.title, "title", "empty"),
        (schema.marks.description, "description", "empty"),
        (schema.nullable, "nullable", "false"),
        (
            schema.preserves(),
            "x-kubernetes-preserve-unknown-fields",
            "false",
        ),
        (
            schema.embedded_resource,
            "x-kubernetes-embedded-resource",
            "false",
        ),
        (schema.int_or_string, "x-kubernetes-int-or-string", "false"),
        (
            !schema.list_map_keys.is_empty(),
            "x-kubernetes-list-map-keys",
            "empty",
        ),
        (
            schema.list_type.is_some(),
            "x-kubernetes-list-type",
            "undefined",
        ),
        (
            schema.map_type.is_some(),
            "x-kubernetes-map-type",
            "undefined",
        ),
        (
            !schema.rules.is_empty(),
            "x-kubernetes-validations",
            "empty",
        ),
    ];
    for (_, keyword, wanted) in forbidden.iter().filter(|(there, ..)| *there) {
        errors.push(FieldError::forbidden(
            path.child(keyword),
            &format!("must be {wanted} to be structural"),
        ));
    }
    if schema.properties.contains_key("metadata") {
        errors.push(FieldError::forbidden(
            properties.key("metadata"),
            "must not be specified in a nested context",
        ));
    }
}

/// What a junctor of the root constrains must be declared outside of it. Kubernetes requires that
/// of the root only.
fn validate_complete(
    nested: &Schema,
    declared: Option<&Schema>,
    path: &Path<'_>,
    nested_path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(declared) = declared else {
        errors.push(FieldError::required(
            path,
            &format!("because it is defined in {nested_path}"),
        ));
        return;
    };
    for (name, index, junctor) in junctors(nested) {
        let at = nested_path.child(name);
        validate_complete(
            junctor,
            Some(declared),
            path,
            &index.map_or(at, |i| at.index(i)),
            errors,
        );
    }
    if let Some(item) = nested.item() {
        validate_complete(
            item,
            declared.item(),
            &path.child("items"),
            &nested_path.child("items"),
            errors,
        );
    }
    let nested_properties = nested_path.child("properties");
    let properties = path.child("properties");
    for (name, property) in &nested.properties {
        validate_complete(
            property,
            declared.properties.get(name),
            &properties.key(name),
            &nested_properties.key(name),
            errors,
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check_schema(schema: Value, expected: &[&str]) {
        let parsed = Schema::parse(&schema).expect("it is well typed");
        let errors: Vec<String> = validate(&parsed, &Path::field("s"))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors, expected, "{schema}");
    }

    #[test]
    fn types_are_needed_everywhere() {
        check_schema(
            json!({}),
            &["s.type: Required value: must not be empty at the root"],
        );
        check_schema(
            json!({"type": "string"}),
            &["s.type: Invalid value: \"string\": must be object at the root"],
        );
        let fields = json!({"type": "object", "properties": {"a": {}, "b": {"type": "array"}, "c": {"type": "array", "items": {}}}});
        check_schema(
            fields,
            &[
                "s.properties[a].type: Required value: must not be empty for specified object fields",
                "s.properties[b].items: Required value: must be specified",
                "s.properties[c].items.type: Required value: must not be empty for specified array items",
            ],
        );
        check_schema(
            json!({"type": "object", "additionalProperties": true}),
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        );
        check_schema(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"x-kubernetes-int-or-string": true}}}),
            &[],
        );
    }

    #[test]
    fn junctors_may_only_constrain() {
        check_schema(
            json!({"type": "object", "properties": {"a": {"type": "string", "not": {"default": 1, "description": "x"}}}}),
            &[
                "s.properties[a].not.default: Forbidden: must be undefined to be structural",
                "s.properties[a].not.description: Forbidden: must be empty to be structural",
            ],
        );
        check_schema(
            json!({"type": "object", "anyOf": [{"properties": {"x": {"minLength": 1}, "metadata": {}}}]}),
            &[
                "s.anyOf[0].properties[metadata]: Forbidden: must not be specified in a nested context",
                "s.properties[metadata]: Required value: because it is defined in s.anyOf[0].properties[metadata]",
                "s.properties[x]: Required value: because it is defined in s.anyOf[0].properties[x]",
            ],
        );
        let pair = json!([{"type": "integer"}, {"type": "string"}]);
        check_schema(
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "anyOf": pair}}}),
            &[],
        );
        check_schema(
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": pair}, {"pattern": "^a"}]}}}),
            &[],
        );
        check_schema(
            json!({"type": "object", "properties": {"a": {"type": "object", "oneOf": [{"properties": {"c": {"minLength": 1}}}]}}}),
            &[],
        );
    }

    #[test]
    fn metadata_may_only_restrict_names() {
        let more = "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
        let with =
            |metadata: Value| json!({"type": "object", "properties": {"metadata": metadata}});
        check_schema(
            with(
                json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}),
            ),
            &[],
        );
        check_schema(
            with(json!({"type": "object", "properties": {"labels": {"type": "object"}}})),
            &[more],
        );
        check_schema(
            with(json!({"type": "object", "required": ["labels"]})),
            &[more],
        );
        check_schema(
            with(json!({"type": "string"})),
            &["s.properties[metadata].type: Invalid value: \"string\": must be object"],
        );
        check_schema(
            json!({"type": "object", "properties": {"apiVersion": {"type": "integer"}}}),
            &["s.properties[apiVersion].type: Invalid value: \"integer\": must be string"],
        );
    }

    #[test]
    fn embedded_resources_are_objects_with_fields() {
        check_schema(
            json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-embedded-resource": true}}}),
            &[
                "s.properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
                "s.properties[a].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true",
            ],
        );
    }

    #[test]
    fn broken_pattern_is_refused() {
        check_schema(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "[a"}}}),
            &[
                "s.properties[a].pattern: Invalid value: \"[a\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[a`",
            ],
        );
    }

    #[test]
    fn unsupported_keywords_make_a_schema_unreadable() {
        for (schema, problem) in [
            (
                json!({"properties": {"a": {"$ref": "#/x"}}}),
                Some("OpenAPIV3Schema '$ref' is not supported"),
            ),
            (
                json!({"not": {"id": "x"}}),
                Some("OpenAPIV3Schema 'id' is not supported"),
            ),
            (
                json!({"items": [{"type": "string"}]}),
                Some("OpenAPIV3Schema 'items' must be a schema, but is an array"),
            ),
            (json!({"type": "object"}), None),
        ] {
            assert_eq!(
                unreadable(&Schema::parse(&schema).expect("well typed")).as_deref(),
                problem
            );
        }
    }
}
