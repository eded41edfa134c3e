//! Objects in protobuf, as Go clients send and read them: every verb, watch frames, refusals.
//! Guarantees: messages are put together and taken apart by the few lines of wire format here, not
//! by the code under test.

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The first field of bytes with this number on every step of a path.
fn at<'a>(message: &'a [u8], path: &[u64]) -> &'a [u8] {
    all(message, path)
        .first()
        .copied()
        .unwrap_or_else(|| panic!("nothing at {path:?}"))
}

/// Every field of bytes with the last number of a path, below the first with each number before it.
fn all<'a>(message: &'a [u8], path: &[u64]) -> Vec<&'a [u8]> {
    let (number, rest) = path.split_first().expect("a path has steps");
    let mut found = Vec::new();
    let mut left = message;
    while !left.is_empty() {
        let tag = varint(&mut left);
        match tag & 7 {
            0 => {
                varint(&mut left);
            }
            2 => {
                let length = varint(&mut left) as usize;
                let (bytes, after) = left.split_at(length);
                left = after;
                if tag >> 3 == *number {
                    found.push(bytes);
                }
            }
            wire => panic!("wire type {wire} is not used here"),
        }
    }
    if rest.is_empty() {
        found
    } else {
        found
            .first()
            .map(|message| all(message, rest))
            .unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// A message in its envelope: four magic bytes, then its kind and itself.
fn sealed(api_version: &str, kind: &str, message: &[u8]) -> Bytes {
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, message)]
        .concat()
        .into()
}

/// The kind of what is in an envelope, and the message.
fn opened(bytes: &[u8]) -> (&str, &[u8]) {
    let envelope = bytes.strip_prefix(b"k8s\0").expect("the magic of protobuf");
    (text(at(envelope, &[1, 2])), at(envelope, &[2]))
}

/// A ConfigMap: metadata is field 1 (name 1, resourceVersion 6), data is field 2, a pair of key and
/// value each.
fn config_map(name: &str, version: &str, value: &str) -> Bytes {
    let metadata = [field(1, name.as_bytes()), field(6, version.as_bytes())].concat();
    let data = [field(1, b"k"), field(2, value.as_bytes())].concat();
    sealed(
        "v1",
        "ConfigMap",
        &[field(1, &metadata), field(2, &data)].concat(),
    )
}

/// Name, version and value of a ConfigMap.
fn shown(message: &[u8]) -> (&str, &str, &str) {
    (
        text(at(message, &[1, 1])),
        text(at(message, &[1, 6])),
        text(at(message, &[2, 2])),
    )
}

struct Client(ApiService);

impl Client {
    async fn send(
        &self,
        request: &str,
        types: [&str; 2],
        body: Bytes,
    ) -> http::Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>> {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", types[0])
            .header("accept", types[1]);
        let request = request.body(Full::new(body)).expect("a sound request");
        self.0
            .clone()
            .oneshot(request)
            .await
            .expect("the server answers everything")
    }

    /// Status, content type and body. `types` are those of the request and of the answer.
    async fn request(
        &self,
        request: &str,
        types: [&str; 2],
        body: impl Into<Bytes>,
    ) -> (u16, String, Bytes) {
        let response = self.send(request, types, body.into()).await;
        let type_ = response
            .headers()
            .get("content-type")
            .map(|v| v.to_str().expect("text").to_owned())
            .unwrap_or_default();
        let status = response.status().as_u16();
        (
            status,
            type_,
            response
                .into_body()
                .collect()
                .await
                .expect("a whole body")
                .to_bytes(),
        )
    }

    /// Sends a request in protobuf and accepts protobuf.
    async fn binary(&self, request: &str, body: Bytes) -> (u16, Bytes) {
        let (status, type_, body) = self.request(request, [PROTOBUF, PROTOBUF], body).await;
        assert_eq!(type_, PROTOBUF, "{request}");
        (status, body)
    }
}

async fn started() -> (ApiServer, Client) {
    let server = ApiServer::builder()
        .start()
        .await
        .expect("the server starts");
    let client = Client(server.service());
    (server, client)
}

