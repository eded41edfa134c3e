//! A tree read by its type, as the server's Go structs would read it and write it back.
//! In: a tree and a [`Type`]. Out: the object without what is unknown or empty, and what strict decoding objects to.
//! Holds: of several wrong types the first is reported; decoding the outcome again changes nothing.
//!
//! What Go's structs do to an object, and so does this: `null` is absence; a field that is empty and `omitempty` goes, one that is neither
//! comes back even when it was never sent (`status: {}`, `containers: null`); an empty list that is always written is written as null, since
//! protobuf, in which the server stores objects, knows no other.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    Field, Item, Quantity, Shape, Type, base64,
    table::{SCHEMA, TYPES},
    time::{self, Precision},
};
use crate::{
    decode::{Members, Node, note_strict, whole_number},
    field::go_quote,
};

/// An object read by its type.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Map<String, Value>,
    /// Unknown and repeated fields in the order of the body, at most a hundred: `unknown field "spec.foo"`.
    pub(crate) strict: Vec<String>,
}

/// Reads a value that was decoded before: the outcome of a patch, an object of another server.
///
/// # Errors
/// A value of the wrong type, in the words of Go's decoder.
pub(crate) fn decode(ty: &'static Type, value: Value) -> Result<Decoded, String> {
    decode_node(ty, Node::from_value(value))
}

/// Reads a tree. Of a repeated field the last one counts.
///
/// # Errors
/// A value of the wrong type, in the words of Go's decoder.
pub(crate) fn decode_node(ty: &'static Type, root: Node<'_>) -> Result<Decoded, String> {
    let mut decoder = Decoder { strict: Vec::new(), first_error: None, nested: None };
    let object = match root {
        Node::Null => zero_object(ty),
        Node::Object(members) => decoder.object(ty, members, None)?,
        other => return Err(format!("json: cannot unmarshal {} into Go value of type {}", other.go_kind(), ty.go)),
    };
    match decoder.first_error {
        Some(error) => Err(error),
        None => Ok(Decoded { object, strict: decoder.strict }),
    }
}

/// A place in the tree, kept on the stack and printed only when something is wrong there.
#[derive(Clone, Copy)]
struct Place<'p> {
    parent: Option<&'p Place<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Field(&'static Type, &'static Field),
    Key(&'p str),
    Index(usize),
}

impl<'p> Place<'p> {
    const fn below(parent: Option<&'p Place<'p>>, step: Step<'p>) -> Self {
        Self { parent, step }
    }

    /// The path with keys and indices: `spec.containers[0].image`.
    fn write_path(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_path(out);
        }
        let name = match self.step {
            Step::Field(_, field) => field.name,
            Step::Key(key) => key,
            Step::Index(index) => return out.push_str(&format!("[{index}]")),
        };
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(name);
    }

    /// The path of fields alone, with the structs that only Go sees: `spec.volumes.VolumeSource.emptyDir`.
    fn write_fields(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_fields(out);
        }
        if let Step::Field(_, field) = self.step {
            for name in [field.embedded, field.name].into_iter().filter(|name| !name.is_empty()) {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
        }
    }

    /// The struct of the innermost field.
    fn owner(&self) -> Option<&'static Type> {
        match self.step {
            Step::Field(owner, _) => Some(owner),
            _ => self.parent.and_then(Place::owner),
        }
    }
}

struct Decoder {
    strict: Vec<String>,
    /// The first value of a wrong type; reading goes on behind it.
    first_error: Option<String>,
    /// The struct that errors name while a schema is read that decodes itself: nothing inside is strict.
    nested: Option<&'static Type>,
}

impl Decoder {
    fn object(&mut self, ty: &'static Type, members: Members<'_>, place: Option<&Place<'_>>) -> Result<Map<String, Value>, String> {
        let mut map = Map::new();
        let mut seen = 0_u128;
        for (key, node) in members {
            let Some(position) = ty.position(&key) else {
                self.object_to("unknown", place, &key);
                continue;
            };
            if seen & (1 << position) != 0 {
                self.object_to("duplicate", place, &key);
            }
            seen |= 1 << position;
            let field = &ty.fields()[position];
            let place = Place::below(place, Step::Field(ty, field));
            if let Some(value) = self.field(field, node, &place)? {
                match field.written(value) {
                    Some(value) => map.insert(field.name.to_owned(), value),
                    None => map.remove(field.name),
                };
            }
        }
        fill(ty, &mut map);
        Ok(map)
    }

