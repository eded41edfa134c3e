//! Lists that are encoded while they are sent: the same bytes as in one piece.

use std::io::Read as _;

use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::hostile::peer::Target;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// Creates objects of many sizes; some are larger than a chunk.
async fn fill(server: &ApiServer) {
    let sizes = (0..200)
        .map(|i| i * 37)
        .chain([70_000, 10, 64 << 10, 200_000, 0]);
    for (i, size) in sizes.enumerate() {
        let object = json!({
            "metadata": {"name": format!("map-{i:03}")},
            "data": {"text": "é".repeat(size / 2)},
        });
        let request = Request::post(CONFIG_MAPS)
            .header("content-type", JSON)
            .body(Full::new(Bytes::from(object.to_string())));
        let response = server.service().oneshot(request.expect("a request")).await;
        assert_eq!(response.expect("infallible").status(), 201);
    }
}

/// The list in one piece, without a socket.
async fn list_in_process(server: &ApiServer, accept: &str) -> Bytes {
    let request = Request::get(CONFIG_MAPS)
        .header("accept", accept)
        .body(Empty::<Bytes>::new());
    let response = server.service().oneshot(request.expect("a request")).await;
    let mut body = response.expect("infallible").into_body();
    let first = body.frame().await.expect("a frame").expect("infallible");
    assert!(body.frame().await.is_none(), "one piece");
    first.into_data().expect("data")
}

/// The list over HTTP/2.
async fn list(target: &Target, query: &str, accept: &str, encoding: &str) -> Response<Incoming> {
    let io = TokioIo::new(target.connect("h2").await);
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
    let (mut sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::get(format!("https://localhost{CONFIG_MAPS}{query}"))
        .header("authorization", format!("Bearer {}", target.token))
        .header("accept", accept)
        .header("accept-encoding", encoding)
        .body(Empty::<Bytes>::new());
    let response = sender.send_request(request.expect("a request")).await;
    response.expect("a response")
}

async fn bytes_of(response: Response<Incoming>) -> Bytes {
    let body = response.into_body().collect().await;
    body.expect("a whole body").to_bytes()
}

#[tokio::test]
async fn list_in_chunks_is_the_list_in_one_piece() {
    let target = Target::start().await;
    fill(&target.server).await;
    for accept in [JSON, PROTOBUF] {
        let whole = list_in_process(&target.server, accept).await;
        let response = list(&target, "", accept, "identity").await;
        let length = response.headers()["content-length"].to_str();
        assert_eq!(length.ok(), Some(whole.len().to_string().as_str()));
        assert_eq!(bytes_of(response).await, whole, "{accept}");

        let response = list(&target, "", accept, "gzip").await;
        assert_eq!(response.headers()["content-encoding"], "gzip");
        let mut unpacked = Vec::new();
        GzDecoder::new(&bytes_of(response).await[..])
            .read_to_end(&mut unpacked)
            .expect("gzip");
        assert_eq!(unpacked, whole, "{accept} compressed");
    }
    target.must_be_well().await;
}

#[tokio::test]
async fn list_over_http1_has_its_length() {
    let target = Target::start().await;
    fill(&target.server).await;
    let whole = list_in_process(&target.server, JSON).await;
    let outcome = target.request(&format!("GET {CONFIG_MAPS}"), "", b"").await;
    assert_eq!(outcome.body.as_bytes(), whole);
    let length = format!("content-length: {}", whole.len());
    assert!(outcome.head.contains(&length), "{}", outcome.head);
    target.must_be_well().await;
}

#[tokio::test]
async fn other_forms_of_large_lists_are_whole() {
    let target = Target::start().await;
    fill(&target.server).await;
    let whole = list_in_process(&target.server, JSON).await;
    let whole: Value = serde_json::from_slice(&whole).expect("JSON");
    let pretty = bytes_of(list(&target, "?pretty=true", JSON, "identity").await).await;
    assert!(pretty.starts_with(b"{\n  \""));
    assert_eq!(
        serde_json::from_slice::<Value>(&pretty).expect("JSON"),
        whole
    );
    let query = "?includeObject=Object";
    let table = bytes_of(list(&target, query, TABLE, "identity").await).await;
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    let rows = table["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), whole["items"].as_array().expect("items").len());
    target.must_be_well().await;
}
