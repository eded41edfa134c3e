//! Selects from values: fields, keys, indexes.
//! In: a value and a key. Out: the selected value, or that there is none.

use super::Outcome;
use crate::{
    eval::Failure,
    value::{Map, Value},
};

pub(super) fn no_such_key(key: &Value<'_>) -> Failure {
    Failure::new(format!("no such key: {}", shown(key)))
}

/// A key as messages show it.
pub(super) fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => text.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Double(d) => d.to_string(),
        other => other.type_of().name().to_owned(),
    }
}

pub(super) fn select<'a>(operand: &Value<'a>, key: &Value<'a>) -> Outcome<'a> {
    match select_if_present(operand, key)? {
        Some(value) => Ok(value),
        None if matches!(operand, Value::List(_)) => {
            Err(Failure::new(format!("index out of bounds: {}", shown(key))))
        }
        None => Err(no_such_key(key)),
    }
}

pub(super) fn select_if_present<'a>(
    operand: &Value<'a>,
    key: &Value<'a>,
) -> Result<Option<Value<'a>>, Failure> {
    match operand {
        Value::Map(Map::Made(_)) if key.key().is_none() => Err(Failure::new(format!(
            "unsupported key type: {}",
            key.type_of().name()
        ))),
        Value::Map(map) => map.find(key),
        Value::Message(message) => match key {
            Value::String(name) => Ok(message.fields.get(&**name).cloned()),
            _ => Err(Failure::no_such_overload()),
        },
        Value::List(list) => {
            let at = match key {
                Value::Int(n) => usize::try_from(*n).ok(),
                Value::Uint(n) => usize::try_from(*n).ok(),
                Value::Double(d) if d.fract() == 0.0 && *d >= 0.0 && *d < 9e15 => Some(*d as usize),
                other => {
                    return Err(Failure::new(format!(
                        "unsupported index type '{}' in list",
                        other.type_of().name()
                    )));
                }
            };
            at.filter(|at| *at < list.len())
                .map(|at| list.get(at))
                .transpose()
        }
        Value::Optional(Some(inner)) => select_if_present(inner, key),
        _ => Ok(None),
    }
}

/// The Go type name of a value that is no list or map.
pub(super) fn cel_go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        _ => "value",
    }
}
