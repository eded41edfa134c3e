//! Values of expressions.
//! In: literals, results of functions, and borrowed data. Out: arguments of the next function.
//! Guarantees: cloning a value is cheap; data is borrowed and never copied as a whole.

pub(crate) mod data; // JSON as expressions see it
pub(crate) mod equality; // equality and order

use std::{any::Any, collections::BTreeMap, fmt, ops::Deref, sync::Arc};

use serde_json::Value as Json;

use crate::{eval::Failure, types::Type};
use data::{DataList, DataMap};

/// A value. Borrowed parts live as long as the data an expression is evaluated on.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number without a sign.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A timestamp, in nanoseconds since 1970.
    Timestamp(i128),
    /// A duration, in nanoseconds.
    Duration(i64),
    /// A list.
    List(List<'a>),
    /// A map or object.
    Map(Map<'a>),
    /// A message that an expression made.
    Message(Arc<Message<'a>>),
    /// The object whose fields are computed by the [`LazyFields`] of the evaluation.
    Lazy,
    /// A value that may be missing.
    Optional(Option<Arc<Value<'a>>>),
    /// A type.
    Type(Type),
    /// A value of a type that only functions look into.
    Opaque(Arc<dyn Opaque>),
    /// Data of no declared type, which can only be compared.
    Hidden(&'a Json),
}

/// A text, borrowed or made.
#[derive(Clone)]
pub enum Text<'a> {
    /// Part of the data.
    Data(&'a str),
    /// Made by an expression.
    Made(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Data(s) => s,
            Self::Made(s) => s,
        }
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A list, borrowed or made.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Part of the data.
    Data(DataList<'a>),
    /// Made by an expression.
    Made(Arc<Vec<Value<'a>>>),
}

/// A map, borrowed or made.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// Part of the data.
    Data(DataMap<'a>),
    /// Made by an expression.
    Made(Arc<BTreeMap<Key<'a>, Value<'a>>>),
}

/// Fields that are computed on first use.
pub trait LazyFields<'a>: Sync {
    /// The value of a field; none if there is no such field.
    ///
    /// # Errors
    /// Why it has no value.
    fn get(&self, name: &str) -> Result<Option<Value<'a>>, Failure>;
}

/// A message that an expression made.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The name of its type.
    pub type_name: Arc<str>,
    /// The fields that are set.
    pub fields: BTreeMap<String, Value<'a>>,
}

/// A key of a map. Numbers of either type are the same key if they are equal.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    /// A boolean.
    Bool(bool),
    /// A whole number, and whether it has a sign.
    Number {
        /// Its value.
        value: i128,
        /// Whether it is a `uint`.
        unsigned: bool,
    },
    /// A text.
    String(Text<'a>),
}

impl Key<'_> {
    fn rank(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(b) => (0, i128::from(*b), ""),
            Self::Number { value, .. } => (1, *value, ""),
            Self::String(text) => (2, 0, text),
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Key<'_> {}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A value of an opaque type.
pub trait Opaque: fmt::Debug + Send + Sync {
    /// The type.
    fn type_of(&self) -> Type;
    /// Whether another value of any type is the same; none when the two cannot be compared.
    fn equals(&self, other: &dyn Opaque) -> Option<bool>;
    /// The value itself, for the functions of its type.
    fn as_any(&self) -> &dyn Any;
    /// How large it is in the eyes of cost rules.
    fn size(&self) -> u64 {
        1
    }
    /// How large the regular expression behind it may be.
    fn regex_size(&self) -> u64 {
        0
    }
}

impl<'a> Value<'a> {
    /// A text made by an expression.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Made(text.into()))
    }

    /// A list made by an expression.
    #[must_use]
    pub fn list(items: Vec<Self>) -> Self {
        Self::List(List::Made(Arc::new(items)))
    }

    /// A value that is there.
    #[must_use]
    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// A value of an opaque type.
    #[must_use]
    pub fn of(value: impl Opaque + 'static) -> Self {
        Self::Opaque(Arc::new(value))
    }

    pub(crate) fn opaque(&self) -> Option<&dyn Opaque> {
        match self {
            Self::Opaque(value) => Some(&**value),
            _ => None,
        }
    }

    /// The value as that of one of the types functions look into.
    #[must_use]
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.opaque()?.as_any().downcast_ref()
    }

    /// The type at run time. Lists and maps have no element types.
    #[must_use]
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Duration(_) => Type::Duration,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Message(message) => Type::Object(message.type_name.clone()),
            Self::Lazy => Type::map(Type::String, Type::Dyn),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Type(_) => Type::Type(None),
            Self::Opaque(value) => value.type_of(),
            Self::Hidden(_) => Type::Dyn,
        }
    }

    /// How large the value is in the eyes of cost rules.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Optional(Some(value)) => value.size(),
            Self::Opaque(value) => value.size(),
            _ => 1,
        }
    }

    /// The cost of traversing the whole value.
    pub(crate) fn traversal_cost(&self) -> u64 {
        match self {
            Self::String(text) => (text.len() as f64 * 0.1) as u64,
            Self::Bytes(bytes) => (bytes.len() as f64 * 0.1) as u64,
            Self::List(list) => (0..list.len())
                .map(|i| list.get(i).map_or(1, |item| item.traversal_cost()))
                .sum(),
            Self::Map(map) => map
                .keys()
                .iter()
                .map(|key| {
                    key.traversal_cost()
                        + map
                            .find(key)
                            .ok()
                            .flatten()
                            .map_or(1, |v| v.traversal_cost())
                })
                .sum(),
            _ => 1,
        }
    }

    /// Whether it is a list whose first item is a text or bytes.
    pub(crate) fn lists_texts(&self) -> bool {
        matches!(self, Self::List(list) if matches!(list.get(0), Ok(Value::String(_) | Value::Bytes(_))))
    }

    /// The value as a key of a map; none for types that cannot be keys.
    pub(crate) fn key(&self) -> Option<Key<'a>> {
        Some(match self {
            Self::Bool(b) => Key::Bool(*b),
            Self::Int(n) => Key::Number {
                value: (*n).into(),
                unsigned: false,
            },
            Self::Uint(n) => Key::Number {
                value: (*n).into(),
                unsigned: true,
            },
            // A double finds the whole number it is equal to.
            Self::Double(d) if d.fract() == 0.0 && d.abs() < 9.3e18 => Key::Number {
                value: *d as i128,
                unsigned: false,
            },
            Self::String(text) => Key::String(text.clone()),
            _ => return None,
        })
    }
}

