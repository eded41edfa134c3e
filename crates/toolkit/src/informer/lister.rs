//! Lister: reads of a cache.
//! In: keys, namespaces, selectors, index values. Out: shared objects, ordered by key.
//! Holds: one call sees one state of the cache; nothing read can change the cache; nothing is decoded while those who
//! write wait.

use std::sync::Arc;

use kube::{Resource, core::Selector};

use super::{core::Core, index::IndexError};
use crate::{
    cached::{Cached, Matcher},
    key::ObjectKey,
};

/// Reads what an informer has cached. Cheap to clone, usable from any thread.
///
/// Answers are as old as the watch: ordered by key, each call from one state of the cache, never from the server.
/// Before the informer is synced they are incomplete. Objects are shared: what is decoded costs a pointer, and what a
/// [compact](crate::CacheForm) cache has only as bytes is decoded once for all who read it soon. Reading more objects at
/// once than such a cache keeps decoded decodes the others for this call alone; [`Lister::keys`], [`Lister::index_keys`]
/// and [`Lister::matching_keys`] never decode, and [`Lister::iter`] holds one object at a time.
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
        let object = self.0.index().get(key).cloned()?;
        Some(object.read(&self.0.warm))
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
        self.read(self.snapshot())
    }

    /// All objects, one after the other, as they are now.
    pub fn iter(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.snapshot().into_iter().map(|object| object.glance())
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.0
            .index()
            .entries()
            .map(|(key, _)| (**key).clone())
            .collect()
    }

    /// The objects of one namespace; other namespaces are not looked at.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let objects = self.0.index().in_namespace(namespace).cloned().collect();
        self.read(objects)
    }

    /// The objects whose labels match; the labels of every object are looked at.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<K>> {
        let matcher = Matcher::new(selector);
        let objects = self
            .snapshot()
            .into_iter()
            .filter(|object| object.matches(&matcher))
            .collect();
        self.read(objects)
    }

    /// The keys of the objects whose labels match.
    pub fn matching_keys(&self, selector: &Selector) -> Vec<ObjectKey> {
        let matcher = Matcher::new(selector);
        self.0
            .index()
            .entries()
            .filter(|(_, object)| object.matches(&matcher))
            .map(|(key, _)| (**key).clone())
            .collect()
    }

    /// The objects that a named index has under this value.
    ///
    /// # Errors
    /// There is no such index.
    pub fn by_index(&self, name: &str, value: &str) -> Result<Vec<Arc<K>>, IndexError> {
        let objects = self.0.index().by_index(name, value)?;
        Ok(self.read(objects))
    }

    /// The keys that a named index has under this value.
    ///
    /// # Errors
    /// There is no such index.
    pub fn index_keys(&self, name: &str, value: &str) -> Result<Vec<ObjectKey>, IndexError> {
        Ok(self
            .0
            .index()
            .keys_by_index(name, value)?
            .map(|key| (**key).clone())
            .collect())
    }

    /// The version of the cached object.
    pub fn resource_version_of(&self, key: &ObjectKey) -> Option<String> {
        self.0.index().get(key).and_then(Cached::resource_version)
    }

    /// The version of the collection up to which the cache has seen this key, its deletion included; `None` before the
    /// first list, and for a namespace that is not watched.
    pub fn seen_up_to(&self, key: &ObjectKey) -> Option<String> {
        self.0.seen_up_to(key)
    }

    fn snapshot(&self) -> Vec<Cached<K>> {
        self.0
            .index()
            .entries()
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// More than can stay decoded would only push out what others read.
    fn read(&self, objects: Vec<Cached<K>>) -> Vec<Arc<K>> {
        let warm = &self.0.warm;
        let stay = objects.len() <= warm.max();
        objects
            .iter()
            .map(|object| {
                if stay {
                    object.read(warm)
                } else {
                    object.glance()
                }
            })
            .collect()
    }
}
