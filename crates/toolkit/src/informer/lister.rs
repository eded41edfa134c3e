//! Lister: reads of a cache.
//! In: keys, namespaces, selectors. Out: shared objects, ordered by key.
//! Guarantees: one call reads one state of the cache; readers cannot change the cache; nothing is
//! decoded while writers wait.

use std::marker::PhantomData;
use std::sync::Arc;

use bellerophon_kinds::{Kind, Object, downcast};
use kube::core::Selector;

use super::{InformerHandle, core::Core};
use crate::{
    cached::{CachedObject, Matcher},
    key::ObjectKey,
};

/// Reads what an informer has cached. Cheap to clone, usable from any thread; its informer runs as
/// long as it exists.
///
/// Results are as old as the watch: ordered by key, each call from one state of the cache, never
/// from the server. Before the informer is synced they are incomplete. Objects are shared: a
/// decoded one costs a pointer, and one that a [compact](super::CacheMode) cache has as JSON is
/// decoded once for all readers. Reading more objects in one call than such a cache keeps decoded
/// decodes the others for this call only; [`Lister::keys`] and [`Lister::matching_keys`] never
/// decode, and [`Lister::iter`] holds one object at a time.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::Pod;
///
/// fn is_scheduled(pods: &Lister<Pod>, key: &ObjectKey) -> bool {
///     let pod = pods.get(key);
///     pod.is_some_and(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
/// }
/// ```
pub struct Lister<K> {
    pub(super) handle: Arc<InformerHandle>,
    pub(super) kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> std::fmt::Debug for Lister<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lister")
            .field(&self.handle.core().name)
            .finish()
    }
}

impl<K: Kind> Lister<K> {
    /// The object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.core().get(key).map(downcast)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.core().store().len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        typed(self.core().read(self.core().snapshot()))
    }

    /// All objects, one after the other, as they are now.
    pub fn iter(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        let objects = self.core().snapshot().into_iter();
        objects.map(|object| downcast(object.read_uncached()))
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.core()
            .store()
            .entries()
            .map(|(key, _)| (**key).clone())
            .collect()
    }

    /// The objects of one namespace; other namespaces are not visited.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let core = self.core();
        let objects = core.store().in_namespace(namespace).cloned().collect();
        typed(core.read(objects))
    }

    /// The objects whose labels match; the labels of every object are compared.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<K>> {
        typed(self.core().read(self.core().matching(selector)))
    }

    /// The keys of the objects whose labels match.
    pub fn matching_keys(&self, selector: &Selector) -> Vec<ObjectKey> {
        let matcher = Matcher::new(selector);
        let store = self.core().store();
        let matching = store
            .entries()
            .filter(|(_, object)| object.matches(&matcher));
        matching.map(|(key, _)| (**key).clone()).collect()
    }

    /// The version of the cached object.
    pub fn resource_version_of(&self, key: &ObjectKey) -> Option<String> {
        self.core()
            .store()
            .get(key)
            .and_then(CachedObject::resource_version)
    }

    /// The version of the collection up to which the cache has the changes of this key, its
    /// deletion included; `None` before the first list, and for a namespace that is not watched.
    pub fn latest_version(&self, key: &ObjectKey) -> Option<String> {
        self.core().latest_version(key)
    }

    /// Waits until the condition holds for the cached object, which is `None` while it does not
    /// exist, and returns it. The condition is evaluated when the cache changes, not in intervals.
    /// Returns `None` if the informer stops.
    pub async fn await_condition(
        &self,
        key: &ObjectKey,
        condition: impl Fn(Option<&K>) -> bool,
    ) -> Option<Arc<K>> {
        let core = self.core();
        let mut changes = core.changes.subscribe();
        let mut status = core.status.subscribe();
        loop {
            // Before the read: a change during the evaluation ends the wait below immediately.
            changes.mark_unchanged();
            let object = self.get(key);
            if condition(object.as_deref()) {
                return object;
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = status.wait_for(|status| status.stopped) => return None,
            }
        }
    }

    fn core(&self) -> &Arc<Core> {
        self.handle.core()
    }
}

fn typed<K: Kind>(objects: Vec<Object>) -> Vec<Arc<K>> {
    objects.into_iter().map(downcast).collect()
}

impl Core {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Object> {
        // Cloned out of the store, so that decoding does not hold its lock.
        let object = self.store().get(key).cloned()?;
        Some(object.read(&self.lru))
    }

    fn snapshot(&self) -> Vec<CachedObject> {
        self.store()
            .entries()
            .map(|(_, object)| object.clone())
            .collect()
    }

    fn matching(&self, selector: &Selector) -> Vec<CachedObject> {
        let matcher = Matcher::new(selector);
        let snapshot = self.snapshot().into_iter();
        snapshot.filter(|object| object.matches(&matcher)).collect()
    }

    /// More objects than can stay decoded would only evict what others read.
    pub(super) fn read(&self, objects: Vec<CachedObject>) -> Vec<Object> {
        let keep = objects.len() <= self.lru.max();
        let read = |object: &CachedObject| match keep {
            true => object.read(&self.lru),
            false => object.read_uncached(),
        };
        objects.iter().map(read).collect()
    }
}
