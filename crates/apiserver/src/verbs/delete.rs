//! DELETE of an object or of a collection.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_storage::Range;
use serde_json::json;

use super::{Call, Content, List, Reply, list::validate_selectable};
use crate::{
    api::Api,
    http::query::ListOptions,
    write::{self, DeleteOptions, Deleted},
};

/// Deletes one object.
///
/// # Errors
/// Bad options, no such object, a precondition that does not hold, a refusal by admission.
pub(crate) async fn delete(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let options = DeleteOptions::read(call)?;
    let resource = &call.target.resource;
    let deleted =
        write::delete_requested(api, &call.attributes(), &call.target.key(), &options).await?;
    let content = match deleted {
        Deleted::Waiting(written) | Deleted::Object(written) => Content::from(written),
        Deleted::Gone(uid) => {
            let mut details = bellerophon_apimachinery::error::details(
                &call.target.name,
                &resource.group,
                &resource.plural,
                Vec::new(),
            );
            details.insert("uid".into(), uid.into());
            Content::Document(
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
            )
        }
    };
    call.warnings.add(options.warnings(resource));
    Ok(Reply::ok(content))
}

/// Deletes every object that a list would return, and returns that list.
///
/// # Errors
/// Bad options. Objects that are deleted meanwhile are no error.
pub(crate) async fn delete_collection(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let delete_options = DeleteOptions::read(call)?;
    let options = ListOptions::read(&call.query)?;
    validate_selectable(call, &options)?;
    let resource = &call.target.resource;
    let range = Range::all_of(
        options
            .selector
            .fields
            .narrow(call.target.scope(), resource.namespaced),
    );
    let listing = api
        .store
        .list(&resource.collection, &range, None)
        .expect("the newest state is always kept");
    let mut objects = listing.objects;
    objects.retain(|o| options.selector.matches(o));
    for object in &objects {
        let attributes = call.attributes();
        let deleted =
            write::delete_in_collection(api, &attributes, &object.key, &delete_options).await;
        match deleted {
            Ok(_) | Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Reply::ok(Content::List(List {
        revision: listing.revision,
        objects,
        next: None,
        remaining: None,
    })))
}
