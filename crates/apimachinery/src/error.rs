//! The errors of requests, and their conversion to a `Status`.
//! Guarantees: codes, reasons and messages are those of Kubernetes, because clients match on them.

use std::{borrow::Cow, collections::HashSet};

use serde_json::{Map, Value, json};

use crate::field::FieldError;

/// The message of a request that flow control rejects.
pub const REJECTED: &str = "Too many requests, please try again later.";

/// A group and the plural name of a resource in it, printed `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// Empty for the core group.
    pub group: String,
    /// The plural name.
    pub resource: String,
}

impl GroupResource {
    /// Names a resource.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        dotted(&self.resource, &self.group, f)
    }
}

/// A group and a kind in it, printed `Deployment.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKind {
    /// Empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

impl GroupKind {
    /// Names a kind.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
        }
    }
}

impl std::fmt::Display for GroupKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        dotted(&self.kind, &self.group, f)
    }
}

fn dotted(name: &str, group: &str, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    f.write_str(name)?;
    if !group.is_empty() {
        write!(f, ".{group}")?;
    }
    Ok(())
}

/// A cause in the details of a `Status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// `NamespaceTerminating`, `DisruptionBudget`, …; empty where Kubernetes gives none.
    pub reason: String,
    /// The message.
    pub message: String,
    /// The field it is about; may be empty.
    pub field: String,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiError {
    /// 400: the request itself makes no sense.
    BadRequest(String),
    /// 401: no or invalid credentials.
    Unauthorized,
    /// 403 on an object: `configmaps "a" is forbidden: WHY`.
    Forbidden {
        /// The resource of the object.
        resource: GroupResource,
        /// The name of the object.
        name: String,
        /// The end of the message.
        why: String,
        /// `details.causes` of the Status.
        causes: Vec<Cause>,
    },
    /// 403 on a path that is no resource: `forbidden: WHY`.
    ForbiddenPath(String),
    /// 404: the object does not exist.
    NotFound {
        /// The resource of the object.
        resource: GroupResource,
        /// The name of the object.
        name: String,
    },
    /// 404: no such resource or subresource.
    NoSuchResource,
    /// 404 in plain text: no such path at all.
    NoSuchPath,
    /// 405.
    MethodNotAllowed,
    /// 406 with the representations there are.
    NotAcceptable(Vec<&'static str>),
    /// 406 with a message.
    NotAcceptableForm(String),
    /// 409: the name is taken. `deleting` is set while the holder of the name is terminating.
    AlreadyExists {
        /// The resource of the object.
        resource: GroupResource,
        /// The name of the object.
        name: String,
        /// Whether the holder of the name is terminating.
        deleting: bool,
    },
    /// 409: the object changed meanwhile, or a precondition does not hold. `what` is `configmaps`
    /// or a kind.
    Conflict {
        /// `configmaps`, or a kind.
        what: GroupResource,
        /// The name of the object.
        name: String,
        /// The end of the message.
        why: String,
    },
    /// 409 of a server-side apply, or another conflict that names no object.
    ApplyConflict {
        /// The message of the Status.
        message: String,
        /// One per conflicting field.
        causes: Vec<Cause>,
    },
    /// 410: the revision is compacted. `message` names it.
    Expired {
        /// The message of the Status.
        message: String,
        /// The token to continue a list with, at the current revision.
        next: Option<String>,
    },
    /// 413.
    TooLarge(String),
    /// 415 with the accepted media types.
    UnsupportedMediaType(Vec<&'static str>),
    /// 415 without a list.
    UnsupportedPatchType,
    /// 422: invalid fields.
    Invalid {
        /// The kind of the object.
        kind: GroupKind,
        /// The name of the object.
        name: String,
        /// One per field, in the order of validation.
        errors: Vec<FieldError>,
    },
    /// 422 without causes: a patch that does not apply.
    Unprocessable(String),
    /// 429 in plain text: flow control rejects the request.
    Rejected {
        /// The header `Retry-After`.
        retry_after_seconds: u32,
    },
    /// 429: a disruption budget does not allow the eviction.
    TooManyRequests {
        /// The message of the Status.
        message: String,
        /// `details.retryAfterSeconds` of the Status.
        retry_after_seconds: u32,
        /// `details.causes` of the Status.
        causes: Vec<Cause>,
    },
    /// 500 with reason `InternalError` and a cause.
    Internal(String),
    /// 500 without a reason, as Kubernetes answers errors it has no name for.
    Unnamed(String),
    /// The error of a kubelet, with its code and text.
    ServerResponse {
        /// The status code.
        code: u16,
        /// The body of the response.
        text: String,
        /// The resource of the object.
        resource: GroupResource,
        /// The name of the object.
        name: String,
    },
    /// 503: the backend of the request is not available.
    Unavailable(String),
    /// 504: the requested revision is in the future.
    TooLargeRevision {
        /// The revision of the request.
        requested: u64,
        /// The newest revision.
        current: u64,
    },
    /// 504: it took too long.
    Timeout(String),
    /// The status that a webhook or policy gives.
    Status {
        /// The HTTP status code.
        code: u16,
        /// May be empty.
        reason: String,
        /// The message.
        message: String,
        /// `details` of the Status.
        details: Option<Map<String, Value>>,
    },
}

/// A Status lists this many field errors at most. A body of 3 MiB can have a million, each of which
/// is a hundred times as long as the errors.
pub const ERRORS_MAX: usize = 10_000;

impl ApiError {
    /// 403 without causes.
    pub fn forbidden(
        resource: GroupResource,
        name: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self::Forbidden {
            resource,
            name: name.into(),
            why: why.into(),
            causes: Vec::new(),
        }
    }

    /// 504 for a request that exceeds its timeout, with the message of kube-apiserver's timeout
    /// filter.
    pub fn request_timeout() -> Self {
        Self::Timeout("request did not complete within the allotted timeout".into())
    }

    /// 409 for a stale resourceVersion.
    pub fn modified(what: GroupResource, name: impl Into<String>) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::Conflict {
            what,
            name: name.into(),
            why: why.into(),
        }
    }

    /// 422 for invalid fields of an object, or `Ok` when there are none.
    pub fn from_fields(
        kind: GroupKind,
        name: &str,
        mut errors: Vec<FieldError>,
    ) -> Result<(), Self> {
        errors.truncate(ERRORS_MAX);
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self::Invalid {
                kind,
                name: name.to_owned(),
                errors,
            })
        }
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        self.shape().code
    }

    /// The `reason` of its `Status`; empty where there is none.
    pub fn reason(&self) -> Cow<'static, str> {
        self.shape().reason
    }

    /// The same error with another code and reason, and with these causes.
    pub fn as_status(&self, code: u16, reason: &str, causes: Vec<Cause>) -> Self {
        let shape = self.shape();
        let mut all = details("", "", "", causes);
        let mut details = shape.details.unwrap_or_default();
        if let Some(causes) = all.remove("causes") {
            details.insert("causes".into(), causes);
        }
        Self::Status {
            code,
            reason: reason.to_owned(),
            message: shape.message,
            details: Some(details),
        }
    }

    /// How long a client should wait before it retries, if the response specifies it.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Self::TooManyRequests {
                retry_after_seconds,
                ..
            } if *retry_after_seconds > 0 => Some(*retry_after_seconds),
            Self::Rejected {
                retry_after_seconds,
            } => Some(*retry_after_seconds),
            Self::TooLargeRevision { .. } => Some(1),
            _ => None,
        }
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let Shape {
            code,
            reason,
            message,
            details,
            next,
        } = self.shape();
        let mut metadata = Map::new();
        if let Some(next) = next {
            metadata.insert("continue".into(), next.into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure", "message": message, "code": code,
        });
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        if let Some(details) = details {
            status["details"] = Value::Object(details);
        }
        status
    }

    fn shape(&self) -> Shape {
        let named = |resource: &GroupResource, name: &str| {
            Some(details(
                name,
                &resource.group,
                &resource.resource,
                Vec::new(),
            ))
        };
        match self {
            Self::BadRequest(message) => Shape::new(400, "BadRequest", message),
            Self::Unauthorized => Shape::new(401, "Unauthorized", "Unauthorized"),
            Self::Forbidden {
                resource,
                name,
                why,
                causes,
            } => {
                let shown = if name.is_empty() {
                    String::new()
                } else {
                    format!(" {name:?}")
                };
                Shape::new(
                    403,
                    "Forbidden",
                    format!("{resource}{shown} is forbidden: {why}"),
                )
                .with(Some(details(
                    name,
                    &resource.group,
                    &resource.resource,
                    causes.clone(),
                )))
            }
            Self::ForbiddenPath(why) => {
                Shape::new(403, "Forbidden", format!("forbidden: {why}")).with(Some(Map::new()))
            }
            Self::NotFound { resource, name } => {
                Shape::new(404, "NotFound", format!("{resource} {name:?} not found"))
                    .with(named(resource, name))
            }
            Self::NoSuchResource | Self::NoSuchPath => Shape::new(
                404,
                "NotFound",
                "the server could not find the requested resource",
            )
            .with(Some(Map::new())),
            Self::MethodNotAllowed => Shape::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
            .with(Some(Map::new())),
            Self::NotAcceptable(forms) => Shape::new(
                406,
                "NotAcceptable",
                format!(
                    "406: Not Acceptable\n\nAvailable representations: {}",
                    forms.join(", ")
                ),
            )
            .with(Some(Map::new())),
            Self::NotAcceptableForm(message) => Shape::new(406, "NotAcceptable", message),
            Self::AlreadyExists {
                resource,
                name,
                deleting,
            } => {
                let head = if *deleting {
                    "object is being deleted: "
                } else {
                    ""
                };
                Shape::new(
                    409,
                    "AlreadyExists",
                    format!("{head}{resource} {name:?} already exists"),
                )
                .with(named(resource, name))
            }
            Self::Conflict { what, name, why } => Shape::new(
                409,
                "Conflict",
                format!("Operation cannot be fulfilled on {what} {name:?}: {why}"),
            )
            .with(named(what, name)),
            Self::ApplyConflict { message, causes } => {
                Shape::new(409, "Conflict", message).with(Some(details("", "", "", causes.clone())))
            }
            Self::Expired { message, next } => Shape {
                next: next.clone(),
                ..Shape::new(410, "Expired", message)
            },
            Self::TooLarge(message) => Shape::new(
                413,
                "RequestEntityTooLarge",
                format!("Request entity too large: {message}"),
            ),
            Self::UnsupportedMediaType(accepted) => Shape::new(
                415,
                "UnsupportedMediaType",
                format!(
                    "the body of the request was in an unknown format - accepted media types include: {}",
                    accepted.join(", ")
                ),
            ),
            Self::UnsupportedPatchType => {
                Shape::new(415, "UnsupportedMediaType", "415: Unsupported Media Type")
                    .with(Some(Map::new()))
            }
            Self::Invalid { kind, name, errors } => {
                let mut seen = HashSet::new();
                let joined: Vec<String> = errors
                    .iter()
                    .map(ToString::to_string)
                    .filter(|sentence| seen.insert(sentence.clone()))
                    .collect();
                let list = if joined.len() == 1 {
                    joined[0].clone()
                } else {
                    format!("[{}]", joined.join(", "))
                };
                let causes = errors
                    .iter()
                    .map(|e| Cause {
                        reason: e.reason.name().into(),
                        message: e.message.clone(),
                        field: e.field.clone(),
                    })
                    .collect();
                Shape::new(
                    422,
                    "Invalid",
                    format!("{kind} {name:?} is invalid: {list}"),
                )
                .with(Some(details(name, &kind.group, &kind.kind, causes)))
            }
            Self::Unprocessable(message) => {
                Shape::new(422, "Invalid", message).with(Some(Map::new()))
            }
            Self::Rejected { .. } => Shape::new(429, "TooManyRequests", REJECTED),
            Self::TooManyRequests {
                message,
                retry_after_seconds,
                causes,
            } => {
                let mut details = details("", "", "", causes.clone());
                if *retry_after_seconds > 0 {
                    details.insert("retryAfterSeconds".into(), (*retry_after_seconds).into());
                }
                Shape::new(429, "TooManyRequests", message).with(Some(details))
            }
            Self::Internal(message) => Shape::new(
                500,
                "InternalError",
                format!("Internal error occurred: {message}"),
            )
            .with(Some(details(
                "",
                "",
                "",
                vec![Cause {
                    message: message.clone(),
                    ..Cause::default()
                }],
            ))),
            Self::Unnamed(message) => Shape::new(500, "", message),
            Self::ServerResponse {
                code,
                text,
                resource,
                name,
            } => {
                let (reason, message) = server_response(*code, text);
                let message = format!("{message} ( {resource} {name})");
                Shape::new(*code, reason, message).with(named(resource, name))
            }
            Self::Unavailable(message) => Shape::new(503, "ServiceUnavailable", message),
            Self::TooLargeRevision { requested, current } => {
                let cause = Cause {
                    reason: "ResourceVersionTooLarge".into(),
                    message: "Too large resource version".into(),
                    field: String::new(),
                };
                let mut details = details("", "", "", vec![cause]);
                details.insert("retryAfterSeconds".into(), 1.into());
                Shape::new(
                    504,
                    "Timeout",
                    format!("Timeout: Too large resource version: {requested}, current: {current}"),
                )
                .with(Some(details))
            }
            Self::Timeout(message) => {
                Shape::new(504, "Timeout", format!("Timeout: {message}")).with(Some(Map::new()))
            }
            Self::Status {
                code,
                reason,
                message,
                details,
            } => Shape {
                code: *code,
                reason: Cow::Owned(reason.clone()),
                message: message.clone(),
                details: details.clone(),
                next: None,
            },
        }
    }
}

