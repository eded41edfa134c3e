//! Logs and watches over WebSocket, for browsers and clients that read no HTTP streams.
//! In: the response that the request would have without the upgrade. Out: 101, and a task that
//! sends the body as messages. Mirrors `WatchServer.HandleWS`, `StreamObject` and the server of
//! `golang.org/x/net/websocket`.
//!
//! Guarantees:
//! - A message has one event of a watch, or bytes of a log as they arrive. One message is in memory
//!   at a time, and a client that does not read it within 30 seconds is disconnected.
//! - Messages of the client are dropped; pings are answered.
//! - A body that ends is followed by a close frame: 1000, or 1001 when the server stops. A body that
//!   fails before that is not, so that no part of a log is taken for the whole.

use std::{future::poll_fn, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header, request::Parts};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tokio_util::sync::CancellationToken;

use super::{Connector, headers};
use crate::{
    http::{
        body::Body,
        response::{empty_response, text_response},
    },
    listen::ClientConnection,
};

/// How long a client may take to read a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The limit of a message of the client, all of which are dropped.
const RECEIVED_MAX_BYTES: usize = 64 << 10;

/// The length in front of an event in protobuf, which a message does not need.
const FRAME_LENGTH_BYTES: usize = 4;

/// How the bytes of a body become messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Events in JSON: text.
    JsonEvents,
    /// Events in protobuf: binary.
    ProtobufEvents,
    /// A log: binary.
    BinaryLog,
    /// A log in base64: text.
    Base64Log,
}

impl Framing {
    fn message(self, chunk: Bytes) -> Option<Message> {
        Some(match self {
            Self::JsonEvents => Message::Text(Utf8Bytes::try_from(chunk).ok()?),
            Self::ProtobufEvents => {
                let start = FRAME_LENGTH_BYTES.min(chunk.len());
                Message::Binary(chunk.slice(start..))
            }
            Self::BinaryLog => Message::Binary(chunk),
            Self::Base64Log => Message::text(BASE64_STANDARD.encode(&chunk)),
        })
    }

    /// A log begins with an empty message, by which a client sees that it is connected.
    fn first(self) -> Option<Message> {
        match self {
            Self::JsonEvents | Self::ProtobufEvents => None,
            Self::BinaryLog | Self::Base64Log => self.message(Bytes::new()),
        }
    }
}

/// The upgrade of a response with 101, as one of its extensions.
#[derive(Clone)]
struct Upgrade {
    client: OnUpgrade,
    connection: Arc<ClientConnection>,
    framing: Framing,
}

/// Whether a request is a WebSocket handshake on a connection that can be upgraded. Mirrors
/// `IsWebSocketRequest`.
pub(crate) fn is_websocket(head: &Parts) -> bool {
    let extensions = &head.extensions;
    first(&head.headers, &header::UPGRADE).eq_ignore_ascii_case("websocket")
        && headers::is_upgrade(&head.headers)
        && extensions.get::<OnUpgrade>().is_some()
        && extensions.get::<Arc<ClientConnection>>().is_some()
}

/// The response to a watch over WebSocket, in place of one with a stream of events. Any one
/// protocol is accepted; a client without an origin is not.
pub(crate) fn accept_watch(head: &Parts, events: Response<Body>) -> Response<Body> {
    let media_type = first(events.headers(), &header::CONTENT_TYPE);
    let framing = if media_type.contains("protobuf") {
        Framing::ProtobufEvents
    } else {
        Framing::JsonEvents
    };
    let origin = first(&head.headers, &header::ORIGIN);
    if let Some(refusal) = refused_handshake(&head.headers) {
        return refusal;
    }
    // Mirrors `checkOrigin` and `url.ParseRequestURI`: `null` is no URL.
    let is_url = origin.starts_with('/') || origin.contains(':') && origin.parse::<Uri>().is_ok();
    if !is_url {
        return empty_response(StatusCode::FORBIDDEN);
    }
    match protocols(&head.headers).as_slice() {
        [] => accept(head, events, framing, ""),
        [protocol] => accept(head, events, framing, protocol),
        _ => empty_response(StatusCode::BAD_REQUEST),
    }
}

/// The response to a log over WebSocket, in place of one with a stream of bytes. Mirrors
/// `NewDefaultReaderProtocols`.
pub(crate) fn accept_log(head: &Parts, log: Response<Body>) -> Response<Body> {
    if let Some(refusal) = refused_handshake(&head.headers) {
        return refusal;
    }
    let mut offered = protocols(&head.headers);
    if offered.is_empty() {
        offered.push("");
    }
    let known = offered.into_iter().find_map(|protocol| {
        let framing = match protocol {
            "" | "binary.k8s.io" => Framing::BinaryLog,
            "base64.binary.k8s.io" => Framing::Base64Log,
            _ => return None,
        };
        Some((protocol, framing))
    });
    match known {
        Some((protocol, framing)) => accept(head, log, framing, protocol),
        None => empty_response(StatusCode::FORBIDDEN),
    }
}

