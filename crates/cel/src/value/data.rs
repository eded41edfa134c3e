//! JSON values with their shape.
//! In: a JSON value and its declaration. Out: values of expressions, one field at a time.
//! Guarantees: nothing is converted before its first use; data that does not match its shape is an
//! error, never a panic.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value as Json;

use super::{List, Map, Text, Value};
use crate::{
    eval::Failure,
    shape::{ListOrder, Shape, ShapeKind, escape, unescape},
    time,
};

/// A list of the data.
#[derive(Clone, Copy, Debug)]
pub struct DataList<'a> {
    pub(crate) items: &'a [Json],
    pub(crate) item: &'a Shape,
    pub(crate) order: &'a ListOrder,
}

/// A map or object of the data.
#[derive(Clone, Copy, Debug)]
pub struct DataMap<'a> {
    pub(crate) entries: &'a serde_json::Map<String, Json>,
    pub(crate) shape: &'a Shape,
}

static ANY: Shape = Shape {
    kind: ShapeKind::Any,
    nullable: true,
    size_max: 0,
};

/// The value of `json` as an expression sees it.
///
/// # Errors
/// Data that does not fit its shape.
pub fn view<'a>(json: &'a Json, shape: &'a Shape) -> Result<Value<'a>, Failure> {
    let type_error = |expected: &str| {
        Failure::new(format!(
            "invalid data, expected {expected}, got {}",
            go_type(json)
        ))
    };
    Ok(match (&shape.kind, json) {
        (ShapeKind::Any, _) => any(json),
        (_, Json::Null) if shape.nullable => Value::Null,
        (_, Json::Null) => {
            return Err(Failure::new(
                "invalid data, got null for schema with nullable=false",
            ));
        }
        (ShapeKind::Object { .. } | ShapeKind::Map(_), Json::Object(entries)) => {
            Value::Map(Map::Data(DataMap { entries, shape }))
        }
        (ShapeKind::Object { .. } | ShapeKind::Map(_), _) => {
            return Err(Failure::new(
                "invalid data, expected a map for the provided schema with type=object",
            ));
        }
        (ShapeKind::List { item, order }, Json::Array(items)) => {
            Value::List(List::Data(DataList { items, item, order }))
        }
        (ShapeKind::List { .. }, _) => {
            return Err(Failure::new(
                "invalid data, expected an array for the provided schema with type=array",
            ));
        }
        (ShapeKind::Bool, Json::Bool(b)) => Value::Bool(*b),
        (ShapeKind::Bool, _) => return Err(type_error("bool")),
        (ShapeKind::Int, Json::Number(n)) => {
            Value::Int(n.as_i64().ok_or_else(|| type_error("int"))?)
        }
        (ShapeKind::Int, _) => return Err(type_error("int")),
        (ShapeKind::Double, Json::Number(n)) => {
            Value::Double(n.as_f64().ok_or_else(|| type_error("double"))?)
        }
        (ShapeKind::Double, _) => return Err(type_error("double")),
        (ShapeKind::IntOrString, Json::Number(n)) if n.is_i64() => {
            Value::Int(n.as_i64().unwrap_or_default())
        }
        (ShapeKind::IntOrString, Json::String(s)) => Value::String(Text::Data(s)),
        (ShapeKind::IntOrString, _) => {
            return Err(Failure::new(
                "invalid data, expected XIntOrString value to be either a string or integer",
            ));
        }
        (ShapeKind::Hidden, _) => Value::Hidden(json),
        (_, Json::String(s)) => return formatted(s, &shape.kind),
        _ => return Err(type_error("string")),
    })
}

fn formatted<'a>(text: &'a str, kind: &ShapeKind) -> Result<Value<'a>, Failure> {
    match kind {
        ShapeKind::Bytes => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Value::Bytes(bytes.into())),
            Err(_) => Err(Failure::new(format!(
                "Invalid byte formatted string {text}: illegal base64 data"
            ))),
        },
        ShapeKind::Duration => match time::parse_openapi_duration(text) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => Err(Failure::new(format!(
                "Invalid duration {text}: not a duration"
            ))),
        },
        ShapeKind::Date => match time::parse_date(text) {
            Some(nanos) => Ok(Value::Timestamp(nanos)),
            None => Err(Failure::new(format!(
                "Invalid date formatted string {text}: not a date"
            ))),
        },
        ShapeKind::DateTime => match time::parse_datetime(text) {
            Some(nanos) => Ok(Value::Timestamp(nanos)),
            None => Err(Failure::new(format!(
                "Invalid date-time formatted string {text}: not a moment"
            ))),
        },
        _ => Ok(Value::String(Text::Data(text))),
    }
}

/// Data without a declared type.
fn any(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => n
            .as_i64()
            .map_or_else(|| Value::Double(n.as_f64().unwrap_or(f64::NAN)), Value::Int),
        Json::String(s) => Value::String(Text::Data(s)),
        Json::Array(items) => Value::List(List::Data(DataList {
            items,
            item: &ANY,
            order: &ListOrder::Atomic,
        })),
        Json::Object(entries) => Value::Map(Map::Data(DataMap {
            entries,
            shape: &ANY,
        })),
    }
}

/// The Go type name of a JSON value.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(n) if n.is_i64() => "int64",
        Json::Number(_) => "float64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

impl<'a> DataList<'a> {
    pub(crate) fn get(&self, at: usize) -> Result<Value<'a>, Failure> {
        let json = self
            .items
            .get(at)
            .ok_or_else(|| Failure::new(format!("index out of bounds: {at}")))?;
        view(json, self.item)
    }
}

impl<'a> DataMap<'a> {
    /// Whether keys are the escaped names of fields.
    fn is_object(&self) -> bool {
        matches!(self.shape.kind, ShapeKind::Object { .. })
    }

    /// The shape of the value under a real name.
    pub(crate) fn shape_of(&self, name: &str) -> Option<&'a Shape> {
        match &self.shape.kind {
            ShapeKind::Object { fields, .. } => fields.get(name).map(|field| &field.shape),
            ShapeKind::Map(value) => Some(value),
            _ => Some(&ANY),
        }
    }

    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        let named = self
            .entries
            .keys()
            .filter(|name| self.shape_of(name).is_some());
        if !self.is_object() {
            return named.map(|name| Value::String(Text::Data(name))).collect();
        }
        named
            .map(|name| Value::text(escape(name).unwrap_or_else(|| name.clone())))
            .collect()
    }

    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, Failure> {
        let Value::String(key) = key else {
            return Err(Failure::no_such_overload());
        };
        self.field(key)
    }

    /// The value of a field by the name that expressions use.
    pub(crate) fn field(&self, key: &str) -> Result<Option<Value<'a>>, Failure> {
        let unescaped;
        let name = if self.is_object() && key.contains("__") {
            let Some(name) = unescape(key) else {
                return Ok(None);
            };
            unescaped = name;
            unescaped.as_str()
        } else {
            key
        };
        let Some(json) = self.entries.get(name) else {
            return Ok(None);
        };
        // In an object null is as good as absent.
        if self.is_object() && json.is_null() {
            return Ok(None);
        }
        self.shape_of(name)
            .map(|shape| view(json, shape))
            .transpose()
    }
}
