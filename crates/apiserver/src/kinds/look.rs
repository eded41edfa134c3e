//! Reading JSON the way Kubernetes reads its structs: what is absent is empty.
//! Holds: nothing here fails; a value of the wrong type, which decoding has refused before, reads as absent.

use serde_json::{Map, Value};

/// Reads fields by name.
pub(crate) trait Look {
    /// The field, when it is there and not null.
    fn get_set(&self, name: &str) -> Option<&Value>;

    /// The field; null when absent.
    fn part(&self, name: &str) -> &Value {
        self.get_set(name).unwrap_or(&Value::Null)
    }

    /// The string in the field; empty when absent.
    fn text(&self, name: &str) -> &str {
        self.part(name).as_str().unwrap_or_default()
    }

    /// The integer in the field.
    fn int(&self, name: &str) -> Option<i64> {
        self.part(name).as_i64()
    }

    /// Whether the field is true.
    fn is_true(&self, name: &str) -> bool {
        self.part(name) == &Value::Bool(true)
    }

    /// The items of the field; none when absent.
    fn list(&self, name: &str) -> &[Value] {
        self.part(name).as_array().map_or(&[], Vec::as_slice)
    }

    /// The entries of the field, sorted by key; none when absent.
    fn entries(&self, name: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.part(name).as_object().into_iter().flatten()
    }

    /// Whether the field is absent, null or an empty string, list or map.
    fn is_empty_at(&self, name: &str) -> bool {
        match self.part(name) {
            Value::Null => true,
            Value::String(s) => s.is_empty(),
            Value::Array(a) => a.is_empty(),
            Value::Object(o) => o.is_empty(),
            _ => false,
        }
    }
}

impl Look for Map<String, Value> {
    fn get_set(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|v| !v.is_null())
    }
}

impl Look for Value {
    fn get_set(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|v| !v.is_null())
    }
}

/// Completes fields by name.
pub(crate) trait Fill {
    /// Sets the field unless it is there.
    fn default_to(&mut self, name: &str, value: impl Into<Value>);

    /// Sets the field unless it is there and not an empty string.
    fn default_text(&mut self, name: &str, value: &str);

    /// The map in the field, when it is one.
    fn map_mut(&mut self, name: &str) -> Option<&mut Map<String, Value>>;

    /// The maps in the list in the field.
    fn maps_mut(&mut self, name: &str) -> impl Iterator<Item = &mut Map<String, Value>>;
}

impl Fill for Map<String, Value> {
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

    fn map_mut(&mut self, name: &str) -> Option<&mut Map<String, Value>> {
        self.get_mut(name).and_then(Value::as_object_mut)
    }

    fn maps_mut(&mut self, name: &str) -> impl Iterator<Item = &mut Map<String, Value>> {
        self.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
    }
}
