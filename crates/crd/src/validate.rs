//! Validates a value against its schema.
//! In: a value, its schema, and on update the old value. Out: every problem, in the order and with
//! the messages of Kubernetes.
//! Guarantees: problems of an unchanged value are tolerated (ratcheting); siblings are visited in
//! alphabetical order.

use std::collections::HashMap;

use bellerophon_apimachinery::field::{FieldError, Path};
use serde_json::{Map, Value};

use super::{
    bounds, formats, lists,
    number::{Num, is_json_integer},
    problem::{Outcome, Problem},
    schema::{Additional, Schema},
};

/// The errors of `value`, which is at `prefix` of the object. Problems that `old` already had are
/// tolerated (ratcheting).
pub(crate) fn validate(
    value: &Value,
    old: Option<&Value>,
    schema: &Schema,
    prefix: Option<&Path<'_>>,
) -> Vec<FieldError> {
    ratchet(value, old, schema, &Path::ROOT)
        .into_problems()
        .into_iter()
        .map(|p| p.into_error(prefix))
        .collect()
}

/// Validates a value and ratchets every error if it equals the old one.
fn ratchet(value: &Value, old: Option<&Value>, schema: &Schema, path: &Path<'_>) -> Outcome {
    let mut outcome = validate_value(value, old, schema, path);
    if !outcome.is_valid() && old.is_some_and(|old| is_same(value, old, schema)) {
        outcome.clear();
    }
    outcome
}

fn validate_value(value: &Value, old: Option<&Value>, schema: &Schema, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    if value.is_null() {
        outcome.merge(validate_type(value, schema, path));
        outcome.merge(validate_enum(value, schema, path));
        return outcome;
    }
    if !schema.types().is_empty() || !schema.format_in_force().is_empty() {
        outcome.merge_checked(validate_type(value, schema, path));
    }
    outcome.merge_checked(validate_junctors(value, schema, path));
    match value {
        Value::String(text) => {
            outcome.merge_checked(validate_text(text, schema, path));
            if let Some(has_format) = formats::find(schema.format_in_force()) {
                let errs = (!has_format(text))
                    .then(|| Problem::type_error(path, schema.format_in_force(), text));
                outcome.merge_checked(errs.into());
            }
        }
        Value::Number(number) => {
            outcome.merge_checked(bounds::validate_number(Num::of(number), schema, path))
        }
        Value::Array(list) => outcome.merge_checked(validate_list(list, old, schema, path)),
        _ => {}
    }
    outcome.merge_checked(validate_enum(value, schema, path));
    if let Value::Object(map) = value {
        outcome.merge_checked(validate_object(map, old, schema, path));
    }
    outcome.matches += 1;
    outcome
}

/// The type and Go's native format of a value.
fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(n) => match Num::of(n) {
            Num::Int(_) => ("integer", "int64"),
            Num::Float(_) => ("number", "float64"),
        },
    }
}

fn validate_type(value: &Value, schema: &Schema, path: &Path<'_>) -> Outcome {
    let types = schema.types();
    let (found, native) = type_of(value);
    if value.is_null() {
        let errs = !types.is_empty() && !types.contains(&"null") && !schema.nullable;
        return Outcome::matched_unless(
            errs.then(|| Problem::type_error(path, &types.join(","), found)),
        );
    }
    let format = schema.format_in_force();
    let numeric = types.contains(&"number") || types.contains(&"integer");
    let whole = matches!(value, Value::Number(n) if matches!(Num::of(n), Num::Float(f) if is_json_integer(f)))
        && types.contains(&"integer");
    let fits = types.contains(&found) || whole || (found == "integer" && types.contains(&"number"));
    let is_text_or_list = matches!(value, Value::String(_) | Value::Array(_));
    if !is_text_or_list && !format.is_empty() && !fits && native != format {
        return Outcome::matched_unless(Some(Problem::type_error(path, format, native)));
    }
    // A list passes for a formatted string: kube-apiserver looks no further either.
    let excused = !numeric && !format.is_empty() && is_text_or_list;
    Outcome::matched_unless(
        (!excused && !fits).then(|| Problem::type_error(path, &types.join(","), found)),
    )
}

