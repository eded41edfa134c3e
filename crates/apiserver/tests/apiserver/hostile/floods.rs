//! Too many requests, and clients that take their time.

use std::time::Duration;

use bellerophon_apiserver::{ApiServer, RequestLimits};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;

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
async fn bodies_that_are_on_their_way_hold_no_seats() {
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
async fn body_that_never_comes_is_not_waited_for() {
    let target = Target::start().await;
    let mut slow = target.connect("http/1.1").await;
    slow.write_all([promise(&target, 100).as_str(), "{"].concat().as_bytes())
        .await
        .expect("sent");
    let version = target.request("GET /version", "", b"").await;
    assert_eq!(version.code, 200);
    // From here on, time jumps to whatever is waited for.
    tokio::time::pause();
    let mut answer = Vec::new();
    let _end = tokio::io::AsyncReadExt::read_to_end(&mut slow, &mut answer).await;
    tokio::time::resume();
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 504 "),
        "{answer}"
    );
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

    // A client that asks and walks away, over and over, may lose its connection but nobody else's.
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
    let target = Target::start().await;
    for round in 0..50 {
        let mut stream = target.connect("http/1.1").await;
        let watch = format!(
            "GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
            target.token
        );
        let bytes = if round % 2 == 0 {
            watch
        } else {
            promise(&target, 1000)
        };
        stream.write_all(bytes.as_bytes()).await.expect("sent");
        drop(stream);
    }
    busy(
        &target,
        r#"apiserver_current_inflight_requests{request_kind="mutating"} 0"#,
    )
    .await;
    target.must_be_well().await;
}
