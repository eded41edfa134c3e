//! Webhooks of recorded scenarios, with the same responses over HTTPS for kube-apiserver and in the
//! process for the embedded server.
//! Input: the path and the review of a request. Output: a response that is
//! valid or invalid, depending on the path.
//! Guarantees: a response depends on the path and the review only.

mod admission; // AdmissionReview
mod conversion; // ConversionReview
mod serve; // over HTTPS

pub use serve::serve;

use std::time::Duration;

use bellerophon_apiserver::Builder;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use serde_json::Value;
use tokio::time::sleep;

/// Where the webhooks are, for the real server and in recordings.
pub const ADDRESS: &str = "127.0.0.1:34443";

/// How long the slow webhook takes; longer than any timeout in the recordings.
const SLOW: Duration = Duration::from_secs(20);

/// The paths that scenarios name.
const PATHS: &[&str] = &[
    "/allow",
    "/annotate",
    "/bad-patch",
    "/beta",
    "/big",
    "/code-400",
    "/code-404",
    "/code-429",
    "/code-500",
    "/code-503",
    "/code-json",
    "/code-status",
    "/convert",
    "/convert-empty",
    "/convert-fail",
    "/convert-fewer",
    "/convert-garbage",
    "/convert-kind",
    "/convert-labels",
    "/convert-name",
    "/convert-status",
    "/convert-uid",
    "/convert-version",
    "/deny",
    "/deny-code",
    "/deny-details",
    "/deny-name",
    "/deny-nothing",
    "/deny-reason",
    "/deny-success",
    "/echo",
    "/echo-object",
    "/echo-options",
    "/echo-user",
    "/empty",
    "/garbage",
    "/kind",
    "/label-a",
    "/label-b",
    "/list",
    "/managed",
    "/name",
    "/no-kind",
    "/no-response",
    "/null-patch",
    "/numbers",
    "/patch-missing",
    "/patch-no-type",
    "/patch-root",
    "/patch-test",
    "/patch-type",
    "/patch-unknown-field",
    "/patch-wrong-type",
    "/redirect",
    "/response-type",
    "/slow",
    "/string",
    "/trail-a",
    "/trail-b",
    "/trail-c",
    "/type-no-patch",
    "/uid",
    "/warn",
    "/warn-deny",
];

/// A server that answers the webhooks of scenarios in its process.
#[must_use]
pub fn in_process(mut builder: Builder) -> Builder {
    for path in PATHS {
        let url = format!("https://{ADDRESS}{path}");
        builder = builder.webhook(&url, |request| async move { answer(&request).await });
    }
    builder
}

/// The response to a request.
pub(crate) async fn answer(request: &Request<Bytes>) -> Response<Bytes> {
    let path = request.uri().path();
    let review: Value = serde_json::from_slice(request.body()).unwrap_or_default();
    if path == "/slow" {
        sleep(SLOW).await;
    }
    if path.starts_with("/convert") {
        return conversion::answer(path, &review);
    }
    admission::answer(path, &review)
}

fn json(code: u16, body: &Value) -> Response<Bytes> {
    respond(code, "application/json", body.to_string())
}

fn text(code: u16, body: &str) -> Response<Bytes> {
    respond(code, "text/plain; charset=utf-8", body.to_owned())
}

fn respond(code: u16, media_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(code).expect("a code of this file");
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(media_type),
    );
    response
}
