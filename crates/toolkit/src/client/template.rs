//! Templates: many objects alike.

use std::fmt;
use std::marker::PhantomData;

use super::request::Target;

/// An object encoded once, to create many like it; see
/// [`ReconcileClient::template`](super::ReconcileClient::template).
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
///
/// async fn create(req: &Request<ReplicaSet>, pod: &Pod, count: usize) -> Result<(), Error> {
///     let template = req.client().template(pod).await?;
///     for _ in 0..count {
///         req.client().create_from_template(&template).await?;
///     }
///     Ok(())
/// }
/// ```
pub struct Template<K> {
    pub(super) target: Target,
    pub(super) body: Vec<u8>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Template<K> {
    pub(super) fn new(target: Target, body: Vec<u8>) -> Self {
        Self {
            target,
            body,
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Template<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template")
            .field(&self.target.resource.kind)
            .finish()
    }
}
