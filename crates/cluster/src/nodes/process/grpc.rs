//! gRPC probes: `grpc.health.v1.Health/Check` over HTTP/2 without TLS.
//!
//! The two messages are encoded here: a request has the name of a service (field 1, a string), a
//! response a status (field 1, an enum). Mirrors `pkg/probe/grpc`.

use bytes::{Buf, Bytes};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

/// The maximum length of a response.
const RESPONSE_MAX: usize = 10 << 10;
/// The status of a healthy service.
const SERVING: u64 = 1;
/// Field 1 with the wire types of a string and of an integer.
const SERVICE_TAG: u8 = 0x0a;
const STATUS_TAG: u64 = 0x08;

/// Why a service is not healthy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckError {
    /// The connection or the HTTP request failed.
    Transport(String),
    /// The server answered with a gRPC status other than OK.
    Status { code: i32, message: String },
    /// The server answered with a status other than `SERVING`.
    NotServing(u64),
}

impl CheckError {
    /// The output of the probe.
    pub(super) fn output(&self) -> String {
        match self {
            Self::Transport(error) => format!(
                "error: health rpc probe failed: rpc error: code = Unavailable desc = {error}"
            ),
            Self::Status { code: 12, message } => format!(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): {message}"
            ),
            Self::Status { code, message } => format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {message}",
                code_name(*code)
            ),
            Self::NotServing(status) => {
                format!(
                    "service unhealthy (responded with {:?})",
                    status_name(*status)
                )
            }
        }
    }
}

/// The name of a gRPC status code.
fn code_name(code: i32) -> String {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.map_or_else(|| format!("Code({code})"), ToString::to_string)
}

/// The name of a `ServingStatus`.
fn status_name(status: u64) -> String {
    const NAMES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    let name = usize::try_from(status).ok().and_then(|it| NAMES.get(it));
    name.map_or_else(|| status.to_string(), ToString::to_string)
}

/// Checks the health of a service on a connection to its server.
pub(super) async fn check(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    authority: &str,
    service: &str,
    user_agent: &str,
) -> Result<(), CheckError> {
    let transport = |error: &dyn std::error::Error| CheckError::Transport(error.to_string());
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(connection)).await;
    let (mut sender, connection) = handshake.map_err(|error| transport(&error))?;
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, user_agent)
        .body(Full::new(encode_request(service)))
        .map_err(|error| transport(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| transport(&error))?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let error = format!("unexpected HTTP status code: {}", head.status);
            return Err(CheckError::Transport(error));
        }
        // A response without messages may have its status in the headers.
        read_status(&head.headers)?;
        let body = Limited::new(body, RESPONSE_MAX).collect().await;
        let body = body.map_err(|error| CheckError::Transport(error.to_string()))?;
        if let Some(trailers) = body.trailers() {
            read_status(trailers)?;
        }
        match decode_response(&body.to_bytes()) {
            Some(SERVING) => Ok(()),
            Some(status) => Err(CheckError::NotServing(status)),
            None => Err(CheckError::Transport("malformed response".to_owned())),
        }
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        result = &mut exchange => result,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(transport(&error)),
        },
    }
}

/// Reads `grpc-status` and `grpc-message`.
fn read_status(headers: &HeaderMap) -> Result<(), CheckError> {
    let text = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let Some(code) = text("grpc-status") else {
        return Ok(());
    };
    match code.parse().unwrap_or(2) {
        0 => Ok(()),
        code => Err(CheckError::Status {
            code,
            message: text("grpc-message").unwrap_or_default(),
        }),
    }
}

/// A length-prefixed message with the name of a service.
fn encode_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(SERVICE_TAG);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push((length & 0x7f) as u8);
        message.extend(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    // The first byte is the compression flag.
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    framed.into()
}