/// The response to a handshake that is not valid. Mirrors `hybiServerHandshaker.ReadHandshake`.
fn refused_handshake(all: &HeaderMap) -> Option<Response<Body>> {
    let refused = |why| text_response(StatusCode::BAD_REQUEST, why);
    if first(all, &header::SEC_WEBSOCKET_KEY).is_empty() {
        return Some(refused("mismatch challenge/response"));
    }
    if first(all, &header::SEC_WEBSOCKET_VERSION) != "13" {
        let mut refusal = refused("missing or bad WebSocket Version");
        let version = HeaderValue::from_static("13");
        let headers = refusal.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_VERSION, version);
        return Some(refusal);
    }
    None
}

fn accept(
    head: &Parts,
    mut response: Response<Body>,
    framing: Framing,
    protocol: &str,
) -> Response<Body> {
    let client = head.extensions.get::<OnUpgrade>();
    let connection = head.extensions.get::<Arc<ClientConnection>>();
    let (Some(client), Some(connection)) = (client, connection) else {
        return response;
    };
    let upgrade = Upgrade {
        client: client.clone(),
        connection: connection.clone(),
        framing,
    };
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let key = first(&head.headers, &header::SEC_WEBSOCKET_KEY);
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    for (name, value) in [
        (
            header::SEC_WEBSOCKET_ACCEPT,
            derive_accept_key(key.as_bytes()).as_str(),
        ),
        (header::SEC_WEBSOCKET_PROTOCOL, protocol),
    ] {
        if let Ok(value) = HeaderValue::from_str(value)
            && !value.is_empty()
        {
            headers.insert(name, value);
        }
    }
    response.extensions_mut().insert(upgrade);
    response
}

/// The protocols that a client offers, in its order.
fn protocols(all: &HeaderMap) -> Vec<&str> {
    let offered = first(all, &header::SEC_WEBSOCKET_PROTOCOL).trim();
    if offered.is_empty() {
        return Vec::new();
    }
    offered.split(',').map(str::trim).collect()
}

/// The first value of a header; empty if it has none.
fn first<'a>(all: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = all.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

impl Connector {
    /// Sends the body of an accepted response as messages once the connection is upgraded. Any
    /// other response is returned unchanged.
    pub(crate) fn run_websocket(&self, mut response: Response<Body>) -> Response<Body> {
        let Some(upgrade) = response.extensions_mut().remove::<Upgrade>() else {
            return response;
        };
        let body = std::mem::take(response.body_mut());
        let stop = self.backends.stop.clone();
        self.backends.tasks.spawn(async move {
            let connection = upgrade.connection;
            let serving = async {
                match upgrade.client.await {
                    Ok(upgraded) => send(TokioIo::new(upgraded), body, upgrade.framing, stop).await,
                    Err(error) => tracing::debug!(%error, "connection was not upgraded"),
                }
            };
            connection.run_upgraded(serving).await;
        });
        response
    }
}

/// Sends a body until it, the client or the server ends.
async fn send<S>(io: S, mut body: Body, framing: Framing, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(RECEIVED_MAX_BYTES))
        .max_frame_size(Some(RECEIVED_MAX_BYTES));
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sink, mut received) = socket.split();
    let mut client_end =
        std::pin::pin!(async move { while let Some(Ok(_)) = received.next().await {} });
    let sending = async {
        let mut next = framing.first();
        loop {
            if let Some(message) = next.take() {
                timeout(SEND_TIMEOUT, sink.send(message)).await.ok()?.ok()?;
            }
            match poll_fn(|cx| body.poll_chunk(usize::MAX, cx)).await {
                Some(Ok(chunk)) => next = Some(framing.message(chunk)?),
                Some(Err(_)) => return None,
                None => return Some(CloseCode::Normal),
            }
        }
    };
    let code = tokio::select! {
        // A stop ends the watch and cuts the connection to the kubelet too, which must not look
        // like the end or the failure of a body.
        code = sending => if stop.is_cancelled() { Some(CloseCode::Away) } else { code },
        () = &mut client_end => None,
        () = stop.cancelled() => Some(CloseCode::Away),
    };
    // The watch, or the connection to the kubelet, ends before the client has closed.
    drop(body);
    let Some(code) = code else {
        return;
    };
    let close = Message::Close(Some(CloseFrame {
        code,
        reason: Utf8Bytes::default(),
    }));
    // Closing a socket with unread input resets it, and the client loses what it has not yet
    // received. So input is read until the client has closed.
    let closing = async {
        if sink.send(close).await.is_ok() {
            client_end.await;
        }
    };
    let _late = timeout(CLOSE_TIMEOUT, closing).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_become_messages_of_their_framing() {
        for (framing, chunk, want) in [
            (Framing::JsonEvents, "{}\n", Message::text("{}\n")),
            (
                Framing::ProtobufEvents,
                "\0\0\0\u{2}ab",
                Message::binary("ab"),
            ),
            (Framing::BinaryLog, "line\n", Message::binary("line\n")),
            (Framing::Base64Log, "line\n", Message::text("bGluZQo=")),
        ] {
            let message = framing.message(Bytes::from_static(chunk.as_bytes()));
            assert_eq!(message, Some(want), "{framing:?}");
        }
        let invalid = Bytes::from_static(b"\xff");
        assert_eq!(Framing::JsonEvents.message(invalid), None);
    }
}
