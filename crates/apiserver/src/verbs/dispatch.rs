//! From a method and a path to the verb that serves them.

use http::Method;

use super::{Call, Reply, change, computed, create, delete, get, list, parts, reviews, watch};
use crate::{
    api::Api, auth::Authenticator, error::ApiError, http::query::ListOptions, write::Change,
};

/// Runs the verb of a request.
///
/// # Errors
/// 405 when the resource has no such verb; otherwise what the verb says.
pub(crate) async fn dispatch(
    api: &Api,
    authenticator: &Authenticator,
    method: &Method,
    call: &Call,
    watch_path: bool,
) -> Result<Reply, ApiError> {
    if let Some(part) = &call.part {
        return parts::dispatch(api, authenticator, method, call, part).await;
    }
    let resource = &call.target.resource;
    let named = !call.target.name.is_empty();
    let verb = match (method.as_str(), named) {
        ("GET", true) if !watch_path => "get",
        ("GET", _) => "list",
        ("POST", false) => "create",
        // Custom resources take a POST to a name as a creation, as the real server does.
        ("POST", true) if resource.items_name_kind() => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        ("PUT" | "PATCH", false) if resource.items_name_kind() => {
            return Err(ApiError::BadRequest("name must be provided".into()));
        }
        _ => return Err(ApiError::MethodNotAllowed),
    };
    if !resource.verbs.contains(&verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    match verb {
        "get" => match resource.strategy.computed {
            Some(compute) => computed::get(api, call, compute),
            None => get::get(api, call).await,
        },
        "list" => {
            let mut options = ListOptions::read(&call.query)?;
            options.watch |= watch_path;
            if let Some(compute) = resource.strategy.computed {
                computed::list(api, call, &options, compute)
            } else if options.watch {
                watch::watch(api, call, &options).await
            } else {
                list::list(api, call, &options).await
            }
        }
        "create" => match resource.strategy.review {
            Some(review) => reviews::answer(api, authenticator, call, review),
            // The old path of pods/binding, which names the pod in the body.
            None if resource.group.is_empty() && resource.plural == "bindings" => {
                parts::bind_by_body(api, call).await
            }
            None => create::create(api, call).await,
        },
        "update" => change::update(api, call, Change::whole(resource)).await,
        "patch" => change::patch(api, call, Change::whole(resource)).await,
        "delete" => delete::delete(api, call).await,
        _ => delete::delete_collection(api, call).await,
    }
}
