//! Errors of the API: a reason for programs, a message for people, and the HTTP status.

use serde::{Deserialize, Serialize};

use super::Revision;

/// Why a request failed. The set grows: treat an unknown reason as a permanent error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The key does not exist.
    NotFound,
    /// The key does not have the revision of the condition, or the membership changed.
    ConditionFailed,
    /// The events after the revision were compacted: list, then watch from that revision.
    Compacted,
    /// The member cannot serve the request yet.
    NotReady,
    /// No leader is known or reachable. The request had no effect.
    NoLeader,
    /// The outcome of a write is unknown: it may have been, or may still be, committed.
    Unknown,
    /// The key, value or body is too large.
    TooLarge,
    /// The request is malformed.
    Invalid,
    /// The token is missing or wrong.
    Unauthorized,
    /// The token does not allow the request.
    Forbidden,
    /// The data directory already belongs to a member.
    AlreadyFormatted,
    /// The request is for another cluster or member.
    WrongCluster,
    /// The data directory belongs to no cluster yet.
    Unformatted,
    /// A limit of concurrent requests is reached, or a membership change is in progress.
    Busy,
    /// The storage of the member failed. The member acknowledges nothing any more.
    StorageFailed,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

impl Reason {
    /// The HTTP status of the reason.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::AlreadyFormatted => 409,
            Self::Compacted => 410,
            Self::ConditionFailed => 412,
            Self::TooLarge => 413,
            Self::WrongCluster => 421,
            Self::Busy => 429,
            Self::StorageFailed | Self::Other => 500,
            Self::NotReady | Self::NoLeader | Self::Unformatted => 503,
            Self::Unknown => 504,
        }
    }

    /// Whether the same request may succeed later, and had no effect.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::NotReady | Self::NoLeader | Self::Busy)
    }
}

/// The body of an error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// The reason, for programs.
    pub reason: Reason,
    /// The object, the cause and what to do, for people.
    pub message: String,
    /// With `ConditionFailed`: the key's current revision (0: it does not exist) or the index of
    /// the current membership. With `NotFound`: the revision of the store. With `Compacted`: the
    /// first revision that a watch can still begin after.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub current: Option<Revision>,
}

/// An error of the store: an [`ErrorBody`] as an error type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.message)]
pub struct StoreError(pub Box<ErrorBody>);

impl StoreError {
    /// An error with a reason and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorBody {
            reason,
            message: message.into(),
            current: None,
        }))
    }

    /// The same error with [`ErrorBody::current`].
    pub fn with_current(mut self, current: Revision) -> Self {
        self.0.current = Some(current);
        self
    }

    /// The reason.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }
}
