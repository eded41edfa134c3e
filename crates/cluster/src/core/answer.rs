//! Answers: what a refusal of the server means to a loop.

use kube::Error;

/// Whether there is no such object.
pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_not_found())
}

/// Whether somebody else was first: an object of that name exists.
pub(crate) fn already_exists(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_already_exists())
}

/// Whether the namespace goes, or is gone, so that nothing can be created in it and nothing needs to be.
pub(crate) fn namespace_goes(error: &Error) -> bool {
    let terminating = |status: &kube::core::Status| {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        causes
            .into_iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    };
    matches!(error, Error::Api(status) if terminating(status) || status.is_not_found())
}
