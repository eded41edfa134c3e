//! Responses of single documents: `Status`, JSON, plain text, streams.
//! Guarantees: every response has `Cache-Control: no-cache, private`; an [`ApiError`] becomes a
//! `Status` here and nowhere else.

use bellerophon_apimachinery::error::{ApiError, REJECTED};
use bellerophon_codec::protobuf;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::{body::Body, gzip, negotiate::Format, yaml::to_yaml};

/// A `Status` for an error.
pub(crate) fn error_response(error: &ApiError, format: Format) -> Response<Body> {
    if *error == ApiError::NoSuchPath {
        return text_response(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let status = StatusCode::from_u16(error.code()).expect("errors have valid codes");
    let mut response = match error {
        ApiError::Rejected { .. } => text_response(status, format!("{REJECTED}\n")),
        _ => encode(status, &error.to_status(), format),
    };
    if let Some(seconds) = error.retry_after_seconds() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Plain text.
pub(crate) fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = with_type(status, Body::full(text), "text/plain; charset=utf-8");
    response.headers_mut().insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// JSON that is already written.
pub(crate) fn json_response(status: StatusCode, bytes: Bytes) -> Response<Body> {
    with_type(status, Body::full(bytes), "application/json")
}

/// A document that is already encoded as JSON, in the requested format.
pub(crate) fn written_response(status: StatusCode, json: &Bytes, format: Format) -> Response<Body> {
    match format {
        Format::Json => json_response(status, json.clone()),
        Format::Yaml | Format::Protobuf => encode(
            status,
            &serde_json::from_slice(json).expect("written as JSON before"),
            format,
        ),
    }
}

/// No body at all.
pub(crate) fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    no_cache(response.headers_mut());
    response
}

/// A body that is passed on as it arrives.
pub(crate) fn stream_response(body: Body, content_type: &'static str) -> Response<Body> {
    with_type(StatusCode::OK, body, content_type)
}

/// Keeps responses out of shared caches.
pub(crate) fn no_cache(headers: &mut HeaderMap) {
    let value = HeaderValue::from_static("no-cache, private");
    headers.insert(header::CACHE_CONTROL, value);
}

/// A response with a content type.
pub(crate) fn with_type(
    status: StatusCode,
    body: Body,
    content_type: &'static str,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    no_cache(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A value in the requested format.
pub(crate) fn encode(status: StatusCode, value: &Value, format: Format) -> Response<Body> {
    let bytes = match format {
        Format::Json => to_bytes(value),
        Format::Yaml => to_yaml(value).into_bytes(),
        Format::Protobuf => match protobuf::encode(value) {
            Some(bytes) => bytes,
            // Values without a protobuf form are sent as JSON.
            None => return encode(status, value, Format::Json),
        },
    };
    with_type(status, Body::full(bytes), format.content_type())
}

/// Adds a `Warning` header for each.
pub(crate) fn add_warnings(headers: &mut HeaderMap, warnings: impl IntoIterator<Item = String>) {
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        let quoted: String = quoted.chars().filter(|c| !c.is_control()).collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            headers.append(header::WARNING, value);
        }
    }
}

/// Large bytes, packed with gzip; `None` for those not worth it.
pub(crate) fn packed(bytes: &Bytes) -> Option<Vec<u8>> {
    (bytes.len() >= gzip::MIN_BYTES).then(|| gzip::compress(bytes))
}

/// A value as JSON.
pub(crate) fn to_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value has string keys")
}
