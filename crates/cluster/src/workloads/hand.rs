//! The hand a workload loop writes with: small bodies, every success noted for the gate of the controller.
//!
//! In: objects to create, changes to make. Out: requests; the metadata of what the server answered.
//! Holds: an object is only changed or deleted while it still has the uid it was read with; a status is only written when it differs.

use bellerophon::{ObjectKey, Writes, difference};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::core::request::Request;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

/// Writes within one reconcile.
#[derive(Clone, Copy)]
pub(crate) struct Hand<'a> {
    pub(crate) client: &'a Client,
    pub(crate) writes: &'a Writes,
}

/// A namespaced kind that is known when this is compiled.
pub(crate) trait Kind: Resource<DynamicType = (), Scope = NamespaceResourceScope> {}
impl<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>> Kind for K {}

/// A new object as the bytes of its request, for creating many alike: serialised once.
#[derive(Clone, Debug)]
pub(crate) struct Mould {
    url: String,
    body: Vec<u8>,
}

impl Mould {
    /// The form of a pod; its name is left to the server.
    pub(crate) fn of<K: Kind + Serialize>(object: &K) -> Result<Self, kube::Error> {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        Ok(Self {
            url: url::<K>(object),
            body,
        })
    }
}

impl Hand<'_> {
    /// Creates an object.
    pub(crate) async fn create<K: Kind + Serialize>(
        &self,
        object: &K,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        self.post(Mould::of(object)?).await
    }

    /// Creates one more pod of a form.
    pub(crate) async fn cast(&self, mould: &Mould) -> Result<PartialObjectMeta<Pod>, kube::Error> {
        self.post(mould.clone()).await
    }

    async fn post<K: Kind>(&self, mould: Mould) -> Result<PartialObjectMeta<K>, kube::Error> {
        let request = Request::new(mould.url)
            .create(&PostParams::default(), mould.body)
            .map_err(kube::Error::BuildRequest)?;
        self.send(request).await
    }

    /// Deletes exactly the object that was read, whatever changed in it since. Says whether it was there.
    pub(crate) async fn delete<K: Kind>(
        &self,
        object: &K,
        params: DeleteParams,
    ) -> Result<bool, kube::Error> {
        let preconditions = Preconditions {
            uid: object.uid(),
            resource_version: None,
        };
        let params = params.preconditions(preconditions);
        let request = Request::new(url::<K>(object))
            .delete(&object.name_any(), &params)
            .map_err(kube::Error::BuildRequest)?;
        match self
            .client
            .request_status::<PartialObjectMeta<K>>(request)
            .await
        {
            Ok(answer) => {
                let key = ObjectKey::of(object);
                answer
                    .map_left(|left| self.writes.wrote(&left))
                    .map_right(|_| self.writes.deleted::<K>(key));
                Ok(true)
            }
            // Gone, or another object has its name by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes an object by a strategic merge patch.
    pub(crate) async fn patch<K: Kind>(
        &self,
        object: &K,
        patch: &Value,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        let request = Request::new(url::<K>(object)).patch(
            &object.name_any(),
            &PatchParams::default(),
            &Patch::Strategic(patch),
        );
        self.send(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Changes an object from one form to another, if they differ. Says whether anything was written.
    pub(crate) async fn change<K: Kind + Serialize>(
        &self,
        from: &K,
        to: &K,
    ) -> Result<bool, kube::Error> {
        let Some(mut patch) = difference(&value(from)?, &value(to)?) else {
            return Ok(false);
        };
        // What was read may be old, and a change that was decided on it must not undo another's.
        patch["metadata"]["uid"] = json!(from.uid());
        patch["metadata"]["resourceVersion"] = json!(from.resource_version());
        let request = Request::new(url::<K>(from)).patch(
            &from.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        );
        self.send::<K>(request.map_err(kube::Error::BuildRequest)?)
            .await
            .map(|_| true)
    }

    /// Writes what differs between two forms of an object's status. Says whether anything was written.
    pub(crate) async fn status<K: Kind, S: Serialize>(
        &self,
        object: &K,
        from: &S,
        to: &S,
    ) -> Result<bool, kube::Error> {
        self.status_and(object, from, to, json!({})).await
    }

    /// As [`status`](Self::status), if the object is still as it was read: for a status that others write as well.
    pub(crate) async fn status_at<K: Kind, S: Serialize>(
        &self,
        object: &K,
        from: &S,
        to: &S,
    ) -> Result<bool, kube::Error> {
        let Some(changes) = difference(&value(from)?, &value(to)?) else {
            return Ok(false);
        };
        let metadata = json!({ "uid": object.uid(), "resourceVersion": object.resource_version() });
        self.patch_status(object, &json!({ "metadata": metadata, "status": changes }))
            .await
    }

    /// As [`status`](Self::status), with annotations in the same request.
    pub(crate) async fn status_and<K: Kind, S: Serialize>(
        &self,
        object: &K,
        from: &S,
        to: &S,
        annotations: Value,
    ) -> Result<bool, kube::Error> {
        let changes = difference(&value(from)?, &value(to)?);
        let annotated = annotations
            .as_object()
            .is_some_and(|annotations| !annotations.is_empty());
        if changes.is_none() && !annotated {
            return Ok(false);
        }
        let mut patch = json!({ "metadata": { "uid": object.uid() } });
        if let Some(changes) = changes {
            patch["status"] = changes;
        }
        if annotated {
            patch["metadata"]["annotations"] = annotations;
        }
        self.patch_status(object, &patch).await
    }

    async fn patch_status<K: Kind>(&self, object: &K, patch: &Value) -> Result<bool, kube::Error> {
        let name = object.name_any();
        let params = PatchParams::default();
        let request = Request::new(url::<K>(object)).patch_subresource(
            "status",
            &name,
            &params,
            &Patch::Merge(patch),
        );
        self.send::<K>(request.map_err(kube::Error::BuildRequest)?)
            .await
            .map(|_| true)
    }

    async fn send<K: Kind>(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        let answer = self.client.request::<PartialObjectMeta<K>>(request).await?;
        self.writes.wrote(&answer);
        Ok(answer)
    }
}

/// What the server said, without the client's words around it.
pub(crate) fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Whether a creation failed because its namespace is going away, which no retry mends.
pub(crate) fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// Whether the server refused with this code.
pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn url<K: Kind>(object: &K) -> String {
    K::url_path(&(), object.meta().namespace.as_deref())
}

fn value<T: Serialize>(object: &T) -> Result<Value, kube::Error> {
    serde_json::to_value(object).map_err(kube::Error::SerdeError)
}
