//! Waking: which owner a change of a child concerns.
//!
//! In: a child that changed, the owners as cached. Out: keys to reconcile.
//! Holds: a child with a controller wakes that one alone; an orphan wakes everyone whose selector matches it, to adopt it.

use bellerophon::{Lister, ObjectKey, Predicate, controller_of};
use k8s_openapi::api::core::v1::Pod;
use kube::core::Selector;
use kube::{Resource, ResourceExt};

use super::claim::matches;
use super::hand::Kind;
use crate::index;

/// Pods without a controller, by namespace.
pub(crate) const ORPHANS: &str = "orphans";

/// Lets orphans be found by [`ORPHANS`].
pub(crate) fn by_orphanage<K: Resource + Send + Sync + 'static>(
    informer: &bellerophon::SharedInformer<K>,
) {
    index::add_index(informer, ORPHANS, |object| {
        if controller_of(object).is_some() {
            Vec::new()
        } else {
            object.meta().namespace.clone().into_iter().collect()
        }
    });
}

/// The owners that a change of `child` concerns.
pub(crate) fn owners<O, C>(
    owners: &Lister<O>,
    child: &C,
    selector_of: impl Fn(&O) -> Option<Selector>,
) -> Vec<ObjectKey>
where
    O: Kind + Send + Sync + 'static,
    C: Resource,
{
    let Some(namespace) = child.namespace() else {
        return Vec::new();
    };
    if let Some(controller) = controller_of(child) {
        return controlling::<O>(owners, &namespace, child)
            .filter(|_| controller.kind == O::kind(&()))
            .into_iter()
            .collect();
    }
    let in_reach = owners.in_namespace(&namespace).into_iter();
    in_reach
        .filter(|owner| selector_of(owner).is_some_and(|selector| matches(&selector, child)))
        .map(|owner| ObjectKey::of(&*owner))
        .collect()
}

/// The owner of a kind that controls a child, if it is the very one the reference names.
fn controlling<O: Kind + Send + Sync + 'static>(
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

/// Changes of pods that matter to an owner: all of a pod that has one; of an orphan those that may win it one.
pub(crate) fn pod_changes() -> Predicate<Pod> {
    Predicate::changed(|old: &Pod, new: &Pod| {
        controller_of(new).is_some()
            || old.metadata.labels != new.metadata.labels
            || old.metadata.owner_references != new.metadata.owner_references
    })
}

/// Deletions, and nothing else.
pub(crate) fn deletions<K: Resource + 'static>() -> Predicate<K> {
    Predicate::concerns(|_| false)
}
