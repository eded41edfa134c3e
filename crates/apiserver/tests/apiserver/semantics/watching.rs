//! A watch that is read in the background.
//! Guarantees: events are kept in order, each with the virtual time at which it came.

use std::time::Duration;

use bytes::BytesMut;
use http::Response;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::{
    sync::watch::{Receiver, Sender, channel},
    task::AbortHandle,
    time::Instant,
};

use super::answer::version_of;

#[derive(Default)]
struct Seen {
    events: Vec<(Duration, Value)>,
    ended: Option<Duration>,
}

/// An open watch.
pub(crate) struct Watching {
    pub(crate) code: u16,
    seen: Receiver<Seen>,
    reader: AbortHandle,
}

impl Watching {
    /// Reads on from the answer to a watch request.
    pub(crate) fn start(response: Response<Body>) -> Self {
        let code = response.status().as_u16();
        let (sender, seen) = channel(Seen::default());
        let reader = tokio::spawn(read(response.into_body(), sender)).abort_handle();
        Self { code, seen, reader }
    }

    /// The first events, as soon as there are that many.
    pub(crate) async fn first(&mut self, count: usize) -> Vec<Value> {
        let seen = self
            .seen
            .wait_for(|seen| seen.events.len() >= count || seen.ended.is_some())
            .await
            .expect("the reader lives");
        seen.events.iter().map(|(_, event)| event.clone()).collect()
    }

    /// When it ended, if it did.
    pub(crate) fn ended(&self) -> Option<Duration> {
        self.seen.borrow().ended
    }

    /// All events of a watch that ends.
    pub(crate) async fn all(self) -> Vec<Value> {
        self.all_in_time()
            .await
            .into_iter()
            .map(|(_, event)| event)
            .collect()
    }

    /// The same, with the time since the watch was opened.
    pub(crate) async fn all_in_time(mut self) -> Vec<(Duration, Value)> {
        self.seen
            .wait_for(|seen| seen.ended.is_some())
            .await
            .expect("the reader lives")
            .events
            .clone()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(mut body: Body, seen: Sender<Seen>) {
    let opened = Instant::now();
    let mut buffer = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            let event = serde_json::from_slice(&line).expect("one JSON object a line");
            seen.send_modify(|seen| seen.events.push((opened.elapsed(), event)));
        }
    }
    assert!(buffer.is_empty(), "half an event: {buffer:?}");
    seen.send_modify(|seen| seen.ended = Some(opened.elapsed()));
}

/// An event in short: `ADDED a@7`; bookmarks and errors have no name.
pub(crate) fn short(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    let object = &event["object"];
    match object["metadata"]["name"].as_str() {
        Some(name) => format!("{kind} {name}@{}", version_of(object)),
        None if kind == "ERROR" => format!("{kind} {}", object["code"]),
        None => format!("{kind} @{}", version_of(object)),
    }
}

/// Events in short.
pub(crate) fn shorts(events: &[Value]) -> Vec<String> {
    events.iter().map(short).collect()
}
