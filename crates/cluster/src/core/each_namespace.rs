//! Each namespace: the objects of which every living namespace has exactly one.
//!
//! In: namespaces, and the objects of one name. Out: the object in every namespace, as it should be.
//! Holds: what people delete or change of it is there again, repaired; a namespace that goes gets nothing new.

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

use super::answer::{already_exists, namespace_goes};
use crate::component::Component;
use crate::context::{Context, Loop};

/// How many namespaces are looked at once, as upstream.
const WORKERS: usize = 5;

/// An object that every namespace has.
pub(crate) struct Standard<K> {
    /// The name of the loop.
    pub(crate) controller: &'static str,
    /// The name of the object.
    pub(crate) name: &'static str,
    /// How it starts; the name is put in.
    pub(crate) fresh: K,
    /// Brings one that is there to what it should be.
    pub(crate) repair: fn(&mut K, &K),
}

struct Keeper<K> {
    client: Client,
    objects: Lister<K>,
    standard: Standard<K>,
}

/// The loop that keeps one such object.
pub(crate) fn keep<K>(ctx: &Context, mut standard: Standard<K>) -> Loop
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + Serialize
        + DeserializeOwned,
    K: Send + Sync + 'static,
{
    standard.fresh.meta_mut().name = Some(standard.name.into());
    let namespaces = ctx.informer::<Namespace>();
    let fields = Some(format!("metadata.name={}", standard.name));
    let objects = ctx.informer_with::<K>(InformerOptions {
        fields,
        ..InformerOptions::default()
    });
    let options = ctx.options(standard.controller, WORKERS);
    let keeper = Arc::new(Keeper {
        client: ctx.client(Component::ControllerManager),
        objects: objects.lister(),
        standard,
    });
    Controller::of(&namespaces)
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
        .reconcile_with(move |request| keeper.clone().reconcile(request))
        .into()
}

impl<K> Keeper<K>
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
        let written = match self
            .objects
            .get(&ObjectKey::namespaced(name, self.standard.name))
        {
            None => {
                api.create(&PostParams::default(), &self.standard.fresh)
                    .await
            }
            Some(object) => {
                let mut repaired = K::clone(&object);
                (self.standard.repair)(&mut repaired, &self.standard.fresh);
                if repaired == *object {
                    return Ok(Outcome::Done);
                }
                // It carries the version it was made from: nobody else's change is lost.
                api.replace(self.standard.name, &PostParams::default(), &repaired)
                    .await
            }
        };
        match written {
            Ok(answer) => request.writes().wrote(&answer),
            Err(error) if namespace_goes(&error) || already_exists(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::Done)
    }
}
