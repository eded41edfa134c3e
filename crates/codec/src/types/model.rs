//! The types and fields of the table.
//! Guarantees: everything is constant data, made by const functions, so the table costs nothing at
//! start-up.

use super::table::{FIELDS, ORDER, TYPES};

/// A built-in struct.
#[derive(Debug)]
pub struct Type {
    /// The type as Go prints it in errors: `v1.PodSpec`.
    pub(crate) go: &'static str,
    first: u16,
    count: u16,
    /// Whether a server-side apply owns the struct as a whole (atomic).
    pub atomic: bool,
}

impl Type {
    /// Its fields, sorted by name.
    pub fn fields(&self) -> &'static [Field] {
        &FIELDS[usize::from(self.first)..usize::from(self.first) + usize::from(self.count)]
    }

    /// Its fields in the order in which Go writes them.
    pub(crate) fn written_order(&self) -> impl Iterator<Item = &'static Field> + use<> {
        let first = usize::from(self.first);
        let fields = self.fields();
        ORDER[first..first + fields.len()]
            .iter()
            .map(|place| &fields[usize::from(*place)])
    }

    /// The index of the field `name` in [`Self::fields`].
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let head = head(name);
        self.fields()
            .binary_search_by(|field| field.head.cmp(&head).then_with(|| field.name.cmp(name)))
            .ok()
    }

    /// The field that JSON calls `name`.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.position(name).map(|i| &self.fields()[i])
    }

    /// The name without its package: `PodSpec`.
    pub(crate) fn name(&self) -> &'static str {
        self.go.split_once('.').map_or(self.go, |(_, name)| name)
    }
}

/// One field of a [`Type`].
#[derive(Debug)]
pub struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    /// The first bytes of the name, compared before the name in a search.
    head: u64,
    /// How often it holds what.
    pub shape: Shape,
    /// The type as Go prints it in errors, without a pointer: `[]v1.Container`.
    pub(crate) go: &'static str,
    /// The same of one item of a list or one value of a map; empty for other fields.
    pub(crate) item_go: &'static str,
    /// The Go structs around the field that JSON does not show: `VolumeSource`; empty for most.
    pub(crate) embedded: &'static str,
    /// Whether absence differs from the zero value.
    pub pointer: bool,
    /// Whether Go leaves the field out when it is empty. Structs are never empty.
    pub omit_empty: bool,
    /// Whether Go leaves a struct out when all of it is zero.
    pub(crate) omit_zero: bool,
    /// Whether the published schema demands it.
    pub required: bool,
    /// How a server-side apply identifies the items of a list.
    pub list: Option<ListKind>,
    /// Whether a server-side apply owns the field as a whole (atomic), where the field itself
    /// declares it.
    pub atomic: Option<bool>,
    /// The patch strategy, and the merge key of items (empty for none).
    pub patch: Option<(Patch, &'static str)>,
    /// The published default, as JSON.
    pub default: Option<&'static str>,
    /// The values it is limited to, or those that each of its items is; empty for any.
    pub one_of: &'static [&'static str],
    /// The protobuf number, 0 where the field is not in protobuf.
    pub(crate) number: u16,
    /// The numbers of the messages around the field that JSON writes inline, outermost first.
    pub(crate) inside: &'static [u16],
}

/// How often a field holds its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Once.
    One(Item),
    /// A JSON array.
    List(Item),
    /// A JSON object with arbitrary keys.
    Map(Item),
    /// In protobuf each value is a message whose field 1 repeats the items.
    MapOfLists(Item),
}

impl Shape {
    /// The type of its items.
    pub const fn item(self) -> Item {
        match self {
            Self::One(item) | Self::List(item) | Self::Map(item) | Self::MapOfLists(item) => item,
        }
    }
}

