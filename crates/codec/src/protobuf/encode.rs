//! Encodes an object as the message of its type.
//! In: the JSON of an object as the server keeps it. Out: bytes.
//! Guarantees: the bytes are those of Go's generated encoders: fields by their numbers, keys
//! sorted, zero values written unless Go has a pointer.

use std::sync::LazyLock;

use bytes::BufMut;
use serde_json::{Map, Value};

use super::{
    envelope::seal,
    layout::{Layout, Member},
    moment::{self, Precision},
    writer::{Writer, bytes_prefix_size, put_bytes_prefix},
};
use crate::types::{self, Field, Item, Published, Shape};

/// The layout of the metadata of every list.
static LIST_HEAD: LazyLock<Layout> = LazyLock::new(|| Layout::of_metadata("PodList"));
/// An object of which only the metadata is shown.
static PARTIAL: LazyLock<Layout> = LazyLock::new(|| Layout::of_metadata("Pod"));

/// An object that names its kind, in an envelope; `None` when the kind has no protobuf form.
pub fn encode(value: &Value) -> Option<Vec<u8>> {
    let object = value.as_object()?;
    let (api_version, kind) = type_meta(object);
    Some(seal(api_version, kind, &message(object)?))
}

/// The message of an object that names its kind; `None` when the kind has no protobuf form.
pub fn message(object: &Map<String, Value>) -> Option<Vec<u8>> {
    let (api_version, kind) = type_meta(object);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut writer = Writer::default();
    match (group, kind) {
        ("meta.k8s.io", "PartialObjectMetadata") => write_object(&PARTIAL, object, &mut writer),
        ("meta.k8s.io", "PartialObjectMetadataList") => {
            for item in items(object.get("items")).iter().rev() {
                writer.message(2, |writer| write_map(&PARTIAL, item, writer));
            }
            write_object(&LIST_HEAD, object, &mut writer);
        }
        _ => write_object(
            Layout::find(Published::of_kind(group, version, kind)?),
            object,
            &mut writer,
        ),
    }
    Some(writer.finish())
}

/// The message of a list: its metadata, as JSON, and the messages of its items.
pub fn list_message<'a>(
    metadata: Value,
    items: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut writer = Writer::default();
    for item in items.rev() {
        writer.bytes(ITEMS, item);
    }
    let head = Map::from_iter([("metadata".to_owned(), metadata)]);
    write_object(&LIST_HEAD, &head, &mut writer);
    writer.finish()
}

/// The field of a list that holds its items.
const ITEMS: u16 = 2;

/// The size of an item in the message of a list.
pub fn list_item_size(item_bytes: usize) -> usize {
    bytes_prefix_size(ITEMS, item_bytes) + item_bytes
}

/// Writes what is before an item of this size in the message of a list.
pub fn put_list_item_prefix(item_bytes: usize, out: &mut impl BufMut) {
    put_bytes_prefix(ITEMS, item_bytes, out);
}

/// The apiVersion and kind of an object, empty where they are missing.
fn type_meta(object: &Map<String, Value>) -> (&str, &str) {
    let text = |name| object.get(name).and_then(Value::as_str).unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

fn write_object(layout: &Layout, object: &Map<String, Value>, writer: &mut Writer) {
    for member in layout.members.iter().rev() {
        match member {
            Member::Field(field) => write_field(
                field,
                object.get(field.name).unwrap_or(&Value::Null),
                writer,
            ),
            Member::Inline(number, inner) => {
                writer.message(*number, |writer| write_object(inner, object, writer))
            }
        }
    }
}

fn write_map(layout: &Layout, value: &Value, writer: &mut Writer) {
    match value.as_object() {
        Some(object) => write_object(layout, object, writer),
        None => write_object(layout, &Map::new(), writer),
    }
}

fn write_field(field: &Field, value: &Value, writer: &mut Writer) {
    let number = field.number;
    match field.shape {
        Shape::One(item) if value.is_null() && (field.pointer || item == Item::Bytes) => {}
        Shape::One(item) => write_item(number, item, value, writer),
        Shape::List(item) => write_items(number, item, items(value.into()), writer),
        Shape::Map(item) => write_entries(number, value, writer, |value, writer| {
            write_item(2, item, value, writer)
        }),
        Shape::MapOfLists(item) => write_entries(number, value, writer, |value, writer| {
            writer.message(2, |writer| {
                write_items(1, item, items(value.into()), writer)
            });
        }),
    }
}

fn write_items(number: u16, item: Item, items: &[Value], writer: &mut Writer) {
    for value in items.iter().rev() {
        write_item(number, item, value, writer);
    }
}

fn write_entries(
    number: u16,
    value: &Value,
    writer: &mut Writer,
    write_value: impl Fn(&Value, &mut Writer),
) {
    for (key, value) in value.as_object().into_iter().flatten().rev() {
        writer.message(number, |writer| {
            write_value(value, writer);
            writer.bytes(1, key.as_bytes());
        });
    }
}

/// One value; null is the zero value of its type.
fn write_item(number: u16, item: Item, value: &Value, writer: &mut Writer) {
    match item {
        Item::Str => writer.bytes(number, text(value).as_bytes()),
        Item::Bool => writer.number(number, value.as_bool().unwrap_or_default().into()),
        Item::Int32 | Item::Int64 => writer.number(number, integer(value)),
        Item::Double => writer.double(number, value.as_f64().unwrap_or_default()),
        Item::Bytes => writer.bytes(number, &types::from_base64(text(value))),
        _ => writer.message(number, |writer| write_message(item, value, writer)),
    }
}

fn write_message(item: Item, value: &Value, writer: &mut Writer) {
    match item {
        Item::Time => moment::write(text(value), Precision::Seconds, writer),
        Item::MicroTime => moment::write(text(value), Precision::Micros, writer),
        Item::Quantity => writer.bytes(1, value.as_str().unwrap_or("0").as_bytes()),
        Item::IntOrString => {
            writer.bytes(3, text(value).as_bytes());
            writer.number(2, integer(value));
            writer.number(1, value.is_string().into());
        }
        Item::SchemaOrBool => {
            if value.is_object() {
                write_item(2, types::schema(), value, writer);
            }
            writer.number(
                1,
                value.as_bool().unwrap_or_else(|| value.is_object()).into(),
            );
        }
        Item::SchemaOrArray => write_schema_or(types::schema(), value, writer),
        Item::SchemaOrStrings => write_schema_or(Item::Str, value, writer),
        Item::Raw | Item::Owned | Item::Json if value.is_null() => {}
        Item::Raw | Item::Owned | Item::Json => writer.bytes(1, value.to_string().as_bytes()),
        item => {
            if let Some(ty) = Published::of_item(item) {
                write_map(Layout::find(ty), value, writer);
            }
        }
    }
}

fn write_schema_or(item: Item, value: &Value, writer: &mut Writer) {
    write_items(2, item, items(value.into()), writer);
    if value.is_object() {
        write_item(1, types::schema(), value, writer);
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn integer(value: &Value) -> u64 {
    value.as_i64().unwrap_or_default().cast_unsigned()
}
