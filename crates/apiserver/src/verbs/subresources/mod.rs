//! Subresources: status, scale, binding, eviction, ….
//! Guarantees: subresources that are read and written as the whole object differ only in their
//! [`Change`]; the others have a file each.

mod binding; // binds a pod to a node
mod body; // bodies of another kind than the resource's
mod eviction; // deletes a pod if its budgets allow it
mod scale; // spec.replicas and status.replicas

pub(super) use binding::create_by_body as bind_by_body;
pub(super) use body::read_as;

use http::Method;

use super::{Call, Reply, change, get, reviews};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_resources::kinds;

use crate::{api::Api, auth::Authenticator, registry::Subresource, write::Change};

/// Runs the verb of a request to a subresource.
///
/// # Errors
/// 405 when the subresource has no such verb; otherwise the error of the verb.
pub(super) async fn dispatch(
    api: &Api,
    authenticator: &Authenticator,
    method: &Method,
    call: &Call,
    subresource: &Subresource,
) -> Result<Reply, ApiError> {
    let verb = match method.as_str() {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => return Err(ApiError::MethodNotAllowed),
    };
    if !subresource.verbs.contains(&verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    if let Some(change) = change_of(subresource.name) {
        return match verb {
            "get" => get::get(api, call).await,
            "update" => change::update(api, call, change).await,
            _ => change::patch(api, call, change).await,
        };
    }
    match (subresource.name, verb) {
        ("scale", "get") => scale::get(api, call).await,
        ("scale", "update") => scale::update(api, call).await,
        ("scale", "patch") => scale::patch(api, call).await,
        ("binding", "create") => binding::create(api, call).await,
        ("eviction", "create") => eviction::create(api, call).await,
        ("token", "create") => reviews::issue_token(api, authenticator, call).await,
        _ => Err(ApiError::NoSuchResource),
    }
}

/// The fields that a write to a subresource with the kind of the resource may change.
fn change_of(subresource: &str) -> Option<Change> {
    let counted = Change {
        counts: true,
        ..Change::status()
    };
    match subresource {
        "status" => Some(Change::status()),
        "ephemeralcontainers" => Some(Change {
            prepare: |_, new, old| kinds::ephemeral_containers::prepare(new, old),
            validate: |_, new, old, errors| {
                kinds::ephemeral_containers::validate_ephemeral_containers(new, old, errors);
                Vec::new()
            },
            ..counted
        }),
        "resize" => Some(Change {
            prepare: |_, new, old| kinds::resize::prepare(new, old),
            validate: |_, new, old, errors| {
                kinds::resize::validate_resize(new, old, errors);
                Vec::new()
            },
            ..counted
        }),
        "approval" => Some(Change {
            prepare: |_, new, old| kinds::prepare_approval(new, old),
            validate: |_, new, old, errors| {
                kinds::validate_approval(new, old, errors);
                Vec::new()
            },
            ..Change::status()
        }),
        "finalize" => Some(Change {
            prepare: |_, new, old| kinds::finalize::prepare(new, old),
            validate: |_, new, _, errors| {
                kinds::finalize::validate(new, errors);
                Vec::new()
            },
            ..Change::status()
        }),
        _ => None,
    }
}
