//! JSON that keeps the order of its keys.
//! Values that differ between runs get names in order of appearance, so the order of keys matters.
//! Guarantees: it is printed as recorded (a space after `,` and `:`, ASCII only), so that texts are sorted
//! and shortened equally.

use std::{cmp::Ordering, fmt};

use indexmap::IndexMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number; `1` and `1.0` are equal.
    Number(Number),
    /// A string
    Text(String),
    /// An array
    List(Vec<Json>),
    /// An object; a key given twice keeps its first place and its last value.
    Map(IndexMap<String, Json>),
}

impl Json {
    /// Reads a whole document.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn number(number: impl Into<Number>) -> Self {
        Self::Number(number.into())
    }

    /// An object with these entries.
    pub(crate) fn map<const N: usize>(entries: [(&str, Json); N]) -> Self {
        Self::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Self::Map(map) => map.get(key),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value at a path of keys and list places, joined by dots.
    pub(crate) fn at(&self, path: &str) -> Option<&Json> {
        path.split('.').try_fold(self, |value, part| match value {
            Self::Map(map) => map.get(part),
            Self::List(list) => list.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Like [`Json::at`], to change what is there.
    pub(crate) fn at_mut(&mut self, path: &str) -> Option<&mut Json> {
        path.split('.').try_fold(self, |value, part| match value {
            Self::Map(map) => map.get_mut(part),
            Self::List(list) => list.get_mut(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Removes what is at a path, where `*` matches every key and index; a missing value is no
    /// error.
    pub(crate) fn leave_out(&mut self, path: &str) {
        let (head, rest) = path.split_once('.').unwrap_or((path, ""));
        if rest.is_empty() {
            return self.remove(head);
        }
        match self {
            Self::Map(map) if head == "*" => {
                map.values_mut().for_each(|value| value.leave_out(rest))
            }
            Self::List(list) if head == "*" => {
                list.iter_mut().for_each(|value| value.leave_out(rest))
            }
            value => {
                if let Some(value) = value.at_mut(head) {
                    value.leave_out(rest);
                }
            }
        }
    }

    fn remove(&mut self, part: &str) {
        match self {
            Self::Map(map) if part == "*" => map.clear(),
            Self::List(list) if part == "*" => list.clear(),
            Self::Map(map) => {
                map.shift_remove(part);
            }
            Self::List(list) => {
                if let Some(place) = part.parse().ok().filter(|place| *place < list.len()) {
                    list.remove(place);
                }
            }
            _ => {}
        }
    }

    /// This value without these keys, at any depth.
    pub(crate) fn without(self, keys: &[String]) -> Self {
        match self {
            Self::Map(map) => {
                let kept = map.into_iter().filter(|(key, _)| !keys.contains(key));
                Self::Map(
                    kept.map(|(key, value)| (key, value.without(keys)))
                        .collect(),
                )
            }
            Self::List(list) => {
                Self::List(list.into_iter().map(|value| value.without(keys)).collect())
            }
            value => value,
        }
    }

    /// This value with the keys of every object in order.
    pub(crate) fn sorted(&self) -> Self {
        match self {
            Self::Map(map) => {
                let mut map: IndexMap<String, Json> = map
                    .iter()
                    .map(|(key, value)| (key.clone(), value.sorted()))
                    .collect();
                map.sort_unstable_keys();
                Self::Map(map)
            }
            Self::List(list) => Self::List(list.iter().map(Json::sorted).collect()),
            value => value.clone(),
        }
    }

    /// The value without quotes, as in a path or message.
    pub(crate) fn unquoted(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Null => "None".to_owned(),
            value => value.to_string(),
        }
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => {
                a == b || (a.is_f64() != b.is_f64() && order(a, b) == Some(Ordering::Equal))
            }
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => a == b,
            _ => false,
        }
    }
}

fn order(a: &Number, b: &Number) -> Option<Ordering> {
    a.as_f64()?.partial_cmp(&b.as_f64()?)
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => quoted(f, text),
            Self::List(list) => {
                f.write_str("[")?;
                for (place, value) in list.iter().enumerate() {
                    f.write_str(if place == 0 { "" } else { ", " })?;
                    value.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Map(map) => {
                f.write_str("{")?;
                for (place, (key, value)) in map.iter().enumerate() {
                    f.write_str(if place == 0 { "" } else { ", " })?;
                    quoted(f, key)?;
                    write!(f, ": {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            ' '..='~' => fmt::Write::write_char(f, c)?,
            c => c
                .encode_utf16(&mut [0; 2])
                .iter()
                .try_for_each(|unit| write!(f, "\\u{unit:04x}"))?,
        }
    }
    f.write_str("\"")
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::number(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::number(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value)
            .map(Json::Number)
            .ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::text(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = IndexMap::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            entries.insert(key, value);
        }
        Ok(Json::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).expect("the test wrote JSON")
    }

    #[test]
    fn order_and_text_survive_reading_and_printing() {
        let cases = [
            (
                r#"{"b":1,"a":[true,null,-2,1.5]}"#,
                r#"{"b": 1, "a": [true, null, -2, 1.5]}"#,
            ),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
            (
                "\"é😀\\n\\\"\\\\\\u007f\"",
                r#""\u00e9\ud83d\ude00\n\"\\\u007f""#,
            ),
            ("[]", "[]"),
            ("{}", "{}"),
        ];
        for (read, printed) in cases {
            assert_eq!(json(read).to_string(), printed);
        }
    }

    #[test]
    fn equality_ignores_key_order_and_number_spelling() {
        let cases = [
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#, true),
            ("1", "1.0", true),
            ("1", "1.5", false),
            ("1", "true", false),
            ("1", "\"1\"", false),
            ("[1,2]", "[2,1]", false),
        ];
        for (a, b, equal) in cases {
            assert_eq!(json(a) == json(b), equal, "{a} and {b}");
        }
    }

    #[test]
    fn paths_reach_and_leave_out() {
        let value = json(r#"{"a":[{"b":1,"c":2},{"b":3}],"d":{"x":1,"y":{"b":1}}}"#);
        assert_eq!(value.at("a.1.b"), Some(&json("3")));
        assert_eq!(value.at("a.2.b"), None);
        assert_eq!(value.at("a.x"), None);
        assert_eq!(value.at("d.x.z"), None);
        let cases = [
            ("a.0", r#"{"a":[{"b":3}],"d":{"x":1,"y":{"b":1}}}"#),
            ("a.*.b", r#"{"a":[{"c":2},{}],"d":{"x":1,"y":{"b":1}}}"#),
            (
                "d.*.b",
                r#"{"a":[{"b":1,"c":2},{"b":3}],"d":{"x":1,"y":{}}}"#,
            ),
            (
                "nothing.here",
                r#"{"a":[{"b":1,"c":2},{"b":3}],"d":{"x":1,"y":{"b":1}}}"#,
            ),
            ("a", r#"{"d":{"x":1,"y":{"b":1}}}"#),
        ];
        for (path, left) in cases {
            let mut value = value.clone();
            value.leave_out(path);
            assert_eq!(value, json(left), "{path}");
        }
        assert_eq!(
            value.without(&["b".to_owned()]),
            json(r#"{"a":[{"c":2},{}],"d":{"x":1,"y":{}}}"#)
        );
    }
}
