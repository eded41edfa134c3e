//! Owners: from a child to the object that controls it.
//!
//! In: an object with owner references. Out: the key of its controlling owner, if that is of one kind.
//! Holds: kinds are compared without their version, which may differ between the two that look.

use std::any::TypeId;

use k8s_openapi::ClusterResourceScope;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};

use crate::{Lister, ObjectKey, SharedInformer};

/// Finds owners of one kind.
pub(super) struct Owners<K> {
    kind: ApiResource,
    scope: Scope<K>,
}

/// Where owners of a kind are.
enum Scope<K> {
    Cluster,
    Namespace,
    /// The type does not say; the cache may.
    Cached(Lister<K>),
}

impl<K: Resource + Send + Sync + 'static> Owners<K>
where
    K::Scope: 'static,
{
    pub(super) fn of(informer: &SharedInformer<K>) -> Self {
        let scope = TypeId::of::<K::Scope>();
        let scope = if scope == TypeId::of::<DynamicResourceScope>() {
            Scope::Cached(informer.lister())
        } else if scope == TypeId::of::<ClusterResourceScope>() {
            Scope::Cluster
        } else {
            Scope::Namespace
        };
        Self {
            kind: informer.kind().clone(),
            scope,
        }
    }

    /// The key of the owner of this kind that controls `child`. There is at most one in what a server stored.
    pub(super) fn controlling<C: Resource>(&self, child: &C) -> Vec<ObjectKey> {
        let group = |version: &str| {
            version
                .split_once('/')
                .map_or(String::new(), |(group, _)| group.to_string())
        };
        let references = child.meta().owner_references.iter().flatten();
        references
            .filter(|owner| {
                owner.controller == Some(true)
                    && owner.kind == self.kind.kind
                    && group(&owner.api_version) == self.kind.group
            })
            .map(|owner| self.key(child, &owner.name))
            .collect()
    }

    fn key(&self, child: &impl Resource, name: &str) -> ObjectKey {
        let cluster = ObjectKey::cluster(name);
        match &self.scope {
            Scope::Cluster => cluster,
            Scope::Cached(lister) if lister.get(&cluster).is_some() => cluster,
            Scope::Namespace | Scope::Cached(_) => ObjectKey::beside(child, name),
        }
    }
}
