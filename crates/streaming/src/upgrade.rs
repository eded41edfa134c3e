//! Requests for an upgrade: which protocol a client gets, or why none.
//!
//! Statuses, headers and messages are those of Kubernetes: `httpstream.Handshake` and
//! `UpgradeResponse` for SPDY, the server of `golang.org/x/net/websocket` for WebSocket.

use std::io;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE, X_CONTENT_TYPE_OPTIONS,
    },
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The upgrade of an HTTP/1.1 connection to SPDY.
const SPDY: &str = "SPDY/3.1";

/// The protocols of a SPDY connection: offered by the client, chosen by the server.
const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The protocols that a server accepts, in a refusal.
const ACCEPTED_STREAM_PROTOCOL_VERSIONS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The bytes of an upgraded connection.
pub(crate) type Io = TokioIo<Upgraded>;

/// The response to a request for an upgrade, and what the request becomes.
#[derive(Debug)]
pub struct Upgrade<T> {
    /// What to send to the client: 101, or a refusal with a message.
    pub response: Response<String>,
    /// What to run once the response is sent; None if the request was refused.
    pub upgraded: Option<T>,
}

/// Why an upgraded connection has no streams.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The HTTP connection could not be upgraded, or the client closed it.
    #[error("cannot upgrade the HTTP connection: {0}")]
    Upgrade(#[from] hyper::Error),
    /// The client did not create its streams within the timeout.
    #[error("timed out waiting for client to create streams")]
    StreamTimeout,
    /// The connection ended before the client created its streams.
    #[error("the connection ended before the client created its streams: {0}")]
    Closed(#[from] io::Error),
}

impl<T> Upgrade<T> {
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self {
            response: refusal.into_response(),
            upgraded: None,
        }
    }
}

/// A response other than 101.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            headers: Vec::new(),
        }
    }

    /// As Go's `http.Error`, which ends messages with a line feed.
    fn error(status: StatusCode, message: &str) -> Self {
        let nosniff = HeaderValue::from_static("nosniff");
        Self {
            status,
            message: format!("{message}\n"),
            headers: vec![(X_CONTENT_TYPE_OPTIONS, nosniff)],
        }
    }

    fn into_response(self) -> Response<String> {
        let has_body = !self.message.is_empty();
        let mut response = Response::new(self.message);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        // A WebSocket client without a common protocol gets a status and no body.
        if has_body {
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            headers.insert(CONTENT_TYPE, text);
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

/// An accepted request: the response, and the connection that follows it.
pub(crate) struct Accepted {
    pub(crate) response: Response<String>,
    pub(crate) on_upgrade: OnUpgrade,
    /// The protocol chosen; empty if the client offered none.
    pub(crate) protocol: String,
}

/// Whether a request is for WebSocket. Mirrors `wsstream.IsWebSocketRequest`.
pub(crate) fn is_websocket<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    text(headers, &UPGRADE).eq_ignore_ascii_case("websocket") && is_upgrade(headers)
}

/// The protocols that a WebSocket client offers, in its order.
pub(crate) fn websocket_protocols<B>(request: &Request<B>) -> Vec<String> {
    let offered = text(request.headers(), &SEC_WEBSOCKET_PROTOCOL).trim();
    if offered.is_empty() {
        return Vec::new();
    }
    let offered = offered.split(',').map(|name| name.trim().to_owned());
    offered.collect()
}

/// Upgrades to WebSocket with the first protocol of the client that the server has. The empty name
/// is the protocol of a client that offers none.
pub(crate) fn websocket<B>(
    request: &mut Request<B>,
    protocols: &[&str],
) -> Result<Accepted, Refusal> {
    let bad_request = |message| Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    if request.method() != Method::GET {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Err(Refusal::new(status, "bad method"));
    }
    let key = text(request.headers(), &SEC_WEBSOCKET_KEY);
    if key.is_empty() {
        return bad_request("mismatch challenge/response");
    }
    if text(request.headers(), &SEC_WEBSOCKET_VERSION) != "13" {
        let mut refusal = Refusal::new(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        let version = HeaderValue::from_static("13");
        refusal.headers.push((SEC_WEBSOCKET_VERSION, version));
        return Err(refusal);
    }
    let accept = derive_accept_key(key.as_bytes());
    let mut offered = websocket_protocols(request);
    if offered.is_empty() {
        offered.push(String::new());
    }
    let common = offered
        .iter()
        .find(|name| protocols.contains(&name.as_str()));
    let Some(protocol) = common else {
        return Err(Refusal::new(StatusCode::FORBIDDEN, ""));
    };
    let mut response = switching_protocols("websocket");
    let headers = response.headers_mut();
    headers.insert(SEC_WEBSOCKET_ACCEPT, value(&accept));
    if !protocol.is_empty() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value(protocol));
    }
    Ok(Accepted {
        response,
        on_upgrade: hyper::upgrade::on(request),
        protocol: protocol.clone(),
    })
}

