//! GET of one object.

use std::{sync::Arc, time::Duration};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_storage::Stored;

use super::{Call, Content, Reply};
use crate::{api::Api, conversion, http::query::parse_revision};

/// How long a read waits for a revision that lies in the future.
const FUTURE_REVISION_WAIT: Duration = Duration::from_secs(3);

/// Reads one object.
///
/// # Errors
/// No such object, or a resourceVersion that is no number or lies in the future.
pub(crate) async fn get(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    stored(api, call)
        .await
        .map(|stored| Reply::ok(Content::Stored(stored)))
}

/// The named object in its stored form.
///
/// # Errors
/// Those of [`get`].
pub(super) async fn stored(api: &Api, call: &Call) -> Result<Arc<Stored>, ApiError> {
    let version = call.query.get("resourceVersion").unwrap_or_default();
    if let Some(revision) = parse_revision(version).map_err(ApiError::Unnamed)? {
        wait_for(api, revision).await?;
    }
    let resource = &call.target.resource;
    let stored = api
        .store
        .get(&resource.collection, &call.target.key())
        .ok_or_else(|| call.target.not_found())?;
    conversion::present(api, resource, stored).await
}

/// Waits until a revision is reached.
///
/// # Errors
/// 504 when it is not reached soon.
pub(super) async fn wait_for(api: &Api, revision: u64) -> Result<(), ApiError> {
    if revision <= api.store.revision() {
        return Ok(());
    }
    tokio::time::timeout(FUTURE_REVISION_WAIT, api.store.reached(revision))
        .await
        .map_err(|_| ApiError::TooLargeRevision {
            requested: revision,
            current: api.store.revision(),
        })
}
