//! Types of expressions.
//! In: names and type parameters. Out: types that print as kube-apiserver prints them in messages.
//! Guarantees: a type is a value; two types are the same when they are equal.

use std::{fmt, sync::Arc};

/// The type of an expression or of a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// The type of an expression with a type error.
    Error,
    /// A value whose type is known only when it is there.
    Dyn,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A 64-bit number with a sign.
    Int,
    /// A 64-bit number without a sign.
    Uint,
    /// A 64-bit floating-point number.
    Double,
    /// A text.
    String,
    /// Bytes.
    Bytes,
    /// A timestamp.
    Timestamp,
    /// A duration.
    Duration,
    /// A list of items of one type.
    List(Arc<Type>),
    /// A map from keys to values.
    Map(Arc<(Type, Type)>),
    /// A type as a value; of which type, if that is known.
    Type(Option<Arc<Type>>),
    /// A type of that name with declared fields.
    Object(Arc<str>),
    /// A type of that name whose inside only functions see.
    Opaque(Arc<str>, Arc<[Type]>),
    /// Any one type: the same wherever the parameter occurs in a signature.
    Param(Arc<str>),
}

/// The name of optional values.
const OPTIONAL: &str = "optional_type";

impl Type {
    /// A list of `item`s.
    #[must_use]
    pub fn list(item: Self) -> Self {
        Self::List(Arc::new(item))
    }

    /// A map from `key` to `value`.
    #[must_use]
    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// A value that may be missing.
    #[must_use]
    pub fn optional(value: Self) -> Self {
        Self::Opaque(OPTIONAL.into(), Arc::new([value]))
    }

    /// A type with declared fields.
    #[must_use]
    pub fn object(name: &str) -> Self {
        Self::Object(name.into())
    }

    /// A type that only functions look into.
    #[must_use]
    pub fn opaque(name: &str) -> Self {
        Self::Opaque(name.into(), Arc::new([]))
    }

    pub(crate) fn param(name: &str) -> Self {
        Self::Param(name.into())
    }

    /// The type of the value of an optional.
    pub(crate) fn unwrapped(&self) -> Option<&Self> {
        match self {
            Self::Opaque(name, params) if &**name == OPTIONAL => params.first(),
            _ => None,
        }
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// The name of the type as a value: what `type(x)` compares.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Error => "error",
            Self::Dyn => "dyn",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
            Self::Object(name) | Self::Opaque(name, _) | Self::Param(name) => name,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Type(Some(of)) => write!(f, "type({of})"),
            Self::Opaque(name, params) if !params.is_empty() => {
                let params: Vec<String> = params.iter().map(ToString::to_string).collect();
                write!(f, "{name}({})", params.join(", "))
            }
            other => f.write_str(other.name()),
        }
    }
}
