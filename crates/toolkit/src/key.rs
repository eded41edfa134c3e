//! The name of an object within its kind.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrayvec::ArrayString;
use kube::Resource;

/// How long a key may be to be kept within itself; almost all are shorter.
const SHORT_MAX: usize = 48;

/// A namespace and a name; cluster-scoped objects have no namespace.
///
/// Keys order by namespace, then name. They are cheap to make, clone and hand on: none but long ones allocate, and clones
/// of those share their text.
#[derive(Clone)]
pub struct ObjectKey {
    text: Text,
    /// Where the name begins: after the slash, or at 0 without a namespace.
    name_at: u32,
}

/// `namespace/name`, or the name alone.
#[derive(Clone)]
enum Text {
    Short(ArrayString<SHORT_MAX>),
    Long(Arc<str>),
}

impl ObjectKey {
    /// Names an object that may or may not be namespaced.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        let parts = namespace.map_or(["", "", name], |namespace| [namespace, "/", name]);
        let name_at = parts[0].len() + parts[1].len();
        let text = if name_at + name.len() <= SHORT_MAX {
            let mut short = ArrayString::new();
            parts.into_iter().for_each(|part| short.push_str(part));
            Text::Short(short)
        } else {
            Text::Long(parts.concat().into())
        };
        Self {
            text,
            name_at: u32::try_from(name_at).expect("a namespace has less than 4 GB"),
        }
    }

    /// Names a namespaced object.
    pub fn namespaced(namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        Self::new(Some(namespace.as_ref()), name.as_ref())
    }

    /// Names a cluster-scoped object.
    pub fn cluster(name: impl AsRef<str>) -> Self {
        Self::new(None, name.as_ref())
    }

    /// The key of an object; its name is empty as long as it has none.
    pub fn of<K: Resource>(object: &K) -> Self {
        Self::beside(object, object.meta().name.as_deref().unwrap_or_default())
    }

    /// The key of a named object in the namespace of another, or of a cluster-scoped one if that other has none.
    pub fn beside<K: Resource>(object: &K, name: &str) -> Self {
        Self::new(object.meta().namespace.as_deref(), name)
    }

    /// The namespace; `None` for cluster-scoped objects.
    pub fn namespace(&self) -> Option<&str> {
        self.name_at
            .checked_sub(1)
            .map(|end| &self.text()[..end as usize])
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.text()[self.name_at as usize..]
    }

    fn text(&self) -> &str {
        match &self.text {
            Text::Short(text) => text,
            Text::Long(text) => text,
        }
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text() && self.name_at == other.name_at
    }
}

impl Eq for ObjectKey {}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The text alone: keys that differ in where the name begins are not equal, and need not differ here.
        self.text().hash(state);
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Not by the text, in which `a-b/…` comes before `a/…`.
        (self.namespace(), self.name()).cmp(&(other.namespace(), other.name()))
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_the_namespace_and_the_name_it_was_made_of() {
        let said = |namespace: Option<&str>, name: &str| {
            let key = ObjectKey::new(namespace, name);
            assert_eq!((key.namespace(), key.name()), (namespace, name));
            assert_eq!(
                (key.clone(), key.to_string()),
                (
                    ObjectKey::new(namespace, name),
                    namespace.map_or(name.to_owned(), |n| format!("{n}/{name}"))
                )
            );
        };
        for (namespace, name) in [
            (Some("team-a"), "web"),
            (None, "node-1"),
            (Some(""), "web"),
            (None, "a/b"),
            (Some("a/b"), "c"),
            (None, ""),
        ] {
            said(namespace, name);
        }
        // Around the length from which on the text is kept elsewhere, and letters of several bytes.
        for length in SHORT_MAX - 3..SHORT_MAX + 3 {
            said(None, &"n".repeat(length));
            said(Some("team-a"), &"n".repeat(length - 7));
            said(Some(&"ä".repeat(length / 2)), "ö");
        }
    }

    #[test]
    fn keys_order_by_namespace_then_name_and_differ_by_where_the_name_begins() {
        let ordered = [
            (None, "a/b"),
            (None, "z"),
            (Some("a"), "b"),
            (Some("a"), "c"),
            (Some("a-b"), "a"),
            (Some("a-b"), "b/c"),
            (Some("a-b/b"), "c"),
        ];
        let keys: Vec<_> = ordered
            .map(|(namespace, name)| ObjectKey::new(namespace, name))
            .into();
        for (i, one) in keys.iter().enumerate() {
            for (j, other) in keys.iter().enumerate() {
                assert_eq!(
                    (one.cmp(other), one == other),
                    (i.cmp(&j), i == j),
                    "{one} {other}"
                );
            }
        }
    }
}
