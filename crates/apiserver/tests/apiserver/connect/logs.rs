//! Logs of containers, from a kubelet to a client.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};
use tokio::sync::{Notify, mpsc, watch};

use super::backend::{Backend, Cluster, get, send, text, within};
use bellerophon_apiserver::LoopbackDialer;

const LOG: &str = "/api/v1/namespaces/ns/pods/p/log";

#[tokio::test]
async fn log_is_read_from_the_kubelet_of_the_node() {
    let (backend, got) = Backend::recording(|_| text("line 1\nline 2\n"));
    let cluster = Cluster::start(backend.clone()).await;
    for client in cluster.both() {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let options = LogParams {
            tail_lines: Some(2),
            timestamps: true,
            ..LogParams::default()
        };
        let log = within(pods.logs("p", &options)).await.expect("a log");
        assert_eq!(log, "line 1\nline 2\n");
        let request = got.lock().expect("no panic").pop().expect("a request");
        let line = "GET 10.0.0.1:10251/containerLogs/ns/p/c?tailLines=2&timestamps=true";
        assert_eq!(request.line(), line);
        assert_eq!(request.header("host"), Some("10.0.0.1:10251"));
        assert_eq!(request.header("authorization"), None);
        let answer = send(client, get(LOG)).await;
        assert_eq!(answer.header("content-type"), Some("text/plain"));
        assert_eq!(answer.header("cache-control"), Some("no-cache, private"));
        backend.wait_for_open(0).await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn log_errors_have_the_messages_of_kube_apiserver() {
    let (backend, _) = Backend::recording(|got| {
        let mut response =
            text("container \"c\" in pod \"p\" is waiting to start: ContainerCreating");
        *response.status_mut() = match got.head.uri.query() {
            Some("previous=true") => StatusCode::BAD_REQUEST,
            _ => StatusCode::NOT_FOUND,
        };
        response
    });
    let cluster = Cluster::start(backend).await;
    cluster.make_pod("two", "n1", &["a", "b"]).await;
    cluster.make_pod("lost", "n2", &["c"]).await;
    for (pod_and_query, code, message) in [
        ("gone/log", 404, "pods \"gone\" not found"),
        (
            "two/log",
            400,
            "a container name must be specified for pod two, choose one of: [a b]",
        ),
        (
            "two/log?container=c",
            400,
            "container c is not valid for pod two",
        ),
        ("waiting/log", 204, ""),
        ("lost/log", 404, "nodes \"n2\" not found"),
        (
            "p/log?tailLines=-1",
            422,
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "p/log?previous=true",
            400,
            "container \"c\" in pod \"p\" is waiting to start: ContainerCreating",
        ),
        (
            "p/log",
            404,
            "the server could not find the requested resource ( pods/log p)",
        ),
    ] {
        let path = format!("/api/v1/namespaces/ns/pods/{pod_and_query}");
        let answer = send(&cluster.in_process, get(&path)).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text);
        assert_eq!(answer.message(), message, "{path}");
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn simulated_node_is_refused_immediately() {
    let cluster = Cluster::start(LoopbackDialer).await;
    for client in cluster.both() {
        let answer = send(client, get(LOG)).await;
        assert_eq!(answer.code, 500);
        let message = answer.message();
        let begin = "Get \"http://10.0.0.1:10251/containerLogs/ns/p/c\": dial tcp 10.0.0.1:10251: ";
        assert!(message.starts_with(begin), "{message}");
        let reason = "only loopback addresses are dialed";
        assert!(message.contains(reason), "{message}");
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn log_needs_its_own_permission() {
    let (backend, _) = Backend::recording(|_| text("line\n"));
    let cluster = Cluster::start(backend).await;
    let answer = send(&cluster.client_of("ann"), get(LOG)).await;
    assert_eq!(answer.code, 403);
    let message = "pods \"p\" is forbidden: User \"ann\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"ns\"";
    assert_eq!(answer.message(), message);
    cluster.server.shutdown().await;
}

/// A kubelet whose log has the lines that a test sends.
fn followed() -> (Backend, mpsc::Receiver<mpsc::Sender<&'static str>>) {
    let (started, starts) = mpsc::channel(1);
    let backend = Backend::new(move |_, _| {
        let started = started.clone();
        async move {
            let (lines, log) = mpsc::channel::<&str>(1);
            started.send(lines).await.expect("the test reads it");
            let frames = stream::unfold(log, |mut log| async {
                let line = log.recv().await?;
                Some((Ok::<_, io::Error>(Frame::data(Bytes::from(line))), log))
            });
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
    });
    (backend, starts)
}

fn following() -> LogParams {
    LogParams {
        follow: true,
        ..LogParams::default()
    }
}

#[tokio::test]
async fn followed_log_is_passed_on_line_by_line() {
    let (backend, mut starts) = followed();
    let cluster = Cluster::start(backend.clone()).await;
    for client in cluster.both() {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let options = following();
        let begin = pods.log_stream("p", &options);
        let (log, lines) = tokio::join!(within(begin), starts.recv());
        let mut log = log.expect("a log").lines();
        let lines = lines.expect("a request");
        for line in ["one", "two"] {
            let sent = if line == "one" { "one\n" } else { "two\n" };
            lines.send(sent).await.expect("the log is read");
            let read = within(log.try_next()).await.expect("a line");
            assert_eq!(read.as_deref(), Some(line));
        }
        drop(lines);
        let end = within(log.try_next()).await.expect("an end");
        assert_eq!(end, None);
        backend.wait_for_open(0).await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn connection_to_the_kubelet_is_closed_when_the_client_is_gone() {
    let (backend, mut starts) = followed();
    let cluster = Cluster::start(backend.clone()).await;
    for client in cluster.both() {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let options = following();
        let begin = pods.log_stream("p", &options);
        let (log, lines) = tokio::join!(within(begin), starts.recv());
        let _lines = lines.expect("a request");
        backend.wait_for_open(1).await;
        drop(log.expect("a log"));
        backend.wait_for_open(0).await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn log_that_is_cut_is_an_error() {
    let kill = Arc::new(Notify::new());
    let killed = kill.clone();
    let backend = Backend::new(move |_, _| {
        let killed = killed.clone();
        let begin = stream::iter([Ok(Frame::data(Bytes::from("half a li")))]);
        let end = stream::once(async move {
            killed.notified().await;
            Err(io::Error::other("the kubelet is killed"))
        });
        let frames = StreamBody::new(begin.chain(end));
        async { Response::new(frames.boxed_unsync()) }
    });
    let cluster = Cluster::start(backend).await;
    for client in cluster.both() {
        let response = within(client.send(get(LOG))).await.expect("a response");
        let mut body = response.into_body();
        let begin = within(body.frame()).await.expect("a frame");
        let begin = begin.expect("it is running").into_data();
        assert_eq!(begin.expect("a line"), "half a li");
        kill.notify_one();
        let rest = within(body.collect()).await;
        assert!(rest.is_err());
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn followed_logs_end_with_the_server() {
    let (backend, mut starts) = followed();
    let cluster = Cluster::start(backend.clone()).await;
    let mut logs = Vec::new();
    let mut lines = Vec::new();
    for client in cluster.both() {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let options = following();
        let begin = pods.log_stream("p", &options);
        let (log, started) = tokio::join!(within(begin), starts.recv());
        logs.push(log.expect("a log").lines());
        lines.push(started.expect("a request"));
    }
    within(cluster.server.shutdown()).await;
    backend.wait_for_open(0).await;
    for mut log in logs {
        let end = within(log.next()).await;
        assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    }
}

/// Followers whose client does not read do not take more memory than their buffers: the kubelet
/// waits.
#[tokio::test]
async fn kubelet_waits_for_a_thousand_followers_that_do_not_read() {
    const FOLLOWERS: usize = 1000;
    const CHUNK_BYTES: usize = 16 << 10;
    let sent = Arc::new(AtomicUsize::new(0));
    let (release, released) = watch::channel(false);
    let counter = sent.clone();
    let backend = Backend::new(move |_, _| {
        let counter = counter.clone();
        let released = released.clone();
        async move {
            // Endless until the test releases it.
            let frames = stream::unfold((), move |()| {
                let counter = counter.clone();
                let is_over = *released.borrow();
                async move {
                    counter.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                    let frame = Frame::data(Bytes::from_static(&[b'x'; CHUNK_BYTES]));
                    (!is_over).then(|| (Ok::<_, io::Error>(frame), ()))
                }
            });
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
    });
    let cluster = Cluster::start(backend.clone()).await;
    let mut unread = Vec::new();
    for _ in 0..FOLLOWERS {
        let request = get("/api/v1/namespaces/ns/pods/p/log?follow=true");
        let response = within(cluster.in_process.send(request)).await;
        unread.push(response.expect("a response"));
    }
    backend.wait_for_open(FOLLOWERS).await;
    // Every follower holds its buffers and nothing more, however often the tasks run.
    let mut before = 0;
    while before != sent.load(Ordering::Relaxed) {
        before = sent.load(Ordering::Relaxed);
        for _ in 0..FOLLOWERS {
            tokio::task::yield_now().await;
        }
    }
    let held = before / FOLLOWERS;
    assert!(held <= 256 << 10, "{held} bytes per follower");
    release.send(true).expect("the backend reads it");
    drop(unread);
    backend.wait_for_open(0).await;
    cluster.server.shutdown().await;
}
