//! A message read by its type into the JSON of the same object.
//! In: bytes and a type. Out: a value with the fields that were sent, to be read by its type like any other body.
//! Holds: of a field that stands twice the last one counts, messages grow together and lists go on, as in Go's generated decoders.

use serde_json::{Map, Number, Value};

use super::{
    layout::{Layout, Member},
    moment::{self, Precision},
    reader::{Reader, Tag, WireType, wrong_wire},
};
use crate::{
    decode::parse_json,
    types::{self, Field, Item, Published, Shape},
};

/// Messages inside messages that are read. Only schemas of custom resources hold themselves, and none comes near this.
const DEPTH_MAX: usize = 128;

/// Reads a message.
///
/// # Errors
/// A broken message, or one with a value that JSON has no form for.
pub(crate) fn decode(ty: Published, bytes: &[u8]) -> Result<Value, String> {
    let mut object = Map::new();
    read_object(Layout::find(ty), bytes, 0, &mut object)?;
    Ok(Value::Object(object))
}

fn read_object(layout: &Layout, bytes: &[u8], depth: usize, object: &mut Map<String, Value>) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("proto: {}: messages are nested too deeply", layout.name));
    }
    let mut reader = Reader::new(layout.name, bytes);
    while let Some(tag) = reader.tag()? {
        match layout.member(tag.number) {
            None => reader.skip(tag)?,
            Some(Member::Inline(_, inner)) => read_object(inner, reader.bytes(tag, inner.name)?, depth + 1, object)?,
            Some(Member::Field(field)) => read_field(field, tag, &mut reader, depth, object)?,
        }
    }
    Ok(())
}

fn read_field(field: &Field, tag: Tag, reader: &mut Reader<'_>, depth: usize, object: &mut Map<String, Value>) -> Result<(), String> {
    let slot = object.entry(field.name).or_insert(Value::Null);
    match field.shape {
        Shape::One(item) => read_item(item, field.name, tag, reader, depth, slot),
        Shape::List(item) => read_into_list(item, field.name, tag, reader, depth, as_list(slot)),
        Shape::Map(item) => {
            let (key, value) = read_entry(field.name, reader.bytes(tag, field.name)?, |tag, reader, value| {
                read_item(item, field.name, tag, reader, depth, value)
            })?;
            as_map(slot).insert(key, value);
            Ok(())
        }
        Shape::MapOfLists(item) => {
            let (key, value) = read_entry(field.name, reader.bytes(tag, field.name)?, |tag, reader, value| {
                let items = as_list(value);
                let mut inner = Reader::new("ExtraValue", reader.bytes(tag, field.name)?);
                read_repeated(1, item, &mut inner, depth, items)
            })?;
            as_map(slot).insert(key, value);
            Ok(())
        }
    }
}

/// One value. What is a message grows together with what is in the slot already.
fn read_item(item: Item, name: &str, tag: Tag, reader: &mut Reader<'_>, depth: usize, slot: &mut Value) -> Result<(), String> {
    if let Some(ty) = Published::of_item(item) {
        return read_object(Layout::find(ty), reader.bytes(tag, name)?, depth + 1, as_map(slot));
    }
    *slot = match item {
        Item::Str => Value::String(reader.text(tag, name)?),
        Item::Bool | Item::Int32 | Item::Int64 => integer(item, reader.number(tag, name)?),
        Item::Double => double(reader.double(tag, name)?)?,
        Item::Bytes => Value::String(types::base64(reader.bytes(tag, name)?)),
        _ => special(item, reader.bytes(tag, name)?, depth)?,
    };
    Ok(())
}

/// A message that JSON writes in another form.
fn special(item: Item, bytes: &[u8], depth: usize) -> Result<Value, String> {
    match item {
        Item::Time => Ok(moment::read(bytes, Precision::Seconds)?.map_or(Value::Null, Value::String)),
        Item::MicroTime => Ok(moment::read(bytes, Precision::Micros)?.map_or(Value::Null, Value::String)),
        Item::Quantity => quantity(bytes),
        Item::IntOrString => int_or_string(bytes),
        Item::SchemaOrBool => schema_or(bytes, depth, SchemaOr { schema: 2, other: 1, item: Item::Bool }),
        Item::SchemaOrArray => schema_or(bytes, depth, SchemaOr { schema: 1, other: 2, item: types::schema() }),
        Item::SchemaOrStrings => schema_or(bytes, depth, SchemaOr { schema: 1, other: 2, item: Item::Str }),
        _ => raw(bytes),
    }
}

