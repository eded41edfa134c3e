//! Kinds: one static codec per Kubernetes type.
//!
//! Decoding and encoding a Kubernetes type is the most expensive code to compile in a controller: a
//! crate that reads and writes a Deployment spends 25 CPU seconds on serde alone, and release
//! builds do not share that code between crates. Here it is instantiated once per kind, behind
//! function pointers: a crate that uses a kind through [`Kind`] links it instead of compiling it
//! again.
//!
//! In: bytes of JSON. Out: objects behind `Arc<dyn Any>`, and back.
//! Guarantees: [`Kind::codec`] of one type is the same codec everywhere; the functions of a codec
//! accept objects of its type only.

mod builtin; // the built-in kinds, by API group
mod codec; // decode, encode, metadata
mod external; // types of other crates
mod partial; // metadata alone, and kinds known at run time
#[cfg(test)]
mod tests; // tests of codecs
mod times; // times that the time type cannot express

use std::fmt::Debug;
use std::sync::Arc;

pub use codec::{KindCodec, KindScope, Object};
pub use external::External;

/// A Kubernetes type that the toolkit can cache, read and write.
///
/// Built-in kinds have it, by a cargo feature for each API group. A custom resource derives it:
/// `#[kube(…, derive = "Kind")]`. `DynamicObject` has it for kinds known at run time, and
/// `PartialObjectMeta<K>` for the metadata of any kind.
///
/// ```
/// use bellerophon_kinds::{Kind, decode, encode};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let bytes = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"}}"#;
/// let map = decode::<ConfigMap>(bytes)?;
/// assert_eq!(map.metadata.name.as_deref(), Some("settings"));
/// assert_eq!(encode(&*map)?, bytes);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Kind`",
    label = "the toolkit has no codec for this type",
    note = "a custom resource derives it: add `derive = \"Kind\"` to its `#[kube(…)]` attribute",
    note = "a built-in kind needs the cargo feature of its API group, such as `apps` or `batch`",
    note = "a type of another crate is used as `External<{Self}>`"
)]
pub trait Kind: kube::Resource + Clone + Debug + Send + Sync + 'static {
    /// The codec of this type.
    fn codec() -> &'static KindCodec;
}

/// Decodes an object from its JSON; see [`KindCodec::decode`].
///
/// # Errors
/// The bytes are not JSON, or not an object of this kind.
pub fn decode<K: Kind>(json: &[u8]) -> Result<Arc<K>, serde_json::Error> {
    Ok(downcast(K::codec().decode(json)?))
}

/// Encodes an object as JSON, with its `apiVersion` and `kind`.
///
/// # Errors
/// A map in it has a key that JSON cannot express.
pub fn encode<K: Kind>(object: &K) -> Result<Vec<u8>, serde_json::Error> {
    K::codec().encode(object)
}

/// The typed object behind an erased one.
///
/// # Panics
/// The object is of another type, which is a defect of the caller.
pub fn downcast<K: Kind>(object: Object) -> Arc<K> {
    object
        .downcast()
        .unwrap_or_else(|_| panic!("an object is not of type {}", std::any::type_name::<K>()))
}
