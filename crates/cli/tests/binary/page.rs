//! The live page over HTTP: who may read it, what it sends, and what it never sends.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
};

use kube::Client;
use serde_json::{Value, json};

use crate::running::{Lines, RunningServer, TIMEOUT, command};

/// A value that must not be sent.
const CANARY: &str = "canary-471108-value";

/// The exact policy: only files of the page itself, nothing inline, no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The paths with data.
const DATA_PATHS: [&str; 6] = [
    "/api/info",
    "/api/stream",
    "/api/trace",
    "/api/objects",
    "/api/diff?version=1",
    "/api/object?kind=Namespace&name=default",
];

/// A page and its token.
pub(crate) struct PageClient {
    host: String,
    token: String,
}

/// A response; the body of a stream is what came before the connection was closed.
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl PageClient {
    pub(crate) fn new(ready: &Value) -> Self {
        let url = ready["dashboard"].as_str().expect("a URL");
        let (host, token) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once("/#token="))
            .expect("a token in the fragment");
        Self {
            host: host.to_owned(),
            token: token.to_owned(),
        }
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        self.exchange(method, path, headers, "", |text| {
            // A stream has no end; its first frame is enough.
            contains(text, "text/event-stream") && contains(text, "event")
        })
    }

    /// Sends a request, and reads until the end of the response or until it is enough.
    fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> Response {
        let mut stream = TcpStream::connect(&self.host).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        stream.write_all(request.as_bytes()).expect("a request");
        let mut text = Vec::new();
        let mut part = [0; 16384];
        loop {
            let read = stream.read(&mut part).expect("a response");
            text.extend_from_slice(&part[..read]);
            if read == 0 || is_enough(&text) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let head = head.to_lowercase();
        let body = match head.contains("transfer-encoding: chunked") {
            true => unchunked(body),
            false => body.to_owned(),
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Response {
            status: status.expect("a status code"),
            head,
            body,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        let bearer = format!("Bearer {}", self.token);
        self.send(
            "GET",
            path,
            &[("host", &self.host), ("authorization", &bearer)],
        )
    }

    /// The status of a request without the token.
    pub(crate) fn status_without_token(&self, path: &str) -> u16 {
        self.send("GET", path, &[("host", &self.host)]).status
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("host", &*self.host), ("authorization", &bearer)];
        self.exchange("POST", path, &headers, body, |_| false)
    }

    /// Reads a stream until it has a text.
    pub(crate) fn stream_until(&self, path: &str, text: &str) -> String {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("host", &*self.host), ("authorization", &bearer)];
        self.exchange("GET", path, &headers, "", |read| contains(read, text))
            .body
    }
}

/// A body without the lengths of its chunks. A stream ends within a chunk.
fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        text.push_str(rest.get(..length).unwrap_or(rest));
        body = rest.get(length + 2..).unwrap_or_default();
    }
    text
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

