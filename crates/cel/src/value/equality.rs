//! Equality and order of values.
//! In: two values. Out: the result, or that they cannot be compared.
//! Guarantees: numbers compare by value across their types; sets and keyed lists of the data
//! compare without order.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
};

use serde_json::Value as Json;

use super::{
    List, Map, Message, Value,
    data::{DataList, DataMap},
};
use crate::{
    eval::Failure,
    shape::{ListOrder, ShapeKind},
};

/// Whether two values are equal.
///
/// # Errors
/// Data that cannot be compared with what it is compared with.
pub(crate) fn equal(a: &Value<'_>, b: &Value<'_>) -> Result<bool, Failure> {
    Ok(match (a, b) {
        (Value::Null, _) | (_, Value::Null) => matches!((a, b), (Value::Null, Value::Null)),
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
        ) => compare(a, b) == Some(Ordering::Equal),
        (Value::String(a), Value::String(b)) => **a == **b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => return equal(a, b),
            (a, b) => a.is_none() && b.is_none(),
        },
        (Value::Opaque(a), Value::Opaque(b)) => {
            return a.equals(&**b).ok_or_else(Failure::no_such_overload);
        }
        (Value::List(List::Data(a)), Value::List(b)) => return data_list(a, b),
        (Value::List(a), Value::List(b)) => return item_by_item(a, b),
        (Value::Map(Map::Data(a)), Value::Map(b)) => return data_map(a, b),
        (Value::Map(a), Value::Map(b)) => return maps(a, b),
        (Value::Hidden(a), Value::Hidden(b)) => a == b,
        (Value::Message(a), Value::Message(b)) => return messages(a, b),
        // Data of no declared type is compared as other values are.
        (Value::List(List::Data(list)), _) if matches!(list.item.kind, ShapeKind::Any) => false,
        (Value::Map(Map::Data(map)), _) if matches!(map.shape.kind, ShapeKind::Any) => false,
        // Data demands its own kind; other values are just different.
        (Value::List(List::Data(_)) | Value::Map(Map::Data(_)) | Value::Opaque(_), _) => {
            return Err(Failure::no_such_overload());
        }
        _ => false,
    })
}

fn messages(a: &Message<'_>, b: &Message<'_>) -> Result<bool, Failure> {
    if a.type_name != b.type_name || a.fields.len() != b.fields.len() {
        return Ok(false);
    }
    for (name, value) in &a.fields {
        match b.fields.get(name) {
            Some(other) if equal(value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn item_by_item(a: &List<'_>, b: &List<'_>) -> Result<bool, Failure> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for i in 0..a.len() {
        if !equal(&a.get(i)?, &b.get(i)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn data_list(a: &DataList<'_>, b: &List<'_>) -> Result<bool, Failure> {
    if a.items.len() != b.len() {
        return Ok(false);
    }
    match a.order {
        ListOrder::Atomic => item_by_item(&List::Data(*a), b),
        ListOrder::Set => {
            let known: HashSet<String> = a.items.iter().map(Json::to_string).collect();
            for i in 0..b.len() {
                if scalar(&b.get(i)?).is_none_or(|text| !known.contains(&text)) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListOrder::Keyed(keys) => {
            let List::Data(b) = b else {
                return item_by_item(&List::Data(*a), b);
            };
            let places: HashMap<String, usize> = a
                .items
                .iter()
                .enumerate()
                .map(|(i, item)| (key_text(item, keys), i))
                .collect();
            for (i, item) in b.items.iter().enumerate() {
                let Some(at) = places.get(&key_text(item, keys)) else {
                    return Ok(false);
                };
                if !equal(&a.get(*at)?, &b.get(i)?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// The item of a set as JSON writes it.
pub(crate) fn scalar(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Double(d) => Json::from(*d).to_string(),
        Value::String(text) => Json::from(&**text).to_string(),
        Value::List(List::Data(list)) => Json::Array(list.items.to_vec()).to_string(),
        Value::Map(Map::Data(map)) => Json::Object(map.entries.clone()).to_string(),
        _ => return None,
    })
}

/// The values of the keys of an item of a keyed list.
pub(crate) fn key_text(item: &Json, keys: &[String]) -> String {
    let values: Vec<&Json> = keys
        .iter()
        .map(|key| item.get(key).unwrap_or(&Json::Null))
        .collect();
    serde_json::to_string(&values).expect("JSON can be written")
}

fn data_map(a: &DataMap<'_>, b: &Map<'_>) -> Result<bool, Failure> {
    if a.entries.len() != b.len() {
        return Ok(false);
    }
    for (name, json) in a.entries {
        if a.shape_of(name).is_none() {
            // Fields that are not declared are compared as plain JSON.
            let Map::Data(b) = b else {
                return Err(Failure::no_such_overload());
            };
            if b.entries.get(name).is_some_and(|other| other != json) {
                return Ok(false);
            }
            continue;
        }
        match (a.field(name)?, b.find(&Value::text(name.as_str()))?) {
            (Some(a), Some(b)) if !equal(&a, &b)? => return Ok(false),
            (a, b) if a.is_some() != b.is_some() => return Ok(false),
            _ => {}
        }
    }
    Ok(true)
}

fn maps(a: &Map<'_>, b: &Map<'_>) -> Result<bool, Failure> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for key in a.keys() {
        match (a.find(&key)?, b.find(&key)?) {
            (Some(a), Some(b)) if equal(&a, &b)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Which of two values is less; none when they cannot be ordered.
pub(crate) fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
        (Value::Int(a), Value::Uint(b)) => i128::from(*a).cmp(&i128::from(*b)),
        (Value::Uint(a), Value::Int(b)) => i128::from(*a).cmp(&i128::from(*b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b)?,
        (Value::Int(a), Value::Double(b)) => whole_and_double((*a).into(), *b)?,
        (Value::Uint(a), Value::Double(b)) => whole_and_double((*a).into(), *b)?,
        (Value::Double(a), Value::Int(b)) => whole_and_double((*b).into(), *a)?.reverse(),
        (Value::Double(a), Value::Uint(b)) => whole_and_double((*b).into(), *a)?.reverse(),
        (Value::String(a), Value::String(b)) => (**a).cmp(&**b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
        _ => return None,
    })
}

/// Compares as doubles unless the double is beyond all whole numbers.
fn whole_and_double(whole: i128, double: f64) -> Option<Ordering> {
    (whole as f64).partial_cmp(&double)
}
