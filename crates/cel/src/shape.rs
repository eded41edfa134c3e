//! Shapes: the static type information of data.
//! In: a schema. Out: the types that expressions see, sizes for the cost estimate, and how JSON is
//! read.
//! Guarantees: fields are kept under their real names and found by the escaped names of
//! expressions.

use std::{collections::BTreeMap, sync::Arc};

use crate::types::Type;

/// The shape of a value of an object.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The kind of the value.
    pub kind: ShapeKind,
    /// Whether the value may be `null`.
    pub nullable: bool,
    /// The maximum number of items, entries or bytes; 0 for numbers, booleans and objects.
    pub size_max: u64,
}

/// The kinds of data.
#[derive(Clone, Debug)]
pub enum ShapeKind {
    /// Named fields. The name of the type is given by [`Shape::named`].
    Object {
        /// The type's name.
        name: Arc<str>,
        /// Fields by their real name.
        fields: BTreeMap<String, Field>,
    },
    /// Any keys, values of one shape.
    Map(Box<Shape>),
    /// Items of one shape.
    List {
        /// The shape of the items.
        item: Box<Shape>,
        /// How two lists are compared and joined.
        order: ListOrder,
    },
    /// A boolean.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Double,
    /// A text.
    String,
    /// Bytes in base 64.
    Bytes,
    /// `2006-01-02`.
    Date,
    /// A timestamp in the format of RFC 3339.
    DateTime,
    /// A duration such as `1h30m`.
    Duration,
    /// A whole number or a text.
    IntOrString,
    /// Any value, typed by its content.
    Any,
    /// Any value; expressions cannot refer to it, only compare objects that contain it.
    Hidden,
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Under which name expressions find it; none when no name can be written for it.
    pub escaped: Option<String>,
    /// The shape of the value.
    pub shape: Shape,
}

/// How lists are compared and joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// Item by item.
    Atomic,
    /// As sets.
    Set,
    /// By the values of these fields of the items.
    Keyed(Vec<String>),
}

impl Shape {
    /// A shape without a size.
    #[must_use]
    pub fn of(kind: ShapeKind) -> Self {
        Self {
            kind,
            nullable: false,
            size_max: 0,
        }
    }

    /// Whether expressions can refer to the value.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        match &self.kind {
            ShapeKind::Hidden => false,
            ShapeKind::Map(value) => value.is_visible(),
            ShapeKind::List { item, .. } => item.is_visible(),
            _ => true,
        }
    }

    /// The type that expressions see.
    #[must_use]
    pub fn type_of(&self) -> Type {
        match &self.kind {
            ShapeKind::Object { name, .. } => Type::Object(name.clone()),
            ShapeKind::Map(value) => Type::map(Type::String, value.type_of()),
            ShapeKind::List { item, .. } => Type::list(item.type_of()),
            ShapeKind::Bool => Type::Bool,
            ShapeKind::Int => Type::Int,
            ShapeKind::Double => Type::Double,
            ShapeKind::String => Type::String,
            ShapeKind::Bytes => Type::Bytes,
            ShapeKind::Date | ShapeKind::DateTime => Type::Timestamp,
            ShapeKind::Duration => Type::Duration,
            ShapeKind::IntOrString | ShapeKind::Any | ShapeKind::Hidden => Type::Dyn,
        }
    }

    /// The same shape with a type name for every object in it: `name`, `name.field`, `name.@idx`,
    /// `name.@elem`. `name` has no dots.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.rename(name);
        self
    }

    fn rename(&mut self, path: &str) {
        match &mut self.kind {
            ShapeKind::Object { name, fields } => {
                *name = path.into();
                for (real, field) in fields {
                    let step = field.escaped.as_ref().unwrap_or(real);
                    field.shape.rename(&format!("{path}.{step}"));
                }
            }
            ShapeKind::Map(value) => value.rename(&format!("{path}.@elem")),
            ShapeKind::List { item, .. } => item.rename(&format!("{path}.@idx")),
            _ => {}
        }
    }

    /// The visible field of an object that expressions call `escaped`.
    pub(crate) fn visible_field(&self, escaped: &str) -> Option<&Shape> {
        let ShapeKind::Object { fields, .. } = &self.kind else {
            return None;
        };
        let real = unescape(escaped)?;
        // A field whose name is a reserved word is found by that word as well.
        let is_it =
            |field: &&Field| field.escaped.as_deref() == Some(escaped) || WORDS.contains(&escaped);
        let field = fields.get(&real).filter(is_it)?;
        field.shape.is_visible().then_some(&field.shape)
    }

    /// The object in this shape whose type has a name. Names are paths, so the way there is known.
    pub(crate) fn object(&self, name: &str) -> Option<&Shape> {
        let mut at = self;
        for step in name.split('.').skip(1) {
            at = match (&at.kind, step) {
                (ShapeKind::List { item, .. }, "@idx") => item,
                (ShapeKind::Map(value), "@elem") => value,
                (ShapeKind::Object { fields, .. }, field) => &fields.get(&unescape(field)?)?.shape,
                _ => return None,
            };
        }
        matches!(&at.kind, ShapeKind::Object { name: found, .. } if **found == *name).then_some(at)
    }
}

/// Whether a name can be that of a variable in an expression.
#[must_use]
pub fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    starts && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) && !WORDS.contains(&name)
}

/// Reserved words that cannot be names in an expression.
const WORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name under which expressions find the field `name`; none when it holds characters that
/// cannot be written.
#[must_use]
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if name.contains(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.' | '/')) {
        return None;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let (text, length) = match c {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            _ => (&rest[..1], 1),
        };
        out.push_str(text);
        rest = &rest[length..];
    }
    Some(out)
}

/// The field that expressions call `escaped`; none when that is no name that [`escape`] gives.
#[must_use]
pub fn unescape(escaped: &str) -> Option<String> {
    let mut out = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some(open) = rest.find("__") {
        let after = &rest[open + 2..];
        // The next pair of underscores closes the escape, if the text between contains none.
        let Some(close) = after
            .find('_')
            .filter(|at| *at > 0 && after[*at..].starts_with("__"))
        else {
            let step = if after.starts_with('_') { 1 } else { 2 };
            out.push_str(&rest[..open + step]);
            rest = &rest[open + step..];
            continue;
        };
        out.push_str(&rest[..open]);
        match &after[..close] {
            "underscores" => out.push_str("__"),
            "dot" => out.push('.'),
            "dash" => out.push('-'),
            "slash" => out.push('/'),
            word if WORDS.contains(&word) && escaped.len() == word.len() + 4 => out.push_str(word),
            _ => return None,
        }
        rest = &after[close + 2..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_escaped_and_found_again() {
        for (name, escaped) in [
            ("plain", Some("plain")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("namespace", Some("__namespace__")),
            ("namespaces", Some("namespaces")),
            ("_x_", Some("_x_")),
            ("1a", None),
            ("", None),
            ("a b", None),
            ("ä", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
            if let Some(escaped) = escaped {
                assert_eq!(unescape(escaped).as_deref(), Some(name));
            }
        }
        assert_eq!(unescape("__nope__"), None);
        assert_eq!(unescape("a__if__"), None);
    }

    proptest::proptest! {
        #[test]
        fn escaping_loses_nothing(name in "[a-z_./-]{1,12}") {
            if let Some(escaped) = escape(&name) {
                proptest::prop_assert_eq!(unescape(&escaped), Some(name));
            }
        }
    }
}
