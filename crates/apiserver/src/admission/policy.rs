//! Rejects RBAC objects that grant more permissions than their writer has.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

use super::Admission;
use crate::auth::{Source, confirm_no_escalation};

/// Refuses roles and bindings through which their writer would gain permissions.
///
/// # Errors
/// 403 with what is missing, or 404 for a binding to a role that does not exist.
pub(super) fn mutate(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    let resource = request.attributes.resource;
    match Source::of_policy(&resource.group, &resource.plural) {
        Some(source) => confirm_no_escalation(
            request.attributes.user,
            source,
            object,
            request.old,
            request.api,
        ),
        None => Ok(()),
    }
}
