//! Peers that do not read responses: what they hold, and for how long.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, future::join_all, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::Instant,
};

use super::{Limits, Served, served};
use crate::http::body::{Body, Chunks};

const LARGE_BYTES: usize = 12_000_000;
const SMALL_BYTES: usize = 10_000;
const WATCH_TIME: Duration = Duration::from_secs(8);

/// The body at a path of this module.
pub(super) fn body(path: &str) -> Option<Body> {
    match path {
        "/list" => Some(Body::chunks(Zeros(LARGE_BYTES))),
        "/table" => Some(Body::full(vec![0; LARGE_BYTES])),
        "/small" => Some(Body::full(vec![0; SMALL_BYTES])),
        "/watch" => {
            let events = stream::repeat(Bytes::from(vec![b' '; 1000]));
            let ends = Instant::now() + WATCH_TIME;
            let end = tokio::time::sleep_until(ends);
            Some(Body::stream_until(events.take_until(end), ends))
        }
        _ => None,
    }
}

/// A number of zeros, encoded while they are sent.
struct Zeros(usize);

impl Chunks for Zeros {
    fn next(&mut self, max_bytes: usize) -> Option<Bytes> {
        let length = self.0.min(max_bytes);
        self.0 -= length;
        (length > 0).then(|| vec![0; length].into())
    }

    fn remaining_bytes(&self) -> Option<u64> {
        Some(self.0 as u64)
    }
}

/// Limits without pings, which a paused clock would not wait for.
fn limits() -> Limits {
    Limits {
        ping_interval: Duration::from_secs(3600),
        ..Limits::default()
    }
}

