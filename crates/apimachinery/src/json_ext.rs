//! Reads JSON as Go decodes structs: what is absent is the zero value.
//! Guarantees: nothing here fails; a value of another type, which decoding has rejected before,
//! reads as absent.

use serde_json::{Map, Value};

/// Reads fields by name.
pub trait JsonExt {
    /// The field, when it is there and not null.
    fn get_set(&self, name: &str) -> Option<&Value>;

    /// The field; null when absent.
    fn field(&self, name: &str) -> &Value {
        self.get_set(name).unwrap_or(&Value::Null)
    }

    /// The string in the field; empty when absent.
    fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_default()
    }

    /// The integer in the field.
    fn int(&self, name: &str) -> Option<i64> {
        self.field(name).as_i64()
    }

    /// Whether the field is there and not null.
    fn has(&self, name: &str) -> bool {
        self.get_set(name).is_some()
    }

    /// The integer in the field; 0 when absent.
    fn number(&self, name: &str) -> i64 {
        self.int(name).unwrap_or_default()
    }

    /// Whether the field is true.
    fn is_true(&self, name: &str) -> bool {
        self.field(name) == &Value::Bool(true)
    }

    /// The items of the field; none when absent.
    fn list(&self, name: &str) -> &[Value] {
        self.field(name).as_array().map_or(&[], Vec::as_slice)
    }

    /// The strings in the list in the field; none when absent.
    fn texts<'a>(&'a self, name: &str) -> impl ExactSizeIterator<Item = &'a str> {
        self.list(name)
            .iter()
            .map(|item| item.as_str().unwrap_or_default())
    }

    /// The entries of the field, sorted by key; none when absent.
    fn entries(&self, name: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.field(name).as_object().into_iter().flatten()
    }

    /// Whether the field is absent, null or an empty string, list or map.
    fn is_empty_at(&self, name: &str) -> bool {
        match self.field(name) {
            Value::Null => true,
            Value::String(s) => s.is_empty(),
            Value::Array(a) => a.is_empty(),
            Value::Object(o) => o.is_empty(),
            _ => false,
        }
    }
}

impl JsonExt for Map<String, Value> {
    fn get_set(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|v| !v.is_null())
    }
}

impl JsonExt for Value {
    fn get_set(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|v| !v.is_null())
    }
}

/// Completes fields by name.
pub trait JsonDefaults {
    /// Sets the field unless it is there.
    fn default_to(&mut self, name: &str, value: impl Into<Value>);

    /// Sets the field unless it is there and not an empty string.
    fn default_text(&mut self, name: &str, value: &str);

    /// Sets the field unless it is there and not 0.
    fn default_number(&mut self, name: &str, value: i64);

    /// Sets the field to its value in `from`, and removes it when `from` has none.
    fn take_over(&mut self, name: &str, from: &Value);

    /// The map in the field, made when there is none.
    fn map_at(&mut self, name: &str) -> &mut Map<String, Value>;

    /// The map in the field, when it is one.
    fn map_mut(&mut self, name: &str) -> Option<&mut Map<String, Value>>;

    /// The maps in the list in the field.
    fn maps_mut(&mut self, name: &str) -> impl Iterator<Item = &mut Map<String, Value>>;
}

impl JsonDefaults for Map<String, Value> {
    fn default_to(&mut self, name: &str, value: impl Into<Value>) {
        if self.get_set(name).is_none() {
            self.insert(name.to_owned(), value.into());
        }
    }

    fn default_text(&mut self, name: &str, value: &str) {
        if self.text(name).is_empty() {
            self.insert(name.to_owned(), value.into());
        }
    }

    fn default_number(&mut self, name: &str, value: i64) {
        if self.number(name) == 0 {
            self.insert(name.to_owned(), value.into());
        }
    }

    fn take_over(&mut self, name: &str, from: &Value) {
        match from.get_set(name) {
            Some(value) => self.insert(name.to_owned(), value.clone()),
            None => self.remove(name),
        };
    }

    fn map_at(&mut self, name: &str) -> &mut Map<String, Value> {
        if !self.get(name).is_some_and(Value::is_object) {
            self.insert(name.to_owned(), Value::Object(Map::new()));
        }
        self.map_mut(name).expect("made a map above")
    }

    fn map_mut(&mut self, name: &str) -> Option<&mut Map<String, Value>> {
        self.get_mut(name).and_then(Value::as_object_mut)
    }

    fn maps_mut(&mut self, name: &str) -> impl Iterator<Item = &mut Map<String, Value>> {
        self.get_mut(name)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
    }
}

/// Whether two values are the same to Kubernetes: null and an empty list are as good as absent, at
/// any depth.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        _ if is_nothing(a) => is_nothing(b),
        (Value::Object(a), Value::Object(b)) => {
            let held = |k: &String| b.get(k).unwrap_or(&Value::Null);
            a.iter().all(|(k, v)| same(v, held(k)))
                && b.iter().all(|(k, v)| a.contains_key(k) || is_nothing(v))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (a, b) => a == b,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_and_empty_lists_equal_absence() {
        let cases = [
            (json!({"a": null, "b": []}), json!({}), true),
            (json!({"a": {"b": []}}), json!({"a": {}}), true),
            (json!({"a": {}}), json!({}), false),
            (json!({"a": 1}), json!({"a": 2}), false),
            (json!([{"a": null}]), json!([{}]), true),
            (json!(null), json!([]), true),
        ];
        for (a, b, expected) in cases {
            assert_eq!(same(&a, &b), expected, "{a} {b}");
            assert_eq!(same(&b, &a), expected, "{a} {b}");
        }
    }

    #[test]
    fn defaults_never_replace_what_was_given() {
        let mut map = json!({"a": 0, "b": "", "c": false, "d": 5})
            .as_object()
            .cloned()
            .expect("an object");
        for name in ["a", "c", "d", "e"] {
            map.default_to(name, 9);
        }
        map.default_text("b", "x");
        assert_eq!(
            Value::Object(map.clone()),
            json!({"a": 0, "b": "x", "c": false, "d": 5, "e": 9})
        );
        map.default_number("a", 7);
        map.map_at("f").default_to("g", 1);
        assert_eq!(map.number("a"), 7);
        assert_eq!(map.field("f").number("g"), 1);
    }
}
