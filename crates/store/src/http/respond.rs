//! Results to responses: the only place that turns an error into a status code.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::body::{Body, full};
use crate::api::{Reason, StoreError};

/// A response with a JSON body.
pub(crate) fn json(body: &impl Serialize) -> Response<Body> {
    json_with_status(StatusCode::OK, body)
}

/// A response with bytes.
pub(crate) fn bytes(content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

/// The response to a failed request.
pub(crate) fn error(error: &StoreError) -> Response<Body> {
    let status = StatusCode::from_u16(error.reason().http_status())
        .expect("reasons have valid status codes");
    let mut response = json_with_status(status, &*error.0);
    if error.reason() == Reason::Unauthorized {
        let challenge = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The response to a result.
pub(crate) fn result(result: Result<Response<Body>, StoreError>) -> Response<Body> {
    result.unwrap_or_else(|failed| error(&failed))
}

fn json_with_status(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("types of the API have text keys only");
    let mut response = bytes("application/json", body);
    *response.status_mut() = status;
    response
}

/// A path that does not exist, or not for this method.
pub(crate) fn unknown_path(method: &http::Method, path: &str) -> StoreError {
    StoreError::new(
        Reason::NotFound,
        format!("{method} {path} is not part of the API; see the documentation of the store"),
    )
}
