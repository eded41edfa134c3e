//! Writes without the types of their objects.
//! Guarantees: each successful write passes the gate and the trace, unless it is a dry run.

use std::sync::Arc;

use bellerophon_kinds::{KindCodec, Object};
use futures_util::future::BoxFuture;
use http::HeaderValue;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::request::{Response, Target};
use super::{AnyObject, ConflictPolicy, OperationResult, ReconcileClient, WriteError, difference};
use crate::ObjectKey;
use crate::informer::kind_name;

/// Fields that the server sets; applying them would be refused or fought over.
const SERVER_FIELDS: [&str; 5] = [
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
];

/// The version in an applied object that must not exist. The API server refuses it for an object
/// that exists, since every object has a later version, and ignores it in a creation.
const VERSION_OF_NO_OBJECT: &str = "1";

impl ReconcileClient {
    /// Sends a write and records it.
    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        operation: OperationResult,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let response = self.send(target, request).await?;
            Ok(self.recorded(target, response, operation))
        })
    }

    /// Sends a patch of an object or of its subresource, and records it as an update.
    fn write_patch<'a>(
        &'a self,
        target: &'a Target,
        subresource: Option<&str>,
        patch: &Patch<&Value>,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        let params = self.patch_params(matches!(patch, Patch::Apply(_)));
        let request = kube::core::Request::new(&*target.path);
        let name = &target.name;
        let request = match subresource {
            Some(subresource) => request.patch_subresource(subresource, name, &params, patch),
            None => request.patch(name, &params, patch),
        };
        self.write(target, request, OperationResult::Updated)
    }

    pub(super) fn apply_erased<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("apply", object, codec).await?;
            let body = self.configuration(&target, object, codec)?;
            self.write_patch(&target, None, &Patch::Apply(&body)).await
        })
    }

    /// Applies an object if the present one is as it was read.
    pub(super) fn apply_if_current<'a>(
        &'a self,
        current: &'a AnyObject,
        desired: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("apply", desired, codec).await?;
            let mut body = self.configuration(&target, desired, codec)?;
            let metadata = codec.metadata(current);
            self.options.precondition().set(&mut body, metadata);
            self.write_patch(&target, None, &Patch::Apply(&body)).await
        })
    }

    /// Creates an object by server-side apply, so that a later apply removes what it leaves out.
    /// The server refuses if an object of this name exists.
    pub(super) fn create_by_apply<'a>(
        &'a self,
        desired: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("create", desired, codec).await?;
            let mut body = self.configuration(&target, desired, codec)?;
            body["metadata"]["resourceVersion"] = json!(VERSION_OF_NO_OBJECT);
            let params = self.patch_params(true);
            let request = kube::core::Request::new(&*target.path);
            let request = request.patch(&target.name, &params, &Patch::Apply(&body));
            self.write(&target, request, OperationResult::Created).await
        })
    }

    /// An object as it is applied: without the fields that the server sets.
    fn configuration(
        &self,
        target: &Target,
        object: &AnyObject,
        codec: &'static KindCodec,
    ) -> Result<Value, WriteError> {
        let mut body = self.value(target, object, codec)?;
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in SERVER_FIELDS {
                metadata.remove(field);
            }
        }
        Ok(body)
    }

    pub(super) fn apply_status_erased<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
        status: Result<Vec<u8>, kube::Error>,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("apply the status of", object, codec).await?;
            let parse =
                |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError);
            let status: Value = status
                .and_then(parse)
                .map_err(|error| target.failed(error))?;
            // Compared as JSON, so that a status without optional fields equals one in which they
            // are absent.
            let current = self.value(&target, object, codec)?;
            if current.get("status").unwrap_or(&Value::Null) == &status {
                return Ok(Response::unchanged(codec.metadata(object), current));
            }
            let body = json!({
                "apiVersion": target.resource.api_version,
                "kind": target.resource.kind,
                "metadata": { "name": target.key.name() },
                "status": status,
            });
            self.write_patch(&target, Some("status"), &Patch::Apply(&body))
                .await
        })
    }

    pub(super) fn create_erased<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("create", object, codec).await?;
            let body = self.body(&target, object, codec)?;
            self.create_body(&target, body).await
        })
    }

    pub(super) fn create_body<'a>(
        &'a self,
        target: &'a Target,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let params = self.post_params();
            let request = kube::core::Request::new(&*target.path).create(&params, body);
            self.write(target, request, OperationResult::Created).await
        })
    }

    pub(super) fn update_erased<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("update", object, codec).await?;
            let body = self.body(&target, object, codec)?;
            let params = self.post_params();
            let request = kube::core::Request::new(&*target.path);
            let request = request.replace(&target.name, &params, body);
            self.write(&target, request, OperationResult::Updated).await
        })
    }

    /// Patches what differs between two states of one object.
    pub(super) fn patch_difference<'a>(
        &'a self,
        current: &'a AnyObject,
        desired: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("patch", current, codec).await?;
            let from = self.value(&target, current, codec)?;
            let to = self.value(&target, desired, codec)?;
            let metadata = codec.metadata(current);
            let Some(mut patch) = difference(&from, &to) else {
                return Ok(Response::unchanged(metadata, from));
            };
            self.options.precondition().set(&mut patch, metadata);
            self.write_patch(&target, None, &Patch::Merge(&patch)).await
        })
    }

    /// The same for the status, and for metadata that a status update may change.
    pub(super) fn patch_status_difference<'a>(
        &'a self,
        current: &'a AnyObject,
        desired: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let target = self
                .target_of("patch the status of", current, codec)
                .await?;
            let from = self.value(&target, current, codec)?;
            let to = self.value(&target, desired, codec)?;
            let metadata = codec.metadata(current);
            let part = |value: &Value, field: &str| value.get(field).cloned().unwrap_or_default();
            let mut patch = Value::Null;
            for field in ["metadata", "status"] {
                if let Some(changes) = difference(&part(&from, field), &part(&to, field)) {
                    patch[field] = changes;
                }
            }
            if patch.is_null() {
                return Ok(Response::unchanged(metadata, from));
            }
            self.options.precondition().set(&mut patch, metadata);
            self.write_patch(&target, Some("status"), &Patch::Merge(&patch))
                .await
        })
    }

    pub(super) fn delete_erased<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<(), WriteError>> {
        Box::pin(async move {
            let target = self.target_of("delete", object, codec).await?;
            let params = self.options.delete_params(codec.metadata(object));
            let request = kube::core::Request::new(&*target.path).delete(&target.name, &params);
            let response = self.send(&target, request).await?;
            // Otherwise the response is the object, which exists in a newer version.
            let is_deleted = response.is_status;
            self.recorded_delete(target, response, is_deleted);
            Ok(())
        })
    }

    /// Patches the finalizers of an object. Without the last one a terminating object is deleted.
    pub(crate) fn patch_finalizers<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), WriteError>> {
        Box::pin(async move {
            let target = self
                .target_of("set the finalizers of", object, codec)
                .await?;
            let params = self.patch_params(false);
            let request = kube::core::Request::new(&*target.path);
            let request = request.patch(&target.name, &params, &Patch::Merge(patch));
            let response = self.send(&target, request).await?;
            let metadata = &response.metadata;
            // The server removes an object whose last finalizer is gone in the same request, and
            // still answers with the object.
            let is_deleted = metadata.deletion_timestamp.is_some()
                && metadata.finalizers.iter().flatten().next().is_none()
                && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0;
            self.recorded_delete(target, response, is_deleted);
            Ok(())
        })
    }

    /// The object as the controller's cache or the server has it.
    pub(super) fn current<'a>(
        &'a self,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Option<Object>, WriteError>> {
        Box::pin(async move {
            let target = self.target_of("get", object, codec).await?;
            // With generateName there is nothing to find: every call creates an object.
            if target.key.name().is_empty() {
                return Ok(None);
            }
            let kind = kind_name(&target.resource);
            let gate = self.gate.as_ref();
            let cached = gate.and_then(|gate| gate.controller.cached(codec, &kind, &target.key));
            match cached {
                Some(cached) => Ok(Some(cached)),
                None => self.get_erased(&target, codec).await,
            }
        })
    }

    pub(super) fn wrote(&self, kind: Arc<str>, key: ObjectKey, version: Option<String>) {
        if let Some(gate) = &self.gate {
            gate.controller.wrote(&gate.reconciling, kind, key, version);
        }
    }

    /// A dry run changes nothing, so there is nothing to record or to wait for.
    fn is_dry_run(&self) -> bool {
        self.options.dry_run == Some(true)
    }

    /// Records a successful write.
    pub(super) fn recorded(
        &self,
        target: &Target,
        response: Response,
        operation: OperationResult,
    ) -> Response {
        if !self.is_dry_run() {
            let metadata = &response.metadata;
            // The server generates the name of an object with generateName; the gate waits for that
            // one.
            let name = metadata
                .name
                .as_deref()
                .unwrap_or_else(|| target.key.name());
            let key = ObjectKey::new(target.key.namespace(), name);
            let version = metadata.resource_version.clone().unwrap_or_default();
            self.wrote(kind_name(&target.resource), key, Some(version));
        }
        Response {
            operation,
            ..response
        }
    }

    /// Records that an object was deleted, or updated if finalizers or a grace period hold it.
    fn recorded_delete(&self, target: Target, response: Response, is_deleted: bool) {
        match is_deleted {
            true if self.is_dry_run() => {}
            true => self.wrote(kind_name(&target.resource), target.key, None),
            false => {
                self.recorded(&target, response, OperationResult::Updated);
            }
        }
    }

    pub(super) fn patch_params(&self, apply: bool) -> PatchParams {
        let forced = self.options.on_conflict() == ConflictPolicy::Force;
        PatchParams {
            field_manager: Some(self.field_manager().to_owned()),
            force: apply && forced,
            dry_run: self.is_dry_run(),
            ..PatchParams::default()
        }
    }

    pub(super) fn post_params(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.field_manager().to_owned()),
            dry_run: self.is_dry_run(),
        }
    }

    pub(super) fn user_agent(&self) -> Option<HeaderValue> {
        let agent = self.config.user_agent.as_deref()?;
        HeaderValue::from_str(agent).ok()
    }
}
