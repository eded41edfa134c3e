//! Subresources: parts of an object with a path of their own.

use http::Method;

use super::{Call, Reply, change, get, reviews};
use crate::{api::Api, auth::Authenticator, error::ApiError, registry::Part, write::Change};

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
    match (part.name, verb) {
        ("status", "get") => get::get(api, call).await,
        ("status", "update") => change::update(api, call, Change::status()).await,
        ("status", "patch") => change::patch(api, call, Change::status()).await,
        ("token", "create") => reviews::issue_token(api, authenticator, call),
        _ => Err(ApiError::NoSuchResource),
    }
}
