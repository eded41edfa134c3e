//! Controller of an object that exists once, under a fixed name, in every active namespace.
//!
//! Input: namespaces, and the objects of that name. Output: the object in every namespace.
//! Guarantees: a deleted object is recreated, a modified one is updated; nothing is created in a
//! terminating namespace.

use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::Namespace;

use crate::api_errors::{is_already_exists, is_namespace_terminating_or_gone};

/// Namespaces reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// An object that every namespace has.
pub(crate) struct DefaultObject<K> {
    /// Name of the controller.
    pub(crate) controller: &'static str,
    /// Name of the object.
    pub(crate) name: &'static str,
    /// The object to create, without name and namespace.
    pub(crate) desired: K,
    /// Updates the first argument, an existing object, to the desired state.
    pub(crate) update: fn(&mut K, &K),
}

struct DefaultObjectReconciler<K> {
    objects: Lister<K>,
    spec: DefaultObject<K>,
}

impl<K: Kind<DynamicType = ()> + PartialEq> DefaultObject<K> {
    /// Adds its controller.
    pub(crate) fn setup(self, mgr: &mut Manager) {
        let named = format!("metadata.name={}", self.name);
        let objects = mgr.informer::<K>(InformerOptions::fields(named));
        let name = self.controller;
        let reconciler = DefaultObjectReconciler {
            objects: objects.lister(),
            spec: self,
        };
        mgr.controller::<Namespace>()
            .predicate(Predicate::on_update(|old: &Namespace, new| {
                old.status != new.status
            }))
            .watches::<K>(|object| {
                let namespace = object.meta().namespace.iter();
                namespace.map(ObjectKey::cluster).collect()
            })
            .informer(&objects)
            .name(name)
            .concurrency(WORKERS)
            .reconcile(reconciler);
    }
}

impl<K: Kind<DynamicType = ()> + PartialEq> Reconciler<Namespace> for DefaultObjectReconciler<K> {
    async fn reconcile(&self, req: Request<Namespace>) -> Result<Action, Error> {
        let is_active = |namespace: &&Namespace| namespace.metadata.deletion_timestamp.is_none();
        if req.object().filter(is_active).is_none() {
            return Ok(Action::await_change());
        }
        let key = ObjectKey::namespaced(req.key().name(), self.spec.name);
        let written = match self.objects.get(&key) {
            None => {
                let mut desired = self.spec.desired.clone();
                desired.meta_mut().name = Some(self.spec.name.into());
                desired.meta_mut().namespace = Some(req.key().name().into());
                req.client().create(&desired).await
            }
            Some(object) => {
                let mut updated = K::clone(&object);
                (self.spec.update)(&mut updated, &self.spec.desired);
                if updated == *object {
                    return Ok(Action::await_change());
                }
                // The resourceVersion of the cached object makes a stale update fail with 409.
                req.client().update(&updated).await
            }
        };
        match written {
            Ok(_) => Ok(Action::await_change()),
            // An existing object is not in the cache yet; its event enqueues the namespace again.
            Err(error) if is_namespace_terminating_or_gone(&error) || is_already_exists(&error) => {
                Ok(Action::await_change())
            }
            Err(error) => Err(error.into()),
        }
    }
}
