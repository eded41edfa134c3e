//! Which requests are upgraded, and how others are refused.

use bellerophon_streaming::ConnectionOptions;
use http::Response;

use crate::{
    client::{SPDY, WEBSOCKET, request},
    server::Server,
};

/// Status, body and values of a header.
async fn check(
    method: &str,
    path: &str,
    headers: &[&[(&str, &str)]],
    expected: (u16, &str, &[(&str, &str)]),
) {
    let (server, _events) = Server::new(ConnectionOptions::default());
    let (response, _io) = request(server.connect(), method, path, headers).await;
    let (status, body, expected_headers) = expected;
    assert_eq!(response.status(), status, "{path} {headers:?}");
    assert_eq!(response.body(), body, "{path} {headers:?}");
    for (name, value) in expected_headers {
        assert_eq!(header(&response, name), *value, "{path} {headers:?} {name}");
    }
}

fn header(response: &Response<String>, name: &str) -> String {
    let values = response.headers().get_all(name);
    let values = values.iter().map(|value| value.to_str().unwrap());
    values.collect::<Vec<_>>().join("|")
}

const EXEC: &str = "/exec?stdout=true&command=exit&command=0";

#[tokio::test]
async fn request_without_streams_is_refused() {
    let message = "you must specify at least 1 of stdin, stdout, stderr";
    let text = &[("content-type", "text/plain; charset=utf-8")];
    check("POST", "/exec?command=ls", &[SPDY], (400, message, text)).await;
    check("GET", "/attach", &[WEBSOCKET], (400, message, text)).await;
}

#[tokio::test]
async fn first_protocol_of_the_client_that_is_known_is_chosen() {
    let offered: &[(&str, &str)] = &[
        ("x-stream-protocol-version", "v9.channel.k8s.io"),
        (
            "x-stream-protocol-version",
            "v3.channel.k8s.io, v4.channel.k8s.io",
        ),
    ];
    let chosen = &[
        ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ("upgrade", "SPDY/3.1"),
        ("connection", "Upgrade"),
    ];
    check("POST", EXEC, &[SPDY, offered], (101, "", chosen)).await;
    let offered: &[(&str, &str)] = &[(
        "sec-websocket-protocol",
        "v9.channel.k8s.io, v4.channel.k8s.io,v5.channel.k8s.io",
    )];
    let chosen = &[
        ("sec-websocket-protocol", "v4.channel.k8s.io"),
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
    ];
    check("GET", EXEC, &[WEBSOCKET, offered], (101, "", chosen)).await;
}

#[tokio::test]
async fn client_without_common_spdy_protocol_learns_the_accepted_ones() {
    let offered: &[(&str, &str)] = &[("x-stream-protocol-version", "v9.a, v8.a")];
    let message = "unable to upgrade: unable to negotiate protocol: client supports [v9.a v8.a], \
                   server accepts [v4.channel.k8s.io v3.channel.k8s.io v2.channel.k8s.io \
                   channel.k8s.io]\n";
    let accepted = &[
        (
            "x-accepted-stream-protocol-versions",
            "v4.channel.k8s.io|v3.channel.k8s.io|v2.channel.k8s.io|channel.k8s.io",
        ),
        ("x-content-type-options", "nosniff"),
    ];
    check("POST", EXEC, &[SPDY, offered], (403, message, accepted)).await;
    let message = "unable to upgrade: unable to negotiate protocol: client supports [v9.a v8.a], \
                   server accepts [portforward.k8s.io]\n";
    let accepted = &[("x-accepted-stream-protocol-versions", "portforward.k8s.io")];
    let headers: &[&[(&str, &str)]] = &[SPDY, offered];
    check("POST", "/portforward", headers, (403, message, accepted)).await;
}

#[tokio::test]
async fn spdy_request_without_its_headers_is_refused() {
    let message = "unable to upgrade: header X-Stream-Protocol-Version does not exist in request \
                   with 2 headers\n";
    check("POST", EXEC, &[SPDY], (400, message, &[])).await;
    let empty: &[(&str, &str)] = &[("x-stream-protocol-version", " , ")];
    let message = "unable to upgrade: header X-Stream-Protocol-Version contains [,], but no valid \
                   protocols\n";
    check("POST", EXEC, &[SPDY, empty], (400, message, &[])).await;
    let offered: &[(&str, &str)] = &[("x-stream-protocol-version", "v4.channel.k8s.io")];
    let message = "unable to upgrade: missing upgrade headers in request\n";
    check("POST", EXEC, &[offered], (400, message, &[])).await;
}

#[tokio::test]
async fn websocket_request_without_common_protocol_is_forbidden() {
    let offered: &[(&str, &str)] = &[("sec-websocket-protocol", "v9.channel.k8s.io")];
    check("GET", EXEC, &[WEBSOCKET, offered], (403, "", &[])).await;
    let offered: &[(&str, &str)] = &[("sec-websocket-protocol", "v5.channel.k8s.io")];
    let path = "/portforward?port=80";
    check("GET", path, &[WEBSOCKET, offered], (403, "", &[])).await;
    let offered: &[(&str, &str)] = &[("sec-websocket-protocol", "SPDY/3.1+other.k8s.io")];
    check("GET", "/portforward", &[WEBSOCKET, offered], (403, "", &[])).await;
}

#[tokio::test]
async fn incomplete_websocket_request_is_refused() {
    check("POST", EXEC, &[WEBSOCKET], (405, "bad method", &[])).await;
    let mismatch = (400, "mismatch challenge/response", &[][..]);
    check("GET", EXEC, &[&WEBSOCKET[..3]], mismatch).await;
    let headers = [WEBSOCKET[0], WEBSOCKET[1], WEBSOCKET[3]];
    let message = "missing or bad WebSocket Version";
    let version = &[("sec-websocket-version", "13")];
    check("GET", EXEC, &[&headers], (400, message, version)).await;
}

#[tokio::test]
async fn channels_without_ports_are_refused() {
    let message = r#"query parameter "port" is required"#;
    check("GET", "/portforward", &[WEBSOCKET], (400, message, &[])).await;
}
