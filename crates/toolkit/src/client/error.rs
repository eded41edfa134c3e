//! A request that failed, and for which object.

use thiserror::Error;

use crate::ObjectKey;
use crate::error::one_line;

/// A request of a [`ReconcileClient`](super::ReconcileClient) that failed.
///
/// ```
/// use bellerophon::client::WriteError;
///
/// fn is_worth_a_retry(error: &WriteError) -> bool {
///     error.is_conflict()
/// }
/// ```
#[derive(Debug, Error)]
#[error("cannot {verb} {kind} {key}: {}", one_line(source))]
pub struct WriteError {
    pub(super) verb: &'static str,
    pub(super) kind: String,
    pub(super) key: ObjectKey,
    /// The error of the client; its status has the server's reason.
    pub source: Box<kube::Error>,
}

impl WriteError {
    /// Whether another client changed the object: read it again and retry.
    pub fn is_conflict(&self) -> bool {
        self.has(409, "Conflict")
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.has(404, "NotFound")
    }

    /// Whether an object of this name exists already.
    pub fn is_already_exists(&self) -> bool {
        self.has(409, "AlreadyExists")
    }

    /// Whether the account lacks a permission.
    pub fn is_forbidden(&self) -> bool {
        self.has(403, "Forbidden")
    }

    /// The status that the server returned, if it returned one.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match &*self.source {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }

    fn has(&self, code: u16, reason: &str) -> bool {
        self.status().is_some_and(|status| {
            // A proxy or an aggregated API server may send the code without a reason.
            status.code == code && (status.reason == reason || status.reason.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller;

    #[test]
    fn message_of_the_server_is_printed_once() {
        let status = serde_json::json!({
            "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "Pod \"a\" is invalid: spec.containers: Required value",
        });
        let status = serde_json::from_value(status).unwrap();
        let error = WriteError {
            verb: "create",
            kind: "Pod".to_owned(),
            key: ObjectKey::namespaced("default", "a"),
            source: Box::new(kube::Error::Api(status)),
        };
        let expected = "cannot create Pod default/a: Pod \"a\" is invalid: spec.containers: \
                        Required value";
        assert_eq!(error.to_string(), expected);
        assert_eq!(controller::Error::from(error).to_string(), expected);
    }
}