#[tokio::test]
async fn object_lives_from_create_to_delete() {
    let (server, client) = started().await;
    let (status, made) = client
        .binary(&format!("POST {MAPS}"), config_map("a", "", "1"))
        .await;
    let (kind, message) = opened(&made);
    let (name, first, value) = shown(message);
    assert_eq!(status, 201);
    assert_eq!(kind, "ConfigMap");
    assert_eq!(name, "a");
    assert_eq!(value, "1");
    assert!(!at(message, &[1, 5]).is_empty(), "it has a uid");

    let (status, changed) = client
        .binary(&format!("PUT {MAPS}/a"), config_map("a", first, "2"))
        .await;
    assert_eq!(status, 200);
    assert_eq!(shown(opened(&changed).1).2, "2");
    let (status, stale) = client
        .binary(&format!("PUT {MAPS}/a"), config_map("a", first, "3"))
        .await;
    let (kind, refusal) = opened(&stale);
    assert_eq!(status, 409);
    assert_eq!(kind, "Status");
    assert_eq!(text(at(refusal, &[4])), "Conflict");

    let patch = Bytes::from_static(br#"{"data":{"k":"4"}}"#);
    for type_ in [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ] {
        let (status, _, patched) = client
            .request(&format!("PATCH {MAPS}/a"), [type_, PROTOBUF], patch.clone())
            .await;
        assert_eq!(status, 200, "{type_}");
        assert_eq!(shown(opened(&patched).1).2, "4", "{type_}");
    }
    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: '5'}\n";
    let request = format!("PATCH {MAPS}/a?fieldManager=m&force=true");
    let (status, _, applied) = client
        .request(
            &request,
            ["application/apply-patch+yaml", PROTOBUF],
            applied,
        )
        .await;
    assert_eq!(status, 200);
    assert_eq!(shown(opened(&applied).1).2, "5");

    // DeleteOptions: preconditions are field 2, their resourceVersion field 2.
    let errors = sealed(
        "v1",
        "DeleteOptions",
        &field(2, &field(2, first.as_bytes())),
    );
    assert_eq!(
        client.binary(&format!("DELETE {MAPS}/a"), errors).await.0,
        409
    );
    let (status, gone) = client
        .binary(
            &format!("DELETE {MAPS}/a"),
            sealed("v1", "DeleteOptions", b""),
        )
        .await;
    let (kind, message) = opened(&gone);
    assert_eq!(status, 200);
    assert_eq!(kind, "Status");
    assert_eq!(text(at(message, &[2])), "Success");
    let (status, missing) = client.binary(&format!("GET {MAPS}/a"), Bytes::new()).await;
    assert_eq!(status, 404);
    assert_eq!(text(at(opened(&missing).1, &[4])), "NotFound");
    server.shutdown().await;
}

#[tokio::test]
async fn lists_hold_the_messages_of_their_objects() {
    let (server, client) = started().await;
    for name in ["a", "b", "c"] {
        client
            .binary(&format!("POST {MAPS}"), config_map(name, "", "1"))
            .await;
    }
    let names = |list: &[u8]| {
        all(list, &[2])
            .into_iter()
            .map(|item| shown(item).0.to_owned())
            .collect::<Vec<_>>()
    };
    let (status, page) = client
        .binary(&format!("GET {MAPS}?limit=2"), Bytes::new())
        .await;
    let (kind, list) = opened(&page);
    assert_eq!(status, 200);
    assert_eq!(kind, "ConfigMapList");
    assert_eq!(names(list), vec!["a".to_owned(), "b".to_owned()]);
    let next = format!("GET {MAPS}?limit=2&continue={}", text(at(list, &[1, 3])));
    let (_, page) = client.binary(&next, Bytes::new()).await;
    assert_eq!(names(opened(&page).1), ["c"]);
    server.shutdown().await;
}

/// The next frame of a watch: four bytes of length, then an event of a type and an object in its
/// own envelope.
fn frame(bytes: &mut Bytes) -> Option<(String, Vec<u8>)> {
    let length = u32::from_be_bytes(bytes.get(..4)?.try_into().expect("four bytes")) as usize;
    let frame = bytes.get(4..4 + length)?.to_vec();
    *bytes = bytes.slice(4 + length..);
    Some((
        text(at(&frame, &[1])).to_owned(),
        at(&frame, &[2, 1]).to_vec(),
    ))
}

