//! Raft: the only module that names openraft.
//!
//! In: requests of clients and of other members. Out: entries in the log, applied to the state.
//!
//! Guarantees: a write that returns a result is in the log of a quorum; a read index covers every
//! write that returned before; a request of another cluster or for another member is refused.

mod lead;
mod log_store;
mod maintenance;
mod membership;
mod message;
mod network;
mod node;
mod receive;
mod recovery;
mod reply;
mod runtime;
mod state_machine;
mod transport;
mod types;

pub(crate) use message::{Forward, Forwarded};
pub(crate) use node::{Node, NodeOptions, Parts};
pub(crate) use receive::store as receive_stream;
pub(crate) use state_machine::IncomingFile;
pub use transport::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, SnapshotStream, TransportError,
};

#[cfg(test)]
mod suite_tests;
