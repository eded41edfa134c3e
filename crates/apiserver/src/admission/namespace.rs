//! Objects live in namespaces that exist and are not on their way out; some namespaces stay for ever.

use super::Admission;
use crate::{
    error::{ApiError, Cause, GroupResource},
    object::Object,
    store::ObjectKey,
    verbs::Call,
};

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses objects in a namespace that is missing, and new ones in a namespace that is terminating.
pub(super) fn admit(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    let resource = &request.call.target.resource;
    let name = &request.call.target.namespace;
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
            name: name.clone(),
        });
    };
    if request.old.is_some()
        || request.call.part.is_some()
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

/// Refuses the deletion of a namespace that must stay.
pub(super) fn admit_delete(call: &Call) -> Result<(), ApiError> {
    let resource = &call.target.resource;
    if resource.group.is_empty()
        && resource.plural == "namespaces"
        && IMMORTAL.contains(&call.target.name.as_str())
    {
        return Err(ApiError::forbidden(
            resource.group_resource(),
            call.target.name.as_str(),
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
