//! Values as Go prints them in errors: `map[a:1 b:[x y]]`.

use std::fmt;

use serde_json::{Map, Value};

/// Prints a value.
pub struct GoValue<'v>(pub &'v Value);

/// Prints a map, its keys in order.
pub(super) struct GoMap<'v>(pub(super) &'v Map<String, Value>);

/// Prints a list.
pub(super) struct GoList<'v>(pub(super) &'v [Value]);

impl fmt::Display for GoValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::String(s) => f.write_str(s),
            Value::Array(items) => GoList(items).fmt(f),
            Value::Object(map) => GoMap(map).fmt(f),
        }
    }
}

impl fmt::Display for GoMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("map[")?;
        for (i, (key, value)) in self.0.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{key}:{}", GoValue(value))?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for GoList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, value) in self.0.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{}", GoValue(value))?;
        }
        f.write_str("]")
    }
}
