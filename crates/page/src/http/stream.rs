//! Records as server-sent events.
//!
//! In: a source and a sequence number. Out: frames `records`, `gap`, `state` and `ready`, each with
//! JSON in one line.
//! Guarantees: at most 20 frames of records per second; a gap is a separate frame, in its place;
//! without records, a comment keeps the connection open.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::body::Frame;
use tokio::time::{Instant, sleep_until};

use crate::filter::Filter;
use crate::source::Source;
use crate::state::STATE_INTERVAL;

/// The minimum time between two frames of records.
const FRAME_INTERVAL: Duration = Duration::from_millis(50);

/// The position of one reader.
struct Reader {
    source: Source,
    filter: Filter,
    /// The sequence number of the last record that was sent or missed.
    seen: u64,
    /// When the next frame of records may be sent.
    next_frame: Instant,
    /// When the next state is sent.
    next_state: Instant,
    /// Whether the reader was notified that it has all records up to now.
    is_ready: bool,
}

/// All frames after a sequence number that pass a filter, without an end. A frame whose records do
/// not pass is sent without them, so that its reader continues after them.
pub(super) fn frames(
    source: Source,
    since: u64,
    filter: Filter,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let now = Instant::now();
    let reader = Reader {
        source,
        filter,
        seen: since,
        next_frame: now,
        next_state: now,
        is_ready: false,
    };
    stream::unfold(reader, |mut reader| async {
        let text = reader.next().await;
        Some((Ok(Frame::data(Bytes::from(text))), reader))
    })
}

impl Reader {
    async fn next(&mut self) -> String {
        if !self.is_ready {
            if let Some(frame) = self.read() {
                return frame;
            }
            self.is_ready = true;
            return format!("event: ready\ndata: {}\n\n", self.seen);
        }
        tokio::select! {
            biased;
            () = sleep_until(self.next_state) => {
                self.next_state = Instant::now() + STATE_INTERVAL;
                match self.source.state() {
                    Some(state) => format!("event: state\ndata: {state}\n\n"),
                    // A comment, so that a closed connection is noticed.
                    None => ":\n\n".to_owned(),
                }
            }
            () = self.changed() => self.read().unwrap_or_else(|| ":\n\n".to_owned()),
        }
    }

    async fn changed(&self) {
        sleep_until(self.next_frame).await;
        self.source.changed(self.seen).await;
    }

    /// The next records, and before them how many are missing.
    fn read(&mut self) -> Option<String> {
        let batch = self.source.since(self.seen, &self.filter);
        let from = self.seen;
        let is_same = batch.last == from && batch.lines.is_empty();
        self.seen = batch.last;
        if !batch.has_more {
            self.next_frame = Instant::now() + FRAME_INTERVAL;
        }
        if is_same {
            return None;
        }
        let mut text = String::new();
        if batch.missed > 0 {
            text = format!(
                "event: gap\ndata: {{\"after\":{from},\"missed\":{}}}\n\n",
                batch.missed
            );
        }
        text.push_str("event: records\nid: ");
        text.push_str(&self.seen.to_string());
        text.push_str("\ndata: {\"from\":");
        text.push_str(&from.to_string());
        text.push_str(",\"to\":");
        text.push_str(&self.seen.to_string());
        text.push_str(",\"records\":[");
        text.push_str(&batch.lines.join(","));
        text.push_str("]}\n\n");
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use bellerophon::clock::Clock;
    use bellerophon::trace::{Trace, TraceEvent};
    use futures_util::StreamExt as _;

    use super::*;
    use crate::source::LiveSource;

    fn listed(trace: &Trace) {
        trace.record(|| TraceEvent::Listed {
            kind: "Pod".into(),
            objects: 0,
            resource_version: None,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn reader_resumes_by_sequence_and_gaps_are_frames() {
        let trace = Trace::new(2);
        (0..5).for_each(|_| listed(&trace));
        let source = Source::Live(LiveSource {
            trace: trace.clone(),
            clock: Clock::system(),
            objects: None,
            stored: None,
        });
        for (since, expected) in [
            (0, vec!["records 4,5", "ready"]),
            (1, vec!["gap 2", "records 4,5", "ready"]),
            (4, vec!["records 5", "ready"]),
            (5, vec!["ready"]),
        ] {
            let mut frames = Box::pin(frames(source.clone(), since, Filter::default()));
            let mut found = Vec::new();
            while found.last().is_none_or(|last| last != "ready") {
                let frame = frames.next().await.unwrap().unwrap().into_data().unwrap();
                found.extend(events(&frame));
            }
            assert_eq!(found, expected, "since {since}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_records_follow_in_one_frame() {
        let trace = Trace::new(10);
        let source = Source::Live(LiveSource {
            trace: trace.clone(),
            clock: Clock::system(),
            objects: None,
            stored: None,
        });
        let mut frames = Box::pin(frames(source, 0, Filter::default()));
        assert_eq!(next(&mut frames).await, ["ready"]);
        assert_eq!(next(&mut frames).await, ["state"]);
        listed(&trace);
        listed(&trace);
        assert_eq!(next(&mut frames).await, ["records 1,2"]);
        assert_eq!(next(&mut frames).await, ["state"]);
    }

    async fn next(
        frames: &mut (impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Unpin),
    ) -> Vec<String> {
        let frame = frames.next().await.unwrap().unwrap();
        events(&frame.into_data().unwrap())
    }

    /// Short texts of the events in a frame.
    fn events(frame: &[u8]) -> Vec<String> {
        let text = std::str::from_utf8(frame).unwrap();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        events
            .map(|event| {
                let member = |name: &str| {
                    let found = event.lines().find_map(|line| line.strip_prefix(name));
                    found.unwrap_or_default().trim().to_owned()
                };
                let data: serde_json::Value =
                    serde_json::from_str(&member("data:")).unwrap_or_default();
                match member("event:").as_str() {
                    "records" => {
                        let records = data["records"].as_array().unwrap();
                        let numbers = records.iter().map(|record| record["seq"].to_string());
                        format!("records {}", numbers.collect::<Vec<_>>().join(","))
                    }
                    "gap" => format!("gap {}", data["missed"]),
                    other => other.to_owned(),
                }
            })
            .collect()
    }
}
