//! Too many requests, and clients that take their time.

use std::time::Duration;

use bellerophon_apiserver::{ApiServer, RequestLimits};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;

use super::peer::{Outcome, Target, finish};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The start of a request whose body of `length` bytes is still to come.
fn promise(target: &Target, length: usize) -> String {
    format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n",
        target.token
    )
}

/// Waits until so many writes run or wait.
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
async fn more_than_may_wait_are_told_to_come_back() {
    let limits = RequestLimits {
        reads_max: 1,
        writes_max: 1,
        waiting_max: 1,
    };
    let target = Target::start_with(ApiServer::builder().limits(limits)).await;
    let body = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    let mut running = target.connect("http/1.1").await;
    running
        .write_all(promise(&target, body("a").len()).as_bytes())
        .await
        .expect("sent");
    busy(
        &target,
        r#"apiserver_current_inflight_requests{request_kind="mutating"} 1"#,
    )
    .await;
    let mut waiting = target.connect("http/1.1").await;
    waiting
        .write_all(
            [promise(&target, body("b").len()), body("b")]
                .concat()
                .as_bytes(),
        )
        .await
        .expect("sent");
    busy(
        &target,
        r#"apiserver_current_inqueue_requests{request_kind="mutating"} 1"#,
    )
    .await;

    let refused = target
        .request(
            &format!("POST {CONFIG_MAPS}"),
            "application/json",
            body("c").as_bytes(),
        )
        .await;
    assert_eq!(refused.code, 429, "{refused:?}");
    assert!(
        refused.is_clean() && refused.body.contains(r#""reason":"TooManyRequests""#),
        "{}",
        refused.body
    );
    assert!(
        refused.head.to_lowercase().contains("retry-after: 1"),
        "{}",
        refused.head
    );
    assert_eq!(
        target
            .request(&format!("GET {CONFIG_MAPS}"), "", b"")
            .await
            .code,
        200,
        "reads are counted by themselves"
    );

    running.write_all(body("a").as_bytes()).await.expect("sent");
    let codes: Vec<u16> = join_all([finish(&mut running), finish(&mut waiting)])
        .await
        .iter()
        .map(|o: &Outcome| o.code)
        .collect();
    assert_eq!(codes, [201, 201], "those that wait get their turn");
    target.must_be_well().await;
}

#[tokio::test]
async fn body_that_never_comes_is_not_waited_for() {
    let target = Target::start().await;
    let mut slow = target.connect("http/1.1").await;
    slow.write_all([promise(&target, 100).as_str(), "{"].concat().as_bytes())
        .await
        .expect("sent");
    busy(
        &target,
        r#"apiserver_current_inflight_requests{request_kind="mutating"} 1"#,
    )
    .await;
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
