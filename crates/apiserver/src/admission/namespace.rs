//! Rejects objects of namespaces that do not exist or are terminating, and the deletion of the
//! reserved namespaces.
//! Mirrors the plugin NamespaceLifecycle.

use bellerophon_apimachinery::error::{ApiError, Cause, GroupResource};
use bellerophon_codec::object::Object;
use bellerophon_storage::ObjectKey;

use super::{Admission, Attributes};

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses objects in a namespace that is missing, and new ones in a namespace that is terminating.
pub(super) fn mutate(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    let resource = request.attributes.resource;
    let name = request.attributes.namespace;
    if !resource.namespaced || resource.group == "authorization.k8s.io" {
        return Ok(());
    }
    let Some(stored) = request
        .api
        .store
        .get("/namespaces", &ObjectKey::new("", name))
    else {
        return Err(ApiError::NotFound {
            resource: GroupResource::new("", "namespaces"),
            name: name.to_owned(),
        });
    };
    if request.old.is_some()
        || !request.attributes.subresource.is_empty()
        || stored.field("status.phase") != "Terminating"
    {
        return Ok(());
    }
    Err(ApiError::Forbidden {
        resource: resource.group_resource(),
        name: object.meta.name.clone(),
        why: format!(
            "unable to create new content in namespace {name} because it is being terminated"
        ),
        causes: vec![Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {name} is being terminated"),
            field: "metadata.namespace".into(),
        }],
    })
}

/// Rejects the deletion of a reserved namespace.
pub(super) fn validate_delete(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let resource = attributes.resource;
    if resource.group.is_empty()
        && resource.plural == "namespaces"
        && IMMORTAL.contains(&attributes.name)
    {
        return Err(ApiError::forbidden(
            resource.group_resource(),
            attributes.name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