#[tokio::test(start_paused = true)]
async fn watch_frames_hold_events_in_order() {
    let (server, client) = started().await;
    let stream = format!("{PROTOBUF};stream=watch");
    let watch = format!("GET {MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=90");
    let response = client.send(&watch, [JSON, &stream], Bytes::new()).await;
    assert_eq!(response.headers()["content-type"], stream.as_str());
    let (_, made) = client
        .binary(&format!("POST {MAPS}"), config_map("a", "", "1"))
        .await;
    client
        .binary(
            &format!("PUT {MAPS}/a"),
            config_map("a", shown(opened(&made).1).1, "2"),
        )
        .await;
    client
        .binary(&format!("DELETE {MAPS}/a"), Bytes::new())
        .await;
    let mut bytes = response
        .into_body()
        .collect()
        .await
        .expect("the watch ends by itself")
        .to_bytes();
    let mut events = Vec::new();
    while let Some((type_, object)) = frame(&mut bytes) {
        let (kind, message) = opened(&object);
        assert_eq!(kind, "ConfigMap");
        events.push(if type_ == "BOOKMARK" {
            type_
        } else {
            format!("{type_} {}", shown(message).2)
        });
    }
    assert!(bytes.is_empty(), "frames are whole");
    assert_eq!(events[..3], ["ADDED 1", "MODIFIED 2", "DELETED 2"]);
    assert!(
        events[3..].iter().all(|event| event == "BOOKMARK") && events.len() > 3,
        "{events:?}"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn both_forms_store_the_same_object() {
    let (server, client) = started().await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {
        "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1500m"}}, "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 7}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}], "automountServiceAccountToken": false}});
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    client
        .request(
            "POST /api/v1/namespaces/default/serviceaccounts",
            [JSON, JSON],
            account.to_string(),
        )
        .await;
    let dry = "POST /api/v1/namespaces/default/pods?dryRun=All";
    let wet = "POST /api/v1/namespaces/default/pods";
    let (status, _, message) = client.request(dry, [JSON, PROTOBUF], pod.to_string()).await;
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&message));
    let spec_of =
        |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).expect("JSON")["spec"].clone();
    let (_, _, from_json) = client.request(dry, [JSON, JSON], pod.to_string()).await;
    let (status, _, from_protobuf) = client.request(wet, [PROTOBUF, JSON], message).await;
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&from_protobuf));
    assert_eq!(spec_of(from_protobuf), spec_of(from_json));
    server.shutdown().await;
}

#[tokio::test]
async fn malformed_bodies_are_rejected() {
    let (server, client) = started().await;
    let good = config_map("a", "", "1");
    for (what, body) in [
        ("half a message", good.slice(..good.len() / 2)),
        ("no envelope", Bytes::from_static(b"\x0a\x01a")),
        ("nothing", Bytes::new()),
        ("another kind", sealed("v1", "Secret", b"")),
        ("an unknown kind", sealed("v9", "Nonsense", b"")),
        (
            "a length beyond the end",
            sealed("v1", "ConfigMap", b"\x0a\xff\xff\xff\xff\x0f"),
        ),
        (
            "a number without an end",
            sealed("v1", "ConfigMap", &[0xff; 11]),
        ),
    ] {
        assert_eq!(
            client.binary(&format!("POST {MAPS}"), body).await.0,
            400,
            "{what}"
        );
    }
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "knobs.example.dev"},
        "spec": {"group": "example.dev", "scope": "Namespaced", "names": {"plural": "knobs", "kind": "Knob"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let request = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(
        client
            .request(request, [JSON, JSON], definition.to_string())
            .await
            .0,
        201
    );
    let knobs = "/apis/example.dev/v1/namespaces/default/knobs";
    let (status, _, _) = client
        .request(
            &format!("POST {knobs}"),
            [PROTOBUF, JSON],
            sealed("example.dev/v1", "Knob", b""),
        )
        .await;
    assert_eq!(
        status,
        StatusCode::UNSUPPORTED_MEDIA_TYPE.as_u16(),
        "custom resources have no numbers for their fields"
    );
    let (status, type_, _) = client
        .request(
            &format!("GET {knobs}"),
            [JSON, &format!("{PROTOBUF},{JSON}")],
            Bytes::new(),
        )
        .await;
    assert_eq!(
        status, 200,
        "what has no protobuf form comes in the next form that is accepted"
    );
    assert_eq!(
        type_.as_str(),
        JSON,
        "what has no protobuf form comes in the next form that is accepted"
    );
    server.shutdown().await;
}