/// A field of a list: one item, or many numbers in a row.
fn read_into_list(item: Item, name: &str, tag: Tag, reader: &mut Reader<'_>, depth: usize, items: &mut Vec<Value>) -> Result<(), String> {
    if tag.wire == WireType::Length && matches!(item, Item::Bool | Item::Int32 | Item::Int64 | Item::Double) {
        let mut packed = Reader::new("packed", reader.bytes(tag, name)?);
        while !packed.is_empty() {
            items.push(if item == Item::Double { double(packed.fixed64()?)? } else { integer(item, packed.varint()?) });
        }
        return Ok(());
    }
    let mut value = Value::Null;
    read_item(item, name, tag, reader, depth, &mut value)?;
    items.push(value);
    Ok(())
}

/// All items that a message repeats under one number.
fn read_repeated(number: u32, item: Item, reader: &mut Reader<'_>, depth: usize, items: &mut Vec<Value>) -> Result<(), String> {
    while let Some(tag) = reader.tag()? {
        if tag.number == number {
            read_into_list(item, "items", tag, reader, depth, items)?;
        } else {
            reader.skip(tag)?;
        }
    }
    Ok(())
}

/// A key and its value.
fn read_entry(
    name: &str,
    bytes: &[u8],
    mut read_value: impl FnMut(Tag, &mut Reader<'_>, &mut Value) -> Result<(), String>,
) -> Result<(String, Value), String> {
    let (mut key, mut value) = (String::new(), Value::Null);
    let mut reader = Reader::new("entry", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 if tag.wire != WireType::Length => return Err(wrong_wire(tag, name)),
            1 => key = reader.text(tag, name)?,
            2 => read_value(tag, &mut reader, &mut value)?,
            _ => reader.skip(tag)?,
        }
    }
    Ok((key, value))
}

#[expect(clippy::cast_possible_truncation, reason = "Go cuts numbers in the same way")]
fn integer(item: Item, number: u64) -> Value {
    match item {
        Item::Bool => Value::Bool(number != 0),
        Item::Int32 => Value::from(number as i32),
        _ => Value::from(number.cast_signed()),
    }
}

fn double(number: f64) -> Result<Value, String> {
    Number::from_f64(number).map(Value::Number).ok_or_else(|| format!("json: unsupported value: {number}"))
}

fn quantity(bytes: &[u8]) -> Result<Value, String> {
    let mut text = None;
    let mut reader = Reader::new("Quantity", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => text = Some(reader.text(tag, "string_")?),
            _ => reader.skip(tag)?,
        }
    }
    Ok(Value::String(text.unwrap_or_else(|| "0".to_owned())))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut kind, mut number, mut text) = (0, Value::from(0), String::new());
    let mut reader = Reader::new("IntOrString", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => kind = reader.number(tag, "type")?,
            2 => number = integer(Item::Int32, reader.number(tag, "intVal")?),
            3 => text = reader.text(tag, "strVal")?,
            _ => reader.skip(tag)?,
        }
    }
    match kind {
        0 => Ok(number),
        1 => Ok(Value::String(text)),
        _ => Err("impossible IntOrString.Type".to_owned()),
    }
}

/// JSON inside a message, kept as it is.
fn raw(bytes: &[u8]) -> Result<Value, String> {
    let mut json: &[u8] = b"";
    let mut reader = Reader::new("RawExtension", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => json = reader.bytes(tag, "raw")?,
            _ => reader.skip(tag)?,
        }
    }
    if json.is_empty() { Ok(Value::Null) } else { Ok(parse_json(json)?.into_raw()) }
}

/// A message that holds a schema or something else: under which number is which.
struct SchemaOr {
    schema: u32,
    other: u32,
    /// What else it is: a flag, or the item of a list.
    item: Item,
}

fn schema_or(bytes: &[u8], depth: usize, form: SchemaOr) -> Result<Value, String> {
    let (mut schema, mut flag, mut items) = (Value::Null, Value::Bool(false), Vec::new());
    let mut reader = Reader::new("JSONSchemaProps", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            number if number == form.schema => read_item(types::schema(), "schema", tag, &mut reader, depth + 1, &mut schema)?,
            number if number == form.other && form.item == Item::Bool => flag = integer(Item::Bool, reader.number(tag, "allows")?),
            number if number == form.other => read_into_list(form.item, "items", tag, &mut reader, depth + 1, &mut items)?,
            _ => reader.skip(tag)?,
        }
    }
    Ok(match form.item {
        Item::Bool if schema.is_null() => flag,
        _ if items.is_empty() => schema,
        _ => Value::Array(items),
    })
}

fn as_map(slot: &mut Value) -> &mut Map<String, Value> {
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object above")
}

fn as_list(slot: &mut Value) -> &mut Vec<Value> {
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut().expect("made a list above")
}
