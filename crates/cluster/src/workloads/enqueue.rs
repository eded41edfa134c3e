//! Owners to enqueue when a child changes.
//!
//! Input: a changed child, the cached owners. Output: keys to reconcile.
//! Rules: a child with a controller enqueues that owner only; an orphan enqueues every owner whose
//! selector matches it, for adoption.

use bellerophon::{Lister, ObjectKey, Predicate, controller_of};
use k8s_openapi::api::core::v1::Pod;
use kube::core::Selector;
use kube::{Resource, ResourceExt};

use super::api_writer::NamespacedResource;
use super::claim::matches;
use crate::index;

/// Index of objects without a controller, by namespace.
pub(crate) const ORPHAN_INDEX: &str = "orphans";

/// Adds [`ORPHAN_INDEX`].
pub(crate) fn add_orphan_index<K: Resource + Send + Sync + 'static>(
    informer: &bellerophon::SharedInformer<K>,
) {
    index::add_index(informer, ORPHAN_INDEX, |object| {
        if controller_of(object).is_some() {
            Vec::new()
        } else {
            object.meta().namespace.clone().into_iter().collect()
        }
    });
}

/// The owners to enqueue for a change of `child`. Mirrors getPodReplicaSets and
/// resolveControllerRef of the upstream controllers.
pub(crate) fn owners_to_enqueue<O, C>(
    owners: &Lister<O>,
    child: &C,
    selector_of: impl Fn(&O) -> Option<Selector>,
) -> Vec<ObjectKey>
where
    O: NamespacedResource + Send + Sync + 'static,
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
        .map(|owner| ObjectKey::of(&*owner))
        .collect()
}

/// The controller of a child if it is cached with the uid of the owner reference.
fn resolve_controller_ref<O: NamespacedResource + Send + Sync + 'static>(
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
    Predicate::changed(|old: &Pod, new: &Pod| {
        controller_of(new).is_some()
            || old.metadata.labels != new.metadata.labels
            || old.metadata.owner_references != new.metadata.owner_references
    })
}

/// Delete events only.
pub(crate) fn deletions_only<K: Resource + 'static>() -> Predicate<K> {
    Predicate::concerns(|_| false)
}
