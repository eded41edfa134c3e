//! The key of an object within its kind: namespace and name.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrayvec::ArrayString;
use kube::Resource;

/// Keys up to this length are stored inline, without an allocation.
const INLINE_BYTES_MAX: usize = 48;

/// Namespace and name of an object; cluster-scoped objects have no namespace.
///
/// Keys are ordered by namespace, then name. Keys up to 48 bytes are stored inline; clones of
/// longer keys share one allocation. [`Display`](fmt::Display) is `namespace/name`, as in
/// client-go.
///
/// ```
/// use bellerophon::ObjectKey;
///
/// let key = ObjectKey::namespaced("team-a", "web");
/// assert_eq!(key.namespace(), Some("team-a"));
/// assert_eq!(key.name(), "web");
/// assert_eq!(key.to_string(), "team-a/web");
/// assert_eq!(ObjectKey::cluster("node-1").to_string(), "node-1");
/// ```
#[derive(Clone)]
pub struct ObjectKey {
    text: Text,
    /// The position of the name in `text`: after the slash, or 0 without a namespace.
    name_at: u32,
}

/// `namespace/name`, or the name alone.
#[derive(Clone)]
enum Text {
    Inline(ArrayString<INLINE_BYTES_MAX>),
    Shared(Arc<str>),
}

impl ObjectKey {
    /// The key of an object that may be namespaced or cluster-scoped.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        let parts = namespace.map_or(["", "", name], |namespace| [namespace, "/", name]);
        let name_at = parts[0].len() + parts[1].len();
        // Most keys are shorter, and every queue, index and cause has clones of them.
        let text = if name_at + name.len() <= INLINE_BYTES_MAX {
            let mut inline = ArrayString::new();
            parts.into_iter().for_each(|part| inline.push_str(part));
            Text::Inline(inline)
        } else {
            Text::Shared(parts.concat().into())
        };
        Self {
            text,
            name_at: u32::try_from(name_at).expect("a namespace has less than 4 GB"),
        }
    }

    /// The key of a namespaced object.
    pub fn namespaced(namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        Self::new(Some(namespace.as_ref()), name.as_ref())
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl AsRef<str>) -> Self {
        Self::new(None, name.as_ref())
    }

    /// The key of this object. The name is empty if the object has none yet (`generateName`).
    ///
    /// ```
    /// use bellerophon::ObjectKey;
    /// use k8s_openapi::api::core::v1::ConfigMap;
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.namespace = Some("team-a".into());
    /// map.metadata.name = Some("settings".into());
    /// assert_eq!(ObjectKey::from_object(&map), ObjectKey::namespaced("team-a", "settings"));
    /// ```
    pub fn from_object<K: Resource>(object: &K) -> Self {
        Self::in_namespace_of(object, object.meta().name.as_deref().unwrap_or_default())
    }

    /// The key of another object in the namespace of this one; of a cluster-scoped object if this
    /// one is cluster-scoped.
    ///
    /// ```
    /// use bellerophon::ObjectKey;
    /// use k8s_openapi::api::core::v1::Pod;
    ///
    /// let mut pod = Pod::default();
    /// pod.metadata.namespace = Some("team-a".into());
    /// let key = ObjectKey::in_namespace_of(&pod, "icarus");
    /// assert_eq!(key, ObjectKey::namespaced("team-a", "icarus"));
    /// ```
    pub fn in_namespace_of<K: Resource>(object: &K, name: &str) -> Self {
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
            Text::Inline(text) => text,
            Text::Shared(text) => text,
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
        // Keys that differ in `name_at` only are unequal, but may have equal hashes.
        self.text().hash(state);
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Not by the text, where `a-b/…` is less than `a/…`.
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
    fn key_returns_its_namespace_and_name() {
        let check = |namespace: Option<&str>, name: &str| {
            let key = ObjectKey::new(namespace, name);
            assert_eq!(key.namespace(), namespace);
            assert_eq!(key.name(), name);
            assert_eq!(key.clone(), ObjectKey::new(namespace, name));
            let text = namespace.map_or(name.to_owned(), |namespace| format!("{namespace}/{name}"));
            assert_eq!(key.to_string(), text);
        };
        for (namespace, name) in [
            (Some("team-a"), "web"),
            (None, "node-1"),
            (Some(""), "web"),
            (None, "a/b"),
            (Some("a/b"), "c"),
            (None, ""),
        ] {
            check(namespace, name);
        }
        // Around the length of inline keys, with characters of several bytes too.
        for length in INLINE_BYTES_MAX - 3..INLINE_BYTES_MAX + 3 {
            check(None, &"n".repeat(length));
            check(Some("team-a"), &"n".repeat(length - 7));
            check(Some(&"ä".repeat(length / 2)), "ö");
        }
    }

    #[test]
    fn keys_are_ordered_by_namespace_then_name() {
        let ordered = [
            (None, "a/b"),
            (None, "z"),
            (Some("a"), "b"),
            (Some("a"), "c"),
            (Some("a-b"), "a"),
            (Some("a-b"), "b/c"),
            (Some("a-b/b"), "c"),
        ];
        let keys = ordered.map(|(namespace, name)| ObjectKey::new(namespace, name));
        for (i, one) in keys.iter().enumerate() {
            for (j, other) in keys.iter().enumerate() {
                assert_eq!(one.cmp(other), i.cmp(&j), "{one} {other}");
                assert_eq!(one == other, i == j, "{one} {other}");
            }
        }
    }
}