fn validate_junctors(value: &Value, schema: &Schema, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    if !schema.any_of.is_empty() {
        validate_any_of(value, &schema.any_of, path, &mut outcome);
    }
    if !schema.one_of.is_empty() {
        validate_one_of(value, &schema.one_of, path, &mut outcome);
    }
    if !schema.all_of.is_empty() {
        validate_all_of(value, &schema.all_of, path, &mut outcome);
    }
    if let Some(not) = &schema.not
        && validate_value(value, None, not, path).is_valid()
    {
        outcome.push(Problem::composite(format!(
            "{:?} must not validate the schema (not)",
            path.to_string()
        )));
    }
    outcome.matches += 1;
    outcome
}

fn validate_any_of(value: &Value, schemas: &[Schema], path: &Path<'_>, outcome: &mut Outcome) {
    let mut best: Option<Outcome> = None;
    for schema in schemas {
        let result = validate_value(value, None, schema, path);
        if result.is_valid() {
            outcome.merge(result);
            return;
        }
        if best
            .as_ref()
            .is_none_or(|best| result.matches > best.matches)
        {
            best = Some(result);
        }
    }
    outcome.push(Problem::composite(format!(
        "{:?} must validate at least one schema (anyOf)",
        path.to_string()
    )));
    best.into_iter().for_each(|best| outcome.merge(best));
}

fn validate_one_of(value: &Value, schemas: &[Schema], path: &Path<'_>, outcome: &mut Outcome) {
    let results: Vec<Outcome> = schemas
        .iter()
        .map(|schema| validate_value(value, None, schema, path))
        .collect();
    let valid = results.iter().filter(|r| r.is_valid()).count();
    let found = match valid {
        1 => {
            results
                .into_iter()
                .filter(Outcome::is_valid)
                .for_each(|r| outcome.merge(r));
            return;
        }
        0 => "Found none valid".to_owned(),
        n => format!("Found {n} valid alternatives"),
    };
    outcome.push(Problem::composite(format!(
        "{:?} must validate one and only one schema (oneOf). {found}",
        path.to_string()
    )));
    if valid == 0 {
        let best = results
            .into_iter()
            .reduce(|best, r| if r.matches > best.matches { r } else { best });
        best.into_iter().for_each(|best| outcome.merge(best));
    }
}

fn validate_all_of(value: &Value, schemas: &[Schema], path: &Path<'_>, outcome: &mut Outcome) {
    let mut valid = 0;
    for schema in schemas {
        let result = validate_value(value, None, schema, path);
        valid += usize::from(result.is_valid());
        outcome.merge(result);
    }
    if valid < schemas.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        outcome.push(Problem::composite(format!(
            "{:?} must validate all the schemas (allOf){none}",
            path.to_string()
        )));
    }
}

/// Only the first problem of a string is reported.
fn validate_text(text: &str, schema: &Schema, path: &Path<'_>) -> Outcome {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let problem = if let Some(max) = schema.max_length.filter(|max| length > *max) {
        Some(Problem::too_long(path, max))
    } else if let Some(min) = schema.min_length.filter(|min| length < *min) {
        Some(Problem::invalid(
            path,
            text,
            &format!("should be at least {min} chars long"),
        ))
    } else {
        let unmatched = schema
            .pattern
            .as_ref()
            .filter(|pattern| !pattern.is_match(text));
        unmatched.map(|pattern| {
            Problem::invalid(path, text, &format!("should match '{}'", pattern.source))
        })
    };
    problem.into()
}

fn validate_list(list: &[Value], old: Option<&Value>, schema: &Schema, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::matched_unless(None);
    if let Some(item) = schema.item() {
        let before = OldItems::of(old, schema);
        for (i, value) in list.iter().enumerate() {
            outcome.merge(ratchet(value, before.find(value), item, &path.index(i)));
        }
    }
    let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if let Some(min) = schema.min_items.filter(|min| size < *min) {
        outcome.push(Problem::invalid(
            path,
            Num::Int(size),
            &format!("should have at least {min} items"),
        ));
    }
    if let Some(max) = schema.max_items.filter(|max| size > *max) {
        outcome.push(Problem::too_many(path, list.len(), max, "items"));
    }
    outcome
}

