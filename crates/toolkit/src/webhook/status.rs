//! `metav1.Status`, as webhooks answer it: the fields in the order of the Go type, and empty ones
//! left out.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    #[serde(rename = "kind", skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(rename = "apiVersion", skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    metadata: Metadata,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    code: u16,
}

#[derive(Clone, Debug, Serialize)]
struct Metadata {}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) causes: Vec<Cause>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cause {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) field: String,
}

impl Status {
    /// The status of an admitted request, as controller-runtime sends it.
    pub(crate) fn admitted() -> Self {
        Self::new(200, "", String::new())
    }

    /// The status of a denial, as controller-runtime sends it.
    pub(crate) fn denied(message: String) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// The object of the request cannot be decoded, as controller-runtime reports it.
    pub(crate) fn undecodable(message: String) -> Self {
        Self::new(400, "", message)
    }

    /// As errors of the API machinery are.
    pub(crate) fn failure(
        code: u16,
        reason: &'static str,
        message: String,
        details: Option<Details>,
    ) -> Self {
        Self {
            status: "Failure",
            details,
            ..Self::new(code, reason, message)
        }
    }

    /// A body of its own: the answer to a review that was not carried out, which the API server
    /// reads as the error of the call.
    pub(crate) fn body(
        code: u16,
        reason: &'static str,
        message: String,
        review_uid: Option<&str>,
    ) -> Self {
        let details = review_uid.map(|uid| Details {
            uid: uid.to_owned(),
            ..Details::default()
        });
        Self {
            kind: "Status",
            api_version: "v1",
            ..Self::failure(code, reason, message, details)
        }
    }

    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self {
            kind: "",
            api_version: "",
            metadata: Metadata {},
            status: "",
            message,
            reason,
            details: None,
            code,
        }
    }
}
