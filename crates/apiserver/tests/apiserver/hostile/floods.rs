//! Floods of requests, and slow clients.

use std::{convert::Infallible, time::Duration};

use bellerophon_apiserver::{ApiServer, RequestLimits};
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::join_all,
    stream::{self, FuturesUnordered},
};
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody, combinators::BoxBody};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::Instant,
};

use super::peer::{Target, finish};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The start of a request whose body of `length` bytes is still to come.
fn promise(target: &Target, length: usize) -> String {
    format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n",
        target.token
    )
}

/// Waits until a metric has this value.
async fn busy(target: &Target, wanted: &str) {
    loop {
        let metrics = target.request("GET /metrics", "", b"").await;
        assert_eq!(metrics.code, 200);
        if metrics.body.lines().any(|line| line == wanted) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn incomplete_bodies_hold_no_seats() {
    let limits = RequestLimits {
        reads_max: 1,
        writes_max: 1,
    };
    let target = Target::start_with(ApiServer::builder().limits(limits)).await;
    let body = r#"{"metadata":{"name":"a"}}"#;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = target.connect("http/1.1").await;
        stream
            .write_all(promise(&target, body.len()).as_bytes())
            .await
            .expect("sent");
        slow.push(stream);
    }
    busy(
        &target,
        r#"apiserver_current_inflight_requests{request_kind="mutating"} 0"#,
    )
    .await;
    let created = target
        .request(
            &format!("POST {CONFIG_MAPS}"),
            "application/json",
            br#"{"metadata":{"name":"b"}}"#,
        )
        .await;
    assert_eq!(created.code, 201, "{created:?}");
    let mut first = slow.swap_remove(0);
    first.write_all(body.as_bytes()).await.expect("sent");
    assert_eq!(finish(&mut first).await.code, 201, "it is still served");
    drop(slow);
    target.must_be_well().await;
}

#[tokio::test]
async fn body_that_never_arrives_is_not_waited_for() {
    let target = Target::start().await;
    let mut slow = target.connect("http/1.1").await;
    let head = promise(&target, 100).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    slow.write_all(head.as_bytes()).await.expect("sent");
    let mut continues = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    slow.read_exact(&mut continues)
        .await
        .expect("the server reads the body");
    slow.write_all(b"{").await.expect("sent");
    // From here on, time jumps to whatever is waited for.
    tokio::time::pause();
    let started = Instant::now();
    let mut answer = Vec::new();
    let _end = slow.read_to_end(&mut answer).await;
    let elapsed = started.elapsed();
    tokio::time::resume();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(elapsed <= Duration::from_secs(15), "{elapsed:?}");
    target.must_be_well().await;
}

/// The token of a service account without permissions.
async fn unprivileged_token(target: &Target) -> String {
    let accounts = "POST /api/v1/namespaces/default/serviceaccounts";
    let account = br#"{"metadata":{"name":"nobody"}}"#;
    let created = target.request(accounts, "application/json", account).await;
    assert_eq!(created.code, 201, "{created:?}");
    let path = &format!("{accounts}/nobody/token");
    let request = br#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}"#;
    let response = target.request(path, "application/json", request).await;
    assert_eq!(response.code, 201, "{response:?}");
    let token: serde_json::Value = serde_json::from_str(&response.body).expect("JSON");
    token["status"]["token"].as_str().expect("a token").into()
}

/// The status of a request whose body never ends.
async fn post_half_a_body(
    mut sender: SendRequest<BoxBody<Bytes, Infallible>>,
    token: &str,
) -> StatusCode {
    let first = stream::once(async { Ok(Frame::data(Bytes::from_static(b"{"))) });
    let body = StreamBody::new(first.chain(stream::pending()));
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let request = Request::post(format!("https://localhost{path}"))
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .header("content-length", "1000")
        .body(BoxBody::new(body));
    let response = sender.send_request(request.expect("a request")).await;
    response.expect("a response").status()
}

#[tokio::test]
async fn half_sent_bodies_take_no_places_from_others() {
    let target = Target::start().await;
    let token = unprivileged_token(&target).await;
    let mut half_sent = FuturesUnordered::new();
    for _ in 0..2 {
        let io = TokioIo::new(target.connect("h2").await);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = handshake.await.expect("HTTP/2");
        tokio::spawn(connection);
        for _ in 0..220 {
            half_sent.push(post_half_a_body(sender.clone(), &token));
        }
    }
    for _ in 0..440 - 128 {
        let refused = half_sent.next().await;
        assert_eq!(refused, Some(StatusCode::TOO_MANY_REQUESTS));
    }
    let post = target
        .request(
            &format!("POST {CONFIG_MAPS}"),
            "application/json",
            br#"{"metadata":{"name":"a"}}"#,
        )
        .await;
    assert_eq!(post.code, 201, "{post:?}");
    let metrics = target.request("GET /metrics", "", b"").await;
    let places = r#"apiserver_current_inflight_requests{request_kind="mutating"} 0"#;
    assert!(metrics.body.lines().any(|line| line == places));
    assert_eq!(half_sent.len(), 128);

    tokio::time::pause();
    let started = Instant::now();
    while let Some(status) = half_sent.next().await {
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    }
    let elapsed = started.elapsed();
    tokio::time::resume();
    assert!(elapsed <= Duration::from_secs(15), "{elapsed:?}");
    target.must_be_well().await;
}

#[tokio::test]
async fn unread_watch_is_gone_shortly_after_its_timeout() {
    let target = Target::start().await;
    let io = TokioIo::new(target.connect("h2").await);
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(io)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    let path = "/api/v1/namespaces?watch=1&timeoutSeconds=8";
    let request = Request::get(format!("https://localhost{path}"))
        .header("authorization", format!("Bearer {}", target.token))
        .body(Empty::<Bytes>::new());
    let response = sender.send_request(request.expect("a request")).await;
    let body = response.expect("headers").into_body();
    tokio::time::pause();
    let started = Instant::now();
    assert!(body.collect().await.is_err(), "the stream is reset");
    let elapsed = started.elapsed();
    tokio::time::resume();
    assert!(elapsed >= Duration::from_secs(8), "{elapsed:?}");
    assert!(elapsed <= Duration::from_secs(10), "{elapsed:?}");
    target.must_be_well().await;
}

#[tokio::test]
async fn half_a_header_is_not_waited_for() {
    let target = Target::start().await;
    let mut slow = target.connect("http/1.1").await;
    slow.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nslo")
        .await
        .expect("sent");
    tokio::time::pause();
    let mut answer = Vec::new();
    let _end = tokio::io::AsyncReadExt::read_to_end(&mut slow, &mut answer).await;
    tokio::time::resume();
    assert!(
        !answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    target.must_be_well().await;
}

#[tokio::test]
async fn many_streams_of_one_connection_are_all_answered() {
    const STREAMS: usize = 600;
    let target = Target::start().await;
    let (sender, connection) = hyper::client::conn::http2::handshake(
        TokioExecutor::new(),
        TokioIo::new(target.connect("h2").await),
    )
    .await
    .expect("HTTP/2");
    let driver = tokio::spawn(connection);
    let get = || {
        let request = Request::get(format!("https://localhost{CONFIG_MAPS}"))
            .header("authorization", format!("Bearer {}", target.token));
        request.body(Empty::<Bytes>::new()).expect("a request")
    };
    let codes = join_all((0..STREAMS).map(|_| {
        let mut sender = sender.clone();
        let request = get();
        async move {
            let response = sender.send_request(request).await.expect("an answer");
            let code = response.status().as_u16();
            response
                .into_body()
                .collect()
                .await
                .expect("a whole answer");
            code
        }
    }))
    .await;
    assert!(codes.iter().all(|code| *code == 200), "{codes:?}");

    // A client that sends requests and resets them, repeatedly, may lose its connection; others may
    // not.
    for _ in 0..STREAMS {
        let mut sender = sender.clone();
        drop(tokio::time::timeout(Duration::ZERO, sender.send_request(get())).await);
    }
    drop(sender);
    driver.abort();
    target.must_be_well().await;
}

#[tokio::test]
async fn clients_that_walk_away_leave_nothing_behind() {
    const WATCHES: usize = 25;
    let target = Target::start().await;
    let open = |watches: usize| {
        format!(
            r#"apiserver_longrunning_requests{{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}} {watches}"#
        )
    };
    let watch = format!(
        "GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        target.token
    );
    let mut clients = Vec::new();
    for _ in 0..WATCHES {
        for bytes in [watch.clone(), promise(&target, 1000)] {
            let mut stream = target.connect("http/1.1").await;
            stream.write_all(bytes.as_bytes()).await.expect("sent");
            clients.push(stream);
        }
    }
    busy(&target, &open(WATCHES)).await;
    drop(clients);
    busy(&target, &open(0)).await;
    busy(
        &target,
        r#"apiserver_current_inflight_requests{request_kind="mutating"} 0"#,
    )
    .await;
    let made = target
        .request(
            &format!("POST {CONFIG_MAPS}"),
            "application/json",
            br#"{"metadata":{"name":"after"}}"#,
        )
        .await;
    assert_eq!(made.code, 201, "{made:?}");
    target.must_be_well().await;
}