/// Reason and message of an error that another server has answered. Mirrors
/// `NewGenericServerResponse`.
pub fn server_response(code: u16, text: &str) -> (&'static str, String) {
    let (reason, message) = match code {
        400 => (
            "BadRequest",
            "the server rejected our request for an unknown reason",
        ),
        409 => ("Conflict", "the server reported a conflict"),
        404 => (
            "NotFound",
            "the server could not find the requested resource",
        ),
        401 => (
            "Unauthorized",
            "the server has asked for the client to provide credentials",
        ),
        403 => ("Forbidden", text),
        406 if text.is_empty() || text == "unknown" => (
            "NotAcceptable",
            "the server was unable to respond with a content type that the client supports",
        ),
        406 => ("NotAcceptable", text),
        415 => ("UnsupportedMediaType", text),
        405 => (
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        422 => (
            "Invalid",
            "the server rejected our request due to an error in our request",
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
        ),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        code if code >= 500 => {
            let text = crate::field::go_quote(text);
            let message = "has prevented the request from succeeding";
            return (
                "InternalError",
                format!("an error on the server ({text}) {message}"),
            );
        }
        code => {
            let message = "but did not return more information";
            return (
                "",
                format!("the server responded with the status code {code} {message}"),
            );
        }
    };
    (reason, message.to_owned())
}

/// The fields in which `Status` objects differ.
struct Shape {
    code: u16,
    reason: Cow<'static, str>,
    message: String,
    details: Option<Map<String, Value>>,
    next: Option<String>,
}

impl Shape {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            message: message.into(),
            details: None,
            next: None,
        }
    }

    fn with(self, details: Option<Map<String, Value>>) -> Self {
        Self { details, ..self }
    }
}

/// The details of a `Status`; what is empty is left out.
pub fn details(name: &str, group: &str, kind: &str, causes: Vec<Cause>) -> Map<String, Value> {
    let mut map = Map::new();
    for (key, text) in [("name", name), ("group", group), ("kind", kind)] {
        if !text.is_empty() {
            map.insert(key.into(), text.into());
        }
    }
    if !causes.is_empty() {
        let list = causes
            .into_iter()
            .map(|c| {
                let mut cause = Map::new();
                for (key, text) in [
                    ("reason", c.reason),
                    ("message", c.message),
                    ("field", c.field),
                ] {
                    if !text.is_empty() {
                        cause.insert(key.into(), text.into());
                    }
                }
                Value::Object(cause)
            })
            .collect();
        map.insert("causes".into(), Value::Array(list));
    }
    map
}
