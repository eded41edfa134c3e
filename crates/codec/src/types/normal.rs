//! Normalization: which empty fields of an object are written.
//! Guarantees: the rules are those of Go's structs: `omitempty`, pointers and zero values, and what
//! protobuf can distinguish.

use serde_json::{Map, Value};

use super::{Field, Item, Shape, Type, table::TYPES};

impl Field {
    /// Whether it can be nil, which is written as null.
    pub(super) const fn is_nillable(&self) -> bool {
        self.pointer
            || !matches!(self.shape, Shape::One(_))
            || matches!(self.shape, Shape::One(Item::Bytes))
    }

    /// Whether it names the kind of an object; inside another object protobuf has no place for it.
    pub(super) fn is_type_meta(&self) -> bool {
        self.embedded == "TypeMeta"
    }

    /// Whether Go writes it even when it was never set.
    const fn is_always_written(&self) -> bool {
        match self.shape {
            _ if self.pointer => !self.omit_empty,
            Shape::One(item) if item.is_go_struct() => !self.omit_zero,
            _ => !self.omit_empty,
        }
    }

    /// The value as Go encodes it, or `None` where it omits it.
    pub(super) fn written(&self, value: Value) -> Option<Value> {
        if self.is_always_written() {
            return Some(value);
        }
        let absent = if self.pointer {
            value.is_null()
        } else {
            is_empty(&value)
        };
        (!absent).then_some(value)
    }
}

impl Item {
    /// Whether Go keeps it in a struct, which `omitempty` never leaves out.
    const fn is_go_struct(self) -> bool {
        !matches!(
            self,
            Self::Str | Self::Bool | Self::Int32 | Self::Int64 | Self::Double | Self::Bytes
        )
    }
}

/// Whether Go's `omitempty` leaves the value out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Adds the fields that are always written and were not sent.
pub(super) fn fill(ty: &'static Type, map: &mut Map<String, Value>) {
    for field in ty.fields().iter().filter(|field| field.is_always_written()) {
        if !map.contains_key(field.name) {
            let zero = match field.shape {
                Shape::One(item) if !field.pointer => zero(item),
                _ => Value::Null,
            };
            map.insert(field.name.to_owned(), zero);
        }
    }
}

/// Replaces empty lists and maps by none where storage cannot distinguish the two. Until then they
/// are as the client sent them, for managed fields.
pub fn settle(ty: &'static Type, map: &mut Map<String, Value>) {
    // These are stored as JSON, which can.
    if ["CustomResourceDefinition", "APIService"].contains(&ty.name()) {
        return;
    }
    for (name, value) in map.iter_mut() {
        let Some(field) = ty.field(name) else {
            continue;
        };
        match (&mut *value, field.shape.item().object()) {
            (Value::Array(items), _) if items.is_empty() && field.is_always_written() => {
                *value = Value::Null
            }
            (Value::Array(items), Some(ty)) => items
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(|map| settle(ty, map)),
            (Value::Object(map), Some(ty)) if matches!(field.shape, Shape::One(_)) => {
                settle(ty, map)
            }
            (Value::Object(map), _)
                if map.is_empty()
                    && !matches!(field.shape, Shape::One(_))
                    && field.is_always_written() =>
            {
                *value = Value::Null;
            }
            _ => {}
        }
    }
}

/// Adds to a body what its kind always shows and something took away: a status that was dropped is
/// an empty one.
pub fn complete(ty: &'static Type, body: &mut Map<String, Value>) {
    fill(ty, body);
    // Metadata is kept apart from the body.
    body.remove("metadata");
}

pub(super) fn zero_object(ty: &'static Type) -> Map<String, Value> {
    let mut map = Map::new();
    fill(ty, &mut map);
    map
}

pub(super) fn zero(item: Item) -> Value {
    match item {
        Item::Str => Value::String(String::new()),
        Item::Bool | Item::SchemaOrBool => Value::Bool(false),
        Item::Int32 | Item::Int64 | Item::Double | Item::IntOrString => Value::from(0),
        Item::Quantity => Value::String("0".to_owned()),
        Item::Object(id) => Value::Object(zero_object(&TYPES[usize::from(id)])),
        Item::Bytes
        | Item::Time
        | Item::MicroTime
        | Item::Raw
        | Item::Owned
        | Item::Json
        | Item::SchemaOrArray
        | Item::SchemaOrStrings => Value::Null,
    }
}
