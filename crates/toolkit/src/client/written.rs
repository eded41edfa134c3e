//! The object that the server stored.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bellerophon_kinds::{Kind, decode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::request::Response;

/// The result of a write.
///
/// ```
/// use bellerophon::client::OperationResult;
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// async fn ensure(req: &Request<ConfigMap>, child: &ConfigMap) -> Result<(), Error> {
///     let data = child.data.clone();
///     let written = req.client().create_or_update(child, |map| map.data = data).await?;
///     match written.operation {
///         OperationResult::Created => println!("created"),
///         OperationResult::Updated => println!("updated"),
///         OperationResult::Unchanged => {}
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The object was created.
    Created,
    /// The object was changed, or applied.
    Updated,
    /// The object was as desired; nothing was written.
    Unchanged,
}

/// The result of a write.
///
/// ```
/// use bellerophon::client::{OperationResult, Written};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// fn report(written: &Written<ConfigMap>) {
///     if written.operation != OperationResult::Unchanged {
///         println!("now at version {:?}", written.metadata().resource_version);
///     }
/// }
/// ```
pub struct Written<K> {
    /// The result of the write.
    pub operation: OperationResult,
    response: Response,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Written<K> {
    /// The metadata of the object as the server stored it.
    pub fn metadata(&self) -> &ObjectMeta {
        &self.response.metadata
    }

    /// The object as the server stored it. It is decoded by this call.
    ///
    /// # Errors
    /// The server returned something else.
    pub fn object(&self) -> Result<Arc<K>, serde_json::Error> {
        decode(&self.response.json)
    }
}

impl<K> From<Response> for Written<K> {
    fn from(response: Response) -> Self {
        Self {
            operation: response.operation,
            response,
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Written<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written")
            .field("operation", &self.operation)
            .field("name", &self.response.metadata.name)
            .field("resource_version", &self.response.metadata.resource_version)
            .finish_non_exhaustive()
    }
}
