//! Sends messages from one member to another.

use std::{io, pin::Pin};

use bytes::Bytes;
use futures_util::{Stream, future::BoxFuture};

use crate::api::{ClusterId, MemberId, StoreError};

/// A snapshot as a stream of chunks.
pub type SnapshotStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The member.
    pub member: MemberId,
    /// `host:port` of its peer listener.
    pub address: String,
}

/// A request of one member to another. The transport carries all fields; the receiver refuses a
/// request that is not for its cluster and member.
pub struct PeerRequest {
    /// The cluster of both members.
    pub cluster: ClusterId,
    /// The sender. A transport that authenticates peers proves it.
    pub from: MemberId,
    /// The receiver.
    pub to: MemberId,
    /// The message; opaque for the transport. At most
    /// [`MESSAGE_BYTES_MAX`](PeerRequest::MESSAGE_BYTES_MAX).
    pub message: Bytes,
    /// What follows the message, if it announces a snapshot.
    pub snapshot: Option<SnapshotStream>,
}

impl PeerRequest {
    /// The longest message: one MiB of entries, or one entry with the largest value.
    pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

    /// Whether a transport may deliver a message more than once. Messages of Raft may be repeated;
    /// a forwarded request of a client may not, as it would have its effect twice.
    pub fn is_repeatable(message: &[u8]) -> bool {
        !super::message::is_forward(message)
    }
}

/// The response to a [`PeerRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerResponse {
    /// The message; opaque for the transport.
    pub message: Bytes,
}

/// Why a message has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The member could not be reached. The request was not delivered.
    #[error("cannot reach the member: {0}")]
    Unreachable(String),
    /// The connection failed after the request was sent. It may have been processed.
    #[error("the member did not respond: {0}")]
    Lost(String),
    /// The member refused the request.
    #[error(transparent)]
    Refused(#[from] StoreError),
}

/// Sends messages to other members.
///
/// A transport may lose, delay and reorder messages, and repeat those that are
/// [repeatable](PeerRequest::is_repeatable); it must not change them, and it must deliver them to
/// the addressed member or not at all. The caller sets the deadline and drops the future when it
/// passes.
pub trait PeerTransport: Send + Sync + 'static {
    /// Sends a request and returns the response.
    fn send(
        &self,
        to: PeerAddress,
        request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>>;
}
