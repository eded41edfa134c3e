//! Watches that resume.
//!
//! In: a prefix and a revision. Out: events in order, each once, and progress.
//! Guarantees: after a lost connection, the watch resumes after the last event or progress. Only
//! errors that a new connection cannot repair end it: above all a compacted revision.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::{
    api::{Event, Reason, Revision, StoreError, WatchLine},
    call::Call,
    client::Client,
    endpoint::Endpoint,
    error::ClientError,
    keys::Query,
};

/// The longest line: a value of 1 MiB in base64, a key with escapes, and the other fields.
const LINE_BYTES_MAX: usize = 8 << 20;

/// The store sends progress every 5 s; without any line for this time, the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The pause before a watch is resumed, so that a member that ends each watch is not flooded.
const RESUME_DELAY: Duration = Duration::from_millis(50);

/// What a watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A change.
    Event(Event),
    /// All changes up to this revision were delivered.
    Progress(Revision),
    /// The stream was started, or resumed after a lost connection: changes after this revision
    /// follow.
    Started(Revision),
}

/// A watch. Dropping it ends it.
pub struct Watch {
    client: Client,
    prefix: String,
    /// The first revision that was not delivered yet. None until the store sent its revision.
    next: Option<Revision>,
    lines: Option<Lines>,
    /// Whether a stream ended before.
    is_resumed: bool,
}

impl Client {
    /// Watches keys with a prefix: all changes from a revision on, or those from now on.
    pub fn watch(&self, prefix: &str, from: Option<Revision>) -> Watch {
        Watch {
            client: self.clone(),
            prefix: prefix.to_owned(),
            next: from,
            lines: None,
            is_resumed: false,
        }
    }
}

impl Watch {
    /// The next event or progress. Cancel safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// [`Reason::Compacted`] if the revision is too old: list, then watch from the revision of the
    /// list. Other errors after the client's time for a request is over.
    pub async fn next(&mut self) -> Result<WatchItem, ClientError> {
        loop {
            let Some(lines) = &mut self.lines else {
                if let Some(item) = self.connect().await? {
                    return Ok(item);
                }
                continue;
            };
            match timeout(SILENCE_MAX, lines.next()).await {
                Ok(Ok(line)) => {
                    if let Some(item) = self.receive(line)? {
                        return Ok(item);
                    }
                }
                Ok(Err(LineError::Ended(cause))) => self.disconnect(&cause),
                Ok(Err(LineError::Invalid(cause))) => {
                    return Err(ClientError::Protocol {
                        request: "GET /v1/watch".to_owned(),
                        endpoint: lines.endpoint.to_string(),
                        cause,
                    });
                }
                Err(_) => self.disconnect("no line in time"),
            }
        }
    }

    /// Starts or resumes the stream.
    async fn connect(&mut self) -> Result<Option<WatchItem>, ClientError> {
        if self.is_resumed {
            sleep(RESUME_DELAY).await;
        }
        let mut query = Query::new("/v1/watch");
        query.add("prefix", &self.prefix);
        if let Some(next) = self.next {
            query.add("from", &next.to_string());
        }
        let (endpoint, response) = self.client.stream(&Call::read(query.text)).await?;
        self.lines = Some(Lines {
            endpoint,
            body: response.into_body(),
            buffer: BytesMut::new(),
        });
        Ok(self
            .next
            .map(|next| WatchItem::Started(next.saturating_sub(1))))
    }

    fn disconnect(&mut self, cause: &str) {
        debug!(
            prefix = self.prefix,
            next = self.next,
            cause,
            "watch is resumed"
        );
        self.lines = None;
        self.is_resumed = true;
    }

    fn receive(&mut self, line: WatchLine) -> Result<Option<WatchItem>, ClientError> {
        match line {
            WatchLine::Event(event) => {
                let is_new = self.next.is_none_or(|next| event.revision() >= next);
                self.next = self.next.max(Some(event.revision() + 1));
                Ok(is_new.then_some(WatchItem::Event(event)))
            }
            WatchLine::Progress { revision, .. } => {
                self.next = self.next.max(Some(revision + 1));
                Ok(Some(WatchItem::Progress(revision)))
            }
            WatchLine::Error { error, .. } if error.reason == Reason::Compacted => {
                Err(StoreError(Box::new(error)).into())
            }
            WatchLine::Error { error, .. } => {
                self.disconnect(&error.message);
                Ok(None)
            }
        }
    }
}

/// The lines of a stream.
struct Lines {
    endpoint: Endpoint,
    body: Incoming,
    buffer: BytesMut,
}

enum LineError {
    /// The stream ended, as connections do.
    Ended(String),
    /// The stream is not one of a store.
    Invalid(String),
}

impl Lines {
    async fn next(&mut self) -> Result<WatchLine, LineError> {
        let mut searched = 0;
        loop {
            let newline = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(offset) = newline {
                let line = self.buffer.split_to(searched + offset);
                self.buffer.advance(1);
                return serde_json::from_slice(&line)
                    .map_err(|error| LineError::Invalid(format!("a line is no event: {error}")));
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Err(LineError::Invalid("a line is too long".to_owned()));
            }
            match self.body.frame().await {
                None => return Err(LineError::Ended("the stream ended".to_owned())),
                Some(Err(error)) => return Err(LineError::Ended(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
