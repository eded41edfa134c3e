//! Writes a value of an object as an internal struct, member by member.

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq as _},
};
use serde_json::Value;

use super::{
    super::{Type, object_meta, table::TYPES},
    model::{Holds, Item, Member, Struct},
    table::STRUCTS,
};

/// A value and what it is.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    holds: Holds,
    value: &'a Value,
    /// The value that contains this one.
    around: &'a Value,
}

impl<'a> View<'a> {
    /// A struct of the table, or several.
    pub(super) fn of(holds: fn(Item) -> Holds, name: &'static str, value: &'a Value) -> Self {
        Self {
            holds: holds(Item::Internal(name)),
            value,
            around: &Value::Null,
        }
    }

    fn part(self, holds: Holds, value: &'a Value) -> Self {
        Self {
            holds,
            value,
            around: self.value,
        }
    }

    /// One of the items or entries of this value.
    fn item(self, item: Item, value: &'a Value) -> Self {
        Self {
            holds: Holds::One(item),
            value,
            ..self
        }
    }

    fn member(self, member: &Member) -> Self {
        let holder = if member.above {
            self.around
        } else {
            self.value
        };
        self.part(
            member.holds,
            holder.get(member.json).unwrap_or(&Value::Null),
        )
    }

    fn write_one<S: Serializer>(self, item: Item, to: S) -> Result<S::Ok, S::Error> {
        match item {
            Item::Internal(name) => self.write_struct(find(name), to),
            Item::Published(name) => {
                let ty = TYPES
                    .iter()
                    .find(|ty| ty.go == name)
                    .expect("the table of types has every published struct");
                let mut map = to.serialize_map(None)?;
                self.write_fields(ty, &mut map)?;
                map.end()
            }
            _ if !self.value.is_null() => self.value.serialize(to),
            Item::Text => to.serialize_str(""),
            Item::Number => to.serialize_u64(0),
            Item::Bool => to.serialize_bool(false),
            Item::Quantity => to.serialize_str("0"),
            Item::Plain => to.serialize_unit(),
        }
    }

    fn write_struct<S: Serializer>(self, row: &Struct, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for member in row.members {
            match member.holds {
                Holds::Inline => self.member(member).write_fields(object_meta(), &mut map)?,
                _ => map.serialize_entry(member.go, &self.member(member))?,
            }
        }
        map.end()
    }

    /// The fields that are there, in the order of their struct.
    fn write_fields<M: SerializeMap>(self, ty: &'static Type, map: &mut M) -> Result<(), M::Error> {
        for (field, value) in ty
            .written_order()
            .filter_map(|field| Some((field, self.value.get(field.name)?)))
        {
            let item = field
                .shape
                .item()
                .object()
                .map_or(Item::Plain, |ty| Item::Published(ty.go));
            let holds = if value.is_array() {
                Holds::List(item)
            } else {
                Holds::One(item)
            };
            map.serialize_entry(field.name, &self.part(holds, value))?;
        }
        Ok(())
    }
}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match (self.holds, self.value) {
            (Holds::One(item), _) => self.write_one(item, to),
            (Holds::Maybe(item), value) if !value.is_null() => self.write_one(item, to),
            (Holds::List(item), Value::Array(items)) => {
                let mut list = to.serialize_seq(Some(items.len()))?;
                items
                    .iter()
                    .try_for_each(|value| list.serialize_element(&self.item(item, value)))?;
                list.end()
            }
            (Holds::Map(item), Value::Object(entries)) => {
                let mut map = to.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(key, value)| {
                    map.serialize_entry(key, &self.item(item, value))
                })?;
                map.end()
            }
            _ => to.serialize_unit(),
        }
    }
}

fn find(name: &str) -> &'static Struct {
    let at = STRUCTS
        .binary_search_by(|row| row.name.cmp(name))
        .expect("the table has every requested struct");
    &STRUCTS[at]
}
