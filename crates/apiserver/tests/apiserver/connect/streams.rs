//! Exec, attach and port-forward: upgraded connections between a client and a kubelet.

use std::io;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::AttachParams, client::Body};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::backend::{Backend, Cluster, ResponseBody, get, send, text, within};
use bellerophon_apiserver::LoopbackDialer;

const EXEC: &str = "/api/v1/namespaces/ns/pods/p/exec?command=cat&stdin=true&stdout=true";

fn body(text: &'static str) -> ResponseBody {
    Full::<Bytes>::from(text)
        .map_err(io::Error::other)
        .boxed_unsync()
}

/// A kubelet that writes what it reads, in capital letters, until it reads `exit`.
fn kubelet() -> (Backend, mpsc::Receiver<String>) {
    let (requests, got) = mpsc::channel(16);
    let backend = Backend::new(move |_, request: Request<Incoming>| {
        let line = format!("{} {}", request.method(), request.uri());
        requests.try_send(line).expect("no test sends more");
        async {
            let key = &request.headers()["sec-websocket-key"];
            let accept = derive_accept_key(key.as_bytes());
            let response = Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-accept", accept)
                .header("sec-websocket-protocol", "v5.channel.k8s.io")
                .body(body(""))
                .expect("a response");
            tokio::spawn(shout(request));
            response
        }
    });
    (backend, got)
}

async fn shout(request: Request<Incoming>) {
    let upgraded = hyper::upgrade::on(request).await.expect("an upgrade");
    let stream = TokioIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        let Message::Binary(bytes) = message else {
            continue;
        };
        // Channel 0 is stdin, 1 stdout, 3 the status.
        let Some((0, text)) = bytes.split_first() else {
            continue;
        };
        if text == b"exit\n" {
            break;
        }
        let mut output = vec![1];
        output.extend(text.to_ascii_uppercase());
        if socket.send(Message::binary(output)).await.is_err() {
            return;
        }
    }
    let mut status = vec![3];
    status.extend(
        json!({"metadata": {}, "status": "Success"})
            .to_string()
            .bytes(),
    );
    // A client that is gone needs no status.
    let _gone = socket.send(Message::binary(status)).await;
    let _gone = socket.close(None).await;
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "ns")
}

