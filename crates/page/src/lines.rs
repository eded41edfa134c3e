//! Records in the trace format, as a stream of text.
//!
//! In: a live source and a sequence number. Out: a header, records, and with them `gap` and `state`
//! lines.
//! Guarantees: all types of records are included; records that were overwritten are a `gap` line.

use bellerophon::trace::{TraceBatch, TraceReader};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::line::{self, Header};
use crate::source::LiveSource;
use crate::state::{self, STATE_INTERVAL};

/// The records that are stored now, after a sequence number.
pub fn stored_lines(source: LiveSource, since: u64) -> impl Stream<Item = Bytes> + Send {
    let stored = source.trace.since(since);
    let newest = source.trace.newest_sequence();
    let text = [
        header(&source),
        text(&source, &stored, since),
        state::line(&source.trace, &source.clock, newest) + "\n",
    ];
    stream::iter(text.map(Bytes::from))
}

/// The records after a sequence number, then new ones as they are recorded, and the state of queues
/// and caches every second.
pub fn following_lines(source: LiveSource, since: u64) -> impl Stream<Item = Bytes> + Send {
    let head = stream::iter([Bytes::from(header(&source))]);
    let follower = Follower {
        reader: source.trace.subscribe_since(since),
        seen: since,
        next_state: Instant::now(),
        source,
    };
    let lines = stream::unfold(follower, |mut follower| async {
        Some((Bytes::from(follower.next().await), follower))
    });
    head.chain(lines)
}

struct Follower {
    source: LiveSource,
    reader: TraceReader,
    /// The sequence number of the last record that was read or missed.
    seen: u64,
    next_state: Instant,
}

impl Follower {
    async fn next(&mut self) -> String {
        tokio::select! {
            batch = self.reader.next() => {
                let text = text(&self.source, &batch, self.seen);
                self.seen += batch.missed + batch.records.len() as u64;
                text
            }
            () = sleep_until(self.next_state) => {
                self.next_state = Instant::now() + STATE_INTERVAL;
                state::line(&self.source.trace, &self.source.clock, self.seen) + "\n"
            }
        }
    }
}

/// The first line.
fn header(source: &LiveSource) -> String {
    let header = serde_json::to_string(&Header::new(&source.clock));
    header.expect("keys are strings and numbers are finite") + "\n"
}

/// The lines of a batch that follows a sequence number.
pub(crate) fn text(source: &LiveSource, batch: &TraceBatch, seen: u64) -> String {
    let mut text = String::new();
    if batch.missed > 0 {
        let time_us = source.clock.now().as_microsecond();
        let missed = batch.missed;
        let gap = json!({ "seq": seen + 1, "time_us": time_us, "type": "gap", "missed": missed });
        text = format!("{gap}\n");
    }
    for record in &batch.records {
        text.push_str(&line::line(record, &source.clock, source.objects.as_ref()));
        text.push('\n');
    }
    text
}
