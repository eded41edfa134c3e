//! Admission: from an AdmissionReview with a request to one with a response.
//!
//! In: the body of a call. Out: the body of the answer and its HTTP status.
//! Guarantees: the answer has the uid of the request; a panic, a missed deadline and a failure are
//! errors of the call and no decisions, so that the failure policy applies.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon_kinds::{KindCodec, Object};
use futures_util::FutureExt as _;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::handler::AnyHandler;
use super::patch::patch;
use super::rejection::Subject;
use super::review::{Exchange, GroupVersionKind, Operation};
use super::status::Status;

const API_VERSION: &str = "admission.k8s.io/v1";

/// What answers the reviews of one webhook.
pub(crate) struct AdmissionHandler {
    pub(crate) codec: &'static KindCodec,
    pub(crate) kind: GroupVersionKind,
    pub(crate) handler: AnyHandler,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
    /// Whether the handler panicked.
    pub(crate) is_panic: bool,
}

impl Answer {
    pub(crate) fn ok(body: &impl Serialize) -> Self {
        Self {
            status: StatusCode::OK,
            body: encoded(body),
            is_panic: false,
        }
    }

    /// The call failed: the API server applies the failure policy, and shows the message.
    pub(crate) fn error(status: StatusCode, message: String, review_uid: Option<&str>) -> Self {
        let reason = match status {
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
            StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
            StatusCode::GATEWAY_TIMEOUT => "Timeout",
            _ => "InternalError",
        };
        let body = Status::body(status.as_u16(), reason, message, review_uid);
        Self {
            status,
            body: encoded(&body),
            is_panic: false,
        }
    }
}

fn encoded(body: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(body).expect("keys of maps are strings");
    // As Go's encoder ends a document.
    bytes.push(b'\n');
    bytes
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewBody<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<AdmissionRequest<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest<'a> {
    uid: String,
    kind: GroupVersionKind,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: Operation,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
    dry_run: Option<bool>,
    #[serde(default)]
    options: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewAnswer<'a> {
    kind: &'static str,
    api_version: &'static str,
    response: AdmissionResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The objects of a review.
struct Objects<'a> {
    /// The JSON of the object under review.
    raw: &'a str,
    object: Object,
    old: Option<Object>,
}

impl AdmissionHandler {
    /// Answers a review within `deadline`.
    pub(crate) async fn answer(&self, body: &[u8], deadline: Duration) -> Answer {
        let request = match self.request(body) {
            Ok(request) => request,
            Err(error) => return error,
        };
        let objects = self.objects(&request);
        let exchange = Arc::new(Exchange {
            uid: request.uid,
            kind: request.kind,
            operation: request.operation,
            name: request.name,
            namespace: request.namespace,
            subresource: request.sub_resource,
            user: request.user_info,
            dry_run: request.dry_run.unwrap_or(false),
            options: request.options,
            additions: Mutex::default(),
        });
        let objects = match objects {
            Ok(objects) => objects,
            Err(message) => {
                return admission_answer(&exchange, Err(Status::undecodable(message)), None);
            }
        };
        let raw = objects.raw;
        let call = (self.handler)(exchange.clone(), objects.old, objects.object);
        // Unwind safe: what the handler borrows is not used after a panic.
        let call = AssertUnwindSafe(call).catch_unwind();
        let failed = |status, message| Answer::error(status, message, Some(&exchange.uid));
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        match tokio::time::timeout(deadline, call).await {
            Err(_) => {
                let message = format!("the handler did not answer within {deadline:?}");
                failed(StatusCode::GATEWAY_TIMEOUT, message)
            }
            Ok(Err(panic)) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("without a message");
                tracing::error!(uid = exchange.uid, panic = text, "a webhook panicked");
                Answer {
                    is_panic: true,
                    ..failed(internal, format!("panic: {text} [recovered]"))
                }
            }
            Ok(Ok(Err(rejection))) => {
                let subject = Subject {
                    group: &exchange.kind.group,
                    kind: &exchange.kind.kind,
                    name: &exchange.name,
                };
                match rejection.status(&subject) {
                    Ok(status) => admission_answer(&exchange, Err(status), None),
                    Err(message) => failed(internal, message),
                }
            }
            Ok(Ok(Ok(None))) => admission_answer(&exchange, Ok(()), None),
            Ok(Ok(Ok(Some(mutation)))) => match patch(raw, &mutation.before, &mutation.after) {
                Ok(patch) => admission_answer(&exchange, Ok(()), patch),
                Err(error) => failed(internal, format!("cannot encode the object: {error}")),
            },
        }
    }

    fn request<'a>(&self, body: &'a [u8]) -> Result<AdmissionRequest<'a>, Answer> {
        let refused =
            |message, uid: Option<&str>| Answer::error(StatusCode::BAD_REQUEST, message, uid);
        let text = str::from_utf8(body).map_err(|error| refused(error.to_string(), None))?;
        let review: ReviewBody<'_> = serde_json::from_str(text)
            .map_err(|error| refused(format!("this is no AdmissionReview: {error}"), None))?;
        if review.api_version != API_VERSION || review.kind != "AdmissionReview" {
            let message = format!(
                "expected AdmissionReview of {API_VERSION}, got {:?} of {:?}",
                review.kind, review.api_version
            );
            return Err(refused(message, None));
        }
        let request = review.request;
        let request =
            request.ok_or_else(|| refused("the AdmissionReview has no request".into(), None))?;
        if request.kind != self.kind {
            let message = format!("this webhook is for {}, not {}", self.kind, request.kind);
            return Err(refused(message, Some(&request.uid)));
        }
        Ok(request)
    }

    fn objects<'a>(&self, request: &AdmissionRequest<'a>) -> Result<Objects<'a>, String> {
        let kind = &self.kind.kind;
        let decode = |raw: &RawValue, which: &str| {
            let decoded = self.codec.decode(raw.get().as_bytes());
            decoded.map_err(|error| format!("cannot decode the {which}{kind}: {error}"))
        };
        let old = request
            .old_object
            .map(|old| decode(old, "old "))
            .transpose()?;
        match (request.object, request.old_object) {
            (Some(raw), _) => Ok(Objects {
                raw: raw.get(),
                object: decode(raw, "")?,
                old,
            }),
            // A deletion: handlers are given what is deleted.
            (None, Some(raw)) => Ok(Objects {
                raw: raw.get(),
                object: decode(raw, "old ")?,
                old,
            }),
            (None, None) => Err(format!("the review of this {kind} has no object")),
        }
    }
}

fn admission_answer(
    exchange: &Exchange,
    decision: Result<(), Status>,
    patch: Option<Vec<u8>>,
) -> Answer {
    let additions = std::mem::take(&mut *exchange.additions());
    let allowed = decision.is_ok();
    let response = AdmissionResponse {
        uid: &exchange.uid,
        allowed,
        status: decision.err().unwrap_or_else(Status::admitted),
        patch_type: patch.is_some().then_some("JSONPatch"),
        patch: patch.map(|patch| BASE64_STANDARD.encode(patch)),
        audit_annotations: additions.annotations,
        warnings: additions.warnings,
    };
    Answer::ok(&ReviewAnswer {
        kind: "AdmissionReview",
        api_version: API_VERSION,
        response,
    })
}
