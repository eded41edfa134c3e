//! From a method and a path to the verb that serves them.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_resources::kinds::Creation;
use http::Method;

use super::{
    Call, Reply, change, computed, create, delete, get, list, reviews, subresources, watch,
};
use crate::{api::Api, auth::Authenticator, http::query::ListOptions, write::Change};

/// Runs the verb of a request.
///
/// # Errors
/// 405 when the resource has no such verb; otherwise the error of the verb.
pub(crate) async fn dispatch(
    api: &Api,
    authenticator: &Authenticator,
    method: &Method,
    call: &Call,
    watch_path: bool,
) -> Result<Reply, ApiError> {
    if let Some(subresource) = &call.subresource {
        return subresources::dispatch(api, authenticator, method, call, subresource).await;
    }
    let resource = &call.target.resource;
    let named = !call.target.name.is_empty();
    let verb = match (method.as_str(), named) {
        ("GET", true) if !watch_path => "get",
        ("GET", _) => "list",
        ("POST", false) => "create",
        // Custom resources take a POST to a name as a creation, as kube-apiserver does.
        ("POST", true) if resource.is_custom() => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        ("PUT" | "PATCH", false) if resource.is_custom() => {
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
        "create" => match resource.strategy.creation {
            Creation::Store => create::create(api, call).await,
            Creation::Review(review) => reviews::answer(api, authenticator, call, review).await,
            Creation::Binding => subresources::bind_by_body(api, call).await,
        },
        "update" => change::update(api, call, Change::whole(resource)).await,
        "patch" => change::patch(api, call, Change::whole(resource)).await,
        "delete" => delete::delete(api, call).await,
        _ => delete::delete_collection(api, call).await,
    }
}
