//! Replicated key-value store on Raft.
//!
//! One [`Member`] is one data directory and one Raft node in a process. Members exchange messages
//! through a [`PeerTransport`] and keep their data on a [`Disk`]; both are traits, so that the same
//! code runs on files and sockets, and in a deterministic simulation.
//!
//! A write passes through `member` (the facade), `raft` (the only module that names openraft), `log`
//! (append-only segments, group commit), `state` (keys, values and watch history in redb) and
//! `watch`. A group of modules imports nothing of the groups below it.

// Values without IO.
mod codec; // encodings on disk and between members
mod entry; // entries of the log and their outcomes
mod format_level; // the format levels that this program supports

// The data directory.
mod data_dir; // its identity
pub mod disk; // files, real and simulated
mod log; // entries, before they are applied
mod snapshot; // the state as a stream
mod state; // the applied entries
mod watch; // events of the state

// A member.
mod member; // one data directory and one Raft node
mod raft; // consensus, and messages between members
mod restore; // writes a directory without serving it

// A member as a program.
mod disk_metrics; // durations of syncs
mod http; // the HTTP API
mod serve; // start and stop
mod tls; // certificates

pub use bellerophon_store_client::api;
pub use disk::Disk;
pub use format_level::{FORMAT_LEVEL_MAX, FORMAT_LEVEL_MIN};
pub use http::{TokenError, TokenFiles};
pub use member::{
    Member, MemberConfig, OpenError, Range, ReadResult, RestoreOptions, Timing, Write,
};
pub use raft::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, SnapshotStream, TransportError,
};
pub use restore::{RestoreError, restore_directory};
pub use serve::{Addresses, ServeError, ServeOptions, Server, runtime};
pub use snapshot::{SnapshotHeader, SnapshotReader, verify as verify_snapshot};
pub use tls::{TlsError, TlsFiles, member_name};
pub use watch::{WatchItem, WatchStream};
