//! Field errors of an object.
//! In: validation of metadata, schemas and kinds. Out: the causes of a 422 `Status`.
//! Guarantees: messages are those of Kubernetes, because clients match on them.

use std::fmt;

use serde_json::Value;

/// A path in an object, built on the stack during validation and printed only for an error.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The object itself; it prints as an empty string.
    pub const ROOT: Path<'static> = Path {
        parent: None,
        step: Step::Root,
    };

    /// A field of the object, or a dotted path of fields: `spec.template`.
    pub const fn field(name: &'a str) -> Path<'a> {
        Path {
            parent: None,
            step: Step::Field(name),
        }
    }

    /// The field `name` below this place.
    pub const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Field(name),
        }
    }

    /// The entry `key` of the map at this place: `labels[app]`.
    pub const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Key(key),
        }
    }

    /// Whether this place is the object itself.
    pub const fn is_root(&self) -> bool {
        self.parent.is_none() && matches!(self.step, Step::Root)
    }

    /// The item at `index` of the list at this place: `containers[0]`.
    pub const fn index(&'a self, index: usize) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Index(index),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) => {
                let at_root = self.parent.is_none_or(|p| matches!(p.step, Step::Root));
                if !at_root {
                    f.write_str(".")?;
                }
                f.write_str(name)
            }
            Step::Key(key) => write!(f, "[{key}]"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Why a field is invalid; the names are those of a `Status` cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `FieldValueRequired`.
    Required,
    /// `FieldValueInvalid`.
    Invalid,
    /// `FieldValueDuplicate`.
    Duplicate,
    /// `FieldValueNotFound`.
    NotFound,
    /// `FieldValueNotSupported`.
    NotSupported,
    /// `FieldValueForbidden`.
    Forbidden,
    /// `FieldValueTooLong`.
    TooLong,
    /// `FieldValueTooMany`.
    TooMany,
    /// `FieldValueTypeInvalid`.
    TypeInvalid,
    /// `InternalError`: validation itself failed.
    Internal,
}

impl Reason {
    /// The `reason` of a cause.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }
}

/// An error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Why.
    pub reason: Reason,
    /// Where, as Kubernetes prints a path: `spec.ports[0].name`.
    pub field: String,
    /// The whole sentence without the field: `Invalid value: "x": must be …`.
    pub message: String,
}

impl FieldError {
    fn new(reason: Reason, field: impl fmt::Display, message: String) -> Self {
        Self {
            reason,
            field: field.to_string(),
            message,
        }
    }

    /// `Required value: detail`.
    pub fn required(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(
            Reason::Required,
            field,
            with_detail("Required value".into(), detail),
        )
    }

    /// `Forbidden: detail`.
    pub fn forbidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(
            Reason::Forbidden,
            field,
            with_detail("Forbidden".into(), detail),
        )
    }

    /// `Invalid value: VALUE: detail`.
    pub fn invalid(field: impl fmt::Display, value: impl Shown, detail: &str) -> Self {
        Self::new(
            Reason::Invalid,
            field,
            with_detail(format!("Invalid value: {}", value.shown()), detail),
        )
    }

    /// `Invalid value: detail`, for values too large to show.
    pub fn invalid_unshown(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(
            Reason::Invalid,
            field,
            with_detail("Invalid value".into(), detail),
        )
    }

    /// `Duplicate value`, for values too large to show.
    pub fn duplicate_unshown(field: impl fmt::Display) -> Self {
        Self::new(Reason::Duplicate, field, "Duplicate value".into())
    }

    /// `Internal error: detail`.
    pub fn internal(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(Reason::Internal, field, format!("Internal error: {detail}"))
    }

    /// `Invalid value: VALUE: detail`, with the reason of a type error.
    pub fn type_invalid(field: impl fmt::Display, value: impl Shown, detail: &str) -> Self {
        Self {
            reason: Reason::TypeInvalid,
            ..Self::invalid(field, value, detail)
        }
    }

    /// `Duplicate value: VALUE`.
    pub fn duplicate(field: impl fmt::Display, value: impl Shown) -> Self {
        Self::new(
            Reason::Duplicate,
            field,
            format!("Duplicate value: {}", value.shown()),
        )
    }

    /// `Not found: VALUE`.
    pub fn not_found(field: impl fmt::Display, value: impl Shown) -> Self {
        Self::new(
            Reason::NotFound,
            field,
            format!("Not found: {}", value.shown()),
        )
    }

    /// `Unsupported value: VALUE: supported values: "A", "B"`.
    pub fn not_supported(field: impl fmt::Display, value: impl Shown, supported: &[&str]) -> Self {
        let mut message = format!("Unsupported value: {}", value.shown());
        if !supported.is_empty() {
            let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
            message.push_str(": supported values: ");
            message.push_str(&list.join(", "));
        }
        Self::new(Reason::NotSupported, field, message)
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(field: impl fmt::Display, max_bytes: usize) -> Self {
        let unit = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::new(
            Reason::TooLong,
            field,
            format!("Too long: may not be more than {max_bytes} {unit}"),
        )
    }

    /// `Too many: N: must have at most MAX items`.
    pub fn too_many(field: impl fmt::Display, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(
            Reason::TooMany,
            field,
            format!("Too many: {actual}: must have at most {max} {unit}"),
        )
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn with_detail(head: String, detail: &str) -> String {
    if detail.is_empty() {
        head
    } else {
        format!("{head}: {detail}")
    }
}

/// How a value is shown inside a message: strings quoted, numbers and booleans bare, the rest as
/// JSON.
pub trait Shown {
    /// The text.
    fn shown(&self) -> String;
}

impl Shown for &str {
    fn shown(&self) -> String {
        go_quote(self)
    }
}

impl Shown for &String {
    fn shown(&self) -> String {
        go_quote(self)
    }
}

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for usize {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for &Value {
    fn shown(&self) -> String {
        match self {
            Value::String(s) => go_quote(s),
            other => other.to_string(),
        }
    }
}

/// Text shown verbatim, for values that Kubernetes prints in another form.
pub struct Verbatim<'a>(pub &'a str);

impl Shown for Verbatim<'_> {
    fn shown(&self) -> String {
        self.0.to_owned()
    }
}

/// The Go type that JSON of this form is decoded into; `None` for null.
pub fn go_type(value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    })
}

/// A string in double quotes with Go's escapes.
pub fn go_quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_prints_as_kubernetes_does() {
        let spec = Path::field("spec");
        let ports = spec.child("ports");
        let first = ports.index(0);
        assert_eq!(first.child("name").to_string(), "spec.ports[0].name");
        assert_eq!(
            Path::field("metadata")
                .child("labels")
                .key("a/b")
                .to_string(),
            "metadata.labels[a/b]"
        );
        assert_eq!(Path::ROOT.child("spec").to_string(), "spec");
    }

    #[test]
    fn message_shows_value_and_detail() {
        let e = FieldError::invalid("spec.replicas", -1i64, "must be greater than or equal to 0");
        assert_eq!(
            e.to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(
            FieldError::not_supported("x", "c", &["a", "b"]).message,
            "Unsupported value: \"c\": supported values: \"a\", \"b\""
        );
    }
}
