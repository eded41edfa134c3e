//! Owners: from a child to the object that controls it.
//!
//! In: owner references. Out: the key of the controlling owner, if it is of one kind.
//! Guarantees: kinds are compared without their version, which may differ between the references.

use std::sync::Arc;

use bellerophon_kinds::KindScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ApiResource;

use crate::ObjectKey;
use crate::informer::InformerHandle;

/// Finds owners of one kind.
pub(super) struct Owners {
    resource: ApiResource,
    scope: KindScope,
    /// The cache of the owners, which knows the scope of a dynamic kind.
    informer: Arc<InformerHandle>,
}

impl Owners {
    pub(super) fn new(informer: &Arc<InformerHandle>) -> Self {
        Self {
            resource: informer.informer.resource.clone(),
            scope: informer.informer.codec.scope(),
            informer: informer.clone(),
        }
    }

    /// The key of the owner of this kind that controls `child`. A server stores at most one.
    pub(super) fn controlling(&self, child: &ObjectMeta) -> Vec<ObjectKey> {
        let group = |version: &str| {
            version
                .split_once('/')
                .map_or(String::new(), |(group, _)| group.to_string())
        };
        let is_ours = |kind: &str, version: &str| {
            kind == self.resource.kind && group(version) == self.resource.group
        };
        let references = child.owner_references.iter().flatten();
        references
            .filter(|owner| owner.controller == Some(true))
            .filter(|owner| is_ours(&owner.kind, &owner.api_version))
            .map(|owner| self.key(child, &owner.name))
            .collect()
    }

    fn key(&self, child: &ObjectMeta, name: &str) -> ObjectKey {
        let cluster = ObjectKey::cluster(name);
        let is_cluster_scoped = match self.scope {
            KindScope::Cluster => true,
            KindScope::Namespaced => false,
            // The scope of a type known at run time is not known. Names of cluster-scoped and
            // namespaced objects of one kind cannot both exist.
            KindScope::Dynamic => self.informer.core().store().get(&cluster).is_some(),
        };
        match is_cluster_scoped {
            true => cluster,
            false => ObjectKey::new(child.namespace.as_deref(), name),
        }
    }
}