fn validate_object(
    map: &Map<String, Value>,
    old: Option<&Value>,
    schema: &Schema,
    path: &Path<'_>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(min) = schema.min_properties.filter(|min| size < *min) {
        outcome.push(Problem::invalid(
            path,
            Num::Int(size),
            &format!("should have at least {min} properties"),
        ));
    }
    if let Some(max) = schema.max_properties.filter(|max| size > *max) {
        outcome.push(Problem::too_many(path, map.len(), max, "properties"));
    }
    let further = map
        .iter()
        .filter(|(name, _)| !schema.properties.contains_key(*name));
    match &schema.additional_properties {
        Some(Additional::Any(false)) => {
            further.for_each(|(name, _)| outcome.push(Problem::forbidden_property(path, name)))
        }
        Some(Additional::Schema(additional)) => {
            for (name, value) in further {
                let dotted = if path.is_root() {
                    format!(".{name}")
                } else {
                    name.clone()
                };
                outcome.merge(ratchet(
                    value,
                    old_field(name, old, path),
                    additional,
                    &path.child(&dotted),
                ));
            }
        }
        _ => {}
    }
    for (name, property) in &schema.properties {
        if let Some(value) = map.get(name) {
            outcome.merge(ratchet(
                value,
                old_field(name, old, path),
                property,
                &path.child(name),
            ));
        }
    }
    schema
        .required
        .iter()
        .filter(|name| !map.contains_key(*name))
        .for_each(|name| outcome.push(Problem::required(path, name)));
    outcome
}

fn validate_enum(value: &Value, schema: &Schema, path: &Path<'_>) -> Outcome {
    let allowed = schema.allowed.is_empty() || schema.allowed.iter().any(|a| is_allowed(value, a));
    (!allowed)
        .then(|| Problem::not_supported(path, value, &schema.allowed))
        .into()
}

/// Numbers are converted to the kind of the allowed one before they are compared; null is never
/// allowed.
fn is_allowed(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(n), Value::Number(a)) => match (Num::of(n), Num::of(a)) {
            (n, Num::Int(a)) => n.truncated() == a,
            (n, Num::Float(a)) => n.as_f64() == a,
        },
        _ => value == allowed,
    }
}

/// The old value of a field. The type of an object is the same on both sides, so its errors are
/// never tolerated.
fn old_field<'a>(name: &str, old: Option<&'a Value>, path: &Path<'_>) -> Option<&'a Value> {
    if path.is_root() && matches!(name, "kind" | "apiVersion") {
        return None;
    }
    old?.get(name)
}

/// The items of an old list by their keys, found in one pass over it; items of lists without keys
/// cannot be distinguished.
pub(super) struct OldItems<'a> {
    key_names: &'a [String],
    /// Of equal keys the first counts.
    by_key: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    /// Indexes the list that `schema` describes.
    pub(super) fn of(old: Option<&'a Value>, schema: &'a Schema) -> Self {
        let key_names = match schema.list_type.as_deref() {
            Some("map") => schema.list_map_keys.as_slice(),
            _ => &[],
        };
        let items = old
            .and_then(Value::as_array)
            .filter(|_| !key_names.is_empty());
        let mut by_key = HashMap::new();
        for item in items.into_iter().flatten().filter(|item| !item.is_null()) {
            by_key
                .entry(lists::key_of(item, key_names).to_string())
                .or_insert(item);
        }
        Self { key_names, by_key }
    }

    /// The old item with the same key.
    pub(super) fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            return None;
        }
        let key = lists::key_of(item, self.key_names).to_string();
        self.by_key.get(&key).copied()
    }
}

