//! The client of the operator for members.
//!
//! In: a target and a request. Out: the member's response, or an error that names the member.
//! Guarantee: every request ends within a bounded time; no token is part of an error.

use std::fmt;

use bellerophon_store_client::api::{
    AddLearnerRequest, ChangeMembershipRequest, FormatRequest, InitializeRequest, MemberId,
    RaiseFormatLevelRequest, Status, TransferLeaderRequest,
};
use futures_util::future::BoxFuture;
use thiserror::Error;

/// A member as a server.
#[derive(Clone)]
pub struct Target {
    /// The namespace of its Pod.
    pub namespace: String,
    /// The name of its Pod.
    pub pod: String,
    /// The address of its Pod, if it has one.
    pub ip: Option<String>,
    /// The name in its certificate.
    pub host: String,
    /// The admin token.
    pub token: String,
    /// The certificate of the authority.
    pub ca_pem: String,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("namespace", &self.namespace)
            .field("pod", &self.pod)
            .finish_non_exhaustive()
    }
}

/// A request to the admin API of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    /// Formats an empty data directory and makes the member the only voter.
    Initialize(InitializeRequest),
    /// Formats an empty data directory.
    Format(FormatRequest),
    /// Allocates a member id; leader only.
    Allocate,
    /// Adds a learner; leader only.
    AddLearner(AddLearnerRequest),
    /// Changes the membership if it is still the expected one; leader only.
    ChangeMembership(ChangeMembershipRequest),
    /// Hands leadership over; leader only.
    TransferLeader(TransferLeaderRequest),
    /// Raises the format level; leader only.
    RaiseFormatLevel(RaiseFormatLevelRequest),
    /// Compacts the log.
    Compact,
}

/// The response to an [`AdminRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminResponse {
    /// It was done, or had been done before.
    Done,
    /// The allocated id.
    Allocated(MemberId),
}

/// A member did not answer, or refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("member {pod}: {message}")]
pub struct MemberError {
    /// The name of its Pod.
    pub pod: String,
    /// Why, without secrets and without numbers that change all the time.
    pub message: String,
}

impl MemberError {
    /// An error of a target.
    pub fn new(target: &Target, message: impl Into<String>) -> Self {
        Self {
            pod: target.pod.clone(),
            message: message.into(),
        }
    }
}

/// The admin API of members: over the network, or a model in tests.
pub trait MemberApi: Send + Sync + 'static {
    /// The status of a member.
    fn status<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Status, MemberError>>;

    /// Sends a request to a member. An error may leave its outcome unknown: read the status again.
    fn send<'a>(
        &'a self,
        target: &'a Target,
        request: AdminRequest,
    ) -> BoxFuture<'a, Result<AdminResponse, MemberError>>;
}