impl<'a> Key<'a> {
    pub(crate) fn value(&self) -> Value<'a> {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Number {
                value,
                unsigned: true,
            } => Value::Uint(u64::try_from(*value).unwrap_or(u64::MAX)),
            Self::Number {
                value,
                unsigned: false,
            } => Value::Int(i64::try_from(*value).unwrap_or(i64::MAX)),
            Self::String(text) => Value::String(text.clone()),
        }
    }
}

impl<'a> List<'a> {
    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Data(list) => list.items.len(),
            Self::Made(items) => items.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at a place below [`List::len`].
    ///
    /// # Errors
    /// Data that does not fit its shape.
    pub fn get(&self, at: usize) -> Result<Value<'a>, Failure> {
        match self {
            Self::Data(list) => list.get(at),
            Self::Made(items) => items
                .get(at)
                .cloned()
                .ok_or_else(|| Failure::new(format!("index out of bounds: {at}"))),
        }
    }
}

impl<'a> Map<'a> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Data(map) => map.entries.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys in their order.
    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Data(map) => map.keys(),
            Self::Made(entries) => entries.keys().map(Key::value).collect(),
        }
    }

    /// The value under a key.
    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, Failure> {
        match self {
            Self::Data(map) => map.find(key),
            Self::Made(entries) => Ok(key.key().and_then(|key| entries.get(&key).cloned())),
        }
    }
}
