//! GET of a collection.

use std::sync::Arc;

use bellerophon_apimachinery::error::ApiError;
use bellerophon_storage::{
    Compacted, Listing, ObjectKey, Range, Revision, Scope, Selector, Stored,
};

use super::{Call, Content, List, Reply, get::wait_for, page::Page};
use crate::{
    api::Api,
    conversion,
    http::query::{Freshness, ListOptions},
};

/// Reads a collection or a page of it.
///
/// # Errors
/// Selectors of fields the kind does not have, revisions that are compacted or in the future, bad
/// tokens.
pub(crate) async fn list(api: &Api, call: &Call, options: &ListOptions) -> Result<Reply, ApiError> {
    validate_selectable(call, options)?;
    let page = page_request(api, options).await?;
    let resource = &call.target.resource;
    let scope = options
        .selector
        .fields
        .narrow(call.target.scope(), resource.namespaced);
    let mut list = page_of(api, &resource.collection, scope, page, &options.selector)
        .map_err(|gone| expired(api, options, gone))?;
    list.objects = conversion::present_all(api, resource, list.objects).await?;
    Ok(Reply::ok(Content::List(list)))
}

/// Rejects selectors of fields that the kind does not support.
///
/// # Errors
/// 400 with the message of the kind.
pub(super) fn validate_selectable(call: &Call, options: &ListOptions) -> Result<(), ApiError> {
    options
        .selector
        .fields
        .fields()
        .try_for_each(|field| call.target.resource.validate_selectable(field))
        .map_err(ApiError::BadRequest)
}

/// Where a list begins, at which revision, and how long it may get.
#[derive(Default)]
struct PageRequest {
    /// At most this many objects.
    limit: Option<usize>,
    after: Option<ObjectKey>,
    at: Option<Revision>,
    /// How many objects are before it, where that is known.
    seen: Option<usize>,
}

async fn page_request(api: &Api, options: &ListOptions) -> Result<PageRequest, ApiError> {
    let limit = (options.limit > 0).then_some(options.limit);
    if let Some(token) = &options.next {
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(ApiError::BadRequest(
                "specifying resource version is not allowed when using continue".into(),
            ));
        }
        let page = Page::parse(token)?;
        if let Some(revision) = page.revision {
            wait_for(api, revision).await?;
        }
        return Ok(PageRequest {
            limit,
            after: Some(page.after),
            at: page.revision,
            seen: page.seen,
        });
    }
    let start = PageRequest {
        limit,
        seen: Some(0),
        ..PageRequest::default()
    };
    match options.freshness()? {
        Freshness::Newest => Ok(start),
        // kube-apiserver answers from its cache, which does not cut.
        Freshness::Any => Ok(PageRequest {
            limit: None,
            ..start
        }),
        Freshness::NotOlderThan(revision) => {
            wait_for(api, revision).await?;
            Ok(start)
        }
        Freshness::Exactly(revision) => {
            wait_for(api, revision).await?;
            Ok(PageRequest {
                at: Some(revision),
                ..start
            })
        }
    }
}

/// A selector that leaves much out is given this many objects at a time.
const CHUNK: usize = 512;

/// Reads up to the limit, selecting; reads no further than one object behind the page, or a chunk.
fn page_of(
    api: &Api,
    collection: &str,
    scope: Scope,
    page: PageRequest,
    selector: &Selector,
) -> Result<List, Compacted> {
    let Some(limit) = page.limit else {
        let Listing {
            revision,
            mut objects,
            ..
        } = api.store.list(
            collection,
            &Range {
                scope,
                after: page.after,
                limit: None,
            },
            page.at,
        )?;
        objects.retain(|object| selector.matches(object));
        return Ok(List {
            revision,
            objects,
            next: None,
            remaining: None,
        });
    };
    let everything = selector.is_everything();
    let one_more = limit.saturating_add(1);
    let chunk = if everything {
        one_more
    } else {
        one_more.max(CHUNK)
    };
    let mut range = Range {
        scope,
        after: page.after,
        limit: Some(chunk),
    };
    let mut at = page.at;
    let mut objects = Vec::new();
    loop {
        let read = api.store.list(collection, &range, at)?;
        let revision = read.revision;
        let is_last = read.objects.len() < chunk;
        range.after = read.objects.last().map(|last| last.key.clone());
        for object in read.objects {
            if objects.len() == limit {
                let seen = page
                    .seen
                    .filter(|_| everything)
                    .map(|before| before.saturating_add(limit));
                let next = objects.last().map(|last: &Arc<Stored>| {
                    Page {
                        revision: Some(revision),
                        after: last.key.clone(),
                        seen,
                    }
                    .token()
                });
                let remaining = seen.map(|seen| read.total.saturating_sub(seen));
                return Ok(List {
                    revision,
                    objects,
                    next,
                    remaining,
                });
            }
            if selector.matches(&object) {
                objects.push(object);
            }
        }
        if is_last {
            return Ok(List {
                revision,
                objects,
                next: None,
                remaining: None,
            });
        }
        at = Some(revision);
    }
}

/// 410 for a compacted revision; a continued list also gets a token to continue with the newest
/// state.
fn expired(api: &Api, options: &ListOptions, gone: Compacted) -> ApiError {
    let page = options
        .next
        .as_deref()
        .and_then(|token| Page::parse(token).ok());
    match page {
        Some(page) => ApiError::Expired {
            message: "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.".into(),
            next: Some(Page { revision: None, ..page }.token()),
        },
        None => ApiError::Expired {
            message: format!("The resourceVersion for the provided list is too old: {} ({})", gone.requested, api.store.revision()),
            next: None,
        },
    }
}