pub(crate) async fn send(
    client: &Client,
    method: http::Method,
    path: &str,
    body: &Value,
) -> String {
    let media_type = match method {
        http::Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .body(body.to_string().into_bytes())
        .expect("a request");
    client.request_text(request).await.expect("a response")
}

#[test]
fn data_needs_the_token_and_the_page_itself() {
    let server = RunningServer::start(&[]);
    let page = PageClient::new(&server.ready);
    let bearer = format!("Bearer {}", page.token);
    let host = ("host", page.host.as_str());
    let token = ("authorization", bearer.as_str());
    for path in DATA_PATHS {
        for (headers, status) in [
            (vec![host], 401),
            (vec![host, ("authorization", "Bearer 00")], 401),
            (vec![("host", "evil.example"), token], 403),
            (vec![host, token, ("origin", "http://evil.example")], 403),
            (vec![host, token, ("sec-fetch-site", "cross-site")], 403),
        ] {
            let response = page.send("GET", path, &headers);
            assert_eq!(response.status, status, "{path} {headers:?}");
        }
        let allowed = page.get(path);
        assert!(
            [200, 410].contains(&allowed.status),
            "{path}: {}",
            allowed.status
        );
        assert_eq!(
            page.send("POST", path, &[host, token]).status,
            405,
            "{path}"
        );
    }
    let act = page.send("POST", "/api/act", &[host, token]);
    assert_eq!(
        act.status, 403,
        "a page reads only, unless --page-may-act is set"
    );
    for path in ["/", "/main.js", "/page.css", "/missing"] {
        let response = page.send("GET", path, &[host]);
        let policy = format!(
            "content-security-policy: {}",
            CONTENT_SECURITY_POLICY.to_lowercase()
        );
        assert!(response.head.contains(&policy), "{path}: {}", response.head);
        assert!(!response.head.contains("access-control"), "{path}");
        assert!(!response.head.contains("set-cookie"), "{path}");
    }
}

#[test]
fn token_is_in_no_log() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let mut process = command(&directory)
        .args(["up", "-vv", "--output", "json"])
        .stderr(fs::File::create(&log).expect("a file"))
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    let ready = lines.next_matching(|line| line.contains(r#""ready""#));
    let page = PageClient::new(&serde_json::from_str(&ready).expect("JSON"));
    assert_eq!(page.get("/api/info").status, 200);
    // In order, so that the log is complete.
    let kill = Command::new("kill")
        .args(["-s", "TERM", &process.id().to_string()])
        .status();
    assert!(kill.expect("kill starts").success());
    process.wait().expect("the process exits");
    let log = fs::read_to_string(log).expect("a log");
    assert!(log.contains("cluster is ready"));
    assert!(!log.contains(&page.token));
}

#[test]
fn api_server_only_has_no_page() {
    let server = RunningServer::start(&["--cluster", "none"]);
    assert!(server.ready["dashboard"].is_null(), "{}", server.ready);
}

#[tokio::test]
async fn values_of_secrets_are_never_sent() {
    let server = RunningServer::start(&["--record", "trace.jsonl"]);
    let page = PageClient::new(&server.ready);
    let client = server.client().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let annotation = json!({ "stringData": { "password": CANARY } }).to_string();
    let created = send(
        &client,
        http::Method::POST,
        secrets,
        &json!({ "metadata": { "name": "login", "annotations":
            { "kubectl.kubernetes.io/last-applied-configuration": annotation } },
            "stringData": { "password": CANARY, "user": "bellerophon" } }),
    )
    .await;
    let updated = send(
        &client,
        http::Method::PATCH,
        "/api/v1/namespaces/default/secrets/login",
        &json!({ "stringData": { "password": format!("{CANARY}-2") } }),
    )
    .await;
    let version = |text: &str| {
        let object: Value = serde_json::from_str(text).expect("JSON");
        let version = object["metadata"]["resourceVersion"].as_str();
        version.expect("a version").to_owned()
    };
    let encoded = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(CANARY)
    };
    let mut sent = Vec::new();
    for version in [version(&created), version(&updated)] {
        sent.push(page.get(&format!("/api/diff?version={version}")).body);
        sent.push(page.get(&format!("/api/object?version={version}")).body);
    }
    assert!(sent[2].contains("data.password"), "{}", sent[2]);
    assert!(sent[2].contains("hidden, changed"), "{}", sent[2]);
    sent.push(page.get("/api/trace").body);
    sent.push(page.get("/api/objects").body);
    let request = http::Request::get("/debug/trace?format=json").body(Vec::new());
    let trace = client.request_text(request.expect("a request")).await;
    sent.push(trace.expect("the trace"));
    let last = sent.last().expect("the trace");
    assert!(
        last.starts_with(r#"{"format":"bellerophon-trace","version":1,"#),
        "{last}"
    );
    assert!(last.contains(r#""name":"login""#));
    let file = server.directory.path().join("trace.jsonl");
    sent.push(fs::read_to_string(file).expect("the recorded file"));
    for text in sent {
        // The first characters of the encoded value do not depend on what follows.
        for secret in [CANARY, &encoded[..20]] {
            assert!(!text.contains(secret), "the value is in {text}");
        }
    }
}

#[tokio::test]
async fn command_of_a_client_is_the_root_of_a_chain() {
    let server = RunningServer::start(&["--operators", "none"]);
    let page = PageClient::new(&server.ready);
    let client = server.client().await;
    let map = json!({ "metadata": { "name": "settings" }, "data": { "a": "1" } });
    let maps = "/api/v1/namespaces/default/configmaps?fieldManager=my-client";
    send(&client, http::Method::POST, maps, &map).await;
    let changed = send(
        &client,
        http::Method::PATCH,
        "/api/v1/namespaces/default/configmaps/settings?fieldManager=my-client",
        &json!({ "data": { "a": "2" } }),
    )
    .await;
    let changed: Value = serde_json::from_str(&changed).expect("JSON");
    let trace = page.get("/api/trace").body;
    let line = trace
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| {
            line["type"] == "accepted"
                && line["object"]["name"] == "settings"
                && line["verb"] == "patch"
        })
        .expect("the record of the patch");
    assert_eq!(line["user"], "admin");
    assert_eq!(line["manager"], "my-client");
    assert_eq!(line["kind"], "ConfigMap");
    assert_eq!(line["in_process"], Value::Null);
    assert_eq!(
        line["version"].to_string(),
        changed["metadata"]["resourceVersion"]
            .as_str()
            .expect("a version")
    );
    let expected = json!([{ "path": "data.a", "old": "1", "new": "2" }]);
    assert_eq!(line["changes"], expected);
}

#[test]
fn recorded_file_is_shown_and_others_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = r#"{"seq":1,"time_us":1,"type":"listed","kind":"Pod","objects":0}"#;
    let file = directory.path().join("trace.jsonl");
    let head = r#"{"format":"bellerophon-trace","version":1,"time_us":1}"#;
    fs::write(&file, format!("{head}\n{record}\n")).expect("a file");
    let mut process = command(&directory)
        .args(["page", "trace.jsonl", "--output", "json"])
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    let ready = lines.next_matching(|line| line.contains(r#""ready""#));
    let page = PageClient::new(&serde_json::from_str(&ready).expect("JSON"));
    let info = page.get("/api/info").body;
    let trace = page.get("/api/trace").body;
    process.kill().expect("the process runs");
    process.wait().expect("the process exits");
    assert!(info.contains(r#""mode":"replay""#), "{info}");
    assert!(trace.contains(record), "{trace}");
    fs::write(&file, "{}\n").expect("a file");
    let refused = command(&directory)
        .args(["page", "trace.jsonl"])
        .output()
        .expect("the binary starts");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("is not a trace of version 1"), "{message}");
}
