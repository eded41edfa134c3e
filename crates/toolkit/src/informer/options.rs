//! Options of an informer: the cached objects, and the cache mode.
//! In: the user's choice. Out: the settings of reflectors and the store.
//! Guarantees: by default managedFields are dropped and objects are kept compact.

use std::any::{Any, TypeId};
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use kube::core::ApiResource;

use bellerophon_kinds::Kind;

use super::core::Scope;
use crate::list_watch::ListWatch;
use crate::reflector::{InitialList, TransformFn};

/// Objects per page of a paged list, as in client-go.
const PAGE_SIZE: u32 = 500;
/// Objects that stay decoded in a compact cache: at most 15 MB of pods.
const DECODED_MAX: usize = 1024;

/// The namespaces whose objects are cached.
///
/// ```
/// use bellerophon::informer::Namespaces;
///
/// let two = Namespaces::named(["team-a", "team-b"]);
/// let labelled = Namespaces::Labelled("environment=production".into());
/// # assert_ne!(two, labelled);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and cluster-scoped objects.
    #[default]
    All,
    /// These, each with its own watch; no permission on other namespaces is needed.
    Named(BTreeSet<String>),
    /// Those whose labels match at any time. It needs list and watch on namespaces.
    Labelled(String),
}

impl Namespaces {
    /// These namespaces.
    pub fn named<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Named(names.into_iter().map(Into::into).collect())
    }
}

/// Namespaces by name: what reflectors are started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scopes {
    All,
    Named(BTreeSet<String>),
}

impl Scopes {
    pub(super) fn set(&self) -> BTreeSet<Scope> {
        match self {
            Self::All => [None].into(),
            Self::Named(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

/// How a cache keeps objects.
///
/// A decoded object takes several times the memory of its JSON: a pod of 2 KB about 15 KB. Decoding
/// it takes about 10 µs, which is little for a reconcile that reads a few objects and much for one
/// that reads every pod of a cluster.
///
/// ```
/// use bellerophon::informer::CacheMode;
///
/// assert_eq!(CacheMode::default(), CacheMode::Compact { decoded_max: 1024 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// As the JSON the server sent, decoded when read. This is the default, with 1024 decoded
    /// objects: small caches are decoded completely, large ones stay small.
    ///
    /// Labels, versions and index values are read without decoding.
    Compact {
        /// At most this number of objects stays decoded: those that were read or changed last.
        decoded_max: usize,
    },
    /// Decoded, every object. For controllers that read thousands of objects in each reconcile.
    Decoded,
}

impl Default for CacheMode {
    fn default() -> Self {
        Self::Compact {
            decoded_max: DECODED_MAX,
        }
    }
}

impl CacheMode {
    pub(super) fn decoded_max(self) -> usize {
        match self {
            Self::Compact { decoded_max } => decoded_max,
            // Decoded objects are not in the ring of the LRU.
            Self::Decoded => 0,
        }
    }
}

/// Modifies each object before it is cached, so that unused fields take no memory.
///
/// ```
/// use bellerophon::informer::Transform;
/// use k8s_openapi::api::core::v1::Pod;
///
/// let trim = Transform::new(|pod: &mut Pod| pod.metadata.annotations = None);
/// ```
pub struct Transform<K> {
    pub(super) settings: TransformSettings,
    kind: PhantomData<fn(&mut K)>,
}

/// A transform without its type.
#[derive(Clone)]
pub(super) struct TransformSettings {
    pub(super) function: TransformFn,
    /// The type of the function; equal ones are one transform.
    identity: Option<TypeId>,
}

impl TransformSettings {
    pub(super) fn strip_managed_fields() -> Self {
        Self {
            function: TransformFn::StripManagedFields,
            identity: None,
        }
    }
}

impl PartialEq for TransformSettings {
    fn eq(&self, other: &Self) -> bool {
        // Closures cannot be compared, but each has a distinct type: equal types are the same code.
        let kind = |settings: &Self| std::mem::discriminant(&settings.function);
        self.identity == other.identity && kind(self) == kind(other)
    }
}

impl<K> Clone for Transform<K> {
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> std::fmt::Debug for Transform<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transform")
    }
}

impl<K: Kind> Transform<K> {
    /// Drops `metadata.managedFields` without decoding them. This is the default.
    pub fn strip_managed_fields() -> Self {
        Self {
            settings: TransformSettings::strip_managed_fields(),
            kind: PhantomData,
        }
    }

    /// Keeps objects complete, `metadata.managedFields` included.
    pub fn none() -> Self {
        Self {
            settings: TransformSettings {
                function: TransformFn::None,
                identity: None,
            },
            kind: PhantomData,
        }
    }

    /// Calls the function for each object, and changes nothing else. An object on which it panics
    /// is skipped and counted. A compact cache keeps the modified object as it serialises.
    pub fn new<F: Fn(&mut K) + Send + Sync + 'static>(function: F) -> Self {
        let erased = move |object: &mut dyn Any| {
            function(
                object
                    .downcast_mut()
                    .expect("an informer of K decodes only K"),
            );
        };
        Self {
            settings: TransformSettings {
                function: TransformFn::Function(Arc::new(erased)),
                identity: Some(TypeId::of::<F>()),
            },
            kind: PhantomData,
        }
    }
}

/// Makes the source of one namespace, or of all for `None`. It applies selectors itself.
///
/// ```
/// use std::sync::Arc;
///
/// use bellerophon::informer::{InformerOptions, KubeListWatch, ListWatch, ListWatchFn};
/// use k8s_openapi::api::core::v1::Pod;
///
/// /// Pods of another cluster.
/// fn remote_pods(client: kube::Client) -> InformerOptions<Pod> {
///     let list_watch: ListWatchFn = Arc::new(move |namespace| -> Arc<dyn ListWatch> {
///         let path = match namespace {
///             Some(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
///             None => "/api/v1/pods".to_owned(),
///         };
///         Arc::new(KubeListWatch::new(client.clone(), path))
///     });
///     InformerOptions { list_watch: Some(list_watch), ..InformerOptions::default() }
/// }
/// ```
pub type ListWatchFn = Arc<dyn Fn(Option<&str>) -> Arc<dyn ListWatch> + Send + Sync>;

/// Options of an informer. `None` takes the default, or the setting of an earlier
/// request for the same informer.
///
/// ```
/// use bellerophon::informer::{CacheMode, InformerOptions};
/// use k8s_openapi::api::core::v1::Secret;
///
/// let options = InformerOptions::<Secret> {
///     cache_mode: Some(CacheMode::Decoded),
///     ..InformerOptions::labels("app=web")
/// };
/// ```
pub struct InformerOptions<K> {
    /// The resource; required for `DynamicObject`, known of every other type.
    pub resource: Option<ApiResource>,
    /// Only objects whose labels match, selected by the server.
    pub labels: Option<String>,
    /// Only objects whose fields match, selected by the server.
    pub fields: Option<String>,
    /// Where to watch; default: the namespaces of the Manager or factory, and everywhere for
    /// cluster-scoped kinds. A cluster-scoped `DynamicObject` needs [`Namespaces::All`] if those
    /// are limited.
    pub namespaces: Option<Namespaces>,
    /// Where objects come from; default: the API server. Informers with different sources are
    /// different informers.
    pub list_watch: Option<ListWatchFn>,
    /// Modifies each object before it is cached.
    pub transform: Option<Transform<K>>,
    /// How objects are kept.
    pub cache_mode: Option<CacheMode>,
    /// How the cache is filled at first.
    pub initial_list: Option<InitialList>,
    /// Objects per page of a paged list; default: 500.
    pub page_size: Option<u32>,
}

impl<K> Default for InformerOptions<K> {
    fn default() -> Self {
        Self {
            resource: None,
            labels: None,
            fields: None,
            namespaces: None,
            list_watch: None,
            transform: None,
            cache_mode: None,
            initial_list: None,
            page_size: None,
        }
    }
}

impl<K> InformerOptions<K> {
    /// Only objects whose labels match.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self {
            labels: Some(selector.into()),
            ..Self::default()
        }
    }

    /// Only objects whose fields match.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self {
            fields: Some(selector.into()),
            ..Self::default()
        }
    }

    /// The objects of a resource known at run time.
    pub fn resource(resource: ApiResource) -> Self {
        Self {
            resource: Some(resource),
            ..Self::default()
        }
    }

    pub(super) fn settings(&self, default_cache_mode: Option<CacheMode>) -> Settings {
        Settings {
            default_cache_mode: default_cache_mode.unwrap_or_default(),
            transform: self
                .transform
                .as_ref()
                .map(|transform| transform.settings.clone()),
            cache_mode: self.cache_mode,
            initial_list: self.initial_list,
            page_size: self.page_size,
        }
    }
}

