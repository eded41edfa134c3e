//! The tree of a body before its type is known.
//! Guarantees: members are in the order of the body, repeated keys included; numbers keep their
//! text.

use std::borrow::Cow;

use bellerophon_apimachinery::field::{Path, go_quote};
use serde_json::{Map, Number, Value, map::Entry};

use super::note_strict;

/// The members of an object in the order they were written.
pub type Members<'a> = Vec<(Cow<'a, str>, Node<'a>)>;

/// A JSON value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Node<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// The text of a number that follows the grammar of JSON.
    Number(Cow<'a, str>),
    /// A string, unescaped; borrowed where there were no escapes.
    String(Cow<'a, str>),
    /// An array, in the order of the body.
    Array(Vec<Node<'a>>),
    /// An object, with repeated keys.
    Object(Members<'a>),
}

impl<'a> Node<'a> {
    /// The name of its kind in errors of Go's decoder.
    pub(crate) const fn go_kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// The plain value, as an untyped decoder returns it: the last of repeated keys wins and is
    /// added to `duplicates`, and a number that is whole is an integer, however it was written.
    ///
    /// # Errors
    /// A number out of range.
    pub fn into_value(self, duplicates: &mut Vec<String>) -> Result<Value, String> {
        self.plain(&Path::ROOT, duplicates)
    }

    fn plain(self, path: &Path<'_>, duplicates: &mut Vec<String>) -> Result<Value, String> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(b),
            Self::Number(text) => whole_number(&text).map(Value::Number).ok_or_else(|| {
                format!("json: cannot unmarshal number {text} into Go value of type float64")
            })?,
            Self::String(text) => Value::String(text.into_owned()),
            Self::Array(items) => {
                let items = items.into_iter().enumerate();
                Value::Array(
                    items
                        .map(|(i, item)| item.plain(&path.index(i), duplicates))
                        .collect::<Result<_, _>>()?,
                )
            }
            Self::Object(members) => {
                let mut map = Map::new();
                for (key, node) in members {
                    match map.entry(key) {
                        Entry::Vacant(slot) => {
                            let value = node.plain(&path.child(slot.key()), duplicates)?;
                            slot.insert(value);
                        }
                        Entry::Occupied(mut slot) => {
                            let place = path.child(slot.key());
                            note_strict(
                                duplicates,
                                format!("duplicate field {}", go_quote(&place.to_string())),
                            );
                            let value = node.plain(&place, duplicates)?;
                            slot.insert(value);
                        }
                    }
                }
                Value::Object(map)
            }
        })
    }

    /// The raw value, for fields that the server does not interpret: `1.0` stays `1.0`.
    pub(crate) fn into_raw(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(b),
            Self::Number(text) => raw_number(&text).map_or(Value::Null, Value::Number),
            Self::String(text) => Value::String(text.into_owned()),
            Self::Array(items) => Value::Array(items.into_iter().map(Node::into_raw).collect()),
            Self::Object(members) => Value::Object(
                members
                    .into_iter()
                    .map(|(key, node)| (key.into_owned(), node.into_raw()))
                    .collect(),
            ),
        }
    }

    /// The tree of a value that was decoded before.
    pub(crate) fn from_value(value: Value) -> Node<'static> {
        match value {
            Value::Null => Node::Null,
            Value::Bool(b) => Node::Bool(b),
            Value::Number(number) => Node::Number(number.to_string().into()),
            Value::String(text) => Node::String(text.into()),
            Value::Array(items) => Node::Array(items.into_iter().map(Node::from_value).collect()),
            Value::Object(map) => Node::Object(
                map.into_iter()
                    .map(|(key, value)| (key.into(), Node::from_value(value)))
                    .collect(),
            ),
        }
    }
}

/// A number as Go prints it again: an integer when it is whole, whether written `1`, `1.0` or
/// `1e0`. `None` when out of range.
pub fn whole_number(text: &str) -> Option<Number> {
    // From here on, not every integer has an exact float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match raw_number(text)? {
        number if number.is_f64() => {
            let float = number.as_f64()?;
            let negative_zero = float == 0.0 && float.is_sign_negative();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a whole number below 2^53 fits"
            )]
            let whole = (float.fract() == 0.0 && float.abs() < EXACT && !negative_zero)
                .then(|| Number::from(float as i64));
            Some(whole.unwrap_or(number))
        }
        number => Some(number),
    }
}

fn raw_number(text: &str) -> Option<Number> {
    if let Ok(integer) = text.parse::<i64>() {
        return Some(integer.into());
    }
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_are_integers_however_written() {
        let cases = [
            ("1", json!(1)),
            ("-0", json!(0)),
            ("1.0", json!(1)),
            ("1e3", json!(1000)),
            ("1.5", json!(1.5)),
            ("9223372036854775807", json!(i64::MAX)),
            ("9223372036854775808", json!(9_223_372_036_854_775_808.0)),
        ];
        for (text, value) in cases {
            assert_eq!(whole_number(text).map(Value::Number), Some(value), "{text}");
        }
        assert_eq!(whole_number("1e400"), None);
    }

    #[test]
    fn raw_values_keep_their_numbers() {
        let node = Node::Array(vec![Node::Number("1.0".into()), Node::Number("2".into())]);
        assert_eq!(node.into_raw().to_string(), "[1.0,2]");
    }
}