/// The type of a field or item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A string.
    Str,
    /// A boolean.
    Bool,
    /// An integer of 32 bits.
    Int32,
    /// An integer of 64 bits.
    Int64,
    /// A floating point number.
    Double,
    /// Base64 in JSON.
    Bytes,
    /// RFC 3339, in whole seconds.
    Time,
    /// RFC 3339, with six digits of a second.
    MicroTime,
    /// `resource.Quantity`.
    Quantity,
    /// `intstr.IntOrString`.
    IntOrString,
    /// Any JSON, not interpreted: an object of an arbitrary kind.
    Raw,
    /// The field set of a managed-fields entry, not interpreted.
    Owned,
    /// Any JSON, not interpreted: a default or an enum value of a schema.
    Json,
    /// `JSONSchemaPropsOrBool`.
    SchemaOrBool,
    /// `JSONSchemaPropsOrArray`.
    SchemaOrArray,
    /// `JSONSchemaPropsOrStringArray`.
    SchemaOrStrings,
    /// A struct, by its place in the table.
    Object(u16),
}

impl Item {
    /// The struct it is, if it is one.
    pub fn object(self) -> Option<&'static Type> {
        match self {
            Self::Object(id) => Some(&TYPES[usize::from(id)]),
            _ => None,
        }
    }
}

/// How a server-side apply identifies the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Not at all: the list is one value.
    Atomic,
    /// By their value.
    Set,
    /// By these fields.
    Map(&'static [&'static str]),
}

/// The patch strategy of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Merges items by their key.
    Merge,
    /// Merges items by their key; `$retainKeys` names the fields that are kept.
    MergeRetainingKeys,
    /// Merges the struct; `$retainKeys` names the fields that are kept.
    RetainKeys,
    /// Replaces the value.
    Replace,
}

/// The first eight bytes of a name as a number that sorts as the name does.
const fn head(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut head = 0;
    let mut i = 0;
    while i < 8 {
        head = head << 8 | if i < bytes.len() { bytes[i] as u64 } else { 0 };
        i += 1;
    }
    head
}

/// A row of the table of types.
pub(super) const fn t(go: &'static str, first: u16, count: u16, atomic: bool) -> Type {
    Type {
        go,
        first,
        count,
        atomic,
    }
}

/// A row of the table of fields; unset properties are absent.
pub(super) const fn f(name: &'static str, shape: Shape, go: &'static str) -> Field {
    Field {
        name,
        head: head(name),
        shape,
        go,
        item_go: "",
        embedded: "",
        pointer: false,
        omit_empty: false,
        omit_zero: false,
        required: false,
        list: None,
        atomic: None,
        patch: None,
        default: None,
        one_of: &[],
        number: 0,
        inside: &[],
    }
}

impl Field {
    pub(super) const fn of(self, item_go: &'static str) -> Self {
        Self { item_go, ..self }
    }

    pub(super) const fn embedded(self, embedded: &'static str) -> Self {
        Self { embedded, ..self }
    }

    pub(super) const fn pointer(self) -> Self {
        Self {
            pointer: true,
            ..self
        }
    }

    pub(super) const fn omit_empty(self) -> Self {
        Self {
            omit_empty: true,
            ..self
        }
    }

    pub(super) const fn omit_zero(self) -> Self {
        Self {
            omit_zero: true,
            ..self
        }
    }

    pub(super) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    pub(super) const fn list(self, kind: ListKind) -> Self {
        Self {
            list: Some(kind),
            ..self
        }
    }

    pub(super) const fn atomic(self, atomic: bool) -> Self {
        Self {
            atomic: Some(atomic),
            ..self
        }
    }

    pub(super) const fn patch(self, patch: Patch, key: &'static str) -> Self {
        Self {
            patch: Some((patch, key)),
            ..self
        }
    }

    pub(super) const fn default(self, json: &'static str) -> Self {
        Self {
            default: Some(json),
            ..self
        }
    }

    pub(super) const fn number(self, inside: &'static [u16], number: u16) -> Self {
        Self {
            number,
            inside,
            ..self
        }
    }

    pub(super) const fn one_of(self, values: &'static [&'static str]) -> Self {
        Self {
            one_of: values,
            ..self
        }
    }
}