impl<K> std::fmt::Debug for InformerOptions<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InformerOptions")
            .field("labels", &self.labels)
            .field("fields", &self.fields)
            .field("namespaces", &self.namespaces)
            .field("cache_mode", &self.cache_mode)
            .finish_non_exhaustive()
    }
}

/// Settings that are fixed when the informer starts.
#[derive(Clone, Default)]
pub(super) struct Settings {
    /// The cache mode of the factory.
    default_cache_mode: CacheMode,
    transform: Option<TransformSettings>,
    cache_mode: Option<CacheMode>,
    initial_list: Option<InitialList>,
    page_size: Option<u32>,
}

impl Settings {
    /// Adds the settings of another request; returns the name of a setting that contradicts.
    pub(super) fn merge(&mut self, other: Self) -> Option<&'static str> {
        fn set<T: PartialEq>(
            current: &mut Option<T>,
            other: Option<T>,
            name: &'static str,
        ) -> Option<&'static str> {
            match (&*current, other) {
                (Some(current), Some(other)) => (*current != other).then_some(name),
                (None, Some(other)) => {
                    *current = Some(other);
                    None
                }
                (_, None) => None,
            }
        }
        [
            set(&mut self.transform, other.transform, "transform"),
            set(&mut self.cache_mode, other.cache_mode, "cache_mode"),
            set(&mut self.initial_list, other.initial_list, "initial_list"),
            set(&mut self.page_size, other.page_size, "page_size"),
        ]
        .into_iter()
        .flatten()
        .next()
    }

    /// Whether every setting of another request holds already.
    pub(super) fn has(&self, other: &Self) -> bool {
        (other.transform.is_none() || self.transform() == other.transform())
            && other
                .cache_mode
                .is_none_or(|mode| mode == self.cache_mode())
            && other
                .initial_list
                .is_none_or(|list| list == self.initial_list())
            && other.page_size.is_none_or(|size| size == self.page_size())
    }

    pub(super) fn transform(&self) -> TransformSettings {
        self.transform
            .clone()
            .unwrap_or_else(TransformSettings::strip_managed_fields)
    }

    pub(super) fn cache_mode(&self) -> CacheMode {
        self.cache_mode.unwrap_or(self.default_cache_mode)
    }

    pub(super) fn initial_list(&self) -> InitialList {
        self.initial_list.unwrap_or_default()
    }

    pub(super) fn page_size(&self) -> u32 {
        self.page_size.unwrap_or(PAGE_SIZE)
    }
}
