//! Watch streams: one JSON object per line.
//!
//! In: the events of the member. Out: a response body that lasts.
//! Guarantees: a line follows at least every 5 s, if only to repeat the progress. A watch that falls
//! behind the history ends with an error line. A watch reads events only as fast as its client.

use std::{io, sync::Arc, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::{Response, Uri};
use http_body::Frame;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

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

/// Open watches. Each reads a page of events at a time.
const WATCHES_MAX: usize = 1024;

/// The time between two lines of progress if nothing changes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The watches of a member.
pub(crate) struct Watches {
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Watches {
    pub(crate) fn new(metrics: Arc<Metrics>, stop: CancellationToken) -> Self {
        Self {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
            metrics,
            stop,
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
        let open = OpenWatch {
            stream: member.watch(&prefix, from)?,
            progress: from.map_or(0, |from| from.saturating_sub(1)),
            stop: self.stop.clone(),
            _place: place,
            _count: Counted::new(self.metrics.clone()),
        };
        let frames = stream::unfold(Some(open), async |open| {
            let (chunk, rest) = open?.next_chunk().await?;
            Some((Ok::<_, io::Error>(Frame::data(chunk)), rest))
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
    /// The revision up to which all events were sent.
    progress: Revision,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
    _count: Counted,
}

impl OpenWatch {
    /// The next lines, and the watch unless they are the last ones. None when the member stops.
    async fn next_chunk(mut self) -> Option<(Bytes, Option<Self>)> {
        let stop = self.stop.clone();
        let next = timeout(PROGRESS_INTERVAL, self.stream.next());
        let mut lines = BytesMut::new();
        match stop.run_until_cancelled(next).await? {
            Ok(Ok(WatchItem::Events(events))) => {
                for event in events {
                    self.progress = event.revision();
                    write_line(&mut lines, &WatchLine::Event(event));
                }
            }
            Ok(Ok(WatchItem::Progress(revision))) => {
                self.progress = revision;
                write_line(&mut lines, &progress(revision));
            }
            Ok(Err(error)) => {
                let line = WatchLine::Error {
                    kind: ErrorKind::Error,
                    error: *error.0,
                };
                write_line(&mut lines, &line);
                return Some((lines.freeze(), None));
            }
            Err(_) => write_line(&mut lines, &progress(self.progress)),
        }
        Some((lines.freeze(), Some(self)))
    }
}

fn progress(revision: Revision) -> WatchLine {
    WatchLine::Progress {
        kind: ProgressKind::Progress,
        revision,
    }
}

fn write_line(lines: &mut BytesMut, line: &WatchLine) {
    serde_json::to_writer(lines.writer(), line).expect("lines of a watch have text keys only");
    lines.put_u8(b'\n');
}
