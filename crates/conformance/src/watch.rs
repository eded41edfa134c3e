//! A watch that is read in the background during its scenario.
//! Input: the body of a watch. Output: its events, one JSON line each, and whether the stream has ended.
//! Guarantees: the reader ends with the watch; the number of events that are kept is bounded.

use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::{
    sync::watch::{Receiver, Sender, channel},
    task::AbortHandle,
    time::timeout,
};

use crate::{json::Json, transport::Reply};

/// No recorded watch has more than a handful of events.
const EVENTS_MAX: usize = 10_000;

/// What a watch has seen so far.
#[derive(Default)]
struct Seen {
    events: Vec<Json>,
    ended: bool,
}

/// A running watch.
pub(crate) struct Watch {
    pub(crate) status: StatusCode,
    seen: Receiver<Seen>,
    reader: AbortHandle,
}

/// How long a collection may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the expected events.
    pub(crate) events: Duration,
    /// After that, for one event too many to show up.
    pub(crate) settle: Duration,
}

impl Watch {
    /// Reads on from the answer to a watch request.
    pub(crate) fn start(reply: Reply) -> Self {
        let status = reply.status();
        let (sender, seen) = channel(Seen::default());
        let reader = tokio::spawn(read(reply, sender)).abort_handle();
        Self {
            status,
            seen,
            reader,
        }
    }

    /// Waits for `count` events or the end of the stream, then for surplus events; gives all so far, and whether the stream ended.
    pub(crate) async fn collect(&mut self, count: usize, timeouts: Timeouts) -> (Vec<Json>, bool) {
        // An elapsed wait is no failure: what is missing shows in the comparison.
        let _ = timeout(
            timeouts.events,
            self.seen
                .wait_for(|seen| seen.events.len() >= count || seen.ended),
        )
        .await;
        let _ = timeout(timeouts.settle, self.seen.wait_for(|seen| seen.ended)).await;
        let seen = self.seen.borrow();
        (seen.events.clone(), seen.ended)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(reply: Reply, seen: Sender<Seen>) {
    let mut body = reply.into_body();
    let mut buffer = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            if !keep(&seen, &line) {
                return end_of(&seen);
            }
        }
    }
    keep(&seen, &buffer);
    end_of(&seen);
}

/// Keeps the event of a line. False when nothing more can come of this stream.
fn keep(seen: &Sender<Seen>, line: &[u8]) -> bool {
    if line.trim_ascii().is_empty() {
        return true;
    }
    let Ok(event) = Json::parse(line) else {
        return false;
    };
    seen.send_modify(|seen| seen.events.push(event));
    seen.borrow().events.len() < EVENTS_MAX
}

fn end_of(seen: &Sender<Seen>) {
    seen.send_modify(|seen| seen.ended = true);
}
