//! Writes of the workload controllers: create, patch, delete and status updates within one
//! reconcile.
//!
//! Input: objects to create, changes to make. Output: requests, and the metadata of the responses.
//! Guarantees: every write is recorded for the controller's read-your-writes gate; an object is
//! patched or deleted only while it has the uid it was read with; an unchanged status is not
//! written.

use bellerophon::{ObjectKey, Writes, difference};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::core::request::Request;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

/// Writer of one reconcile.
#[derive(Clone, Copy)]
pub(crate) struct ApiWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) writes: &'a Writes,
}

/// A namespaced resource with a static type.
pub(crate) trait NamespacedResource:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
{
}
impl<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>> NamespacedResource for K {}

/// A serialized object from which several objects are created with `generateName`.
#[derive(Clone, Debug)]
pub(crate) struct ObjectTemplate {
    url: String,
    body: Vec<u8>,
}

impl ObjectTemplate {
    /// Serializes the object.
    ///
    /// # Errors
    /// The object cannot be serialized.
    pub(crate) fn new<K: NamespacedResource + Serialize>(object: &K) -> Result<Self, kube::Error> {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        Ok(Self {
            url: url::<K>(object),
            body,
        })
    }
}

impl ApiWriter<'_> {
    /// Creates an object.
    pub(crate) async fn create<K: NamespacedResource + Serialize>(
        &self,
        object: &K,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        self.post(ObjectTemplate::new(object)?).await
    }

    /// Creates a pod from a template.
    pub(crate) async fn create_from_template(
        &self,
        template: &ObjectTemplate,
    ) -> Result<PartialObjectMeta<Pod>, kube::Error> {
        self.post(template.clone()).await
    }

    async fn post<K: NamespacedResource>(
        &self,
        template: ObjectTemplate,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        let request = Request::new(template.url)
            .create(&PostParams::default(), template.body)
            .map_err(kube::Error::BuildRequest)?;
        self.send(request).await
    }

    /// Deletes an object with a uid precondition. Returns whether it existed.
    pub(crate) async fn delete<K: NamespacedResource>(
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
            Ok(response) => {
                let key = ObjectKey::of(object);
                response
                    .map_left(|terminating| self.writes.wrote(&terminating))
                    .map_right(|_| self.writes.deleted::<K>(key));
                Ok(true)
            }
            // Gone, or replaced by another object of the same name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a strategic merge patch.
    pub(crate) async fn patch<K: NamespacedResource>(
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

    /// Sends the difference between two versions of an object as a merge patch. Returns whether
    /// there was one.
    pub(crate) async fn update<K: NamespacedResource + Serialize>(
        &self,
        from: &K,
        to: &K,
    ) -> Result<bool, kube::Error> {
        let Some(mut patch) = difference(&value(from)?, &value(to)?) else {
            return Ok(false);
        };
        // The cached object may be stale; with its resourceVersion a stale update fails with 409.
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

    /// Patches the status subresource with the difference of two statuses. Returns whether there
    /// was one.
    pub(crate) async fn update_status<K: NamespacedResource, S: Serialize>(
        &self,
        object: &K,
        from: &S,
        to: &S,
    ) -> Result<bool, kube::Error> {
        self.update_status_and_annotations(object, from, to, json!({}))
            .await
    }

    /// As [`update_status`](Self::update_status), with a resourceVersion precondition, for a
    /// status that has other writers.
    pub(crate) async fn update_status_at_version<K: NamespacedResource, S: Serialize>(
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

    /// As [`update_status`](Self::update_status), with annotations in the same request.
    pub(crate) async fn update_status_and_annotations<K: NamespacedResource, S: Serialize>(
        &self,
        object: &K,
        from: &S,
        to: &S,
        annotations: Value,
    ) -> Result<bool, kube::Error> {
        let changes = difference(&value(from)?, &value(to)?);
        let has_annotations = annotations
            .as_object()
            .is_some_and(|annotations| !annotations.is_empty());
        if changes.is_none() && !has_annotations {
            return Ok(false);
        }
        let mut patch = json!({ "metadata": { "uid": object.uid() } });
        if let Some(changes) = changes {
            patch["status"] = changes;
        }
        if has_annotations {
            patch["metadata"]["annotations"] = annotations;
        }
        self.patch_status(object, &patch).await
    }

    async fn patch_status<K: NamespacedResource>(
        &self,
        object: &K,
        patch: &Value,
    ) -> Result<bool, kube::Error> {
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

    async fn send<K: NamespacedResource>(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<PartialObjectMeta<K>, kube::Error> {
        let object = self.client.request::<PartialObjectMeta<K>>(request).await?;
        self.writes.wrote(&object);
        Ok(object)
    }
}

fn url<K: NamespacedResource>(object: &K) -> String {
    K::url_path(&(), object.meta().namespace.as_deref())
}

fn value<T: Serialize>(object: &T) -> Result<Value, kube::Error> {
    serde_json::to_value(object).map_err(kube::Error::SerdeError)
}
