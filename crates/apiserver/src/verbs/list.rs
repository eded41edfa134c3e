//! GET of a collection.

use std::sync::Arc;

use super::{Call, Content, List, Reply, get::wait_for, page::Page};
use crate::{
    api::Api,
    error::ApiError,
    http::query::{Freshness, ListOptions},
    store::{Compacted, Listing, ObjectKey, Range, Revision, Stored},
};

/// Reads a collection or a page of it.
///
/// # Errors
/// Selectors of fields the kind does not have, revisions that are gone or not there yet, bad tokens.
pub(crate) async fn list(api: &Api, call: &Call, options: &ListOptions) -> Result<Reply, ApiError> {
    check_selectable(call, options)?;
    let (limit, range_after, at) = place(api, options).await?;
    let resource = &call.target.resource;
    let scope = options.selector.fields.narrow(call.target.scope(), resource.namespaced);
    let range = Range { scope, after: range_after };
    let listing = match api.store.list(&resource.shelf, &range, at) {
        Ok(listing) => listing,
        Err(gone) => return Err(expired(api, options, gone)),
    };
    Ok(Reply::ok(Content::List(page_of(listing, options, limit))))
}

/// Refuses selectors of fields the kind does not offer.
///
/// # Errors
/// 400 in the kind's own words.
pub(super) fn check_selectable(call: &Call, options: &ListOptions) -> Result<(), ApiError> {
    options.selector.fields.fields().try_for_each(|field| call.target.resource.check_selectable(field)).map_err(ApiError::BadRequest)
}

/// Where a list begins, at which revision, and how long it may get.
async fn place(api: &Api, options: &ListOptions) -> Result<(usize, Option<ObjectKey>, Option<Revision>), ApiError> {
    if let Some(token) = &options.next {
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(ApiError::BadRequest("specifying resource version is not allowed when using continue".into()));
        }
        let page = Page::parse(token)?;
        if let Some(revision) = page.revision {
            wait_for(api, revision).await?;
        }
        return Ok((options.limit, Some(page.after), page.revision));
    }
    match options.freshness()? {
        Freshness::Newest => Ok((options.limit, None, None)),
        // The real server answers from its cache, which does not cut.
        Freshness::Any => Ok((0, None, None)),
        Freshness::NotOlderThan(revision) => {
            wait_for(api, revision).await?;
            Ok((options.limit, None, None))
        }
        Freshness::Exactly(revision) => {
            wait_for(api, revision).await?;
            Ok((options.limit, None, Some(revision)))
        }
    }
}

/// Selects, and cuts at the limit.
fn page_of(listing: Listing, options: &ListOptions, limit: usize) -> List {
    let Listing { revision, mut objects } = listing;
    if limit == 0 {
        objects.retain(|o| options.selector.matches(o));
        return List { revision, objects, next: None, remaining: None };
    }
    let mut selected: Vec<Arc<Stored>> = Vec::with_capacity(limit.min(objects.len()));
    let mut seen = 0;
    for object in &objects {
        if selected.len() == limit {
            break;
        }
        seen += 1;
        if options.selector.matches(object) {
            selected.push(object.clone());
        }
    }
    if seen == objects.len() {
        return List { revision, objects: selected, next: None, remaining: None };
    }
    let next = selected.last().map(|last| Page { revision: Some(revision), after: last.key.clone() }.token());
    let remaining = options.selector.is_everything().then_some(objects.len() - seen);
    List { revision, objects: selected, next, remaining }
}

/// 410 for a revision that is no longer kept; a continued list also gets a token to go on with the newest state.
fn expired(api: &Api, options: &ListOptions, gone: Compacted) -> ApiError {
    let page = options.next.as_deref().and_then(|token| Page::parse(token).ok());
    match page {
        Some(page) => ApiError::Expired {
            message: "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.".into(),
            next: Some(Page { revision: None, after: page.after }.token()),
        },
        None => ApiError::Expired {
            message: format!("The resourceVersion for the provided list is too old: {} ({})", gone.asked, api.store.revision()),
            next: None,
        },
    }
}
