//! How the value at a path of an object is owned: atomic, by field, or by item.
//! In: the type table, or the schema of a custom resource. Out: a [`Node`] for each place.

use bellerophon_codec::types::{self, Field, Item, ListKind, Shape, Type};
use bellerophon_crd as crd;
use serde_json::Value;

use super::PathElement;

/// The type of a place.
#[derive(Clone, Copy)]
pub(crate) enum Node<'s> {
    /// A struct of the type table; `true` where it is atomic.
    Struct(&'static Type, bool),
    /// A list or map of the type table.
    Container(&'static Field),
    /// An atomic list of values.
    Values(Item),
    Scalar(Scalar),
    /// A whole custom resource.
    Custom(&'s crd::Schema),
    /// A value inside a custom resource.
    Schema(&'s crd::Schema),
    /// Whatever it is: maps are granular, lists atomic.
    Deduced,
    /// Atomic, whatever it is.
    Opaque,
}

/// A type of plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Text,
    Number,
    Bool,
    Any,
}

/// The type by which a value is merged.
#[derive(Clone, Copy)]
pub(super) enum Atom<'s> {
    Scalar(Scalar),
    Map(MapOf<'s>),
    List(ListOf<'s>),
}

/// A map or struct.
#[derive(Clone, Copy)]
pub(super) struct MapOf<'s> {
    node: Node<'s>,
    pub(super) atomic: bool,
}

/// A list.
#[derive(Clone, Copy)]
pub(super) struct ListOf<'s> {
    pub(super) items: Node<'s>,
    pub(super) identity: Identity<'s>,
}

/// The identity of list items.
#[derive(Clone, Copy)]
pub(super) enum Identity<'s> {
    /// Nothing: the list is atomic.
    None,
    Value,
    Keys(Keys<'s>),
}

/// The names of keys.
#[derive(Clone, Copy)]
pub(super) enum Keys<'s> {
    BuiltIn(&'static [&'static str]),
    Custom(&'s [String]),
}

impl<'s> Keys<'s> {
    fn names(self) -> impl Iterator<Item = &'s str> {
        let (built_in, custom) = match self {
            Self::BuiltIn(names) => (names, &[][..]),
            Self::Custom(names) => (&[][..], names),
        };
        built_in
            .iter()
            .copied()
            .chain(custom.iter().map(String::as_str))
    }
}

impl<'s> Node<'s> {
    fn of_field(field: &'static Field) -> Self {
        match field.shape {
            Shape::One(item) => match Self::of_item(item) {
                Self::Struct(ty, atomic) => Self::Struct(ty, field.atomic.unwrap_or(atomic)),
                other => other,
            },
            _ => Self::Container(field),
        }
    }

    fn of_item(item: Item) -> Self {
        match item {
            Item::Str | Item::Bytes => Self::Scalar(Scalar::Text),
            Item::Bool => Self::Scalar(Scalar::Bool),
            Item::Int32 | Item::Int64 | Item::Double => Self::Scalar(Scalar::Number),
            Item::Time | Item::MicroTime | Item::Quantity | Item::IntOrString => {
                Self::Scalar(Scalar::Any)
            }
            Item::Raw
            | Item::Owned
            | Item::Json
            | Item::SchemaOrBool
            | Item::SchemaOrArray
            | Item::SchemaOrStrings => Self::Opaque,
            Item::Object(_) => item
                .object()
                .map_or(Self::Opaque, |ty| Self::Struct(ty, ty.atomic)),
        }
    }

    /// The atom that a value at this node is merged as. Null is the first atom of the type.
    pub(super) fn atom(self, value: &Value) -> Atom<'s> {
        let map = |atomic| Atom::Map(MapOf { node: self, atomic });
        let list = |items, identity| Atom::List(ListOf { items, identity });
        match self {
            Self::Struct(_, atomic) => map(atomic),
            Self::Container(field) => match field.shape {
                Shape::List(item) => list(
                    Self::of_item(item),
                    match field.list {
                        None | Some(ListKind::Atomic) => Identity::None,
                        Some(ListKind::Set) => Identity::Value,
                        Some(ListKind::Map(keys)) => Identity::Keys(Keys::BuiltIn(keys)),
                    },
                ),
                _ => map(field.atomic == Some(true)),
            },
            Self::Values(item) => list(Self::of_item(item), Identity::None),
            Self::Scalar(scalar) => Atom::Scalar(scalar),
            Self::Custom(_) => map(false),
            Self::Schema(schema) => self.schema_atom(schema, value),
            Self::Deduced | Self::Opaque => match value {
                Value::Array(_) => list(Self::Opaque, Identity::None),
                Value::Object(_) | Value::Null => map(matches!(self, Self::Opaque)),
                _ => Atom::Scalar(Scalar::Any),
            },
        }
    }

    fn schema_atom(self, schema: &'s crd::Schema, value: &Value) -> Atom<'s> {
        if schema.int_or_string {
            return Atom::Scalar(Scalar::Any);
        }
        match schema.type_name.as_str() {
            "object" if declares_no_fields(schema) => Self::Opaque.atom(value),
            "object" => Atom::Map(MapOf {
                node: self,
                atomic: schema.map_type.as_deref() == Some("atomic"),
            }),
            "array" => Atom::List(ListOf {
                items: schema.item().map_or(Self::Opaque, Self::Schema),
                identity: match schema.list_type.as_deref() {
                    Some("set") => Identity::Value,
                    Some("map") => Identity::Keys(Keys::Custom(&schema.list_map_keys)),
                    _ => Identity::None,
                },
            }),
            "string" => Atom::Scalar(Scalar::Text),
            "integer" | "number" => Atom::Scalar(Scalar::Number),
            "boolean" => Atom::Scalar(Scalar::Bool),
            _ if schema.preserves() => Self::Deduced.atom(value),
            _ => Self::Opaque.atom(value),
        }
    }
}