/// The status in a length-prefixed message; `None` if it is malformed.
fn decode_response(framed: &[u8]) -> Option<u64> {
    let mut framed = framed;
    let is_compressed = framed.try_get_u8().ok()? != 0;
    let length = usize::try_from(framed.try_get_u32().ok()?).ok()?;
    let mut message = framed.get(..length).filter(|_| !is_compressed)?;
    // An enum of value 0 is not encoded.
    let mut status = 0;
    while message.has_remaining() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => {
                let value = varint(&mut message)?;
                if tag == STATUS_TAG {
                    status = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Response, StatusCode};
    use http_body_util::StreamBody;
    use hyper::body::{Frame, Incoming};
    use hyper::service::service_fn;

    use super::*;

    #[test]
    fn messages_are_encoded_as_protocol_buffers() {
        assert_eq!(&encode_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(
            &encode_request("ab")[..],
            [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']
        );
        let long = encode_request(&"x".repeat(300));
        assert_eq!(&long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
        let cases: [(&[u8], Option<u64>); 6] = [
            (&[0, 0, 0, 0, 2, 8, 1], Some(1)),
            (&[0, 0, 0, 0, 0], Some(0)),
            (&[0, 0, 0, 0, 5, 0x12, 1, b'x', 8, 2], Some(2)),
            (&[0, 0, 0, 0, 3, 8], None),
            (&[1, 0, 0, 0, 2, 8, 1], None),
            (&[], None),
        ];
        for (framed, expected) in cases {
            assert_eq!(decode_response(framed), expected, "{framed:?}");
        }
    }

    type Trailers = &'static [(&'static str, &'static str)];

    /// Checks a server whose response has this message and these trailers, or the trailers as
    /// headers if there is no message.
    async fn check_server(message: Option<&'static [u8]>, trailers: Trailers) -> String {
        let (client, server) = tokio::io::duplex(1 << 16);
        let respond = move |request: Request<Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert_eq!(request.headers()[CONTENT_TYPE], "application/grpc");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, encode_request("shop"));
            let headers = trailers
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let headers: HeaderMap = headers.collect();
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::OK;
            let frames: Vec<Result<Frame<Bytes>, Infallible>> = match message {
                Some(message) => vec![
                    Ok(Frame::data(Bytes::from_static(message))),
                    Ok(Frame::trailers(headers)),
                ],
                None => {
                    *response.headers_mut() = headers;
                    Vec::new()
                }
            };
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Ok::<_, Infallible>(response.map(|()| body))
        };
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), service_fn(respond));
        let server = tokio::spawn(server);
        let result = check(client, "10.0.0.1:9000", "shop", "kube-probe/1.36").await;
        server.abort();
        result.map_or_else(|error| error.output(), |()| "healthy".to_owned())
    }

    #[tokio::test]
    async fn outputs_are_those_of_the_kubelet() {
        let ok: Trailers = &[("grpc-status", "0")];
        let cases: [(Option<&[u8]>, Trailers, &str); 6] = [
            (Some(&[0, 0, 0, 0, 2, 8, 1]), ok, "healthy"),
            (
                Some(&[0, 0, 0, 0, 2, 8, 2]),
                ok,
                "service unhealthy (responded with \"NOT_SERVING\")",
            ),
            (
                Some(&[0, 0, 0, 0, 0]),
                ok,
                "service unhealthy (responded with \"UNKNOWN\")",
            ),
            (
                None,
                &[("grpc-status", "12"), ("grpc-message", "unknown service")],
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): unknown service",
            ),
            (
                None,
                &[("grpc-status", "5"), ("grpc-message", "unknown service")],
                "error: health rpc probe failed: rpc error: code = NotFound \
                 desc = unknown service",
            ),
            (
                Some(&[]),
                &[("grpc-status", "99")],
                "error: health rpc probe failed: rpc error: code = Code(99) desc = ",
            ),
        ];
        for (message, trailers, expected) in cases {
            let output = check_server(message, trailers).await;
            assert_eq!(output, expected, "{message:?} {trailers:?}");
        }
    }

    #[tokio::test]
    async fn server_without_http2_is_unavailable() {
        let (client, server) = tokio::io::duplex(1 << 16);
        drop(server);
        let result = check(client, "10.0.0.1:9000", "", "kube-probe/1.36").await;
        assert!(
            matches!(result, Err(CheckError::Transport(_))),
            "{result:?}"
        );
    }
}