/// Whether a value is unchanged: maps are compared by the fields that the schema declares, keyed
/// lists in any order.
pub(super) fn is_same(value: &Value, old: &Value, schema: &Schema) -> bool {
    match (value, old) {
        (Value::Object(new), Value::Object(before)) => {
            let same = |(name, value): (&String, &Value)| {
                schema
                    .field(name)
                    .zip(before.get(name))
                    .is_some_and(|(field, old)| is_same(value, old, field))
            };
            new.len() == before.len() && new.iter().all(same)
        }
        (Value::Array(new), Value::Array(before)) if schema.list_type.as_deref() == Some("map") => {
            if new.len() != before.len() {
                return false;
            }
            let before = OldItems::of(Some(old), schema);
            new.iter().all(|value| {
                before
                    .find(value)
                    .zip(schema.item())
                    .is_some_and(|(old, item)| is_same(value, old, item))
            })
        }
        _ => value == old,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The errors of `spec` under its schema, as `field: message`.
    #[track_caller]
    fn errors(spec_schema: &Value, spec: Value, old: Option<Value>) -> Vec<String> {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": spec_schema}}))
            .expect("a valid schema");
        let old = old.map(|old| json!({"spec": old}));
        validate(&json!({"spec": spec}), old.as_ref(), &schema, None)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// A schema with the fields of `properties`.
    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    /// Each item used to be searched for in the whole old list.
    #[test]
    fn long_keyed_list_is_compared_by_key_in_one_pass() {
        const ITEMS: usize = 20_000;
        let schema = object(json!({"l": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": object(json!({"k": {"type": "string"}, "n": {"type": "integer", "maximum": 5}})),
        }}));
        let list = |changed: usize| -> Value {
            (0..ITEMS)
                .map(|i| json!({"k": i.to_string(), "n": if i == changed { 8 } else { 9 }}))
                .collect()
        };
        let old = json!({"l": list(ITEMS)});
        assert_eq!(
            errors(&schema, json!({"l": list(ITEMS)}), Some(old.clone())),
            Vec::<String>::new()
        );
        assert_eq!(
            errors(&schema, json!({"l": list(7)}), Some(old)),
            [
                "spec.l[7].n: Invalid value: 8: spec.l[7].n in body should be less than or equal to 5"
            ]
        );
    }

    #[test]
    fn ten_thousand_problems_are_reported_at_most() {
        let schema = json!({"type": "array", "items": {"type": "string"}});
        let errs: Value = (0..30_000).collect();
        assert_eq!(errors(&schema, errs, None).len(), 10_000);
    }

    #[test]
    fn type_errors_name_the_found_type() {
        let schema = object(json!({
            "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
            "l": {"type": "array", "items": {"type": "string"}}, "o": {"type": "object"},
            "p": {"x-kubernetes-int-or-string": true}, "d": {"type": "string", "format": "date-time"},
        }));
        for (spec, expected) in [
            (
                json!({"s": 1}),
                vec![
                    "spec.s: Invalid value: \"integer\": spec.s in body must be of type string: \"integer\"",
                ],
            ),
            (
                json!({"i": "x"}),
                vec![
                    "spec.i: Invalid value: \"string\": spec.i in body must be of type integer: \"string\"",
                ],
            ),
            (
                json!({"i": 1.5}),
                vec![
                    "spec.i: Invalid value: \"number\": spec.i in body must be of type integer: \"number\"",
                    "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.i",
                ],
            ),
            (
                json!({"n": "x"}),
                vec![
                    "spec.n: Invalid value: \"string\": spec.n in body must be of type number: \"string\"",
                ],
            ),
            (
                json!({"b": "true"}),
                vec![
                    "spec.b: Invalid value: \"string\": spec.b in body must be of type boolean: \"string\"",
                ],
            ),
            (
                json!({"l": {}}),
                vec![
                    "spec.l: Invalid value: \"object\": spec.l in body must be of type array: \"object\"",
                ],
            ),
            (
                json!({"l": ["a", null]}),
                vec![
                    "spec.l[1]: Invalid value: \"null\": spec.l[1] in body must be of type string: \"null\"",
                ],
            ),
            (
                json!({"o": []}),
                vec![
                    "spec.o: Invalid value: \"array\": spec.o in body must be of type object: \"array\"",
                ],
            ),
            (
                json!({"p": 1.5}),
                vec![
                    "spec.p: Invalid value: \"number\": spec.p in body must be of type integer,string: \"number\"",
                ],
            ),
            (
                json!({"d": 5}),
                vec![
                    "spec.d: Invalid value: \"int64\": spec.d in body must be of type date-time: \"int64\"",
                ],
            ),
            (
                json!({"d": "soon"}),
                vec![
                    "spec.d: Invalid value: \"soon\": spec.d in body must be of type date-time: \"soon\"",
                ],
            ),
            (json!({"s": "x", "i": 2.0, "n": 1, "p": "5%"}), vec![]),
            (
                json!("x"),
                vec![
                    "spec: Invalid value: \"string\": spec in body must be of type object: \"string\"",
                ],
            ),
        ] {
            assert_eq!(errors(&schema, spec.clone(), None), expected, "{spec}");
        }
    }

    #[test]
    fn texts_lists_and_maps_keep_their_bounds() {
        let schema = object(json!({
            "s": {"type": "string", "minLength": 2, "maxLength": 4}, "p": {"type": "string", "pattern": "^[a-z]+$"},
            "e": {"type": "string", "enum": ["Open", "Closed"]}, "n": {"type": "integer", "enum": [1, 2, 4]},
            "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "maxLength": 3}},
            "m": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer", "maximum": 9}},
            "c": {"type": "object", "additionalProperties": false},
        }));
        for (spec, expected) in [
            (
                json!({"s": "é"}),
                "spec.s: Invalid value: \"é\": spec.s in body should be at least 2 chars long",
            ),
            (json!({"s": "éééé"}), ""),
            (
                json!({"s": "abcde"}),
                "spec.s: Too long: may not be more than 4 bytes",
            ),
            (
                json!({"p": "X"}),
                "spec.p: Invalid value: \"X\": spec.p in body should match '^[a-z]+$'",
            ),
            (
                json!({"e": "Ajar"}),
                "spec.e: Unsupported value: \"Ajar\": supported values: \"Open\", \"Closed\"",
            ),
            (
                json!({"n": 3}),
                "spec.n: Unsupported value: 3: supported values: \"1\", \"2\", \"4\"",
            ),
            (
                json!({"l": []}),
                "spec.l: Invalid value: 0: spec.l in body should have at least 1 items",
            ),
            (
                json!({"l": ["a", "b", "c"]}),
                "spec.l: Too many: 3: must have at most 2 items",
            ),
            (
                json!({"l": ["abcd"]}),
                "spec.l[0]: Too long: may not be more than 3 bytes",
            ),
            (
                json!({"m": {}}),
                "spec.m: Invalid value: 0: spec.m in body should have at least 1 properties",
            ),
            (
                json!({"m": {"a": 1, "b": 2, "c": 3}}),
                "spec.m: Too many: 3: must have at most 2 items",
            ),
            (
                json!({"m": {"cpu": 10}}),
                "spec.m.cpu: Invalid value: 10: spec.m.cpu in body should be less than or equal to 9",
            ),
            (
                json!({"c": {"x": 1}}),
                "spec.c: Invalid value: \"x\": spec.c.x in body is a forbidden property",
            ),
        ] {
            assert_eq!(
                errors(&schema, spec.clone(), None).join("; "),
                expected,
                "{spec}"
            );
        }
    }

    #[test]
    fn list_items_are_before_missing_fields() {
        let schema = json!({"type": "object", "required": ["z", "y"], "properties": {
            "c": {"type": "array", "items": {"type": "integer", "minimum": 1}}, "y": {"type": "string"}, "z": {"type": "string"}}});
        assert_eq!(
            errors(&schema, json!({"c": [0, "x", 1, -1]}), None),
            [
                "spec.c[0]: Invalid value: 0: spec.c[0] in body should be greater than or equal to 1",
                "spec.c[1]: Invalid value: \"string\": spec.c[1] in body must be of type integer: \"string\"",
                "spec.c[3]: Invalid value: -1: spec.c[3] in body should be greater than or equal to 1",
                "spec.z: Required value",
                "spec.y: Required value",
            ]
        );
    }

    #[test]
    fn junctors_explain_the_closest_alternative() {
        let schema = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"},
            "n": {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 7}]},
            "s": {"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^x"}]},
            "z": {"type": "integer", "not": {"enum": [0]}},
        }});
        for (spec, expected) in [
            (
                json!({"a": 1, "b": 2}),
                vec![
                    "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
                ],
            ),
            (
                json!({}),
                vec![
                    "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
                    "spec.a: Required value",
                ],
            ),
            (
                json!({"a": 1, "n": 5}),
                vec![
                    "<nil>: Invalid value: \"\": \"spec.n\" must validate at least one schema (anyOf)",
                    "spec.n: Invalid value: 5: spec.n in body should be less than or equal to 3",
                ],
            ),
            (
                json!({"a": 1, "s": "y"}),
                vec![
                    "spec.s: Invalid value: \"y\": spec.s in body should be at least 2 chars long",
                    "spec.s: Invalid value: \"y\": spec.s in body should match '^x'",
                    "<nil>: Invalid value: \"\": \"spec.s\" must validate all the schemas (allOf). None validated",
                ],
            ),
            (
                json!({"a": 1, "z": 0}),
                vec!["<nil>: Invalid value: \"\": \"spec.z\" must not validate the schema (not)"],
            ),
        ] {
            assert_eq!(errors(&schema, spec.clone(), None), expected, "{spec}");
        }
    }

    #[test]
    fn unchanged_values_keep_their_problems() {
        let schema = json!({"type": "object", "required": ["m"], "properties": {
            "name": {"type": "string", "maxLength": 4}, "m": {"type": "string"}, "n": {"type": "integer"},
            "atomic": {"type": "array", "items": {"type": "string", "maxLength": 1}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
        }});
        let old = json!({"name": "too long", "n": 1, "atomic": ["xx"], "keyed": [{"k": "a", "v": "xx"}, {"k": "b", "v": "y"}]});
        let changed = |field: &str, value: Value| {
            let mut new = old.clone();
            new[field] = value;
            new
        };
        for (new, expected) in [
            (old.clone(), vec![]),
            (changed("n", json!(2)), vec!["spec.m: Required value"]),
            (changed("m", json!("x")), vec![]),
            (
                changed("name", json!("longer still")),
                vec![
                    "spec.name: Too long: may not be more than 4 bytes",
                    "spec.m: Required value",
                ],
            ),
            (
                changed("atomic", json!(["xx", "y"])),
                vec![
                    "spec.atomic[0]: Too long: may not be more than 1 byte",
                    "spec.m: Required value",
                ],
            ),
            (
                changed(
                    "keyed",
                    json!([{"k": "b", "v": "y"}, {"k": "a", "v": "xx"}]),
                ),
                vec![],
            ),
            (
                changed(
                    "keyed",
                    json!([{"k": "a", "v": "xx"}, {"k": "b", "v": "zz"}]),
                ),
                vec![
                    "spec.keyed[1].v: Too long: may not be more than 1 byte",
                    "spec.m: Required value",
                ],
            ),
        ] {
            assert_eq!(
                errors(&schema, new.clone(), Some(old.clone())),
                expected,
                "{new}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn value_equal_to_the_old_one_is_always_accepted_below_the_root(n in -20i64..20, s in "[a-z]{0,6}") {
            let schema = object(json!({"n": {"type": "integer", "minimum": 0, "multipleOf": 3}, "s": {"type": "string", "minLength": 3}}));
            let spec = json!({"n": n, "s": s});
            proptest::prop_assert!(errors(&schema, spec.clone(), Some(spec)).is_empty());
        }
    }
}
