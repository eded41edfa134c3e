//! Lists with the type `set` or `map`.
//! In: a custom resource. Out: the items that duplicate an earlier one, by value (`set`) or by key
//! (`map`).

use std::collections::BTreeMap;

use bellerophon_apimachinery::field::{FieldError, Path};
use serde_json::{Map, Value};

use super::schema::Schema;

/// The errors of the sets and maps in `map`.
pub(crate) fn validate(
    map: &Map<String, Value>,
    schema: &Schema,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if let Some(additional) = schema.additional() {
        map.iter()
            .for_each(|(name, value)| validate_value(value, additional, &path.key(name), errors));
    }
    for (name, value) in map {
        if let Some(property) = schema.properties.get(name) {
            validate_value(value, property, &path.child(name), errors);
        }
    }
}

fn validate_value(value: &Value, schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => validate(map, schema, path, errors),
        Value::Array(list) => validate_list(list, schema, path, errors),
        _ => {}
    }
}

fn validate_list(list: &[Value], schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match schema.list_type.as_deref() {
        Some("set") => errors
            .extend(repeated(list.iter()).map(|i| FieldError::duplicate(path.index(i), &list[i]))),
        Some("map") => validate_map(list, &schema.list_map_keys, path, errors),
        _ => {}
    }
    if let Some(item) = schema.item() {
        list.iter()
            .enumerate()
            .for_each(|(i, value)| validate_value(value, item, &path.index(i), errors));
    }
}

fn validate_map(
    list: &[Value],
    key_names: &[String],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if let Some((i, item)) = list
        .iter()
        .enumerate()
        .find(|(_, item)| !item.is_object() && !item.is_null())
    {
        errors.push(FieldError::invalid(
            path.index(i),
            item,
            "must be an object for an array of list-type map",
        ));
        return;
    }
    let keys: Vec<Value> = list.iter().map(|item| key_of(item, key_names)).collect();
    errors.extend(repeated(keys.iter()).map(|i| FieldError::duplicate(path.index(i), &keys[i])));
}

/// The key fields that an item has.
pub(super) fn key_of(item: &Value, key_names: &[String]) -> Value {
    let field = |name: &String| Some((name.clone(), item.get(name)?.clone()));
    Value::Object(key_names.iter().filter_map(field).collect())
}

/// The index of the second appearance of each repeated value.
fn repeated<'a>(values: impl Iterator<Item = &'a Value>) -> impl Iterator<Item = usize> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut second = Vec::new();
    for (i, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            second.push(i);
        }
    }
    second.into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_field(schema: Value, value: Value, expected: &[&str]) {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"l": schema}}))
            .expect("a valid schema");
        let mut errors = Vec::new();
        validate(
            json!({"l": value}).as_object().expect("an object"),
            &schema,
            &Path::ROOT,
            &mut errors,
        );
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn set_names_the_first_repetition_only() {
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        check_field(
            set.clone(),
            json!(["a", "b", "a", "b", "a"]),
            &[
                "l[2]: Duplicate value: \"a\"",
                "l[3]: Duplicate value: \"b\"",
            ],
        );
        check_field(set, json!(["a", 1, "1"]), &[]);
    }

    #[test]
    fn map_compares_the_keys_that_are_there() {
        let map = |keys: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": {"type": "object"}});
        check_field(
            map(json!(["n", "p"])),
            json!([{"n": "a", "p": "T"}, {"n": "a", "p": "T", "x": 1}]),
            &["l[1]: Duplicate value: {\"n\":\"a\",\"p\":\"T\"}"],
        );
        check_field(
            map(json!(["n"])),
            json!([{"n": "a"}, {"n": "b"}, {}, null]),
            &["l[3]: Duplicate value: {}"],
        );
        check_field(
            map(json!(["n"])),
            json!(["x"]),
            &["l[0]: Invalid value: \"x\": must be an object for an array of list-type map"],
        );
    }
}
