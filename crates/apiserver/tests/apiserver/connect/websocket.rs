//! Logs and watches over WebSocket, from a client on a socket.

use std::{io, sync::Arc};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bellerophon_apiserver::LoopbackDialer;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::{
    Client, Config,
    client::Body,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::backend::{Answer, Backend, Cluster, text, within};

const LOG: &str = "/api/v1/namespaces/ns/pods/p/log";
const WATCH: &str = "/api/v1/namespaces/ns/configmaps?watch=true";
const CONFIG_MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

type Headers<'a> = &'a [(&'static str, &'a str)];
type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A WebSocket, and the protocol that the server has chosen; or the response that is none.
async fn open(
    client: &Client,
    path: &str,
    headers: Headers<'_>,
) -> Result<(Socket, Option<String>), Answer> {
    let mut request = Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let defaults = [
        ("sec-websocket-key", KEY),
        ("sec-websocket-version", "13"),
        ("origin", "https://example.com"),
    ];
    let is_set = |name: &str| headers.iter().any(|(set, _)| *set == name);
    let defaults = defaults.iter().filter(|(name, _)| !is_set(name));
    // An empty value is a header that is left out.
    for (name, value) in defaults
        .chain(headers)
        .filter(|(_, value)| !value.is_empty())
    {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let response = within(client.send(request)).await.expect("a response");
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (head, body) = response.into_parts();
        let body = within(body.collect()).await.expect("a whole body");
        return Err(Answer {
            code: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        });
    }
    let header = |name: &str| {
        let value = response.headers().get(name)?.to_str();
        Some(value.expect("ASCII").to_owned())
    };
    let accept = header("sec-websocket-accept");
    assert_eq!(accept, Some(derive_accept_key(KEY.as_bytes())));
    let protocol = header("sec-websocket-protocol");
    let upgraded = within(hyper::upgrade::on(response)).await;
    let stream = TokioIo::new(upgraded.expect("an upgrade"));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    Ok((socket, protocol))
}

async fn opened(client: &Client, path: &str, headers: Headers<'_>) -> Socket {
    match open(client, path, headers).await {
        Ok((socket, _)) => socket,
        Err(answer) => panic!("{path}: {} {}", answer.code, answer.text),
    }
}

async fn refused(client: &Client, path: &str, headers: Headers<'_>) -> Answer {
    match open(client, path, headers).await {
        Ok(_) => panic!("{path}: it is accepted"),
        Err(answer) => answer,
    }
}

async fn next(socket: &mut Socket) -> Message {
    let message = within(socket.next()).await.expect("it is open");
    message.expect("a message")
}

/// The type of the next event and the name of its object.
async fn event(socket: &mut Socket) -> (String, String) {
    let message = next(socket).await;
    assert!(message.is_text(), "{message:?}");
    let text = message.to_text().expect("text");
    assert!(text.ends_with("}\n"), "{text}");
    let event: Value = serde_json::from_str(text).expect("one event");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = &event["object"]["metadata"]["name"];
    (text(&event["type"]), text(name))
}

/// The code of a close frame.
async fn close_code(socket: &mut Socket) -> u16 {
    match next(socket).await {
        Message::Close(Some(frame)) => frame.code.into(),
        other => panic!("no close frame: {other:?}"),
    }
}

/// A client without credentials.
async fn anonymous(cluster: &Cluster) -> Client {
    let kubeconfig = cluster.server.kubeconfig().expect("it listens");
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.expect("a usable kubeconfig");
    config.auth_info = AuthInfo::default();
    Client::try_from(config).expect("a client")
}

#[tokio::test]
async fn watch_has_a_text_message_per_event() {
    let cluster = Cluster::start(LoopbackDialer).await;
    for name in ["a", "b"] {
        let object = json!({"metadata": {"name": name}});
        cluster.make(CONFIG_MAPS, object).await;
    }
    let mut socket = opened(&cluster.https, WATCH, &[]).await;
    for name in ["a", "b"] {
        assert_eq!(event(&mut socket).await, ("ADDED".into(), name.into()));
    }
    let data = json!({"data": {"k": "v"}});
    cluster.patch(&format!("{CONFIG_MAPS}/a"), data).await;
    assert_eq!(event(&mut socket).await, ("MODIFIED".into(), "a".into()));
    // Messages of the client are dropped, and a ping is answered.
    let message = Message::text("ignored");
    within(socket.send(message)).await.expect("it is open");
    let ping = Message::Ping(Bytes::from_static(b"1"));
    within(socket.send(ping)).await.expect("it is open");
    let pong = next(&mut socket).await;
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"1")));
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn watch_ends_at_its_timeout_with_a_close_frame() {
    let cluster = Cluster::start(LoopbackDialer).await;
    let path = format!("{WATCH}&timeoutSeconds=1");
    let mut socket = opened(&cluster.https, &path, &[]).await;
    assert_eq!(close_code(&mut socket).await, 1000);
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn watch_in_protobuf_has_binary_messages() {
    let cluster = Cluster::start(LoopbackDialer).await;
    let object = json!({"metadata": {"name": "a"}});
    cluster.make(CONFIG_MAPS, object).await;
    let accept = "application/vnd.kubernetes.protobuf";
    let mut socket = opened(&cluster.https, WATCH, &[("accept", accept)]).await;
    let message = next(&mut socket).await;
    let Message::Binary(bytes) = message else {
        panic!("not binary: {message:?}");
    };
    // Field 1 of a WatchEvent is its type.
    assert_eq!(bytes[..7], *b"\x0a\x05ADDED");
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn handshakes_of_watches_are_checked_as_upstream() {
    let cluster = Cluster::start(LoopbackDialer).await;
    let protocol = "sec-websocket-protocol";
    for (header, code) in [
        (("origin", ""), 403),
        (("origin", "null"), 403),
        ((protocol, "a, b"), 400),
        (("sec-websocket-key", ""), 400),
        (("sec-websocket-version", "12"), 400),
    ] {
        let answer = refused(&cluster.https, WATCH, &[header]).await;
        assert_eq!(answer.code, code, "{header:?}");
        let is_version = header.0 == "sec-websocket-version";
        let version = answer.header("sec-websocket-version");
        assert_eq!(version, is_version.then_some("13"), "{header:?}");
    }
    // Whatever a client offers alone is chosen.
    let only = [(protocol, "anything")];
    let opened = open(&cluster.https, WATCH, &only).await;
    let (_socket, chosen) = opened.ok().expect("a WebSocket");
    assert_eq!(chosen.as_deref(), Some("anything"));
    // A watch that cannot begin is refused as one over HTTP.
    let path = format!("{CONFIG_MAPS}?watch=true&fieldSelector=a");
    let answer = refused(&cluster.https, &path, &[]).await;
    assert_eq!(answer.code, 400);
    assert!(
        answer.message().contains("invalid selector"),
        "{}",
        answer.text
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn log_begins_with_an_empty_message() {
    let (backend, _) = Backend::recording(|_| text("line\n"));
    let cluster = Cluster::start(backend.clone()).await;
    for (protocol, is_text, want) in [
        ("", false, "line\n"),
        ("binary.k8s.io", false, "line\n"),
        ("base64.binary.k8s.io", true, "bGluZQo="),
        ("unknown, base64.binary.k8s.io", true, "bGluZQo="),
    ] {
        // Logs need no origin.
        let headers = [("origin", ""), ("sec-websocket-protocol", protocol)];
        let opened = open(&cluster.https, LOG, &headers).await;
        let (mut socket, chosen) = opened.ok().expect("a WebSocket");
        let last = protocol.rsplit(", ").next().filter(|name| !name.is_empty());
        assert_eq!(chosen.as_deref(), last);
        for want in ["", want] {
            let message = next(&mut socket).await;
            assert_eq!(message.is_text(), is_text, "{protocol}");
            assert_eq!(message.to_text().expect("ASCII"), want, "{protocol}");
        }
        assert_eq!(close_code(&mut socket).await, 1000, "{protocol}");
        backend.wait_for_open(0).await;
    }
    let unknown = [("sec-websocket-protocol", "v5.channel.k8s.io")];
    let answer = refused(&cluster.https, LOG, &unknown).await;
    assert_eq!(answer.code, 403);
    let gone = "/api/v1/namespaces/ns/pods/gone/log";
    let answer = refused(&cluster.https, gone, &[]).await;
    assert_eq!(answer.message(), "pods \"gone\" not found");
    backend.wait_for_open(0).await;
    cluster.server.shutdown().await;
}

/// A kubelet that sends the end of a log when it is notified, and nothing after it.
fn following(end: io::Result<()>) -> (Backend, Arc<Notify>) {
    let resume = Arc::new(Notify::new());
    let notified = resume.clone();
    let is_ok = end.is_ok();
    let backend = Backend::new(move |_, _| {
        let resume = notified.clone();
        async move {
            let first = futures_util::stream::iter([Ok(Bytes::from_static(b"first"))]);
            let rest = futures_util::stream::once(async move {
                resume.notified().await;
                match is_ok {
                    true => Ok(Bytes::from_static(b"second")),
                    false => Err(io::Error::other("cut")),
                }
            });
            let chunks = first.chain(rest).map(|chunk| chunk.map(Frame::data));
            Response::new(StreamBody::new(chunks).boxed_unsync())
        }
    });
    (backend, resume)
}

#[tokio::test]
async fn followed_log_arrives_as_it_is_written_and_ends_with_the_client() {
    let (backend, resume) = following(Ok(()));
    let cluster = Cluster::start(backend.clone()).await;
    let path = format!("{LOG}?follow=true");
    let mut socket = opened(&cluster.https, &path, &[]).await;
    for want in ["", "first"] {
        assert_eq!(next(&mut socket).await.into_data(), want);
    }
    resume.notify_one();
    assert_eq!(next(&mut socket).await.into_data(), "second");
    let mut socket = opened(&cluster.https, &path, &[]).await;
    for want in ["", "first"] {
        assert_eq!(next(&mut socket).await.into_data(), want);
    }
    within(socket.close(None)).await.expect("it is open");
    backend.wait_for_open(0).await;
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn log_that_breaks_has_no_close_frame() {
    let (backend, resume) = following(Err(io::Error::other("cut")));
    let cluster = Cluster::start(backend).await;
    let mut socket = opened(&cluster.https, LOG, &[]).await;
    for want in ["", "first"] {
        assert_eq!(next(&mut socket).await.into_data(), want);
    }
    resume.notify_one();
    let end = within(socket.next()).await;
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn stop_of_the_server_closes_watches_and_logs() {
    let (backend, _resume) = following(Ok(()));
    let cluster = Cluster::start(backend).await;
    let mut watch = opened(&cluster.https, WATCH, &[]).await;
    let mut log = opened(&cluster.https, LOG, &[]).await;
    for want in ["", "first"] {
        assert_eq!(next(&mut log).await.into_data(), want);
    }
    let stopping = within(cluster.server.shutdown());
    let reading = async {
        let codes = [close_code(&mut watch).await, close_code(&mut log).await];
        for socket in [&mut watch, &mut log] {
            // Replies to the close frame.
            let _closed = socket.next().await;
        }
        codes
    };
    let (_, codes) = tokio::join!(stopping, reading);
    assert_eq!(codes, [1001, 1001]);
}

#[tokio::test]
async fn token_as_a_protocol_authenticates_and_is_not_returned() {
    let cluster = Cluster::start(LoopbackDialer).await;
    let anonymous = anonymous(&cluster).await;
    let answer = refused(&anonymous, WATCH, &[]).await;
    assert_eq!(answer.code, 403);
    assert!(
        answer.message().contains("cannot watch resource"),
        "{}",
        answer.text
    );

    let token_request = json!({"spec": {}});
    let path = "/api/v1/namespaces/ns/serviceaccounts/default/token";
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(token_request.to_string().into_bytes())
        .expect("a request");
    let token: Value = within(cluster.in_process.request(request))
        .await
        .expect("a token");
    let token = token["status"]["token"].as_str().expect("a token");
    let token = BASE64_URL_SAFE_NO_PAD.encode(token);
    let offered = format!("base64url.bearer.authorization.k8s.io.{token}, any");
    let headers = [("sec-websocket-protocol", offered.as_str())];
    let answer = refused(&anonymous, WATCH, &headers).await;
    let message = answer.message();
    let user = "User \"system:serviceaccount:ns:default\" cannot watch resource";
    assert!(message.contains(user), "{message}");

    let binding = json!({
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "ns"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/rolebindings";
    cluster.make(bindings, binding).await;
    let opened = open(&anonymous, WATCH, &headers).await;
    let (mut socket, chosen) = opened.ok().expect("a WebSocket");
    assert_eq!(chosen.as_deref(), Some("any"));
    let object = json!({"metadata": {"name": "a"}});
    cluster.make(CONFIG_MAPS, object).await;
    assert_eq!(event(&mut socket).await, ("ADDED".into(), "a".into()));
    let invalid = [(
        "sec-websocket-protocol",
        "base64url.bearer.authorization.k8s.io.bm9ib2R5, any",
    )];
    assert_eq!(refused(&anonymous, WATCH, &invalid).await.code, 401);
    cluster.server.shutdown().await;
}