/// Upgrades to SPDY with the first protocol of the client that the server has.
pub(crate) fn spdy<B>(request: &mut Request<B>, protocols: &[&str]) -> Result<Accepted, Refusal> {
    let protocol = spdy_protocol(request.headers(), protocols)?;
    let headers = request.headers();
    let upgrade = text(headers, &UPGRADE).to_ascii_lowercase();
    if !is_upgrade(headers) || !upgrade.contains(&SPDY.to_ascii_lowercase()) {
        let message = "unable to upgrade: missing upgrade headers in request";
        return Err(Refusal::error(StatusCode::BAD_REQUEST, message));
    }
    let mut response = switching_protocols(SPDY);
    let headers = response.headers_mut();
    headers.insert(STREAM_PROTOCOL_VERSION, value(&protocol));
    Ok(Accepted {
        response,
        on_upgrade: hyper::upgrade::on(request),
        protocol,
    })
}

/// Mirrors `httpstream.Handshake`.
fn spdy_protocol(headers: &HeaderMap, protocols: &[&str]) -> Result<String, Refusal> {
    let name = "X-Stream-Protocol-Version";
    if !headers.contains_key(&STREAM_PROTOCOL_VERSION) {
        // Go keeps Host apart from the other headers.
        let count = headers.keys().filter(|key| *key != http::header::HOST);
        let count = count.count();
        let message = format!(
            "unable to upgrade: header {name} does not exist in request with {count} headers"
        );
        return Err(Refusal::error(StatusCode::BAD_REQUEST, &message));
    }
    let values = headers.get_all(&STREAM_PROTOCOL_VERSION);
    let values: Vec<&str> = values.iter().filter_map(|v| v.to_str().ok()).collect();
    let offered = values.iter().flat_map(|v| v.split(','));
    let offered = offered.map(|v| v.trim_matches(' '));
    let offered: Vec<&str> = offered.filter(|v| !v.is_empty()).collect();
    if offered.is_empty() {
        let values = values.join(" ");
        let message =
            format!("unable to upgrade: header {name} contains [{values}], but no valid protocols");
        return Err(Refusal::error(StatusCode::BAD_REQUEST, &message));
    }
    if let Some(common) = offered.iter().find(|name| protocols.contains(name)) {
        return Ok((*common).to_owned());
    }
    let message = format!(
        "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
        offered.join(" "),
        protocols.join(" ")
    );
    let mut refusal = Refusal::error(StatusCode::FORBIDDEN, &message);
    for protocol in protocols {
        let header = (ACCEPTED_STREAM_PROTOCOL_VERSIONS, value(protocol));
        refusal.headers.push(header);
    }
    Err(refusal)
}

fn switching_protocols(protocol: &'static str) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    response
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION);
    let mut values = values.iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// The first value of a header; empty if it has none.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("protocol names and keys are visible ASCII")
}
