//! Decodes a message by its type to the tree of the same object.
//! In: bytes and a type. Out: a tree with the fields that were sent, to be decoded by its type like
//! any other body; strings borrow from the bytes.
//! Guarantees: of a repeated field the last one counts, messages are merged and lists appended, as
//! in Go's generated decoders. Repeated keys of a map are all in the tree, whose reader takes the
//! last.

use std::borrow::Cow;

use serde_json::Number;

use super::{
    layout::{Layout, Member},
    moment::{self, Precision},
    reader::{Reader, Tag, WireType, wire_type_error},
};
use crate::{
    decode::{Members, Node, parse_json},
    types::{self, Field, Item, Published, Shape},
};

/// The maximum depth of messages. Only schemas of custom resources are recursive, and no real one
/// reaches this limit.
const DEPTH_MAX: usize = 128;

/// Decodes a message.
///
/// # Errors
/// A malformed message, or one with a value that JSON cannot represent.
pub fn decode(ty: Published, bytes: &[u8]) -> Result<Node<'_>, String> {
    let mut object = Members::new();
    read_object(Layout::find(ty), bytes, 0, &mut object)?;
    Ok(Node::Object(object))
}

fn read_object<'a>(
    layout: &Layout,
    bytes: &'a [u8],
    depth: usize,
    object: &mut Members<'a>,
) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!(
            "proto: {}: messages are nested too deeply",
            layout.name
        ));
    }
    let mut reader = Reader::new(layout.name, bytes);
    while let Some(tag) = reader.tag()? {
        match layout.member(tag.number) {
            None => reader.skip(tag)?,
            Some(Member::Inline(_, inner)) => {
                read_object(inner, reader.bytes(tag, inner.name)?, depth + 1, object)?
            }
            Some(Member::Field(field)) => read_field(field, tag, &mut reader, depth, object)?,
        }
    }
    Ok(())
}

fn read_field<'a>(
    field: &'static Field,
    tag: Tag,
    reader: &mut Reader<'a>,
    depth: usize,
    object: &mut Members<'a>,
) -> Result<(), String> {
    let slot = slot_of(field.name, object);
    match field.shape {
        Shape::One(item) => read_item(item, field.name, tag, reader, depth, slot),
        Shape::List(item) => read_into_list(item, field.name, tag, reader, depth, as_list(slot)),
        Shape::Map(item) => {
            let (key, value) = read_entry(
                field.name,
                reader.bytes(tag, field.name)?,
                |tag, reader, value| read_item(item, field.name, tag, reader, depth, value),
            )?;
            as_members(slot).push((key, value));
            Ok(())
        }
        Shape::MapOfLists(item) => {
            let (key, value) = read_entry(
                field.name,
                reader.bytes(tag, field.name)?,
                |tag, reader, value| {
                    let items = as_list(value);
                    let mut inner = Reader::new("ExtraValue", reader.bytes(tag, field.name)?);
                    read_repeated(1, item, &mut inner, depth, items)
                },
            )?;
            as_members(slot).push((key, value));
            Ok(())
        }
    }
}

/// One value. What is a message grows together with what is in the slot already.
fn read_item<'a>(
    item: Item,
    name: &str,
    tag: Tag,
    reader: &mut Reader<'a>,
    depth: usize,
    slot: &mut Node<'a>,
) -> Result<(), String> {
    if let Some(ty) = Published::of_item(item) {
        return read_object(
            Layout::find(ty),
            reader.bytes(tag, name)?,
            depth + 1,
            as_members(slot),
        );
    }
    *slot = match item {
        Item::Str => Node::String(reader.text(tag, name)?),
        Item::Bool | Item::Int32 | Item::Int64 => integer(item, reader.number(tag, name)?),
        Item::Double => double(reader.double(tag, name)?)?,
        Item::Bytes => Node::String(types::base64(reader.bytes(tag, name)?).into()),
        _ => special(item, reader.bytes(tag, name)?, depth)?,
    };
    Ok(())
}

/// A message that JSON writes in another form.
fn special(item: Item, bytes: &[u8], depth: usize) -> Result<Node<'_>, String> {
    let time = |precision| {
        Ok(moment::read(bytes, precision)?.map_or(Node::Null, |time| Node::String(time.into())))
    };
    match item {
        Item::Time => time(Precision::Seconds),
        Item::MicroTime => time(Precision::Micros),
        Item::Quantity => quantity(bytes),
        Item::IntOrString => int_or_string(bytes),
        Item::SchemaOrBool => schema_or(
            bytes,
            depth,
            SchemaOr {
                schema: 2,
                other: 1,
                item: Item::Bool,
            },
        ),
        Item::SchemaOrArray => schema_or(
            bytes,
            depth,
            SchemaOr {
                schema: 1,
                other: 2,
                item: types::schema(),
            },
        ),
        Item::SchemaOrStrings => schema_or(
            bytes,
            depth,
            SchemaOr {
                schema: 1,
                other: 2,
                item: Item::Str,
            },
        ),
        _ => raw(bytes),
    }
}

