//! What an informer caches, and how.
//! In: the user's choice. Out: what feeds and reflectors are made with.
//! Holds: managedFields are dropped unless somebody asks for them.

use std::{collections::BTreeSet, sync::Arc};

use kube::{Resource, ResourceExt};

use super::core::Scope;
use crate::{
    clock::Entropy,
    reflector::{InitialList, TransformFn},
};

/// Objects a page when a list is paged, as in client-go.
const PAGE_SIZE: u32 = 500;

/// The namespaces whose objects are cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and cluster-scoped objects.
    #[default]
    All,
    /// These, each with a watch of its own; it needs no rights on others.
    Named(BTreeSet<String>),
}

impl Namespaces {
    pub(super) fn scopes(&self) -> BTreeSet<Scope> {
        match self {
            Self::All => [None].into(),
            Self::Named(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

/// Changes each object before it is cached, so that what nobody reads takes no memory.
#[derive(Clone)]
pub struct Transform<K>(pub(super) TransformFn<K>);

impl<K> std::fmt::Debug for Transform<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transform")
    }
}

impl<K: Resource> Transform<K> {
    /// Drops `metadata.managedFields`. This is the default.
    pub fn strip_managed_fields() -> Self {
        Self::by(|object| object.managed_fields_mut().clear())
    }

    /// Keeps objects whole, `metadata.managedFields` included.
    pub fn none() -> Self {
        Self::by(|_| {})
    }

    /// Does what the function does, and nothing else. An object on which it panics is passed over and counted.
    pub fn by(function: impl Fn(&mut K) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

/// What an informer caches, and how.
#[derive(Clone, Debug)]
pub struct InformerOptions<K> {
    /// Where it watches at first; [`SharedInformer::set_namespaces`](crate::SharedInformer::set_namespaces) changes it.
    pub namespaces: Namespaces,
    /// Only objects whose labels match, chosen by the server.
    pub labels: Option<String>,
    /// Only objects whose fields match, chosen by the server.
    pub fields: Option<String>,
    /// What happens to each object before it is cached.
    pub transform: Transform<K>,
    /// How the cache is filled at first.
    pub initial_list: InitialList,
    /// Objects a page when the list is paged.
    pub page_size: u32,
    /// Where jitter comes from.
    pub entropy: Entropy,
}

impl<K: Resource> Default for InformerOptions<K> {
    fn default() -> Self {
        Self {
            namespaces: Namespaces::All,
            labels: None,
            fields: None,
            transform: Transform::strip_managed_fields(),
            initial_list: InitialList::default(),
            page_size: PAGE_SIZE,
            entropy: Entropy::from_os(),
        }
    }
}
