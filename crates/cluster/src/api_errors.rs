//! Classification of errors returned by the API server, as `k8s.io/apimachinery/pkg/api/errors`.

use bellerophon::client::WriteError;

/// The object, or the resource, does not exist.
pub(crate) fn is_not_found(error: &WriteError) -> bool {
    error.is_not_found()
}

/// An object of that name exists already.
pub(crate) fn is_already_exists(error: &WriteError) -> bool {
    error.is_already_exists()
}

/// The namespace is terminating, so a create in it cannot succeed and a retry is pointless.
pub(crate) fn is_namespace_terminating(error: &WriteError) -> bool {
    let Some(status) = error.status() else {
        return false;
    };
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// The namespace is terminating or deleted: nothing can be created in it, and nothing has to be.
pub(crate) fn is_namespace_terminating_or_gone(error: &WriteError) -> bool {
    is_namespace_terminating(error) || is_not_found(error)
}

/// The object is gone, or its uid or resource version is no longer the one that was read. The watch
/// delivers its current state.
pub(crate) fn is_gone_or_conflict(error: &WriteError) -> bool {
    error.is_not_found() || error.is_conflict()
}

/// The API server returned this HTTP status code.
pub(crate) fn has_code(error: &WriteError, code: u16) -> bool {
    error.status().is_some_and(|status| status.code == code)
}

/// The message of the returned `Status`, without the prefix the client adds to it.
pub(crate) fn status_message(error: &WriteError) -> String {
    match error.status() {
        Some(status) => status.message.clone(),
        None => error.to_string(),
    }
}
