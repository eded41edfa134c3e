//! What an informer caches, and how.
//! In: the user's choice. Out: what feeds and reflectors are made with.
//! Holds: managedFields are dropped, and objects kept compact, unless somebody asks for them otherwise.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::core::Scope;
use crate::{clock::Entropy, reflector::InitialList, source::Received, trace::TraceBus};

/// Objects a page when a list is paged, as in client-go.
const PAGE_SIZE: u32 = 500;
/// Objects that stay decoded in a compact cache: 15 MB of pods at most.
const DECODED_MAX: usize = 1024;

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

/// How a cache keeps objects.
///
/// A decoded object takes several times the memory of its JSON: a pod of 2 KB about 15 KB. Decoding it takes about 10 µs,
/// which is little for a reconcile that reads a handful and much for one that reads every pod of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheForm {
    /// As the bytes the server sent, decoded when they are read. This is the default, with 1024 decoded objects: small
    /// caches are decoded whole, large ones stay small.
    ///
    /// Labels, versions and index values are read without decoding. Objects of a source that hands over no JSON, or that
    /// are written in a way that does not allow that, are kept decoded.
    Compact {
        /// So many objects stay decoded, those that were read or changed last.
        decoded_max: usize,
    },
    /// Decoded, every one. For those who read thousands of objects again and again.
    Decoded,
}

impl Default for CacheForm {
    fn default() -> Self {
        Self::Compact {
            decoded_max: DECODED_MAX,
        }
    }
}

impl CacheForm {
    pub(super) fn decoded_max(self) -> usize {
        match self {
            Self::Compact { decoded_max } => decoded_max,
            Self::Decoded => 0,
        }
    }
}

/// Changes each object before it is cached, so that what nobody reads takes no memory.
#[derive(Clone)]
pub struct Transform<K>(pub(super) Change<K>);

pub(crate) enum Change<K> {
    None,
    StripManagedFields,
    By {
        function: Arc<dyn Fn(&mut K) + Send + Sync>,
        /// Makes the bytes of a changed object.
        repack: fn(K) -> Received<K>,
    },
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::StripManagedFields => Self::StripManagedFields,
            Self::By { function, repack } => Self::By {
                function: function.clone(),
                repack: *repack,
            },
        }
    }
}

impl<K> std::fmt::Debug for Transform<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transform")
    }
}

impl<K: Resource> Transform<K> {
    /// Drops `metadata.managedFields`, without looking into them. This is the default.
    pub fn strip_managed_fields() -> Self {
        Self(Change::StripManagedFields)
    }

    /// Keeps objects whole, `metadata.managedFields` included.
    pub fn none() -> Self {
        Self(Change::None)
    }

    /// Does what the function does, and nothing else. An object on which it panics is passed over and counted. In a
    /// compact cache the changed object is kept as it serialises.
    pub fn by(function: impl Fn(&mut K) + Send + Sync + 'static) -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        Self(Change::By {
            function: Arc::new(function),
            repack: Received::repacked,
        })
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
    /// How objects are kept.
    pub cache: CacheForm,
    /// How the cache is filled at first.
    pub initial_list: InitialList,
    /// Objects a page when the list is paged.
    pub page_size: u32,
    /// How often handlers that do not say otherwise are told of every object again; `None` never.
    pub resync: Option<Duration>,
    /// Where changes are traced as they reach the cache.
    pub trace: TraceBus,
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
            cache: CacheForm::default(),
            initial_list: InitialList::default(),
            page_size: PAGE_SIZE,
            resync: None,
            trace: TraceBus::off(),
            entropy: Entropy::from_os(),
        }
    }
}
