//! Defaulting of custom resources, and handling of null.
//! In: a pruned custom resource. Out: the resource as clients see it.
//! Guarantees: defaulting is idempotent; a null that the schema does not allow is dropped, or
//! replaced by the default.

use bellerophon_codec::decode::BODY_MAX_BYTES;
use serde_json::{Map, Value};

use super::schema::Schema;

/// Drops nulls in fields that are neither nullable nor have a default. List items are kept, so that
/// validation reports them.
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

/// Bytes of JSON that defaults may add to one object: four times the largest body. A default in the
/// items of a list is added once per item, and one inside another default is added to each copy.
const FILLED_BYTES_MAX: usize = 4 * BODY_MAX_BYTES;

/// The defaults of a schema make an object too large. The object has some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of the schema add more than {FILLED_BYTES_MAX} bytes")]
pub struct DefaultsTooLarge;

/// Fills in the defaults of missing fields and of nulls that are not allowed.
///
/// # Errors
/// The defaults add more than [`FILLED_BYTES_MAX`] bytes.
pub(crate) fn fill(map: &mut Map<String, Value>, schema: &Schema) -> Result<(), DefaultsTooLarge> {
    let mut filler = Filler {
        bytes_left: FILLED_BYTES_MAX,
    };
    filler.fill(map, schema)
}

struct Filler {
    bytes_left: usize,
}

impl Filler {
    fn fill(
        &mut self,
        map: &mut Map<String, Value>,
        schema: &Schema,
    ) -> Result<(), DefaultsTooLarge> {
        for (name, property) in &schema.properties {
            let Some(default) = &property.default else {
                continue;
            };
            match map.get_mut(name) {
                None => {
                    self.count(name.len())?;
                    map.insert(name.clone(), self.copy(default)?);
                }
                Some(value) => self.replace_null(value, property)?,
            }
        }
        for (name, value) in map.iter_mut() {
            match (schema.properties.get(name), schema.additional()) {
                (Some(property), _) => self.fill_in(value, property)?,
                (None, Some(additional)) => {
                    self.replace_null(value, additional)?;
                    self.fill_in(value, additional)?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn fill_in(&mut self, value: &mut Value, schema: &Schema) -> Result<(), DefaultsTooLarge> {
        match value {
            Value::Object(map) => self.fill(map, schema),
            Value::Array(list) => {
                let Some(item) = schema.item() else {
                    return Ok(());
                };
                for value in list {
                    self.replace_null(value, item)?;
                    self.fill_in(value, item)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn replace_null(&mut self, value: &mut Value, schema: &Schema) -> Result<(), DefaultsTooLarge> {
        if value.is_null()
            && !schema.nullable
            && let Some(default) = &schema.default
        {
            *value = self.copy(default)?;
        }
        Ok(())
    }

    fn copy(&mut self, default: &Value) -> Result<Value, DefaultsTooLarge> {
        self.count(json_bytes(default))?;
        Ok(default.clone())
    }

    fn count(&mut self, bytes: usize) -> Result<(), DefaultsTooLarge> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(DefaultsTooLarge)?;
        Ok(())
    }
}

/// About as many bytes as the value takes in JSON.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            let member = |(name, value): (&String, &Value)| name.len() + json_bytes(value) + 4;
            map.iter().map(member).sum::<usize>() + 2
        }
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
        assert_eq!(fill(&mut map, &schema), Ok(()));
        assert_eq!(Value::Object(map.clone()), filled);
        assert_eq!(fill(&mut map, &schema), Ok(()));
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
    fn null_is_replaced_by_the_default_or_dropped() {
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

    /// The default of an item used to be copied into every item, without a limit of the total size.
    #[test]
    fn defaults_of_many_items_are_bounded() {
        let long = "x".repeat(100_000);
        let item =
            json!({"type": "object", "properties": {"p": {"type": "string", "default": long}}});
        let schema =
            json!({"type": "object", "properties": {"l": {"type": "array", "items": item}}});
        let schema = Schema::parse(&schema).expect("a valid schema");
        let filled = |items: usize| {
            let mut map = Map::from_iter([("l".to_owned(), json!(vec![json!({}); items]))]);
            fill(&mut map, &schema)
        };
        assert_eq!(filled(100), Ok(()));
        assert_eq!(filled(100_000), Err(DefaultsTooLarge));
    }

    /// Ten lists of ten items inside each other are 10,000,000,000 items, all of them defaults.
    #[test]
    fn defaults_inside_defaults_are_bounded() {
        let list =
            |item: Value| json!({"type": "array", "items": item, "default": vec![json!({}); 10]});
        let nested = (0..10).fold(
            json!({"type": "object"}),
            |inner, _| json!({"type": "object", "properties": {"l": list(inner)}}),
        );
        let schema = Schema::parse(&nested).expect("a valid schema");
        assert_eq!(fill(&mut Map::new(), &schema), Err(DefaultsTooLarge));
    }
}