/// Whether the schema of an object declares no fields and does not preserve unknown ones.
fn declares_no_fields(schema: &crd::Schema) -> bool {
    schema.properties.is_empty()
        && schema.additional_properties.is_none()
        && !schema.preserves()
        && !schema.embedded_resource
}

/// A place inside a map.
#[derive(Clone, Copy)]
pub(super) struct Child<'s> {
    pub(super) node: Node<'s>,
    /// Whether the type names it: a field of a struct, not a key of a map.
    pub(super) named: bool,
}

impl<'s> MapOf<'s> {
    /// The child at a key; `None` if the type has no such field.
    pub(super) fn child(self, key: &str) -> Option<Child<'s>> {
        let named = |node| Some(Child { node, named: true });
        let keyed = |node| Some(Child { node, named: false });
        match self.node {
            Node::Struct(ty, _) => named(Node::of_field(ty.field(key)?)),
            Node::Container(field) => match field.shape {
                Shape::MapOfLists(item) => keyed(Node::Values(item)),
                shape => keyed(Node::of_item(shape.item())),
            },
            Node::Custom(schema) => type_meta(key).map_or_else(|| schema_child(schema, key), named),
            Node::Schema(schema) if schema.embedded_resource => {
                type_meta(key).map_or_else(|| schema_child(schema, key), named)
            }
            Node::Schema(schema) => schema_child(schema, key),
            Node::Deduced => keyed(Node::Deduced),
            _ => keyed(Node::Opaque),
        }
    }
}

/// The type fields of every object, custom or not.
fn type_meta(key: &str) -> Option<Node<'static>> {
    match key {
        "apiVersion" | "kind" => Some(Node::Scalar(Scalar::Text)),
        "metadata" => Some(Node::Struct(types::object_meta(), false)),
        _ => None,
    }
}

fn schema_child<'s>(schema: &'s crd::Schema, key: &str) -> Option<Child<'s>> {
    if let Some(field) = schema.properties.get(key) {
        return Some(Child {
            node: Node::Schema(field),
            named: true,
        });
    }
    match schema.additional() {
        Some(values) => Some(Child {
            node: Node::Schema(values),
            named: false,
        }),
        None => schema.preserves().then_some(Child {
            node: Node::Deduced,
            named: false,
        }),
    }
}

impl<'s> ListOf<'s> {
    /// The step to an item.
    ///
    /// # Errors
    /// An item without its keys, with the messages of kube-apiserver.
    pub(super) fn step(self, item: &Value) -> Result<PathElement, String> {
        match self.identity {
            Identity::None => Err("invalid indexing of non-associative list".into()),
            Identity::Value => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".into())
                }
                Value::Array(_) => {
                    Err("not supported: associative list with lists as elements".into())
                }
                Value::Null => Err(
                    "associative list without keys has an element that's an explicit null".into(),
                ),
                scalar => Ok(PathElement::Value(scalar.clone())),
            },
            Identity::Keys(keys) => self.keyed_step(keys, item),
        }
    }

    fn keyed_step(self, keys: Keys<'s>, item: &Value) -> Result<PathElement, String> {
        let map = match item {
            Value::Object(map) => map,
            Value::Null => {
                return Err("associative list with keys may not have a null element".into());
            }
            _ => return Err("associative list with keys may not have non-map elements".into()),
        };
        let mut found: Vec<(String, Value)> = keys
            .names()
            .filter_map(|name| {
                Some((
                    name.to_owned(),
                    map.get(name).cloned().or_else(|| self.default_of(name))?,
                ))
            })
            .collect();
        if found.is_empty() {
            let names: Vec<String> = keys.names().map(|name| format!("{name:?}")).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                names.join(" ")
            ));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(PathElement::Key(found))
    }

    /// The default of a key that an item leaves out.
    fn default_of(self, name: &str) -> Option<Value> {
        match self.items {
            Node::Struct(ty, _) => default_of_field(ty.field(name)?),
            Node::Schema(schema) => schema.properties.get(name)?.default.clone(),
            _ => None,
        }
    }
}

/// The published default of a field, or the zero value of one that Go always writes.
fn default_of_field(field: &Field) -> Option<Value> {
    match (field.default, field.shape) {
        (Some(json), _) => serde_json::from_str(json).ok(),
        _ if field.omit_empty || field.pointer => None,
        (None, Shape::One(Item::Str)) => Some(Value::String(String::new())),
        (None, Shape::One(Item::Int32 | Item::Int64)) => Some(Value::from(0)),
        _ => None,
    }
}
