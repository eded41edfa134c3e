//! GET of objects that are computed and not stored.
//!
//! Guarantees: selectors apply as to stored objects; lists are not paged.

use std::sync::Arc;

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Components;
use bellerophon_storage::{ObjectKey, Stored};

use super::{Call, Content, List, Reply, list::validate_selectable};
use crate::{api::Api, http::query::ListOptions};

/// Computes all objects of a kind.
pub(super) type Compute = fn(&Components) -> Vec<Object>;

/// Reads one object.
///
/// # Errors
/// No such object.
pub(super) fn get(api: &Api, call: &Call, compute: Compute) -> Result<Reply, ApiError> {
    let objects = compute(&api.components).into_iter();
    let mut named = objects.filter(|object| object.meta.name == call.target.name);
    let object = named.next().ok_or_else(|| call.target.not_found())?;
    Ok(Reply::ok(Content::Object(Box::new(object))))
}

/// Reads the collection.
///
/// # Errors
/// Selectors of fields that the kind does not have.
pub(super) fn list(
    api: &Api,
    call: &Call,
    options: &ListOptions,
    compute: Compute,
) -> Result<Reply, ApiError> {
    validate_selectable(call, options)?;
    let resource = &call.target.resource;
    let objects = compute(&api.components).into_iter();
    let objects = objects.map(|object| {
        Arc::new(Stored {
            key: ObjectKey::new("", &object.meta.name),
            revision: 0,
            encoded: object.draft().at(0),
            attributes: resource.attributes(&object),
            schema: resource.schema(),
        })
    });
    Ok(Reply::ok(Content::List(List {
        revision: 0,
        objects: objects
            .filter(|object| options.selector.matches(object))
            .collect(),
        next: None,
        remaining: None,
    })))
}