#[tokio::test]
async fn shell_works_over_https_and_in_process() {
    let (backend, mut requests) = kubelet();
    let cluster = Cluster::start(backend.clone()).await;
    for client in cluster.both() {
        let options = AttachParams::default().stdin(true).stderr(false);
        let command = ["sh", "-c", "a b"];
        let shell = within(pods(client).exec("p", command, &options)).await;
        let mut shell = shell.expect("a shell");
        let line = within(requests.recv()).await.expect("a request");
        let query = "command=sh&command=-c&command=a+b&input=1&output=1";
        assert_eq!(line, format!("GET /exec/ns/p/c?{query}"));
        let mut stdin = shell.stdin().expect("it is attached");
        let mut stdout = shell.stdout().expect("it is attached");
        for word in ["hello", "world"] {
            stdin.write_all(word.as_bytes()).await.expect("it is open");
            let mut output = [0; 5];
            let read = within(stdout.read_exact(&mut output)).await;
            read.expect("it is open");
            assert_eq!(output, *word.to_uppercase().as_bytes());
        }
        stdin.write_all(b"exit\n").await.expect("it is open");
        let status = shell.take_status().expect("the status is taken once");
        let status = within(status).await.expect("a status");
        assert_eq!(status.status.as_deref(), Some("Success"));
        within(shell.join()).await.expect("it ends");
        backend.wait_for_open(0).await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn large_input_passes_through_bounded_buffers() {
    let (backend, _requests) = kubelet();
    let cluster = Cluster::start(backend).await;
    let input = vec![b'a'; 3 << 20];
    for client in cluster.both() {
        let options = AttachParams::default().stdin(true).stderr(false);
        let shell = within(pods(client).attach("p", &options)).await;
        let mut shell = shell.expect("an attached process");
        let mut stdin = shell.stdin().expect("it is attached");
        let mut stdout = shell.stdout().expect("it is attached");
        let mut output = vec![0; input.len()];
        let writing = stdin.write_all(&input);
        let reading = stdout.read_exact(&mut output);
        let (written, read) = within(async { tokio::join!(writing, reading) }).await;
        written.expect("it is open");
        read.expect("it is open");
        assert!(output.iter().all(|byte| *byte == b'A'));
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn kubelet_connection_ends_with_the_client() {
    let (backend, _requests) = kubelet();
    let cluster = Cluster::start(backend.clone()).await;
    for client in cluster.both() {
        let options = AttachParams::default().stdin(true);
        let shell = within(pods(client).exec("p", ["sh"], &options)).await;
        let shell = shell.expect("a shell");
        backend.wait_for_open(1).await;
        drop(shell);
        backend.wait_for_open(0).await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn shells_end_with_the_server() {
    let (backend, _requests) = kubelet();
    let cluster = Cluster::start(backend.clone()).await;
    let mut shells = Vec::new();
    for client in cluster.both() {
        let options = AttachParams::default().stdin(true);
        let shell = within(pods(client).exec("p", ["sh"], &options)).await;
        shells.push(shell.expect("a shell"));
    }
    within(cluster.server.shutdown()).await;
    for shell in shells {
        let ended = within(shell.join()).await;
        assert!(ended.is_err(), "it is cut before its command has ended");
    }
    backend.wait_for_open(0).await;
}

#[tokio::test]
async fn upgraded_connection_keeps_its_place() {
    let (backend, _requests) = kubelet();
    let cluster = Cluster::start(backend).await;
    let gauge = || async {
        let metrics = send(&cluster.in_process, get("/metrics")).await.text;
        let is_exec = |line: &&str| {
            line.starts_with("apiserver_longrunning_requests{") && line.contains("\"exec\"")
        };
        let line = metrics.lines().find(is_exec).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    let options = AttachParams::default().stdin(true);
    let first = within(pods(&cluster.https).exec("p", ["sh"], &options)).await;
    let second = within(pods(&cluster.in_process).exec("p", ["sh"], &options)).await;
    assert_eq!(gauge().await, "2");
    drop(first.expect("a shell"));
    drop(second.expect("a shell"));
    while gauge().await != "0" {
        tokio::task::yield_now().await;
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn ports_are_forwarded_by_both_methods() {
    let (backend, mut requests) = kubelet();
    let cluster = Cluster::start(backend).await;
    for client in cluster.both() {
        for method in [Method::GET, Method::POST] {
            let request = Request::builder()
                .method(method.clone())
                .uri("/api/v1/namespaces/ns/pods/p/portforward?ports=80,81")
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-key", "a2V5")
                .body(Body::empty())
                .expect("a request");
            let response = within(client.send(request)).await.expect("a response");
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            let line = within(requests.recv()).await.expect("a request");
            assert_eq!(line, format!("{method} /portForward/ns/p?port=80%2C81"));
        }
    }
    cluster.server.shutdown().await;
}

fn upgrade(path: &str) -> Request<Body> {
    Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(Body::empty())
        .expect("a request")
}

#[tokio::test]
async fn requests_that_cannot_be_upgraded_are_refused() {
    let (backend, _) = Backend::recording(|got| {
        let mut response = text("no such container");
        if got.head.uri.path().starts_with("/exec") {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        response
    });
    let cluster = Cluster::start(backend).await;
    let pods = "/api/v1/namespaces/ns/pods";
    for client in cluster.both() {
        for (path, upgrades, code, message) in [
            ("p/exec", false, 400, "Upgrade request required"),
            ("p/portforward", false, 400, "Upgrade request required"),
            ("p/exec?dryRun=All", true, 400, "dryRun is not supported"),
            (
                "waiting/exec",
                true,
                400,
                "pod waiting does not have a host assigned",
            ),
            (
                "waiting/portforward",
                true,
                400,
                "pod waiting does not have a host assigned",
            ),
            ("gone/attach", true, 404, "pods \"gone\" not found"),
            (
                "p/exec?container=x",
                true,
                400,
                "container x is not valid for pod p",
            ),
            (
                "p/portforward?ports=x",
                true,
                400,
                "cannot convert to []int32: strconv.ParseUint: parsing \"x\": invalid syntax",
            ),
            ("p/exec", true, 404, "no such container"),
            (
                "p/attach",
                true,
                500,
                "invalid upgrade response: status code 200",
            ),
        ] {
            let path = format!("{pods}/{path}");
            let request = if upgrades { upgrade(&path) } else { get(&path) };
            let answer = send(client, request).await;
            assert_eq!(answer.code, code, "{path}: {}", answer.text);
            assert_eq!(answer.message(), message, "{path}");
        }
        let delete = Request::delete(EXEC).body(Body::empty());
        let answer = send(client, delete.expect("a request")).await;
        assert_eq!(answer.code, 405);
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn simulated_node_has_no_shells() {
    let cluster = Cluster::start(LoopbackDialer).await;
    let answer = send(&cluster.https, upgrade(EXEC)).await;
    assert_eq!(answer.code, 500);
    let message = answer.message();
    let begin = "error dialing backend: dial tcp 10.0.0.1:10251: ";
    assert!(message.starts_with(begin), "{message}");
    cluster.server.shutdown().await;
}

/// A WebSocket request is a GET: before 1.35, `get` on `pods/exec` was enough for a shell.
#[tokio::test]
async fn shell_needs_the_verb_create() {
    let (backend, _requests) = kubelet();
    let cluster = Cluster::start(backend).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";
    for (user, verbs) in [
        ("reader", json!(["get"])),
        ("both", json!(["get", "create"])),
    ] {
        let role = json!({
            "metadata": {"name": user},
            "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}],
        });
        cluster.make(&format!("{rbac}/roles"), role).await;
        let binding = json!({
            "metadata": {"name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
        });
        cluster.make(&format!("{rbac}/rolebindings"), binding).await;
    }
    let answer = send(&cluster.client_of("reader"), upgrade(EXEC)).await;
    assert_eq!(answer.code, 403);
    let message = "pods \"p\" is forbidden: User \"reader\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"ns\"";
    assert_eq!(answer.message(), message);
    let options = AttachParams::default().stdin(true);
    let client = cluster.client_of("both");
    let shell = within(pods(&client).exec("p", ["sh"], &options)).await;
    shell.expect("a shell");
    cluster.server.shutdown().await;
}
