//! A codec: the functions of a type that the toolkit calls, as function pointers.
//! Guarantees: every function is instantiated where the codec is made, and nowhere else.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope, TypeMeta};
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

use crate::times;

/// An object whose type only its codec knows. Clones share it.
///
/// ```
/// use bellerophon_kinds::{Kind, Object, downcast};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let object: Object = ConfigMap::codec().decode(br#"{"metadata":{"name":"settings"}}"#)?;
/// let map = downcast::<ConfigMap>(object);
/// assert_eq!(map.metadata.name.as_deref(), Some("settings"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub type Object = Arc<dyn Any + Send + Sync>;

/// Whether objects of a kind have a namespace.
///
/// ```
/// use bellerophon_kinds::{Kind, KindScope};
/// use k8s_openapi::api::core::v1::{Node, Pod};
///
/// assert_eq!(Pod::codec().scope(), KindScope::Namespaced);
/// assert_eq!(Node::codec().scope(), KindScope::Cluster);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindScope {
    /// They have one.
    Namespaced,
    /// They have none.
    Cluster,
    /// The type does not determine it: the kind is known at run time.
    Dynamic,
}

type Encode = fn(&dyn Any) -> Result<Vec<u8>, serde_json::Error>;
type Metadata = fn(&dyn Any) -> &ObjectMeta;
type Types = fn(&dyn Any) -> Option<&TypeMeta>;

/// Decodes and encodes objects of one type. Made by the implementations of [`Kind`](crate::Kind).
///
/// ```
/// use bellerophon_kinds::Kind;
/// use k8s_openapi::api::core::v1::Pod;
///
/// let codec = Pod::codec();
/// let pod = codec.decode(br#"{"metadata":{"name":"web","namespace":"team-a"}}"#)?;
/// assert_eq!(codec.metadata(&*pod).namespace.as_deref(), Some("team-a"));
/// assert_eq!(codec.resource().map(|resource| resource.plural).as_deref(), Some("pods"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub struct KindCodec {
    pub(crate) decode: times::Decode,
    pub(crate) encode: Encode,
    pub(crate) metadata: Metadata,
    pub(crate) types: Types,
    pub(crate) resource: fn() -> Option<ApiResource>,
    pub(crate) scope: fn() -> KindScope,
    pub(crate) metadata_only: fn() -> bool,
}

impl KindCodec {
    /// The codec of a type that knows its kind.
    ///
    /// Make it in a `static` of a function that is not inlined; otherwise each crate that uses the
    /// kind compiles its serde code again.
    pub const fn of<K>() -> Self
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        Self {
            decode: |json| Ok(Arc::new(from_json::<K>(json)?)),
            encode: |object| serde_json::to_vec(typed::<K>(object)),
            metadata: |object| typed::<K>(object).meta(),
            // The type knows its kind, so an object need not carry it.
            types: |_| None,
            resource: resource::<K>,
            scope: scope::<K>,
            metadata_only: K::metadata_api,
        }
    }

    /// Decodes an object from its JSON. Times after `9999-12-30T22:00:00Z`, the latest that
    /// `Timestamp` can express, are decoded as that time, and null as the zero time where a time is
    /// required.
    ///
    /// # Errors
    /// The bytes are not JSON, or not an object of this kind.
    pub fn decode(&self, json: &[u8]) -> Result<Object, serde_json::Error> {
        (self.decode)(json).or_else(|error| times::decode(self.decode, json, error))
    }

    /// Encodes an object of this codec's type as JSON.
    ///
    /// # Errors
    /// A map in it has a key that JSON cannot express.
    pub fn encode(&self, object: &dyn Any) -> Result<Vec<u8>, serde_json::Error> {
        (self.encode)(object)
    }

    /// The metadata of an object of this codec's type.
    pub fn metadata<'a>(&self, object: &'a dyn Any) -> &'a ObjectMeta {
        (self.metadata)(object)
    }

    /// The `apiVersion` and `kind` that an object carries, for kinds known at run time; `None` for
    /// types that know their kind.
    pub fn types<'a>(&self, object: &'a dyn Any) -> Option<&'a TypeMeta> {
        (self.types)(object)
    }

    /// The resource of the type; `None` if it is known at run time only.
    pub fn resource(&self) -> Option<ApiResource> {
        (self.resource)()
    }

    /// Whether its objects have a namespace.
    pub fn scope(&self) -> KindScope {
        (self.scope)()
    }

    /// Whether the type is metadata only, so that only metadata is requested.
    pub fn is_metadata_only(&self) -> bool {
        (self.metadata_only)()
    }
}

impl fmt::Debug for KindCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.resource().map(|resource| resource.kind);
        f.debug_struct("KindCodec")
            .field("kind", &kind)
            .finish_non_exhaustive()
    }
}

/// Decodes JSON as text, not as bytes, as `kube::Client` does: serde code is compiled once for each
/// of the two, and a crate that uses both shares that of the codec in a development build.
pub(crate) fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let text = str::from_utf8(json).map_err(serde_json::Error::custom)?;
    serde_json::from_str(text)
}

/// The object behind a reference, for the functions of a codec.
pub(crate) fn typed<K: 'static>(object: &dyn Any) -> &K {
    object
        .downcast_ref()
        .expect("a codec receives objects of its type")
}

/// The resource of a type whose `DynamicType` is `()`.
pub(crate) fn resource<K: Resource>() -> Option<ApiResource> {
    // A specialization by downcast: `K::DynamicType` is `()` for static types, and a value of it is
    // needed to read the resource.
    let known: &dyn Any = &();
    known
        .downcast_ref::<K::DynamicType>()
        .map(ApiResource::erase::<K>)
}

pub(crate) fn scope<K: Resource>() -> KindScope
where
    K::Scope: 'static,
{
    use std::any::TypeId;
    let scope = TypeId::of::<K::Scope>();
    // Compared by type at run time: the scope is an associated type, and an implementation per
    // scope would conflict for generic kinds.
    if scope == TypeId::of::<DynamicResourceScope>() {
        KindScope::Dynamic
    } else if scope == TypeId::of::<ClusterResourceScope>() {
        KindScope::Cluster
    } else {
        KindScope::Namespaced
    }
}
