//! Failures of a list or watch, by what to do about them.
//! In: errors of the client, statuses inside a stream. Out: one of a few reasons.
//! Guarantees: status codes, reasons and messages of the protocol are interpreted here only.

use std::time::Duration;

use kube::core::Status;

use crate::error::one_line;

/// Why a list or watch failed.
///
/// ```
/// use bellerophon::informer::ListWatchError;
///
/// /// The error of a source that keeps 1,000 versions.
/// fn check(requested: u64, newest: u64) -> Result<(), ListWatchError> {
///     if requested + 1000 < newest {
///         return Err(ListWatchError::Expired(format!("{requested} is compacted")));
///     }
///     Ok(())
/// }
/// let error = check(5, 2000).expect_err("the version is compacted");
/// assert_eq!(error.to_string(), "the resource version is too old: 5 is compacted");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListWatchError {
    /// The resource version was compacted: list again. As HTTP status and inside a stream.
    #[error("the resource version is too old: {0}")]
    Expired(String),
    /// This server has not reached the version yet: retry, and list again if it never does.
    #[error("the resource version is newer than the server's: {0}")]
    TooLarge(String),
    /// Too many requests, or the server is not ready: retry later.
    #[error("the server is busy: {message}")]
    Busy {
        /// The message of the status.
        message: String,
        /// The delay that the server requested.
        retry_after: Option<Duration>,
    },
    /// No response, or an interrupted one.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server does not serve the request in this form: use another one.
    #[error("the server rejects the request: {0}")]
    Rejected(String),
    /// Not permitted.
    #[error("{0}")]
    Forbidden(String),
    /// Not authenticated.
    #[error("{0}")]
    Unauthorized(String),
    /// The server does not serve the resource.
    #[error("no such resource: {0}")]
    NotFound(String),
    /// The response cannot be interpreted.
    #[error("{0}")]
    Other(String),
}

impl ListWatchError {
    pub(crate) fn from_status(status: &Status) -> Self {
        let message = status.message.clone();
        let too_large = status.details.as_ref().is_some_and(|details| {
            details
                .causes
                .iter()
                .any(|cause| cause.reason == "ResourceVersionTooLarge")
        });
        // Servers older than 1.18 have it in the message only.
        if too_large || message.contains("Too large resource version") {
            return Self::TooLarge(message);
        }
        match (status.code, status.reason.as_str()) {
            (410, _) | (_, "Expired" | "Gone") => Self::Expired(message),
            (429 | 503 | 504, _) => {
                let seconds = status
                    .details
                    .as_ref()
                    .map_or(0, |details| details.retry_after_seconds);
                Self::Busy {
                    message,
                    retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
                }
            }
            // kube-apiserver without the WatchList feature answers sendInitialEvents with 422.
            (400 | 405 | 406 | 422, _) => Self::Rejected(message),
            (401, _) => Self::Unauthorized(message),
            (403, _) => Self::Forbidden(message),
            (404, _) => Self::NotFound(message),
            (code, reason) => Self::Other(format!("{message} ({code} {reason})")),
        }
    }
}

impl From<kube::Error> for ListWatchError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(&status),
            kube::Error::HyperError(error) => Self::Unreachable(one_line(&error)),
            kube::Error::Service(error) => Self::Unreachable(one_line(&*error)),
            kube::Error::ReadEvents(error) => Self::Unreachable(one_line(&error)),
            kube::Error::Auth(error) => Self::Unauthorized(one_line(&error)),
            error => Self::Other(one_line(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_classified_by_the_reaction_to_them() {
        let cases = [
            (
                r#"{"code":410,"reason":"Expired","message":"m"}"#,
                ListWatchError::Expired("m".into()),
            ),
            (
                r#"{"code":410,"reason":"Gone","message":"m"}"#,
                ListWatchError::Expired("m".into()),
            ),
            (
                r#"{"code":504,"reason":"Timeout","message":"m","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]}}"#,
                ListWatchError::TooLarge("m".into()),
            ),
            (
                r#"{"code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 5"}"#,
                ListWatchError::TooLarge("Too large resource version: 9, current: 5".into()),
            ),
            (
                r#"{"code":429,"reason":"TooManyRequests","message":"m","details":{"retryAfterSeconds":3}}"#,
                ListWatchError::Busy {
                    message: "m".into(),
                    retry_after: Some(Duration::from_secs(3)),
                },
            ),
            (
                r#"{"code":403,"reason":"Forbidden","message":"m"}"#,
                ListWatchError::Forbidden("m".into()),
            ),
            (
                r#"{"code":404,"reason":"NotFound","message":"m"}"#,
                ListWatchError::NotFound("m".into()),
            ),
            (
                r#"{"code":422,"reason":"Invalid","message":"m"}"#,
                ListWatchError::Rejected("m".into()),
            ),
            (
                r#"{"code":500,"reason":"InternalError","message":"m"}"#,
                ListWatchError::Other("m (500 InternalError)".into()),
            ),
        ];
        for (text, expected) in cases {
            let status: Status = serde_json::from_str(text).expect("a status");
            assert_eq!(ListWatchError::from_status(&status), expected, "{text}");
        }
    }
}