    /// The value of a field, null for a nil one; `None` where the field stays as it is.
    fn field(&mut self, field: &'static Field, node: Node<'_>, place: &Place<'_>) -> Result<Option<Value>, String> {
        if node == Node::Null && field.is_nillable() {
            return Ok(Some(Value::Null));
        }
        match (field.shape, node) {
            (Shape::One(item), node) => self.item(item, node, field.go, place),
            (Shape::List(item), Node::Array(items)) => self.list(item, items, field.item_go, place).map(Some),
            (Shape::Map(item), Node::Object(members)) => {
                self.map(members, place, |this, node, place| this.element(item, node, field.item_go, place)).map(Some)
            }
            (Shape::MapOfLists(item), Node::Object(members)) => {
                self.map(members, place, |this, node, place| this.inner_list(item, node, field.item_go, place)).map(Some)
            }
            (_, other) => Ok(self.wrong_type(other.go_kind(), field.go, place)),
        }
    }

    fn list(&mut self, item: Item, items: Vec<Node<'_>>, go: &str, place: &Place<'_>) -> Result<Value, String> {
        let items = items.into_iter().enumerate();
        let values = items.map(|(i, node)| self.element(item, node, go, &Place::below(Some(place), Step::Index(i))));
        values.collect::<Result<_, _>>().map(Value::Array)
    }

    fn inner_list(&mut self, item: Item, node: Node<'_>, go: &str, place: &Place<'_>) -> Result<Value, String> {
        match node {
            Node::Array(items) => self.list(item, items, "string", place),
            Node::Null => Ok(Value::Null),
            other => Ok(self.wrong_type(other.go_kind(), go, place).unwrap_or(Value::Null)),
        }
    }

    fn map(
        &mut self,
        members: Members<'_>,
        place: &Place<'_>,
        read: impl Fn(&mut Self, Node<'_>, &Place<'_>) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let mut map = Map::new();
        for (key, node) in members {
            if map.contains_key(key.as_ref()) {
                self.object_to("duplicate", Some(place), &key);
            }
            let value = read(self, node, &Place::below(Some(place), Step::Key(&key)))?;
            map.insert(key.into_owned(), value);
        }
        Ok(Value::Object(map))
    }

    /// An item of a list or a value of a map, which is always something.
    fn element(&mut self, item: Item, node: Node<'_>, go: &str, place: &Place<'_>) -> Result<Value, String> {
        Ok(self.item(item, node, go, place)?.unwrap_or_else(|| match item {
            // Protobuf has no bytes that are nil inside a map.
            Item::Bytes => Value::String(String::new()),
            item => zero(item),
        }))
    }

    /// One value; `None` for null where Go ignores it, and for a value of the wrong type.
    fn item(&mut self, item: Item, node: Node<'_>, go: &str, place: &Place<'_>) -> Result<Option<Value>, String> {
        match (item, node) {
            (Item::Str, Node::String(text)) => Ok(Some(Value::String(text.into_owned()))),
            (Item::Bool, Node::Bool(b)) => Ok(Some(Value::Bool(b))),
            (Item::Object(id), Node::Object(members)) => {
                self.object(&TYPES[usize::from(id)], members, Some(place)).map(Value::Object).map(Some)
            }
            (Item::Int32 | Item::Int64 | Item::Double, Node::Number(text)) => Ok(self.number(item, &text, go, place)),
            (Item::Bytes, Node::String(text)) => Ok(self.bytes(&text)),
            (Item::Time | Item::MicroTime, node) => self.time(item, node, place).map(Some),
            (Item::Quantity, node) => quantity(node).map(Some),
            (Item::IntOrString, node) => self.int_or_string(node, place).map(Some),
            (Item::Raw | Item::Owned | Item::Json, node) => Ok(Some(node.into_raw())),
            (Item::SchemaOrBool | Item::SchemaOrArray | Item::SchemaOrStrings, node) => self.schema_or(item, node, place).map(Some),
            (_, Node::Null) => Ok(None),
            (_, other) => Ok(self.wrong_type(other.go_kind(), go, place)),
        }
    }

