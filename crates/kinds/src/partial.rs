//! Metadata only, and kinds known at run time.
//! Guarantees: metadata is decoded by one function for all kinds.

use std::any::Any;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{DynamicObject, PartialObjectMeta, TypeMeta};
use serde::{Deserialize, Serialize};

use crate::codec::{from_json, resource, scope, typed};
use crate::{Kind, KindCodec, Object};

/// `PartialObjectMeta` without its type parameter.
#[derive(Deserialize)]
struct Partial {
    #[serde(flatten, default)]
    types: Option<TypeMeta>,
    #[serde(default)]
    metadata: ObjectMeta,
}

#[derive(Serialize)]
struct PartialRef<'a> {
    #[serde(flatten)]
    types: Option<&'a TypeMeta>,
    metadata: &'a ObjectMeta,
}

#[inline(never)]
fn decode_partial(json: &[u8]) -> Result<Partial, serde_json::Error> {
    from_json(json)
}

#[inline(never)]
fn encode_partial(
    types: Option<&TypeMeta>,
    metadata: &ObjectMeta,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&PartialRef { types, metadata })
}

impl KindCodec {
    // Generic code only moves fields. What serde generates is in the two functions above, compiled
    // once for all kinds.
    const fn partial<K>() -> Self
    where
        K: Resource + Send + Sync + 'static,
        K::Scope: 'static,
    {
        Self {
            decode: |json| {
                let Partial { types, metadata } = decode_partial(json)?;
                let object = PartialObjectMeta::<K> {
                    types,
                    metadata,
                    _phantom: PhantomData,
                };
                Ok(Arc::new(object) as Object)
            },
            encode: |object| {
                let PartialObjectMeta::<K> {
                    types, metadata, ..
                } = typed(object);
                encode_partial(types.as_ref(), metadata)
            },
            metadata: |object| &typed::<PartialObjectMeta<K>>(object).metadata,
            types: types_of_partial::<K>,
            resource: resource::<K>,
            scope: scope::<K>,
            metadata_only: || true,
        }
    }
}

/// Servers replace the types of partial metadata by `PartialObjectMetadata`, which names no kind.
fn types_of_partial<K: Resource + 'static>(object: &dyn Any) -> Option<&TypeMeta> {
    let types = typed::<PartialObjectMeta<K>>(object).types.as_ref();
    types.filter(|types| types.kind != "PartialObjectMetadata")
}

impl<K> Kind for PartialObjectMeta<K>
where
    K: Resource + Clone + Debug + Send + Sync + 'static,
    K::Scope: 'static,
{
    fn codec() -> &'static KindCodec {
        const { &KindCodec::partial::<K>() }
    }
}

impl Kind for DynamicObject {
    #[inline(never)]
    fn codec() -> &'static KindCodec {
        // Not derived: a dynamic object has no static resource, and its types are in each object.
        static CODEC: KindCodec = KindCodec {
            decode: |json| Ok(Arc::new(from_json::<DynamicObject>(json)?)),
            encode: |object| serde_json::to_vec(typed::<DynamicObject>(object)),
            metadata: |object| &typed::<DynamicObject>(object).metadata,
            types: |object| typed::<DynamicObject>(object).types.as_ref(),
            resource: || None,
            scope: scope::<DynamicObject>,
            metadata_only: || false,
        };
        &CODEC
    }
}
