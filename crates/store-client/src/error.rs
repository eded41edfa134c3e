//! Errors of the client.
//!
//! Guarantees: a caller can distinguish a request without effect from one with an unknown outcome.
//! No
//! error contains a token or a value.

use crate::api::{Reason, StoreError};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The store refused the request.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// No endpoint answered in time. The request had no effect.
    #[error(
        "no endpoint of the store answered, last {endpoint}: {cause}; check that a quorum of \
         members runs and that the endpoints are right"
    )]
    Unavailable {
        /// The endpoint of the last attempt.
        endpoint: String,
        /// Why the last attempt failed.
        cause: String,
    },
    /// The connection ended after the request was sent. A write may have been committed.
    #[error(
        "the outcome of {request} at {endpoint} is unknown: {cause}; read the key before you retry"
    )]
    OutcomeUnknown {
        /// Method and path.
        request: String,
        /// The endpoint.
        endpoint: String,
        /// What happened to the connection.
        cause: String,
    },
    /// The response is not one of this API.
    #[error("unexpected response of {endpoint} to {request}: {cause}; check that it is a store")]
    Protocol {
        /// Method and path.
        request: String,
        /// The endpoint.
        endpoint: String,
        /// What is wrong with the response.
        cause: String,
    },
    /// A downloaded snapshot is incomplete or damaged.
    #[error("snapshot of {endpoint} is damaged: {cause}; download it again")]
    Damaged {
        /// The endpoint.
        endpoint: String,
        /// What is wrong.
        cause: String,
    },
    /// A local file could not be read or written.
    #[error("cannot {action}: {cause}")]
    Io {
        /// What was to be done with which file.
        action: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
}

impl ClientError {
    /// The reason that the store gave.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Store(error) => Some(error.reason()),
            _ => None,
        }
    }

    /// Whether a write may have been committed though it failed.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Store(error) => {
                matches!(error.reason(), Reason::Unknown | Reason::StorageFailed)
            }
            Self::OutcomeUnknown { .. } | Self::Protocol { .. } => true,
            Self::Unavailable { .. } | Self::Damaged { .. } | Self::Io { .. } => false,
        }
    }
}
