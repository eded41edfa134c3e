//! The name of an object in its collection.
//! Guarantees: keys sort as Kubernetes sorts them, by `namespace/name` read as one text.

use std::{borrow::Borrow, fmt, ops::Bound};

/// A namespace and a name; cluster-scoped objects have a name only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `namespace/name`, or `name`. Neither contains a slash: both are from parsed paths.
    path: Box<str>,
}

impl ObjectKey {
    /// Names an object; an empty namespace means cluster-scoped.
    pub fn new(namespace: &str, name: &str) -> Self {
        let path = if namespace.is_empty() {
            name.into()
        } else {
            format!("{namespace}/{name}").into()
        };
        Self { path }
    }

    /// Reads back what `Display` wrote.
    pub fn from_path(path: &str) -> Self {
        Self { path: path.into() }
    }

    /// `namespace/name`, or `name`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The namespace, empty when cluster-scoped.
    pub fn namespace(&self) -> &str {
        self.path
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.path
            .split_once('/')
            .map_or(&self.path, |(_, name)| name)
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Part of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    #[default]
    All,
    /// One namespace.
    Namespace(String),
    /// One object.
    Object(ObjectKey),
    /// No object, now or later: what a selector that no object can match leaves.
    Nothing,
}

impl Scope {
    /// Whether the key lies in it.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => key.namespace() == namespace,
            Self::Object(object) => key == object,
            Self::Nothing => false,
        }
    }

    /// The keys from the first to the last of it, those up to `after` left out.
    pub fn bounds(&self, after: Option<&ObjectKey>) -> (Bound<String>, Bound<String>) {
        let (first, last) = match self {
            Self::All => (Bound::Unbounded, Bound::Unbounded),
            // '0' follows '/' in ASCII, so this spans exactly the keys that begin with
            // "namespace/".
            Self::Namespace(namespace) => (
                Bound::Included(format!("{namespace}/")),
                Bound::Excluded(format!("{namespace}0")),
            ),
            Self::Object(key) => (
                Bound::Included(key.to_string()),
                Bound::Included(key.to_string()),
            ),
            // No key sorts before the empty text.
            Self::Nothing => (Bound::Unbounded, Bound::Excluded(String::new())),
        };
        match (after, first) {
            (None, first) => (first, last),
            (Some(after), Bound::Included(first)) if first.as_str() > after.path() => {
                (Bound::Included(first), last)
            }
            (Some(after), _) => (Bound::Excluded(after.to_string()), last),
        }
    }

    /// Whether bounds made from it contain no key: a key behind the last one leaves none.
    pub fn is_empty_range(bounds: &(Bound<String>, Bound<String>)) -> bool {
        match bounds {
            (Bound::Excluded(a) | Bound::Included(a), Bound::Excluded(b)) => a >= b,
            (Bound::Excluded(a), Bound::Included(b)) => a >= b,
            (Bound::Included(a), Bound::Included(b)) => a > b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_their_whole_path() {
        let mut keys = [
            ObjectKey::new("a", "z"),
            ObjectKey::new("a-b", "a"),
            ObjectKey::new("a", "b"),
        ];
        keys.sort();
        assert_eq!(keys.map(|k| k.to_string()), ["a-b/a", "a/b", "a/z"]);
    }

    #[test]
    fn namespace_spans_its_keys_only() {
        let scope = Scope::Namespace("a".into());
        let (Bound::Included(first), Bound::Excluded(last)) = scope.bounds(None) else {
            panic!("a namespace has two bounds")
        };
        let inside = |k: &ObjectKey| first.as_str() <= k.path() && last.as_str() > k.path();
        for (key, expected) in [
            (ObjectKey::new("a", "x"), true),
            (ObjectKey::new("a-b", "x"), false),
            (ObjectKey::new("a0", "x"), false),
            (ObjectKey::new("b", "x"), false),
        ] {
            assert_eq!(inside(&key), expected, "{key}");
            assert_eq!(scope.contains(&key), expected, "{key}");
        }
    }
}
