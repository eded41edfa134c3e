//! GET of a collection.

use std::sync::Arc;

use super::{Call, Content, List, Reply, get::wait_for, page::Page};
use crate::{
    api::Api,
    error::ApiError,
    http::query::{Freshness, ListOptions},
    selector::Selector,
    store::{Compacted, Listing, ObjectKey, Range, Revision, Scope, Stored},
};

/// Reads a collection or a page of it.
///
/// # Errors
/// Selectors of fields the kind does not have, revisions that are gone or not there yet, bad
/// tokens.
pub(crate) async fn list(api: &Api, call: &Call, options: &ListOptions) -> Result<Reply, ApiError> {
    validate_selectable(call, options)?;
    let place = place(api, options).await?;
    let resource = &call.target.resource;
    let scope = options
        .selector
        .fields
        .narrow(call.target.scope(), resource.namespaced);
    let list = page_of(api, &resource.collection, scope, place, &options.selector)
        .map_err(|gone| expired(api, options, gone))?;
    Ok(Reply::ok(Content::List(list)))
}

/// Refuses selectors of fields the kind does not offer.
///
/// # Errors
/// 400 in the kind's own words.
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
struct Place {
    /// At most this many objects.
    limit: Option<usize>,
    after: Option<ObjectKey>,
    at: Option<Revision>,
    /// How many objects are before it, where that is known.
    seen: Option<usize>,
}

async fn place(api: &Api, options: &ListOptions) -> Result<Place, ApiError> {
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
        return Ok(Place {
            limit,
            after: Some(page.after),
            at: page.revision,
            seen: page.seen,
        });
    }
    let start = Place {
        limit,
        seen: Some(0),
        ..Place::default()
    };
    match options.freshness()? {
        Freshness::Newest => Ok(start),
        // kube-apiserver answers from its cache, which does not cut.
        Freshness::Any => Ok(Place {
            limit: None,
            ..start
        }),
        Freshness::NotOlderThan(revision) => {
            wait_for(api, revision).await?;
            Ok(start)
        }
        Freshness::Exactly(revision) => {
            wait_for(api, revision).await?;
            Ok(Place {
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
    place: Place,
    selector: &Selector,
) -> Result<List, Compacted> {
    let Some(limit) = place.limit else {
        let Listing {
            revision,
            mut objects,
            ..
        } = api.store.list(
            collection,
            &Range {
                scope,
                after: place.after,
                limit: None,
            },
            place.at,
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
        after: place.after,
        limit: Some(chunk),
    };
    let mut at = place.at;
    let mut objects = Vec::new();
    loop {
        let read = api.store.list(collection, &range, at)?;
        let revision = read.revision;
        let is_last = read.objects.len() < chunk;
        range.after = read.objects.last().map(|last| last.key.clone());
        for object in read.objects {
            if objects.len() == limit {
                let seen = place
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

/// 410 for a revision that is no longer kept; a continued list also gets a token to go on with the
/// newest state.
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
            message: format!("The resourceVersion for the provided list is too old: {} ({})", gone.asked, api.store.revision()),
            next: None,
        },
    }
}
