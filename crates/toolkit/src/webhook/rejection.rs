//! Rejections: how a handler denies a request, or reports that it cannot decide.
//!
//! In: what a handler returns. Out: the status that the API server shows to its client.

use std::error::Error as StdError;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::status::{Cause, Details, Status};
use crate::error::one_line;

/// Why a request is not admitted.
///
/// A denial is a decision: the client sees its message, whatever the failure policy is. A failure
/// is none: any error becomes one through `?`, and the [failure policy](super::FailurePolicy)
/// decides whether the request is admitted.
///
/// ```
/// use bellerophon::webhook::{FieldError, Rejection};
///
/// fn check(replicas: &str) -> Result<(), Rejection> {
///     let count: i32 = replicas.parse()?; // a failure
///     if count == 13 {
///         return Err(Rejection::denied("13 replicas bring bad luck"));
///     }
///     if count < 0 {
///         let error = FieldError::invalid("spec.replicas", count, "must be 0 or more");
///         return Err(Rejection::invalid([error]));
///     }
///     Ok(())
/// }
/// assert!(check("3").is_ok());
/// assert_eq!(check("13").unwrap_err().to_string(), "13 replicas bring bad luck");
/// let negative = check("-1").unwrap_err().to_string();
/// assert_eq!(negative, "spec.replicas: Invalid value: -1: must be 0 or more");
/// ```
#[derive(Debug)]
pub struct Rejection(Reason);

#[derive(Debug)]
enum Reason {
    Denied(String),
    Invalid(Vec<FieldError>),
    Failed(String),
}

/// The object that a rejection is about, as the API server names it.
pub(crate) struct Subject<'a> {
    pub(crate) group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl Rejection {
    /// The request is denied: 403 Forbidden with this message.
    pub fn denied(message: impl Into<String>) -> Self {
        Self(Reason::Denied(message.into()))
    }

    /// Fields are invalid: 422 Invalid with a cause for each of them, as if the API server had
    /// found them.
    pub fn invalid(errors: impl IntoIterator<Item = FieldError>) -> Self {
        Self(Reason::Invalid(errors.into_iter().collect()))
    }

    /// The handler cannot decide, for example because a request of its own failed. The failure
    /// policy decides.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self(Reason::Failed(error.to_string()))
    }

    /// The status of a denial.
    ///
    /// # Errors
    /// The message of a failure, which is no denial.
    pub(crate) fn status(self, subject: &Subject<'_>) -> Result<Status, String> {
        let text = self.to_string();
        match self.0 {
            Reason::Failed(message) => Err(message),
            Reason::Denied(message) => Ok(Status::denied(message)),
            Reason::Invalid(errors) => {
                // The wording of apierrors.NewInvalid.
                let qualified = match subject.group {
                    "" => subject.kind.to_owned(),
                    group => format!("{}.{group}", subject.kind),
                };
                let message = format!("{qualified} {:?} is invalid: {text}", subject.name);
                let details = Details {
                    name: subject.name.to_owned(),
                    group: subject.group.to_owned(),
                    kind: subject.kind.to_owned(),
                    causes: errors.into_iter().map(FieldError::into_cause).collect(),
                    ..Details::default()
                };
                Ok(Status::failure(422, "Invalid", message, Some(details)))
            }
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Denied(message) | Reason::Failed(message) => f.write_str(message),
            Reason::Invalid(errors) => match errors.as_slice() {
                [error] => error.fmt(f),
                // As field.ErrorList is printed.
                errors => {
                    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                    write!(f, "[{}]", errors.join(", "))
                }
            },
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Rejection {
    fn from(error: E) -> Self {
        Self::failed(one_line(&error))
    }
}

/// An invalid field, in the words of the API server.
///
/// ```
/// use bellerophon::webhook::FieldError;
///
/// let error = FieldError::not_supported("spec.colour", "red", &["blue", "green"]);
/// assert_eq!(
///     error.to_string(),
///     r#"spec.colour: Unsupported value: "red": supported values: "blue", "green""#,
/// );
/// let error = FieldError::required("spec.team", "");
/// assert_eq!(error.to_string(), "spec.team: Required value");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    field: String,
    /// The reason of the cause: `FieldValueInvalid` and the like.
    reason: &'static str,
    /// What follows the field in the message.
    body: String,
}

impl FieldError {
    /// The value is not allowed here. Paths are written as `spec.ports[0].name`.
    pub fn invalid(field: impl Into<String>, value: impl Serialize, detail: &str) -> Self {
        let body = format!("Invalid value: {}", shown(&value));
        Self::new(field, "FieldValueInvalid", body, detail)
    }

    /// A value is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueRequired", "Required value".into(), detail)
    }

    /// The field must not be set or changed.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", "Forbidden".into(), detail)
    }

    /// The value occurs more than once.
    pub fn duplicate(field: impl Into<String>, value: impl Serialize) -> Self {
        let body = format!("Duplicate value: {}", shown(&value));
        Self::new(field, "FieldValueDuplicate", body, "")
    }

    /// The value is none of those that are supported.
    pub fn not_supported(
        field: impl Into<String>,
        value: impl Serialize,
        supported: &[&str],
    ) -> Self {
        let body = format!("Unsupported value: {}", shown(&value));
        let quoted: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        Self::new(field, "FieldValueNotSupported", body, &detail)
    }

    fn new(field: impl Into<String>, reason: &'static str, body: String, detail: &str) -> Self {
        let body = match detail {
            "" => body,
            detail => format!("{body}: {detail}"),
        };
        Self {
            field: field.into(),
            reason,
            body,
        }
    }

    fn into_cause(self) -> Cause {
        Cause {
            reason: self.reason,
            message: self.body,
            field: self.field,
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}

/// A value as field errors of the API server show it: as JSON, and null as a text.
fn shown(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::Null) | Err(_) => "\"null\"".to_owned(),
        Ok(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: Subject<'_> = Subject {
        group: "example.org",
        kind: "Hero",
        name: "icarus",
    };

    #[test]
    fn field_errors_are_worded_as_by_the_api_server() {
        let errors = [
            FieldError::invalid("spec.replicas", -1, "must be 0 or more"),
            FieldError::required("spec.team", ""),
            FieldError::duplicate("spec.ports[1].name", "http"),
        ];
        let status = Rejection::invalid(errors).status(&SUBJECT).unwrap();
        let json = serde_json::to_value(&status).unwrap();
        let message = "Hero.example.org \"icarus\" is invalid: [spec.replicas: Invalid value: -1: \
                       must be 0 or more, spec.team: Required value, spec.ports[1].name: \
                       Duplicate value: \"http\"]";
        assert_eq!(json["message"], message);
        assert_eq!(json["code"], 422);
        assert_eq!(json["reason"], "Invalid");
        assert_eq!(
            json["details"]["causes"][0],
            serde_json::json!({
                "reason": "FieldValueInvalid",
                "message": "Invalid value: -1: must be 0 or more",
                "field": "spec.replicas",
            })
        );
    }

    #[test]
    fn a_failure_is_no_denial() {
        assert_eq!(
            Rejection::failed("down").status(&SUBJECT).unwrap_err(),
            "down"
        );
        let status = Rejection::denied("no").status(&SUBJECT).unwrap();
        let expected = r#"{"metadata":{},"message":"no","reason":"Forbidden","code":403}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), expected);
    }
}
