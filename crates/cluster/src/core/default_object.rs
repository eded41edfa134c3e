//! Controller of an object that exists once, under a fixed name, in every active namespace.
//!
//! Input: namespaces, and the objects of that name. Output: the object in every namespace.
//! Guarantees: a deleted object is recreated, a modified one is updated; nothing is created in a
//! terminating namespace.

use std::fmt::Debug;
use std::sync::Arc;

use bellerophon::{
    Controller, InformerOptions, Lister, ObjectKey, Outcome, Predicate, ReconcileResult, Request,
};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::{Serialize, de::DeserializeOwned};

use crate::api_errors::{is_already_exists, is_namespace_terminating_or_gone};
use crate::component::Component;
use crate::context::{Context, Loop};

/// Namespaces reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// An object that every namespace has.
pub(crate) struct DefaultObject<K> {
    /// Name of the controller.
    pub(crate) controller: &'static str,
    /// Name of the object.
    pub(crate) name: &'static str,
    /// The object to create; its name is set by [`default_object_controller`].
    pub(crate) desired: K,
    /// Updates the first argument, an existing object, to the desired state.
    pub(crate) update: fn(&mut K, &K),
}

struct DefaultObjectReconciler<K> {
    client: Client,
    objects: Lister<K>,
    spec: DefaultObject<K>,
}

/// The controller of one default object.
pub(crate) fn default_object_controller<K>(ctx: &Context, mut spec: DefaultObject<K>) -> Loop
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + Serialize
        + DeserializeOwned,
    K: Send + Sync + 'static,
{
    spec.desired.meta_mut().name = Some(spec.name.into());
    let namespaces = ctx.informer::<Namespace>();
    let fields = Some(format!("metadata.name={}", spec.name));
    let objects = ctx.informer_with::<K>(InformerOptions {
        fields,
        ..InformerOptions::default()
    });
    let options = ctx.options(spec.controller, WORKERS);
    let reconciler = Arc::new(DefaultObjectReconciler {
        client: ctx.client(Component::ControllerManager),
        objects: objects.lister(),
        spec,
    });
    Controller::of(&namespaces)
        // Other updates of a namespace do not affect its default objects.
        .with_predicate(Predicate::changed(|old: &Namespace, new| {
            old.status != new.status
        }))
        .watches(&objects, |object| {
            object
                .meta()
                .namespace
                .iter()
                .map(ObjectKey::cluster)
                .collect()
        })
        .with_options(options)
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

impl<K> DefaultObjectReconciler<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + Serialize
        + DeserializeOwned,
    K: Send + Sync + 'static,
{
    async fn reconcile(self: Arc<Self>, request: Request<Namespace>) -> ReconcileResult {
        let Some(namespace) = request
            .object
            .as_ref()
            .filter(|namespace| namespace.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), name);
        let result = match self
            .objects
            .get(&ObjectKey::namespaced(name, self.spec.name))
        {
            None => api.create(&PostParams::default(), &self.spec.desired).await,
            Some(object) => {
                let mut updated = K::clone(&object);
                (self.spec.update)(&mut updated, &self.spec.desired);
                if updated == *object {
                    return Ok(Outcome::Done);
                }
                // The resourceVersion of the cached object makes a stale update fail with 409.
                api.replace(self.spec.name, &PostParams::default(), &updated)
                    .await
            }
        };
        match result {
            Ok(object) => request.writes().wrote(&object),
            Err(error) if is_namespace_terminating_or_gone(&error) || is_already_exists(&error) => {
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::Done)
    }
}
