//! Decodes a tree by its type, as Go decodes to structs and encodes them again.
//! In: a tree and a [`Type`]. Out: the object without unknown or empty fields, and the strict
//! decoding errors.
//! Guarantees: of several type errors the first is reported; decoding is idempotent.
//!
//! As with Go's structs, `null` is absence; an empty field with `omitempty` is dropped, one without
//! is written even when it was not sent (`status: {}`, `containers: null`); an empty list that is
//! always written is written as null, since protobuf, in which the server stores most objects, does
//! not distinguish them.

use std::borrow::Cow;

use bellerophon_apimachinery::{field::go_quote, quantity};
use serde_json::{Map, Value, json, map::Entry};

use super::{
    Field, Item, Shape, Type, base64,
    field_path::{FieldPath, Step},
    normal::{fill, zero, zero_object},
    table::{SCHEMA, TYPES},
    time::{self, Precision},
};
use crate::decode::{Members, Node, note_strict, whole_number};

/// The Go type of the list of field owners.
const MANAGED_FIELDS: &str = "[]v1.ManagedFieldsEntry";

/// An object read by its type.
#[derive(Debug)]
pub struct Decoded {
    /// The object, completed as its Go type is encoded.
    pub object: Map<String, Value>,
    /// Unknown and repeated fields in the order of the body, at most a hundred: `unknown field
    /// "spec.foo"`.
    pub strict: Vec<String>,
}

/// Decodes a JSON value: the result of a patch, or an object of another server.
///
/// # Errors
/// A value of another type, with the messages of Go's decoder.
pub fn decode(ty: &'static Type, value: Value) -> Result<Decoded, String> {
    decode_node(ty, Node::from_value(value))
}

/// Decodes a tree. Of a repeated field the last one counts.
///
/// # Errors
/// A value of another type, with the messages of Go's decoder.
pub fn decode_node(ty: &'static Type, root: Node<'_>) -> Result<Decoded, String> {
    let mut decoder = Decoder {
        strict: Vec::new(),
        first_error: None,
        nested: None,
    };
    let object = match root {
        Node::Null => zero_object(ty),
        Node::Object(members) => decoder.object(ty, members, None)?,
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go value of type {}",
                other.go_kind(),
                ty.go
            ));
        }
    };
    match decoder.first_error {
        Some(error) => Err(error),
        None => Ok(Decoded {
            object,
            strict: decoder.strict,
        }),
    }
}

struct Decoder {
    strict: Vec<String>,
    /// The first type error; decoding continues behind it.
    first_error: Option<String>,
    /// The struct that errors name inside a schema with its own decoder, which is not strict.
    nested: Option<&'static Type>,
}

impl Decoder {
    fn object(
        &mut self,
        ty: &'static Type,
        members: Members<'_>,
        at: Option<&FieldPath<'_>>,
    ) -> Result<Map<String, Value>, String> {
        let mut map = Map::new();
        let mut seen = 0_u128;
        for (key, node) in members {
            let Some(position) = ty.position(&key) else {
                self.object_to("unknown", at, &key);
                continue;
            };
            if seen & (1 << position) != 0 {
                self.object_to("duplicate", at, &key);
            }
            seen |= 1 << position;
            let field = &ty.fields()[position];
            let at = FieldPath::below(at, Step::Field(ty, field));
            if let Some(value) = self.field(field, node, &at)? {
                match field
                    .written(value)
                    .filter(|_| at.parent.is_none() || !field.is_type_meta())
                {
                    Some(value) => map.insert(field.name.to_owned(), value),
                    None => map.remove(field.name),
                };
            }
        }
        fill(ty, &mut map);
        Ok(map)
    }

    /// The value of a field, null for a nil one; `None` where the field is unchanged.
    fn field(
        &mut self,
        field: &'static Field,
        node: Node<'_>,
        at: &FieldPath<'_>,
    ) -> Result<Option<Value>, String> {
        if node == Node::Null && field.is_nillable() {
            return Ok(Some(Value::Null));
        }
        match (field.shape, node) {
            (Shape::One(item), node) => self.item(item, node, field.go, at),
            // Go distinguishes an empty managedFields list from an absent one: it resets them, as
            // one empty entry does.
            (Shape::List(_), Node::Array(items))
                if items.is_empty() && field.go == MANAGED_FIELDS =>
            {
                Ok(Some(json!([{}])))
            }
            (Shape::List(item), Node::Array(items)) => {
                self.list(item, items, field.item_go, at).map(Some)
            }
            (Shape::Map(item), Node::Object(members)) => self
                .map(members, at, |this, node, at| {
                    this.element(item, node, field.item_go, at)
                })
                .map(Some),
            (Shape::MapOfLists(item), Node::Object(members)) => self
                .map(members, at, |this, node, at| {
                    this.inner_list(item, node, field.item_go, at)
                })
                .map(Some),
            (_, other) => Ok(self.leave_unset(other.go_kind(), field.go, at)),
        }
    }

