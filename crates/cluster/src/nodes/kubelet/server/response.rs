//! Responses of the kubelet's HTTP server.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

use super::streams::{LogStream, StreamError};

/// The body of a response.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response with an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// The methods of the path, if the request has another one.
    allow: &'static [Method],
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            allow: &[],
        }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Mirrors `AllowedMethodsRestfulFilter`.
    pub(super) fn method_not_allowed(allow: &'static [Method]) -> Self {
        Self {
            allow,
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        }
    }
}

impl From<StreamError> for Refusal {
    fn from(error: StreamError) -> Self {
        let status = match &error {
            StreamError::NotFound(_) => StatusCode::NOT_FOUND,
            StreamError::BadRequest(_) => StatusCode::BAD_REQUEST,
            StreamError::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            StreamError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Refusal> for Response<Body> {
    fn from(refusal: Refusal) -> Self {
        let mut response = full(TEXT, refusal.message);
        *response.status_mut() = refusal.status;
        let methods: Vec<&str> = refusal.allow.iter().map(Method::as_str).collect();
        if let Ok(allow) = HeaderValue::try_from(methods.join(", "))
            && !allow.is_empty()
        {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }
}

pub(super) fn text(text: &'static str) -> Response<Body> {
    full(TEXT, text)
}

pub(super) fn json(bytes: Vec<u8>) -> Response<Body> {
    full(JSON, bytes)
}

/// A response that is sent as the log is read.
pub(super) fn log(log: LogStream) -> Response<Body> {
    let body = StreamBody::new(log.map(|chunk| chunk.map(Frame::data)));
    with_type(TEXT, BodyExt::boxed_unsync(body))
}

/// A response of the streaming protocols.
pub(super) fn of_upgrade(response: Response<String>) -> Response<Body> {
    response.map(|text| full_body(text.into()))
}

fn full(content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    with_type(content_type, full_body(body.into()))
}

fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn with_type(content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
