//! Writes of the workload controllers: create, patch, delete and status updates within one
//! reconcile.
//!
//! Input: objects to create, changes to make. Output: requests, and the metadata of the responses.
//! Guarantees: every write is recorded for the controller's read-your-writes gate; an object is
//! patched or deleted only while it has the uid it was read with; an unchanged status is not
//! written.

use bellerophon::client::{
    OperationResult, Precondition, ReconcileClient, Template, WriteError, WriteOptions, Written,
};
use bellerophon::kinds::Kind;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PropagationPolicy};
use serde_json::{Value, json};

use crate::api_errors::is_gone_or_conflict;

/// Writer of one reconcile.
#[derive(Clone, Copy)]
pub(crate) struct ApiWriter<'a> {
    pub(crate) client: &'a ReconcileClient,
}

/// A kind with a static type.
pub(crate) trait StaticKind: Kind<DynamicType = ()> {}
impl<K: Kind<DynamicType = ()>> StaticKind for K {}

impl ApiWriter<'_> {
    /// Creates an object.
    pub(crate) async fn create<K: StaticKind>(&self, object: &K) -> Result<Written<K>, WriteError> {
        self.client.create(object).await
    }

    /// A pod encoded once, from which several are created with `generateName`.
    pub(crate) async fn template(&self, pod: &Pod) -> Result<Template<Pod>, WriteError> {
        self.client.template(pod).await
    }

    /// Creates a pod from a template.
    pub(crate) async fn create_from_template(
        &self,
        template: &Template<Pod>,
    ) -> Result<Written<Pod>, WriteError> {
        self.client.create_from_template(template).await
    }

    /// Deletes an object with a uid precondition. Returns whether it existed.
    pub(crate) async fn delete<K: StaticKind>(
        &self,
        object: &K,
        propagation: Option<PropagationPolicy>,
    ) -> Result<bool, WriteError> {
        let options = WriteOptions {
            precondition: Some(Precondition::Uid),
            propagation,
            ..WriteOptions::default()
        };
        match self
            .client
            .with_options(options)
            .delete_existing(object)
            .await
        {
            Ok(()) => Ok(true),
            // Gone, or replaced by another object of the same name.
            Err(error) if is_gone_or_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a strategic merge patch.
    pub(crate) async fn patch<K: StaticKind>(
        &self,
        object: &K,
        patch: &Value,
    ) -> Result<(), WriteError> {
        self.client.patch(object, &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Sends the difference between two versions of an object as a merge patch. Returns whether
    /// there was one. The cached object may be stale; with its resourceVersion a stale update fails
    /// with 409.
    pub(crate) async fn update<K: StaticKind>(&self, from: &K, to: &K) -> Result<bool, WriteError> {
        let written = self.client.patch_from(from, to).await?;
        Ok(written.operation != OperationResult::Unchanged)
    }

    /// Patches the status subresource with the difference between the object and what `set` makes
    /// of it, unless the statuses are equal. Returns whether anything was written.
    pub(crate) async fn update_status<K: StaticKind, S: PartialEq>(
        &self,
        object: &K,
        current: &S,
        desired: S,
        set: impl FnOnce(&mut K, S),
    ) -> Result<bool, WriteError> {
        self.set_status(object, current, desired, set, Precondition::Uid)
            .await
    }

    /// As [`update_status`](Self::update_status), with a resourceVersion precondition, for a
    /// status that has other writers.
    pub(crate) async fn update_status_at_version<K: StaticKind, S: PartialEq>(
        &self,
        object: &K,
        current: &S,
        desired: S,
        set: impl FnOnce(&mut K, S),
    ) -> Result<bool, WriteError> {
        self.set_status(object, current, desired, set, Precondition::Version)
            .await
    }

    async fn set_status<K: StaticKind, S: PartialEq>(
        &self,
        object: &K,
        current: &S,
        desired: S,
        set: impl FnOnce(&mut K, S),
        precondition: Precondition,
    ) -> Result<bool, WriteError> {
        if *current == desired {
            return Ok(false);
        }
        let mut updated = object.clone();
        set(&mut updated, desired);
        self.patch_status(object, &updated, precondition).await
    }

    /// Patches what differs between the statuses and metadata of two versions of an object.
    pub(crate) async fn patch_status<K: StaticKind>(
        &self,
        from: &K,
        to: &K,
        precondition: Precondition,
    ) -> Result<bool, WriteError> {
        let options = WriteOptions {
            precondition: Some(precondition),
            ..WriteOptions::default()
        };
        let client = self.client.with_options(options);
        let written = client.patch_status_from(from, to).await?;
        Ok(written.operation != OperationResult::Unchanged)
    }

    /// Sets `status.collisionCount` of an owner.
    pub(crate) async fn set_collision_count<K: StaticKind>(
        &self,
        owner: &K,
        count: i32,
    ) -> Result<(), WriteError> {
        // The uid is a precondition: an owner that was recreated under the same name counts its own
        // collisions.
        let patch = json!({
            "metadata": { "uid": owner.uid() },
            "status": { "collisionCount": count },
        });
        let status = self.client.subresource("status");
        status.patch(owner, &Patch::Merge(&patch)).await?;
        Ok(())
    }
}
