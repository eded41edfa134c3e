//! Namespaced resources deleter: deletes all objects in a terminating namespace.
//!
//! Input: the name of the namespace. Output: deletions, and the remaining content.
//! Guarantees: other resources are deleted only when no pod remains, so that pods can use them
//! while they terminate; a resource that cannot be deleted does not block others.

use std::sync::Arc;

use bellerophon::client::ReconcileClient;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Error, ResourceExt};

use super::plan::DeletionResult;
use crate::core::discovery::{ServedResource, ServedResources};

/// Deletes the content of one namespace. Mirrors namespacedResourcesDeleter.
pub(super) struct NamespacedResourcesDeleter<'a> {
    /// Lists and deletes objects of resources known at run time.
    pub(super) client: &'a Client,
    pub(super) reads: &'a ReconcileClient,
    pub(super) namespace: &'a str,
}

impl NamespacedResourcesDeleter<'_> {
    /// Deletes all content and returns what remains. Mirrors deleteAllContent.
    pub(super) async fn delete_all_content(&self) -> DeletionResult {
        let mut result = DeletionResult::default();
        let served = match ServedResources::discover(self.client).await {
            Ok(served) => served,
            Err(error) => {
                result.discovery_error = Some(error.to_string());
                return result;
            }
        };
        let (pods, others): (Vec<_>, Vec<_>) = served
            .deletable
            .into_iter()
            .filter(|resource| resource.namespaced)
            .partition(|resource| is_pods(resource));
        for resource in &pods {
            self.delete_resource(resource, &mut result).await;
        }
        // Mirrors deleteAllContent: other resources wait for the pods.
        if !result.remaining.is_empty() {
            self.estimate_graceful_termination(&mut result).await;
            return result;
        }
        for resource in &others {
            self.delete_resource(resource, &mut result).await;
        }
        result
    }

    async fn delete_resource(&self, resource: &Arc<ServedResource>, result: &mut DeletionResult) {
        match self.delete_all_objects(resource).await {
            Ok(remaining) => count_remaining(resource, &remaining, result),
            // The resource is no longer served, so it has no objects.
            Err(error) if is_not_found(&error) => {}
            Err(error) => result.failures.push(error.to_string()),
        }
    }

    /// Deletes all objects of a resource and returns the remaining ones. Mirrors
    /// deleteAllContentForGroupVersionResource.
    async fn delete_all_objects(
        &self,
        resource: &ServedResource,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
        let api = resource.api(self.client, Some(self.namespace));
        // The list comes first: a namespace of which nothing is left costs no delete per resource
        // and pass.
        let objects = list(&api).await?;
        if objects
            .iter()
            .all(|object| object.metadata.deletion_timestamp.is_some())
        {
            return Ok(objects);
        }
        match api
            .delete_collection(&DeleteParams::background(), &ListParams::default())
            .await
        {
            Ok(_) => {}
            // deletecollection is not supported by every resource.
            Err(Error::Api(status)) if status.code == 405 => {
                self.delete_each_item(&api, &objects).await?
            }
            Err(error) => return Err(error),
        }
        list(&api).await
    }

    async fn delete_each_item(
        &self,
        api: &Api<DynamicObject>,
        objects: &[PartialObjectMeta<DynamicObject>],
    ) -> Result<(), Error> {
        for object in objects {
            match api
                .delete(&object.name_any(), &DeleteParams::background())
                .await
            {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sets the longest termination grace period of the remaining pods. Mirrors
    /// estimateGracefulTerminationForPods.
    async fn estimate_graceful_termination(&self, result: &mut DeletionResult) {
        let params = ListParams::default();
        match self.reads.list::<Pod>(Some(self.namespace), &params).await {
            Ok(pods) => result.grace_period_seconds = max_grace_period_seconds(&pods),
            Err(error) => result.failures.push(error.to_string()),
        }
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_not_found())
}

async fn list(api: &Api<DynamicObject>) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    Ok(api.list_metadata(&ListParams::default()).await?.items)
}

fn is_pods(resource: &ServedResource) -> bool {
    resource.api_resource.group.is_empty() && resource.api_resource.plural == "pods"
}

fn max_grace_period_seconds(pods: &[Arc<Pod>]) -> i64 {
    let is_terminal = |pod: &Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let grace_period = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds)
    };
    pods.iter()
        .filter(|pod| !is_terminal(pod))
        .filter_map(|pod| grace_period(pod))
        .max()
        .unwrap_or_default()
}

fn count_remaining(
    resource: &ServedResource,
    remaining: &[PartialObjectMeta<DynamicObject>],
    result: &mut DeletionResult,
) {
    if remaining.is_empty() {
        return;
    }
    // The condition messages of upstream have `pods.` for the core group.
    let group_resource = format!(
        "{}.{}",
        resource.api_resource.plural, resource.api_resource.group
    );
    result.remaining.insert(group_resource, remaining.len());
    for finalizer in remaining.iter().flat_map(|object| object.finalizers()) {
        *result.finalizers.entry(finalizer.clone()).or_default() += 1;
    }
}
