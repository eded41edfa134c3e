//! Lister: reads of a cache.
//! In: keys, namespaces, selectors, index values. Out: shared objects, ordered by key.
//! Holds: one call sees one state of the cache; nothing read can change the cache.

use std::sync::Arc;

use kube::{
    Resource, ResourceExt,
    core::{Selector, SelectorExt},
};

use super::{core::Core, index::IndexError};
use crate::key::ObjectKey;

/// Reads what an informer has cached. Cheap to clone, usable from any thread.
///
/// Answers are as old as the watch: ordered by key, each call from one state of the cache, never from the server.
/// Before the informer is synced they are incomplete. Objects are shared, so a list costs a pointer an object.
pub struct Lister<K>(pub(crate) Arc<Core<K>>);

impl<K> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> std::fmt::Debug for Lister<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lister").field(&self.0.what).finish()
    }
}

impl<K: Resource + Send + Sync + 'static> Lister<K> {
    /// The object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.0.index().get(key).cloned()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.0.index().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.0.index().entries().map(|(_, object)| object.clone()).collect()
    }

    /// The objects of one namespace; other namespaces are not looked at.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.0.index().in_namespace(namespace).cloned().collect()
    }

    /// The objects whose labels match; every object is looked at.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<K>> {
        self.list().into_iter().filter(|object| selector.matches(object.labels())).collect()
    }

    /// The objects that a named index has under this value.
    ///
    /// # Errors
    /// There is no such index.
    pub fn by_index(&self, name: &str, value: &str) -> Result<Vec<Arc<K>>, IndexError> {
        self.0.index().by_index(name, value)
    }

    /// The version of the cached object.
    pub fn resource_version_of(&self, key: &ObjectKey) -> Option<String> {
        self.0.index().get(key).and_then(|object| object.resource_version())
    }

    /// The version of the collection up to which the cache has seen this key, its deletion included; `None` before the
    /// first list, and for a namespace that is not watched.
    pub fn seen_up_to(&self, key: &ObjectKey) -> Option<String> {
        self.0.seen_up_to(key)
    }
}
