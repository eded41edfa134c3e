//! What the flooding process sends. Whatever the server closes or rejects is sent again
//! immediately; `Retry-After` is ignored.

use std::{
    convert::Infallible,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::join_all, stream};
use http::Method;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    accounts::{FLOODER, LARGE, OTHER, SMALL},
    common::client::{Target, config_map},
    peer::{Body, Peer, full},
    statistics::{Outcome, Statistics},
};

/// Starts a flood in tasks that never end. Returns the number of its parts.
type Flood = fn(&Target, &Arc<Statistics>) -> usize;

/// All floods, with the names of their rows.
pub(crate) const FLOODS: [(&str, Flood); 6] = [
    ("busy processors, no request", busy_processors),
    ("10,000 requests, half lists, half creates", requests),
    ("440 half-sent bodies", half_sent_bodies),
    ("260 unread lists of 12 MB", unread_lists),
    ("10,000 watches of what is written", watches),
    ("10,000 silent connections", silent_connections),
];

/// HTTP/2 connections of a flood of requests or watches.
const CONNECTIONS: usize = 40;

/// The limit of the server.
const STREAMS: usize = 250;

/// Connections without a request.
const SILENT_CONNECTIONS: usize = 10_000;

/// HTTP/2 connections with half-sent bodies, and the bodies of each.
const BODY_CONNECTIONS: usize = 2;
const BODIES: usize = 220;

/// Lists on an HTTP/2 connection without a window.
const LISTS: usize = 200;

/// HTTP/1.1 connections that do not read.
const UNREADING_CONNECTIONS: usize = 60;

/// The windows of a client that reads.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}

/// Takes what the processors have left.
fn busy_processors(_: &Target, statistics: &Arc<Statistics>) -> usize {
    const THREADS: usize = 2;
    for _ in 0..THREADS {
        statistics.grow();
        tokio::task::spawn_blocking(|| {
            let mut number = 0_u64;
            loop {
                number = black_box(number.wrapping_add(1));
            }
        });
    }
    THREADS
}

/// Runs this on each stream of each HTTP/2 connection, and again when the connection is closed. It
/// returns when there is no response.
fn on_streams<F, S>(
    peer: &Peer,
    connections: usize,
    streams: usize,
    settings: Builder<TokioExecutor>,
    run: F,
) where
    F: Fn(Peer, SendRequest<Body>, usize) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = ()> + Send,
{
    for _ in 0..connections {
        let peer = peer.clone();
        let settings = settings.clone();
        let run = run.clone();
        tokio::spawn(async move {
            loop {
                let sender = peer.http2(&settings).await;
                let streams = (0..streams).map(|stream| {
                    let peer = peer.clone();
                    let sender = sender.clone();
                    let run = run.clone();
                    async move {
                        while !sender.is_closed() {
                            run(peer.clone(), sender.clone(), stream).await;
                        }
                    }
                });
                join_all(streams).await;
            }
        });
    }
}

fn requests(target: &Target, statistics: &Arc<Statistics>) -> usize {
    let peer = Peer::new(target, statistics);
    let created = Arc::new(AtomicUsize::new(0));
    let run = move |peer: Peer, mut sender: SendRequest<Body>, stream: usize| {
        let created = created.clone();
        async move {
            peer.statistics.grow();
            let sent = if stream.is_multiple_of(2) {
                let path = config_maps(SMALL);
                peer.send(&mut sender, Method::GET, &path, full("")).await
            } else {
                let number = created.fetch_add(1, Ordering::Relaxed);
                let body = full(config_map(&format!("created-{number}"), 0));
                let path = config_maps(FLOODER);
                peer.send(&mut sender, Method::POST, &path, body).await
            };
            if let Some(response) = sent {
                // An error is counted as a closed connection.
                let _body = response.into_body().collect().await;
            }
        }
    };
    on_streams(&peer, CONNECTIONS, STREAMS, builder(), run);
    CONNECTIONS * STREAMS
}

fn half_sent_bodies(target: &Target, statistics: &Arc<Statistics>) -> usize {
    let peer = Peer::new(target, statistics);
    let run = |peer: Peer, mut sender: SendRequest<Body>, _| async move {
        peer.statistics.grow();
        let half =
            stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{"))) });
        let body = StreamBody::new(half.chain(stream::pending()));
        let path = config_maps(FLOODER);
        peer.send(&mut sender, Method::POST, &path, Body::new(body))
            .await;
    };
    on_streams(&peer, BODY_CONNECTIONS, BODIES, builder(), run);
    BODY_CONNECTIONS * BODIES
}

fn unread_lists(target: &Target, statistics: &Arc<Statistics>) -> usize {
    let peer = Peer::new(target, statistics);
    let mut settings = builder();
    settings.initial_stream_window_size(0);
    let run = |peer: Peer, mut sender: SendRequest<Body>, _| async move {
        peer.statistics.grow();
        let path = config_maps(LARGE);
        let list = peer.send(&mut sender, Method::GET, &path, full("")).await;
        if let Some(list) = list {
            // No data fits into the window: this returns when the stream is reset.
            let _reset = list.into_body().frame().await;
            peer.statistics.count(Outcome::Reset);
        }
    };
    on_streams(&peer, 1, LISTS, settings, run);
    for _ in 0..UNREADING_CONNECTIONS {
        let peer = peer.clone();
        tokio::spawn(async move {
            let mut stream = peer.http1_unreading().await;
            let path = config_maps(LARGE);
            let authorization = &peer.authorization;
            let head =
                format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: {authorization}\r\n\r\n");
            // An error means that the server has closed the connection.
            let _sent = stream.write_all(head.as_bytes()).await;
            peer.statistics.grow();
            // The connection stays open, and nothing is read.
            std::future::pending::<()>().await;
        });
    }
    LISTS + UNREADING_CONNECTIONS
}

fn watches(target: &Target, statistics: &Arc<Statistics>) -> usize {
    let peer = Peer::new(target, statistics);
    let run = |peer: Peer, mut sender: SendRequest<Body>, _| async move {
        let path = format!(
            "{}?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            config_maps(OTHER)
        );
        let watch = peer.send(&mut sender, Method::GET, &path, full("")).await;
        let Some(watch) = watch else {
            return;
        };
        if watch.status().is_success() {
            peer.statistics.grow();
        }
        let mut events = watch.into_body();
        while let Some(Ok(_)) = events.frame().await {
            peer.statistics.count(Outcome::Chunk);
        }
    };
    on_streams(&peer, CONNECTIONS, STREAMS, builder(), run);
    CONNECTIONS * STREAMS
}

fn silent_connections(target: &Target, statistics: &Arc<Statistics>) -> usize {
    let peer = Peer::new(target, statistics);
    for _ in 0..SILENT_CONNECTIONS {
        let peer = peer.clone();
        tokio::spawn(async move {
            loop {
                let mut stream = peer.http1().await;
                peer.statistics.grow();
                peer.statistics.count(Outcome::Connected);
                // Returns when the server closes the connection, with or without close_notify.
                let _closed = stream.read(&mut [0]).await;
                peer.statistics.count(Outcome::Closed);
            }
        });
    }
    SILENT_CONNECTIONS
}
