//! Owners to enqueue when a child changes.
//!
//! Input: a changed child, the cached owners. Output: keys to reconcile.
//! Rules: a child with a controller enqueues that owner only; an orphan enqueues every owner whose
//! selector matches it, for adoption.

use std::sync::Arc;

use bellerophon::index::Index;
use bellerophon::informer::SharedInformer;
use bellerophon::kinds::Kind;
use bellerophon::owner::controller_of;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::Pod;
use kube::core::Selector;
use kube::{Resource, ResourceExt};

use super::api_writer::StaticKind;
use super::claim::matches;
use crate::index::by_controller_uid;

/// Objects without a controller, by namespace.
pub(crate) fn orphans<K: Kind>(informer: &SharedInformer<K>) -> Index<K> {
    informer.index("orphans", orphan_namespace::<K>)
}

fn orphan_namespace<K: Kind>(object: &K) -> Vec<String> {
    match controller_of(object) {
        Some(_) => Vec::new(),
        None => object.meta().namespace.clone().into_iter().collect(),
    }
}

/// The children of an owner and the orphans of its namespace, which it may adopt.
#[derive(Clone, Debug)]
pub(crate) struct Children<C> {
    by_owner: Index<C>,
    orphans: Index<C>,
}

impl<C: Kind> Children<C> {
    pub(crate) fn new(informer: &SharedInformer<C>) -> Self {
        Self {
            by_owner: by_controller_uid(informer),
            orphans: orphans(informer),
        }
    }

    /// The children of an owner.
    pub(crate) fn of<O: Resource>(&self, owner: &O) -> Vec<Arc<C>> {
        self.by_owner
            .get(owner.meta().uid.as_deref().unwrap_or_default())
    }

    /// The children of an owner, then the orphans of its namespace.
    pub(crate) fn candidates<O: Resource>(&self, owner: &O) -> Vec<Arc<C>> {
        let mut candidates = self.of(owner);
        let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
        candidates.extend(self.orphans.get(namespace));
        candidates
    }
}

/// The owners to enqueue for a change of `child`. Mirrors getPodReplicaSets and
/// resolveControllerRef of the upstream controllers.
pub(crate) fn owners_to_enqueue<O, C>(
    owners: &Lister<O>,
    child: &C,
    selector_of: impl Fn(&O) -> Option<Selector>,
) -> Vec<ObjectKey>
where
    O: StaticKind,
    C: Resource,
{
    let Some(namespace) = child.namespace() else {
        return Vec::new();
    };
    if let Some(controller) = controller_of(child) {
        return resolve_controller_ref::<O>(owners, &namespace, child)
            .filter(|_| controller.kind == O::kind(&()))
            .into_iter()
            .collect();
    }
    let candidates = owners.in_namespace(&namespace).into_iter();
    candidates
        .filter(|owner| selector_of(owner).is_some_and(|selector| matches(&selector, child)))
        .map(|owner| ObjectKey::from_object(&*owner))
        .collect()
}

/// The controller of a child if it is cached with the uid of the owner reference.
fn resolve_controller_ref<O: StaticKind>(
    owners: &Lister<O>,
    namespace: &str,
    child: &impl Resource,
) -> Option<ObjectKey> {
    let controller = controller_of(child)?;
    let key = ObjectKey::namespaced(namespace, &controller.name);
    owners
        .get(&key)
        .filter(|owner| owner.meta().uid.as_ref() == Some(&controller.uid))
        .map(|_| key)
}

/// All updates of a controlled pod; for an orphan, changes of labels and owner references.
pub(crate) fn pod_update_predicate() -> Predicate<Pod> {
    Predicate::on_update(|old: &Pod, new: &Pod| {
        controller_of(new).is_some()
            || old.metadata.labels != new.metadata.labels
            || old.metadata.owner_references != new.metadata.owner_references
    })
}
