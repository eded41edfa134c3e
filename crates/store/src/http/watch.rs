//! Watch streams: one JSON object per line.
//!
//! In: the events of the member. Out: a response body that lasts.
//! Guarantees: the first line is the progress from which the watch begins. Progress follows at
//! least every 5 s. A watch that the client does not read in time ends with an error line; the
//! client resumes it.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Response, Uri};
use http_body::Frame;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    body::{self, Body},
    metrics::Metrics,
    query::Query,
    respond,
};
use crate::{
    Member, WatchItem, WatchStream,
    api::{ErrorKind, ProgressKind, Reason, Revision, StoreError, WatchLine},
};

/// Open watches. Each holds a bounded queue of events.
const WATCHES_MAX: usize = 1024;

/// The time between two lines of progress if nothing changes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes of events that are sent together.
const CHUNK_BYTES: usize = 64 << 10;

/// The watches of a member.
pub(crate) struct Watches {
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Watches {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
            metrics,
        }
    }

    /// Starts a watch.
    pub(crate) fn start(&self, member: &Member, uri: &Uri) -> Result<Response<Body>, StoreError> {
        let mut query = Query::of(uri)?;
        let prefix = query.text("prefix").unwrap_or_default();
        let from: Option<Revision> = query.parsed("from")?;
        query.end()?;
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            StoreError::new(
                Reason::Busy,
                format!("{WATCHES_MAX} watches are open; watch another member or retry later"),
            )
        })?;
        let stream = member.watch(&prefix, from)?;
        let open = OpenWatch {
            stream,
            _place: place,
            _count: Counted::new(self.metrics.clone()),
        };
        let frames = stream::unfold(Some(open), async |open| {
            let mut open = open?;
            let (chunk, goes_on) = open.next_chunk().await?;
            Some((Ok::<_, io::Error>(Frame::data(chunk)), goes_on.then_some(open)))
        });
        let mut response = respond::bytes("application/x-ndjson", Bytes::new());
        *response.body_mut() = body::streamed(frames);
        Ok(response)
    }
}

/// A watch that is counted while it is open.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.watches().inc();
        Self(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.watches().dec();
    }
}

struct OpenWatch {
    stream: WatchStream,
    _place: OwnedSemaphorePermit,
    _count: Counted,
}