    fn number(&mut self, item: Item, text: &str, go: &str, place: &Place<'_>) -> Option<Value> {
        let value = match item {
            Item::Int32 => text.parse::<i32>().ok().map(Value::from),
            Item::Int64 => text.parse::<i64>().ok().map(Value::from),
            _ => whole_number(text).map(Value::Number),
        };
        value.or_else(|| self.wrong_type(&format!("number {text}"), go, place))
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

    fn time(&self, item: Item, node: Node<'_>, place: &Place<'_>) -> Result<Value, String> {
        let precision = if item == Item::Time { Precision::Seconds } else { Precision::Micros };
        match node {
            Node::Null => Ok(Value::Null),
            Node::String(text) => Ok(time::canonical(&text, precision)?.map_or(Value::Null, Value::String)),
            other => Err(self.type_error(other.go_kind(), "string", place)),
        }
    }

    fn int_or_string(&self, node: Node<'_>, place: &Place<'_>) -> Result<Value, String> {
        match node {
            Node::String(text) => Ok(Value::String(text.into_owned())),
            Node::Null => Ok(Value::from(0)),
            Node::Number(text) => {
                text.parse::<i32>().map(Value::from).map_err(|_| self.type_error(&format!("number {text}"), "int32", place))
            }
            other => Err(self.type_error(other.go_kind(), "int32", place)),
        }
    }

    /// A schema, or one of the short forms a custom resource definition allows in its place.
    fn schema_or(&mut self, item: Item, node: Node<'_>, place: &Place<'_>) -> Result<Value, String> {
        let schema = Item::Object(SCHEMA);
        match (item, node) {
            (Item::SchemaOrBool, Node::Bool(b)) => Ok(Value::Bool(b)),
            (_, node @ Node::Object(_)) => self.apart(place, |this| this.element(schema, node, "v1.JSONSchemaProps", place)),
            (Item::SchemaOrBool, _) => Err("boolean or JSON schema expected".to_owned()),
            (Item::SchemaOrArray, Node::Array(items)) if !items.is_empty() => {
                self.apart(place, |this| this.list(schema, items, "v1.JSONSchemaProps", place))
            }
            (Item::SchemaOrStrings, Node::Array(items)) if !items.is_empty() => {
                self.apart(place, |this| this.list(Item::Str, items, "string", place))
            }
            _ => Ok(Value::Null),
        }
    }

    /// Reads what decodes itself: inside nothing is strict, and the first wrong type ends everything.
    fn apart(&mut self, place: &Place<'_>, read: impl FnOnce(&mut Self) -> Result<Value, String>) -> Result<Value, String> {
        let outer_error = self.first_error.take();
        let outer = self.nested;
        self.nested = outer.or_else(|| place.owner());
        let value = read(self)?;
        if let Some(error) = self.first_error.take() {
            return Err(error);
        }
        self.first_error = outer_error;
        self.nested = outer;
        Ok(value)
    }

    fn object_to(&mut self, problem: &str, place: Option<&Place<'_>>, key: &str) {
        if self.nested.is_some() {
            return;
        }
        let mut path = String::new();
        if let Some(place) = place {
            place.write_path(&mut path);
            path.push('.');
        }
        path.push_str(key);
        note_strict(&mut self.strict, format!("{problem} field {}", go_quote(&path)));
    }

    fn wrong_type(&mut self, found: &str, go: &str, place: &Place<'_>) -> Option<Value> {
        if self.first_error.is_none() {
            self.first_error = Some(self.type_error(found, go, place));
        }
        None
    }

    fn type_error(&self, found: &str, go: &str, place: &Place<'_>) -> String {
        let owner = self.nested.or_else(|| place.owner()).map_or("", Type::name);
        let mut path = String::new();
        place.write_fields(&mut path);
        format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {go}")
    }
}

fn quantity(node: Node<'_>) -> Result<Value, String> {
    let text: Cow<'_, str> = match node {
        Node::Null => return Ok(zero(Item::Quantity)),
        Node::String(text) | Node::Number(text) => text,
        other => other.into_raw().to_string().into(),
    };
    Ok(Value::String(Quantity::parse(text.trim())?.to_string()))
}

impl Field {
    /// Whether it can be nil, and null says so.
    const fn is_nillable(&self) -> bool {
        self.pointer || !matches!(self.shape, Shape::One(_)) || matches!(self.shape, Shape::One(Item::Bytes))
    }

    /// Whether Go writes it even when it was never set.
    const fn is_always_written(&self) -> bool {
        match self.shape {
            _ if self.pointer => !self.omit_empty,
            Shape::One(item) if item.is_go_struct() => !self.omit_zero,
            _ => !self.omit_empty,
        }
    }

    /// The value as Go writes it, or `None` where it writes nothing.
    fn written(&self, value: Value) -> Option<Value> {
        if self.is_always_written() {
            let empty = !matches!(self.shape, Shape::One(_)) && is_empty(&value);
            return Some(if empty { Value::Null } else { value });
        }
        let absent = if self.pointer { value.is_null() } else { is_empty(&value) };
        (!absent).then_some(value)
    }
}

impl Item {
    /// Whether Go keeps it in a struct, which `omitempty` never leaves out.
    const fn is_go_struct(self) -> bool {
        !matches!(self, Self::Str | Self::Bool | Self::Int32 | Self::Int64 | Self::Double | Self::Bytes)
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
fn fill(ty: &'static Type, map: &mut Map<String, Value>) {
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

fn zero_object(ty: &'static Type) -> Map<String, Value> {
    let mut map = Map::new();
    fill(ty, &mut map);
    map
}

fn zero(item: Item) -> Value {
    match item {
        Item::Str => Value::String(String::new()),
        Item::Bool | Item::SchemaOrBool => Value::Bool(false),
        Item::Int32 | Item::Int64 | Item::Double | Item::IntOrString => Value::from(0),
        Item::Quantity => Value::String("0".to_owned()),
        Item::Object(id) => Value::Object(zero_object(&TYPES[usize::from(id)])),
        Item::Bytes | Item::Time | Item::MicroTime | Item::Raw | Item::Owned | Item::Json | Item::SchemaOrArray | Item::SchemaOrStrings => {
            Value::Null
        }
    }
}
