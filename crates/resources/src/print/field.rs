//! Reads a body as Go decodes structs: what is absent or null is the zero value.

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use serde_json::{Map, Value};

/// Something with fields: a whole object, or a part of one.
pub(super) trait Fields {
    /// The value at a dotted path; null counts as absent.
    fn field(&self, path: &str) -> Option<&Value>;

    fn has(&self, path: &str) -> bool {
        self.field(path).is_some()
    }

    /// Empty when absent.
    fn text(&self, path: &str) -> &str {
        self.text_or(path, "")
    }

    /// `absent` only when there is no text at all; an empty one is returned.
    fn text_or<'a>(&'a self, path: &str, absent: &'a str) -> &'a str {
        self.field(path).and_then(Value::as_str).unwrap_or(absent)
    }

    /// `empty` also for a text without characters.
    fn filled_or<'a>(&'a self, path: &str, empty: &'a str) -> &'a str {
        match self.text(path) {
            "" => empty,
            text => text,
        }
    }

    fn int(&self, path: &str) -> i64 {
        self.field(path).and_then(Value::as_i64).unwrap_or_default()
    }

    fn flag(&self, path: &str) -> bool {
        self.field(path)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    }

    fn list(&self, path: &str) -> &[Value] {
        self.field(path)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn map(&self, path: &str) -> Option<&Map<String, Value>> {
        self.field(path).and_then(Value::as_object)
    }

    fn time(&self, path: &str) -> Option<Time> {
        Time::parse(self.text(path)).ok()
    }

    /// The strings of a list, in order.
    fn texts(&self, path: &str) -> Vec<&str> {
        self.list(path).iter().filter_map(Value::as_str).collect()
    }

    /// A number or a text, printed; `absent` when there is neither.
    fn scalar_or(&self, path: &str, absent: &str) -> String {
        match self.field(path) {
            Some(Value::String(text)) => text.clone(),
            Some(number @ Value::Number(_)) => number.to_string(),
            _ => absent.into(),
        }
    }

    /// The entry of this type in the list at `path`: a condition, an address.
    fn typed(&self, path: &str, type_: &str) -> Option<&Value> {
        self.list(path)
            .iter()
            .find(|entry| entry.text("type") == type_)
    }

    /// Whether the condition of this type is there and true.
    fn is_true(&self, path: &str, type_: &str) -> bool {
        self.typed(path, type_)
            .is_some_and(|condition| condition.text("status") == "True")
    }
}

impl Fields for Object {
    fn field(&self, path: &str) -> Option<&Value> {
        self.at(path).filter(|value| !value.is_null())
    }
}

impl Fields for Value {
    fn field(&self, path: &str) -> Option<&Value> {
        path.split('.')
            .try_fold(self, |value, step| value.get(step))
            .filter(|value| !value.is_null())
    }
}

/// The first three of a list and how many more there are.
pub(super) fn first_three(items: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    match items.len().saturating_sub(SHOWN_MAX) {
        0 => items.join(","),
        more => format!("{} + {more} more...", items[..SHOWN_MAX].join(",")),
    }
}