/// A connection with this window for each stream.
async fn connect(served: &Served, window: u32) -> SendRequest<Empty<Bytes>> {
    let stream = served.connect(served.client("h2")).await;
    let io = TokioIo::new(stream.expect("a connection"));
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(io)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn get(sender: &SendRequest<Empty<Bytes>>, path: &str) -> hyper::Result<Response<Incoming>> {
    let request = Request::get(format!("https://localhost{path}"))
        .body(Empty::new())
        .expect("a request");
    sender.clone().send_request(request).await
}

/// Responses with this path, headers only.
async fn get_many(
    sender: &SendRequest<Empty<Bytes>>,
    path: &str,
    count: usize,
) -> Vec<Response<Incoming>> {
    join_all((0..count).map(|_| get(sender, path)))
        .await
        .into_iter()
        .map(|response| response.expect("headers"))
        .collect()
}

/// How long it takes until no response is unsent.
async fn time_until_sent(served: &Served) -> Duration {
    let started = Instant::now();
    while served.tracker.unsent_bytes() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    started.elapsed()
}

/// Reads until the stream ends. Returns how long that took, and the error if there was one.
async fn read(response: Response<Incoming>) -> (Duration, Result<usize, hyper::Error>) {
    let started = Instant::now();
    let read = response.into_body().collect().await;
    let length = read.map(|body| body.to_bytes().len());
    (started.elapsed(), length)
}

#[tokio::test]
async fn unread_lists_are_reset_and_hold_4_mib_per_connection() {
    let served = served(limits()).await;
    let sender = connect(&served, 0).await;
    let unread = async |sender: &SendRequest<Empty<Bytes>>| {
        let response = get(sender, "/list").await?;
        response.into_body().collect().await
    };
    let reads = join_all((0..200).map(|_| unread(&sender)));
    let time = async {
        while served.tracker.unsent_bytes() < 4 << 20 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        let started = Instant::now();
        for _ in 0..60 {
            assert!(served.tracker.unsent_bytes() <= 4 << 20);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        started
    };
    let (reads, started) = tokio::join!(reads, time);
    let elapsed = started.elapsed();
    tokio::time::resume();
    assert!(reads.iter().all(Result::is_err), "every stream is reset");
    // 64 at a time have a chunk.
    assert!(elapsed <= Duration::from_secs(4 * 40), "{elapsed:?}");
    assert_eq!(served.tracker.unsent_bytes(), 0);
    let readable = connect(&served, 1 << 20).await;
    let response = get(&readable, "/list").await.expect("headers");
    assert_eq!(response.headers()["content-length"], "12000000");
    assert_eq!(read(response).await.1.expect("a list"), LARGE_BYTES);
    drop((sender, readable));
    served.finish().await;
}

#[tokio::test]
async fn unread_stream_does_not_end_its_connection() {
    let served = served(limits()).await;
    let sender = connect(&served, 0).await;
    let unread = get(&sender, "/list").await.expect("headers");
    tokio::time::pause();
    assert!(read(unread).await.1.is_err(), "reset");
    tokio::time::resume();
    let next = get(&sender, "/list").await;
    assert_eq!(next.expect("the connection serves").status(), 200);
    drop(sender);
    served.finish().await;
}

#[tokio::test]
async fn unread_small_responses_end_their_connection() {
    let served = served(limits()).await;
    // The window lets the first byte through: the rest is in the buffers of HTTP/2, with the end.
    let sender = connect(&served, 1).await;
    let responses = get_many(&sender, "/small", 100).await;
    assert_eq!(served.tracker.unsent_bytes(), 100 * SMALL_BYTES);
    tokio::time::pause();
    let elapsed = time_until_sent(&served).await;
    tokio::time::resume();
    // Seven checks of 5 s, one that had begun, and the steps of this test.
    assert!(elapsed <= Duration::from_secs(41), "{elapsed:?}");
    for response in responses {
        assert!(read(response).await.1.is_err(), "closed");
    }
    drop(sender);
    served.finish().await;
}

#[tokio::test]
async fn unread_watch_is_reset_one_second_after_its_end() {
    let served = served(limits()).await;
    let sender = connect(&served, 0).await;
    let response = get(&sender, "/watch").await.expect("headers");
    tokio::time::pause();
    let (elapsed, read) = read(response).await;
    assert!(read.is_err(), "reset");
    assert!(elapsed >= WATCH_TIME, "{elapsed:?}");
    assert!(elapsed <= Duration::from_secs(10), "{elapsed:?}");
    tokio::time::resume();
    assert_eq!(served.tracker.unsent_bytes(), 0);
    drop(sender);
    served.finish().await;
}

#[tokio::test]
async fn http1_connections_that_do_not_read_are_closed() {
    let served = served(limits()).await;
    for path in ["/list", "/table", "/watch"] {
        let mut connections = Vec::new();
        for _ in 0..2 {
            let mut stream = served
                .connect(served.client("http/1.1"))
                .await
                .expect("a connection");
            let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("sent");
            let mut first = [0];
            stream.read_exact(&mut first).await.expect("a response");
            connections.push(stream);
        }
        tokio::time::pause();
        let elapsed = time_until_sent(&served).await;
        tokio::time::resume();
        assert!(elapsed <= Duration::from_secs(41), "{path}: {elapsed:?}");
    }
    served.finish().await;
}

#[tokio::test]
async fn large_responses_of_one_connection_wait_for_each_other() {
    let served = served(limits()).await;
    let unread = connect(&served, 0).await;
    let first = get(&unread, "/table").await.expect("headers");
    while served.tracker.unsent_bytes() < LARGE_BYTES {
        tokio::task::yield_now().await;
    }
    let waiting = unread.clone();
    let second = tokio::spawn(async move { get(&waiting, "/table").await.map(drop) });
    let readable = connect(&served, 1 << 20).await;
    let other = get(&readable, "/small").await.expect("headers");
    assert_eq!(read(other).await.1.expect("a body"), SMALL_BYTES);
    assert_eq!(served.tracker.unsent_bytes(), LARGE_BYTES);
    assert!(!second.is_finished());
    second.abort();
    drop((first, unread, readable));
    served.finish().await;
}

#[tokio::test]
async fn responses_that_do_not_fit_together_close_their_connections() {
    let limits = Limits {
        unsent_bytes_max: 5 * LARGE_BYTES,
        ..limits()
    };
    let served = served(limits).await;
    let mut connections = Vec::new();
    let mut responses = Vec::new();
    for _ in 0..6 {
        let sender = connect(&served, 0).await;
        responses.push(get(&sender, "/table").await);
        connections.push(sender);
    }
    for response in responses.into_iter().flatten() {
        assert!(read(response).await.1.is_err(), "closed");
    }
    // The task of a connection ends after its client has seen that it is closed.
    let released = async {
        while served.tracker.unsent_bytes() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let released = tokio::time::timeout(Duration::from_secs(10), released).await;
    assert!(released.is_ok(), "{} bytes", served.tracker.unsent_bytes());
    drop(connections);
    served.finish().await;
}
