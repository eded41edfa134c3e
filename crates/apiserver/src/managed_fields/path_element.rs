//! One step of a path inside an object, as field sets name it.
//! In: the spelling of `fieldsV1`. Out: the same, and the form that errors show.

use std::{cmp::Ordering, fmt, sync::Arc};

use bellerophon_apimachinery::field::go_quote;
use serde_json::{Map, Value};

/// A step: into a field, or to an item of a list.
#[derive(Clone, Debug)]
pub(crate) enum PathElement {
    /// `f:name`
    Field(Arc<str>),
    /// `k:{"name":"web"}`: an item by its keys, sorted by their names.
    Key(Vec<(String, Value)>),
    /// `v:"text"`: an item by its value.
    Value(Value),
    /// `i:0`
    Index(i64),
}

/// Why the name of a step was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Of a kind that later versions may know.
    Unknown,
    Broken,
}

impl PathElement {
    pub(crate) fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// Reads the spelling of `fieldsV1`.
    pub(super) fn parse(text: &str) -> Result<Self, Unread> {
        let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|_| Unread::Broken);
        match text.split_at_checked(2).ok_or(Unread::Broken)? {
            ("f:", name) => Ok(Self::Field(name.into())),
            ("v:", value) => json(value).map(Self::Value),
            ("i:", index) => index.parse().map(Self::Index).map_err(|_| Unread::Broken),
            ("k:", keys) => match json(keys)? {
                Value::Object(keys) => Ok(Self::Key(keys.into_iter().collect())),
                _ => Err(Unread::Broken),
            },
            (kind, _) if kind.ends_with(':') => Err(Unread::Unknown),
            _ => Err(Unread::Broken),
        }
    }

    /// The spelling of `fieldsV1`.
    pub(super) fn spelling(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(keys) => format!(
                "k:{}",
                Value::Object(keys.iter().cloned().collect::<Map<_, _>>())
            ),
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => compare_keys(a, b),
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

fn compare_keys(a: &[(String, Value)], b: &[(String, Value)]) -> Ordering {
    let by_pair = a
        .iter()
        .zip(b)
        .map(|((n, v), (m, w))| n.cmp(m).then_with(|| compare_values(v, w)));
    by_pair
        .fold(Ordering::Equal, Ordering::then)
        .then(a.len().cmp(&b.len()))
}

/// Scalars in a fixed order; anything else by its JSON.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a
                .as_f64()
                .unwrap_or_default()
                .total_cmp(&b.as_f64().unwrap_or_default()),
        },
        _ => kind_rank(a).cmp(&kind_rank(b)).then_with(|| {
            if kind_rank(a) > 2 {
                a.to_string().cmp(&b.to_string())
            } else {
                Ordering::Equal
            }
        }),
    }
}

const fn kind_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| match value {
            Value::String(text) => go_quote(text),
            other => other.to_string(),
        };
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let pairs: Vec<String> = keys
                    .iter()
                    .map(|(name, value)| format!("{name}={}", shown(value)))
                    .collect();
                write!(f, "[{}]", pairs.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", shown(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}
