//! Subresources: parts of an object with a path of their own.
//! Holds: parts that are read and written as the whole object differ only in their [`Change`]; the others have a file each.

mod binding; // a pod gets its node
mod body; // bodies of another kind than the resource's
mod eviction; // a pod goes if its budget allows
mod scale; // how many replicas

pub(super) use binding::create_by_body as bind_by_body;
pub(super) use body::read_as;

use http::Method;

use super::{Call, Reply, change, get, reviews};
use crate::{api::Api, auth::Authenticator, error::ApiError, kinds, registry::Part, write::Change};

/// Runs the verb of a request for a part of an object.
///
/// # Errors
/// 405 when the part has no such verb; otherwise what the verb says.
pub(super) async fn dispatch(
    api: &Api,
    authenticator: &Authenticator,
    method: &Method,
    call: &Call,
    part: &Part,
) -> Result<Reply, ApiError> {
    let verb = match method.as_str() {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => return Err(ApiError::MethodNotAllowed),
    };
    if !part.verbs.contains(&verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    if let Some(change) = change_of(part.name) {
        return match verb {
            "get" => get::get(api, call).await,
            "update" => change::update(api, call, change).await,
            _ => change::patch(api, call, change).await,
        };
    }
    match (part.name, verb) {
        ("scale", "get") => scale::get(api, call).await,
        ("scale", "update") => scale::update(api, call).await,
        ("scale", "patch") => scale::patch(api, call).await,
        ("binding", "create") => binding::create(api, call).await,
        ("eviction", "create") => eviction::create(api, call).await,
        ("token", "create") => reviews::issue_token(api, authenticator, call),
        _ => Err(ApiError::NoSuchResource),
    }
}

/// What a write to a part that is the whole object may change.
fn change_of(part: &str) -> Option<Change> {
    let counted = Change {
        counts: true,
        ..Change::status()
    };
    match part {
        "status" => Some(Change::status()),
        "ephemeralcontainers" => Some(Change {
            prepare: |_, new, old| kinds::ephemeral_containers::prepare(new, old),
            validate: |_, new, old, wrong| {
                kinds::ephemeral_containers::check(new, old, wrong);
                Vec::new()
            },
            ..counted
        }),
        "resize" => Some(Change {
            prepare: |_, new, old| kinds::resize::prepare(new, old),
            validate: |_, new, old, wrong| {
                kinds::resize::check(new, old, wrong);
                Vec::new()
            },
            ..counted
        }),
        "approval" => Some(Change {
            prepare: |_, new, old| kinds::prepare_approval(new, old),
            validate: |_, new, old, wrong| {
                kinds::validate_approval(new, old, wrong);
                Vec::new()
            },
            ..Change::status()
        }),
        "finalize" => Some(Change {
            prepare: |_, new, old| kinds::finalize::prepare(new, old),
            validate: |_, new, _, wrong| {
                kinds::finalize::check(new, wrong);
                Vec::new()
            },
            ..Change::status()
        }),
        _ => None,
    }
}
