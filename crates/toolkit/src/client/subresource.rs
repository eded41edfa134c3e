//! Subresources: binding, eviction, scale, status and the like.

use std::fmt;

use bellerophon_kinds::Kind;
use futures_util::future::BoxFuture;
use kube::api::Patch;
use serde::Serialize;

use super::request::{Response, Target};
use super::{OperationResult, ReconcileClient, WriteError, Written};
use crate::informer::kind_name;

/// A subresource of objects. [`ReconcileClient::subresource`] makes one.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::Pod;
/// use serde_json::json;
///
/// async fn bind(req: &Request<Pod>, pod: &Pod, node: &str) -> Result<(), Error> {
///     let binding = json!({
///         "apiVersion": "v1",
///         "kind": "Binding",
///         "metadata": { "name": req.key().name() },
///         "target": { "kind": "Node", "name": node },
///     });
///     Ok(req.client().subresource("binding").create(pod, &binding).await?)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Subresource {
    pub(super) client: ReconcileClient,
    pub(super) name: &'static str,
}

impl Subresource {
    /// Creates it (POST): `binding`, `eviction`, `token`.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn create<K: Kind>(
        &self,
        object: &K,
        body: &impl Serialize,
    ) -> Result<(), WriteError> {
        let target = self
            .client
            .target_of("create a subresource of", object, K::codec())
            .await?;
        let body = body_of(&target, body)?;
        let params = self.client.post_params();
        let path = kube::core::Request::new(&*target.path);
        let request = path.create_subresource(self.name, &target.name, &params, body);
        self.sent(&target, request).await.map(|_| ())
    }

    /// Replaces it (PUT): `status`, `scale`. The response is that of the server: the object, or an
    /// object of another kind such as `Scale`.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn update<K: Kind>(
        &self,
        object: &K,
        body: &impl Serialize,
    ) -> Result<Written<K>, WriteError> {
        let target = self
            .client
            .target_of("update a subresource of", object, K::codec())
            .await?;
        let body = body_of(&target, body)?;
        let params = self.client.post_params();
        let path = kube::core::Request::new(&*target.path);
        let request = path.replace_subresource(self.name, &target.name, &params, body);
        Ok(self.sent(&target, request).await?.into())
    }

    /// Replaces it with the object itself (PUT): `status`, `finalize`.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn update_object<K: Kind>(&self, object: &K) -> Result<Written<K>, WriteError> {
        let codec = K::codec();
        let target = self
            .client
            .target_of("update a subresource of", object, codec)
            .await?;
        let body = self.client.body(&target, object, codec)?;
        let params = self.client.post_params();
        let path = kube::core::Request::new(&*target.path);
        let request = path.replace_subresource(self.name, &target.name, &params, body);
        Ok(self.sent(&target, request).await?.into())
    }

    /// Patches it. The response is as for [`update`](Self::update).
    ///
    /// # Errors
    /// The server refuses.
    pub async fn patch<K: Kind>(
        &self,
        object: &K,
        patch: &Patch<impl Serialize + fmt::Debug>,
    ) -> Result<Written<K>, WriteError> {
        let target = self
            .client
            .target_of("patch a subresource of", object, K::codec())
            .await?;
        let params = self.client.patch_params(matches!(patch, Patch::Apply(_)));
        let path = kube::core::Request::new(&*target.path);
        let request = path.patch_subresource(self.name, &target.name, &params, patch);
        Ok(self.sent(&target, request).await?.into())
    }

    /// Sends the request and records it: as a write of the object if the response is the object.
    fn sent<'a>(
        &'a self,
        target: &'a Target,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let response = self.client.send(target, request).await?;
            // A binding or eviction is answered with a Status, and a TokenRequest without a
            // version. Neither shows up in a cache, so the gate must not wait for it.
            let is_object = !response.is_status && response.metadata.resource_version.is_some();
            if is_object {
                let updated = OperationResult::Updated;
                return Ok(self.client.recorded(target, response, updated));
            }
            if let Some(gate) = &self.client.gate {
                let kind = kind_name(&target.resource);
                let key = target.key.clone();
                gate.controller
                    .wrote_subresource(&gate.reconciling, kind, key, self.name);
            }
            Ok(response)
        })
    }
}

fn body_of(target: &Target, body: &impl Serialize) -> Result<Vec<u8>, WriteError> {
    serde_json::to_vec(body).map_err(|error| target.failed(kube::Error::SerdeError(error)))
}
