//! Filling in what a schema gives by default, and what null means.
//! In: a pruned custom resource. Out: the resource as clients see it.
//! Holds: filling is idempotent; a null that the schema does not allow is dropped, or takes the default.

use serde_json::{Map, Value};

use super::schema::Schema;

/// Drops nulls in fields that are neither nullable nor have a default. List items stay, so that validation names them.
pub(crate) fn drop_nulls(map: &mut Map<String, Value>, schema: &Schema) {
    map.retain(|name, value| {
        let field = schema.field(name);
        let dropped = value.is_null() && field.is_some_and(|s| !s.nullable && s.default.is_none());
        if !dropped && let Some(field) = field {
            drop_nulls_in(value, field);
        }
        !dropped
    });
}

fn drop_nulls_in(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => drop_nulls(map, schema),
        Value::Array(list) => {
            if let Some(item) = schema.item() {
                list.iter_mut().for_each(|value| drop_nulls_in(value, item));
            }
        }
        _ => {}
    }
}

/// Fills in the defaults of missing fields and of nulls that are not allowed.
pub(crate) fn fill(map: &mut Map<String, Value>, schema: &Schema) {
    for (name, property) in &schema.properties {
        let Some(default) = &property.default else {
            continue;
        };
        match map.get_mut(name) {
            None => {
                map.insert(name.clone(), default.clone());
            }
            Some(value) => replace_null(value, property),
        }
    }
    for (name, value) in map.iter_mut() {
        match (schema.properties.get(name), schema.additional()) {
            (Some(property), _) => fill_in(value, property),
            (None, Some(additional)) => {
                replace_null(value, additional);
                fill_in(value, additional);
            }
            (None, None) => {}
        }
    }
}

fn fill_in(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => fill(map, schema),
        Value::Array(list) => {
            let Some(item) = schema.item() else { return };
            for value in list {
                replace_null(value, item);
                fill_in(value, item);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, value: Value, filled: Value) {
        let schema = Schema::parse(schema).expect("a valid schema");
        let mut map = value.as_object().expect("an object").clone();
        drop_nulls(&mut map, &schema);
        fill(&mut map, &schema);
        assert_eq!(Value::Object(map.clone()), filled);
        fill(&mut map, &schema);
        assert_eq!(Value::Object(map), filled, "filling twice changes nothing");
    }

    #[test]
    fn defaults_fill_missing_fields_everywhere() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 1}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "x"}}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"q": {"type": "boolean", "default": false}}}},
        }});
        check(&schema, json!({}), json!({"a": {"n": 1}}));
        check(
            &schema,
            json!({"a": {"n": 2}, "l": [{}, {"p": "y"}], "m": {"k": {}}}),
            json!({"a": {"n": 2}, "l": [{"p": "x"}, {"p": "y"}], "m": {"k": {"q": false}}}),
        );
    }

    #[test]
    fn null_takes_the_default_or_goes() {
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "string"}, "defaulted": {"type": "string", "default": "d"},
            "nullable": {"type": "string", "nullable": true}, "both": {"type": "string", "nullable": true, "default": "d"},
            "list": {"type": "array", "items": {"type": "string"}},
        }});
        check(
            &schema,
            json!({"plain": null, "defaulted": null, "nullable": null, "both": null, "list": [null], "unknown": null}),
            json!({"defaulted": "d", "nullable": null, "both": null, "list": [null], "unknown": null}),
        );
    }
}
