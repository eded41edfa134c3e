//! Index: objects by a value, such as the name of a node or the UID of an owner.
//! In: values. Out: shared objects and keys, ordered by key.
//! Guarantees: an index agrees with the cache it belongs to, whenever it was added.

use std::marker::PhantomData;
use std::sync::Arc;

use bellerophon_kinds::{Kind, downcast};
use kube::Resource;

use super::{InformerHandle, store::IndexId};
use crate::key::ObjectKey;

/// Finds objects by a value that a function computes from them. Cheap to clone; its informer runs
/// as long as it exists.
///
/// ```
/// use bellerophon::index::Index;
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::Pod;
///
/// fn pods_by_node(mgr: &mut Manager) -> Index<Pod> {
///     mgr.index("node", |pod: &Pod| {
///         pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect()
///     })
/// }
/// ```
pub struct Index<K> {
    pub(super) handle: Arc<InformerHandle>,
    pub(super) id: IndexId,
    pub(super) kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Index<K> {
    /// The objects with this value.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        let core = self.handle.core();
        let objects = core.store().by_index(self.id, value);
        core.read(objects).into_iter().map(downcast).collect()
    }

    /// The keys of the objects with this value. Nothing is decoded.
    pub fn keys(&self, value: &str) -> Vec<ObjectKey> {
        let store = self.handle.core().store();
        store
            .keys_by_index(self.id, value)
            .map(|key| (**key).clone())
            .collect()
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            id: self.id,
            kind: PhantomData,
        }
    }
}

impl<K> std::fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Index")
            .field(&self.handle.core().name)
            .finish()
    }
}

/// An index function: the UID of the object's controlling owner. Looked up with an owner's UID, the
/// index finds its children.
pub fn controller_uid<K: Resource>(object: &K) -> Vec<String> {
    let owners = object.meta().owner_references.iter().flatten();
    let controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.map(|owner| owner.uid.clone()).collect()
}
