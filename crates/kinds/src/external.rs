//! Types of other crates that have no static codec.

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Kind, KindCodec};

/// A type of another crate as a [`Kind`]: neither that crate nor yours may implement the trait for
/// it.
///
/// It dereferences to the type. Its codec is compiled in each crate that uses it.
///
/// ```
/// # use bellerophon_kinds::{External, Kind};
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// fn cached<K: Kind>() {}
/// cached::<External<ConfigMap>>();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct External<K>(pub K);

impl<K> Deref for External<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0
    }
}

impl<K> DerefMut for External<K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.0
    }
}

impl<K: Resource> Resource for External<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<K> Kind for External<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    K: Send + Sync + 'static,
{
    fn codec() -> &'static KindCodec {
        // A generic function cannot have its own static; a constant is promoted, once for each
        // crate that uses the type.
        const { &KindCodec::of::<Self>() }
    }
}