    fn list(
        &mut self,
        item: Item,
        items: Vec<Node<'_>>,
        go: &str,
        at: &FieldPath<'_>,
    ) -> Result<Value, String> {
        let items = items.into_iter().enumerate();
        let values = items.map(|(i, node)| {
            self.element(item, node, go, &FieldPath::below(Some(at), Step::Index(i)))
        });
        values.collect::<Result<_, _>>().map(Value::Array)
    }

    fn inner_list(
        &mut self,
        item: Item,
        node: Node<'_>,
        go: &str,
        at: &FieldPath<'_>,
    ) -> Result<Value, String> {
        match node {
            Node::Array(items) => self.list(item, items, "string", at),
            Node::Null => Ok(Value::Null),
            other => Ok(self
                .leave_unset(other.go_kind(), go, at)
                .unwrap_or(Value::Null)),
        }
    }

    fn map(
        &mut self,
        members: Members<'_>,
        at: &FieldPath<'_>,
        read: impl Fn(&mut Self, Node<'_>, &FieldPath<'_>) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let mut map = Map::new();
        for (key, node) in members {
            match map.entry(key) {
                Entry::Vacant(slot) => {
                    let value = read(
                        self,
                        node,
                        &FieldPath::below(Some(at), Step::Key(slot.key())),
                    )?;
                    slot.insert(value);
                }
                Entry::Occupied(mut slot) => {
                    self.object_to("duplicate", Some(at), slot.key());
                    let value = read(
                        self,
                        node,
                        &FieldPath::below(Some(at), Step::Key(slot.key())),
                    )?;
                    slot.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }

    /// An item of a list or a value of a map, which is always something.
    fn element(
        &mut self,
        item: Item,
        node: Node<'_>,
        go: &str,
        at: &FieldPath<'_>,
    ) -> Result<Value, String> {
        Ok(self
            .item(item, node, go, at)?
            .unwrap_or_else(|| match item {
                // Protobuf has no bytes that are nil inside a map.
                Item::Bytes => Value::String(String::new()),
                item => zero(item),
            }))
    }

    /// One value; `None` for null where Go ignores it, and for a value of another type.
    fn item(
        &mut self,
        item: Item,
        node: Node<'_>,
        go: &str,
        at: &FieldPath<'_>,
    ) -> Result<Option<Value>, String> {
        match (item, node) {
            (Item::Str, Node::String(text)) => Ok(Some(Value::String(text.into_owned()))),
            (Item::Bool, Node::Bool(b)) => Ok(Some(Value::Bool(b))),
            (Item::Object(id), Node::Object(members)) => self
                .object(&TYPES[usize::from(id)], members, Some(at))
                .map(Value::Object)
                .map(Some),
            (Item::Int32 | Item::Int64 | Item::Double, Node::Number(text)) => {
                Ok(self.number(item, &text, go, at))
            }
            (Item::Bytes, Node::String(text)) => Ok(self.bytes(&text)),
            (Item::Bytes, Node::Array(items)) => Ok(Some(self.byte_list(items, at))),
            (Item::Time | Item::MicroTime, node) => self.time(item, node, at).map(Some),
            (Item::Quantity, node) => quantity(node).map(Some),
            (Item::IntOrString, node) => self.int_or_string(node, at).map(Some),
            (Item::Raw | Item::Owned | Item::Json, node) => Ok(Some(node.into_raw())),
            (Item::SchemaOrBool | Item::SchemaOrArray | Item::SchemaOrStrings, node) => {
                self.schema_or(item, node, at).map(Some)
            }
            (_, Node::Null) => Ok(None),
            (_, other) => Ok(self.leave_unset(other.go_kind(), go, at)),
        }
    }

    fn number(&mut self, item: Item, text: &str, go: &str, at: &FieldPath<'_>) -> Option<Value> {
        let value = match item {
            Item::Int32 => text.parse::<i32>().ok().map(Value::from),
            Item::Int64 => text.parse::<i64>().ok().map(Value::from),
            _ => whole_number(text).map(Value::Number),
        };
        value.or_else(|| self.leave_unset(&format!("number {text}"), go, at))
    }

    fn bytes(&mut self, text: &str) -> Option<Value> {
        match base64::canonical(text) {
            Ok(text) => Some(Value::String(text)),
            Err(why) => {
                self.first_error.get_or_insert(why);
                None
            }
        }
    }

    /// Bytes as a list of numbers, which Go takes too.
    fn byte_list(&mut self, items: Vec<Node<'_>>, at: &FieldPath<'_>) -> Value {
        let mut bytes = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Node::Null => bytes.push(0),
                Node::Number(text) => match text.parse() {
                    Ok(byte) => bytes.push(byte),
                    Err(_) => self.record_type_error(&format!("number {text}"), "uint8", at),
                },
                other => self.record_type_error(other.go_kind(), "uint8", at),
            }
        }
        Value::String(base64::encode(&bytes))
    }

    fn time(&self, item: Item, node: Node<'_>, at: &FieldPath<'_>) -> Result<Value, String> {
        let precision = if item == Item::Time {
            Precision::Seconds
        } else {
            Precision::Micros
        };
        match node {
            Node::Null => Ok(Value::Null),
            Node::String(text) => {
                Ok(time::canonical(&text, precision)?.map_or(Value::Null, Value::String))
            }
            other => Err(self.type_error(other.go_kind(), "string", at)),
        }
    }

    fn int_or_string(&self, node: Node<'_>, at: &FieldPath<'_>) -> Result<Value, String> {
        match node {
            Node::String(text) => Ok(Value::String(text.into_owned())),
            Node::Null => Ok(Value::from(0)),
            Node::Number(text) => text
                .parse::<i32>()
                .map(Value::from)
                .map_err(|_| self.type_error(&format!("number {text}"), "int32", at)),
            other => Err(self.type_error(other.go_kind(), "int32", at)),
        }
    }

    /// A schema, or one of the short forms a custom resource definition allows in its place.
    fn schema_or(
        &mut self,
        item: Item,
        node: Node<'_>,
        at: &FieldPath<'_>,
    ) -> Result<Value, String> {
        let schema = Item::Object(SCHEMA);
        match (item, node) {
            (Item::SchemaOrBool, Node::Bool(b)) => Ok(Value::Bool(b)),
            (_, node @ Node::Object(_)) => self.apart(at, |this| {
                this.element(schema, node, "v1.JSONSchemaProps", at)
            }),
            (Item::SchemaOrBool, _) => Err("boolean or JSON schema expected".to_owned()),
            (Item::SchemaOrArray, Node::Array(items)) if !items.is_empty() => self
                .apart(at, |this| {
                    this.list(schema, items, "v1.JSONSchemaProps", at)
                }),
            (Item::SchemaOrStrings, Node::Array(items)) if !items.is_empty() => {
                self.apart(at, |this| this.list(Item::Str, items, "string", at))
            }
            _ => Ok(Value::Null),
        }
    }

    /// Decodes a type with its own decoder: it is not strict, and the first type error ends
    /// decoding.
    fn apart(
        &mut self,
        at: &FieldPath<'_>,
        read: impl FnOnce(&mut Self) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let outer_error = self.first_error.take();
        let outer = self.nested;
        self.nested = outer.or_else(|| at.owner());
        let value = read(self)?;
        if let Some(error) = self.first_error.take() {
            return Err(error);
        }
        self.first_error = outer_error;
        self.nested = outer;
        Ok(value)
    }

    fn object_to(&mut self, problem: &str, at: Option<&FieldPath<'_>>, key: &str) {
        if self.nested.is_some() {
            return;
        }
        let mut path = String::new();
        if let Some(at) = at {
            at.write_path(&mut path);
            path.push('.');
        }
        path.push_str(key);
        note_strict(
            &mut self.strict,
            format!("{problem} field {}", go_quote(&path)),
        );
    }

    /// Records a type error, which leaves the field unset.
    fn leave_unset(&mut self, found: &str, go: &str, at: &FieldPath<'_>) -> Option<Value> {
        self.record_type_error(found, go, at);
        None
    }

    fn record_type_error(&mut self, found: &str, go: &str, at: &FieldPath<'_>) {
        if self.first_error.is_none() {
            self.first_error = Some(self.type_error(found, go, at));
        }
    }

    fn type_error(&self, found: &str, go: &str, at: &FieldPath<'_>) -> String {
        let owner = self.nested.or_else(|| at.owner()).map_or("", Type::name);
        let mut path = String::new();
        at.write_fields(&mut path);
        format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {go}")
    }
}

fn quantity(node: Node<'_>) -> Result<Value, String> {
    let text: Cow<'_, str> = match node {
        Node::Null => return Ok(zero(Item::Quantity)),
        Node::String(text) | Node::Number(text) => text,
        other => other.into_raw().to_string().into(),
    };
    Ok(Value::String(quantity::canonical(text.trim())?))
}
