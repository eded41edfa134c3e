//! Peers that do not send what they announced, or do not read their responses.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use http::{Method, Request, StatusCode, header};
use http_body::Frame;
use http_body_util::{StreamBody, combinators::BoxBody};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};

use crate::{client::JSON, target::Target};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// After this time without a further response, no more are expected.
const QUIET: Duration = Duration::from_secs(1);

/// The status of a request whose body never ends.
async fn post_half_a_body(
    mut sender: SendRequest<BoxBody<Bytes, Infallible>>,
    token: &str,
) -> StatusCode {
    let first = stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
    let body = StreamBody::new(first.chain(stream::pending()));
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let request = Request::post(format!("https://localhost{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, JSON)
        .header(header::CONTENT_LENGTH, "1000")
        .body(BoxBody::new(body));
    let response = sender.send_request(request.expect("a request")).await;
    response.expect("a response").status()
}

/// 200 such requests used to keep all others from writing for 58 s.
#[tokio::test]
async fn half_sent_bodies_of_one_user_do_not_delay_others() {
    const STREAMS: usize = 220;
    const BODIES_PER_USER: usize = 128;
    let target = Target::start().await;
    let token = target.account("nobody", &[]).await;
    let mut half_sent = FuturesUnordered::new();
    for _ in 0..2 {
        let io = TokioIo::new(target.endpoint.connect("h2").await);
        let handshake = Builder::new(TokioExecutor::new()).handshake(io);
        let (sender, connection) = handshake.await.expect("HTTP/2");
        tokio::spawn(connection);
        for _ in 0..STREAMS {
            half_sent.push(post_half_a_body(sender.clone(), &token));
        }
    }
    for _ in 0..2 * STREAMS - BODIES_PER_USER {
        let refused = half_sent.next().await;
        assert_eq!(refused, Some(StatusCode::TOO_MANY_REQUESTS));
    }
    let object = json!({"metadata": {"name": "a"}});
    let rules = [json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]})];
    let other = target.client_of("other", &rules).await;
    for client in [&target.admin, &other] {
        let path = format!("{CONFIG_MAPS}?dryRun=All");
        let created = client.post(&path, &object).await;
        created
            .assert_status(201)
            .assert_within(Duration::from_secs(5));
    }
    drop(half_sent);
    target.assert_well().await;
}

/// A server with 12 MB of ConfigMaps, and the token of an account that may list them.
async fn target_with_a_large_list() -> (Target, String) {
    let target = Target::start().await;
    let filler = "x".repeat(1_000_000);
    for number in 0..12 {
        let object = json!({
            "metadata": {"name": format!("large-{number}")},
            "data": {"filler": filler},
        });
        target.admin.create(CONFIG_MAPS, &object).await;
    }
    let rules = [json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})];
    let token = target.account("bob", &rules).await;
    (target, token)
}

/// 200 lists used to hold 2.4 GB.
#[tokio::test]
async fn unread_lists_of_an_http2_connection_hold_bounded_memory() {
    let (target, token) = target_with_a_large_list().await;
    let mut client = target.endpoint.client(&token).await;
    client.sender = target
        .endpoint
        .http2(Builder::new(TokioExecutor::new()).initial_stream_window_size(0))
        .await;
    let memory = target.measure_memory();
    let mut lists = FuturesUnordered::new();
    for _ in 0..200 {
        lists.push(client.start(Method::GET, CONFIG_MAPS, JSON, ""));
    }
    let mut unread = Vec::new();
    while let Ok(Some(list)) = timeout(QUIET, lists.next()).await {
        assert_eq!(list.status(), 200);
        unread.push(list);
    }
    assert!(!unread.is_empty(), "some lists are being sent");
    memory.assert_below_mib(100);
    drop(unread);
    drop(lists);
    drop(client);
    target.assert_well().await;
}

/// 60 lists used to hold 760 MB.
#[tokio::test]
async fn unread_lists_of_http1_connections_hold_bounded_memory() {
    const CONNECTIONS: usize = 40;
    let (target, token) = target_with_a_large_list().await;
    let memory = target.measure_memory();
    let mut unread = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = target.endpoint.connect_unreading().await;
        let head = format!(
            "GET {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        unread.push(stream);
    }
    for stream in &mut unread {
        let mut status = [0; b"HTTP/1.1 200 OK".len()];
        let reading = timeout(Duration::from_secs(20), stream.read_exact(&mut status));
        let read = reading.await.expect("a response");
        read.expect("a status line");
        assert_eq!(&status, b"HTTP/1.1 200 OK");
    }
    sleep(QUIET).await;
    memory.assert_below_mib(100);
    // The server waits for responses in progress before it exits.
    drop(unread);
    target.assert_well().await;
}

/// They used to hold their places for 90 s.
#[tokio::test]
async fn connections_without_a_request_are_closed_after_seconds() {
    const CONNECTIONS: usize = 50;
    let target = Target::start().await;
    let started = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        silent.push(target.endpoint.connect("http/1.1").await);
    }
    for mut stream in silent {
        let mut bytes = Vec::new();
        // A close without close_notify is an error of rustls.
        let _end = timeout(Duration::from_secs(25), stream.read_to_end(&mut bytes))
            .await
            .expect("the server closes the connection");
        assert_eq!(bytes, b"");
    }
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(5), "{elapsed:?}");
    target.assert_well().await;
}