/// A field of a list: one item, or many numbers in a row.
fn read_into_list<'a>(
    item: Item,
    name: &str,
    tag: Tag,
    reader: &mut Reader<'a>,
    depth: usize,
    items: &mut Vec<Node<'a>>,
) -> Result<(), String> {
    if tag.wire == WireType::Length
        && matches!(item, Item::Bool | Item::Int32 | Item::Int64 | Item::Double)
    {
        let mut packed = Reader::new("packed", reader.bytes(tag, name)?);
        while !packed.is_empty() {
            items.push(if item == Item::Double {
                double(packed.fixed64()?)?
            } else {
                integer(item, packed.varint()?)
            });
        }
        return Ok(());
    }
    let mut value = Node::Null;
    read_item(item, name, tag, reader, depth, &mut value)?;
    items.push(value);
    Ok(())
}

/// All items that a message repeats under one number.
fn read_repeated<'a>(
    number: u32,
    item: Item,
    reader: &mut Reader<'a>,
    depth: usize,
    items: &mut Vec<Node<'a>>,
) -> Result<(), String> {
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
fn read_entry<'a>(
    name: &str,
    bytes: &'a [u8],
    mut read_value: impl FnMut(Tag, &mut Reader<'a>, &mut Node<'a>) -> Result<(), String>,
) -> Result<(Cow<'a, str>, Node<'a>), String> {
    let mut key = Cow::default();
    let mut value = Node::Null;
    let mut reader = Reader::new("entry", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 if tag.wire != WireType::Length => return Err(wire_type_error(tag, name)),
            1 => key = reader.text(tag, name)?,
            2 => read_value(tag, &mut reader, &mut value)?,
            _ => reader.skip(tag)?,
        }
    }
    Ok((key, value))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "Go cuts numbers in the same way"
)]
fn integer(item: Item, number: u64) -> Node<'static> {
    match item {
        Item::Bool => Node::Bool(number != 0),
        Item::Int32 => Node::Number((number as i32).to_string().into()),
        _ => Node::Number(number.cast_signed().to_string().into()),
    }
}

fn double(number: f64) -> Result<Node<'static>, String> {
    let number =
        Number::from_f64(number).ok_or_else(|| format!("json: unsupported value: {number}"))?;
    Ok(Node::Number(number.to_string().into()))
}

fn quantity(bytes: &[u8]) -> Result<Node<'_>, String> {
    let mut text = Cow::Borrowed("0");
    let mut reader = Reader::new("Quantity", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => text = reader.text(tag, "string_")?,
            _ => reader.skip(tag)?,
        }
    }
    Ok(Node::String(text))
}

fn int_or_string(bytes: &[u8]) -> Result<Node<'_>, String> {
    let mut kind = 0;
    let mut number = integer(Item::Int32, 0);
    let mut text = Cow::default();
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
        1 => Ok(Node::String(text)),
        _ => Err("impossible IntOrString.Type".to_owned()),
    }
}

/// JSON inside a message, not interpreted.
fn raw(bytes: &[u8]) -> Result<Node<'_>, String> {
    let mut json: &[u8] = b"";
    let mut reader = Reader::new("RawExtension", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => json = reader.bytes(tag, "raw")?,
            _ => reader.skip(tag)?,
        }
    }
    if json.is_empty() {
        Ok(Node::Null)
    } else {
        parse_json(json)
    }
}

/// A message that holds a schema or something else: under which number is which.
struct SchemaOr {
    schema: u32,
    other: u32,
    /// Its type otherwise: a flag, or the item of a list.
    item: Item,
}

fn schema_or(bytes: &[u8], depth: usize, form: SchemaOr) -> Result<Node<'_>, String> {
    let mut schema = Node::Null;
    let mut flag = Node::Bool(false);
    let mut items = Vec::new();
    let mut reader = Reader::new("JSONSchemaProps", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            number if number == form.schema => read_item(
                types::schema(),
                "schema",
                tag,
                &mut reader,
                depth + 1,
                &mut schema,
            )?,
            number if number == form.other && form.item == Item::Bool => {
                flag = integer(Item::Bool, reader.number(tag, "allows")?)
            }
            number if number == form.other => {
                read_into_list(form.item, "items", tag, &mut reader, depth + 1, &mut items)?
            }
            _ => reader.skip(tag)?,
        }
    }
    Ok(match form.item {
        Item::Bool if schema == Node::Null => flag,
        _ if items.is_empty() => schema,
        _ => Node::Array(items),
    })
}

/// The value of a field, which may have been sent before.
fn slot_of<'o, 'a>(name: &'static str, object: &'o mut Members<'a>) -> &'o mut Node<'a> {
    let at = object
        .iter()
        .rposition(|(key, _)| key == name)
        .unwrap_or_else(|| {
            object.push((name.into(), Node::Null));
            object.len() - 1
        });
    &mut object[at].1
}

fn as_members<'o, 'a>(slot: &'o mut Node<'a>) -> &'o mut Members<'a> {
    if !matches!(slot, Node::Object(_)) {
        *slot = Node::Object(Members::new());
    }
    let Node::Object(members) = slot else {
        unreachable!("made an object above")
    };
    members
}

fn as_list<'o, 'a>(slot: &'o mut Node<'a>) -> &'o mut Vec<Node<'a>> {
    if !matches!(slot, Node::Array(_)) {
        *slot = Node::Array(Vec::new());
    }
    let Node::Array(items) = slot else {
        unreachable!("made a list above")
    };
    items
}
