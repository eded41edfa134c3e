//! Classification of errors returned by the API server, as `k8s.io/apimachinery/pkg/api/errors`.

use kube::Error;

/// The object, or the resource, does not exist.
pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_not_found())
}

/// An object of that name exists already.
pub(crate) fn is_already_exists(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_already_exists())
}

/// The namespace is terminating, so a create in it cannot succeed and a retry is pointless.
pub(crate) fn is_namespace_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else {
        return false;
    };
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// The namespace is terminating or deleted: nothing can be created in it, and nothing has to be.
pub(crate) fn is_namespace_terminating_or_gone(error: &Error) -> bool {
    is_namespace_terminating(error) || is_not_found(error)
}

/// The object is gone, or its uid or resource version is no longer the one that was read. The watch
/// delivers its current state.
pub(crate) fn is_gone_or_conflict(error: &Error) -> bool {
    matches!(
        error,
        Error::Api(status)
            if status.code == 404 || (status.code == 409 && status.reason == "Conflict")
    )
}

/// The API server returned this HTTP status code.
pub(crate) fn has_code(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// The message of the returned `Status`, without the prefix the client adds to it.
pub(crate) fn status_message(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
