//! Replicated key-value store on Raft.
//!
//! One [`Member`] is one data directory and one Raft node in a process. Members exchange messages
//! through a [`PeerTransport`] and keep their data on a [`Disk`]; both are traits, so that the same
//! code runs on files and sockets, and in a deterministic simulation.
//!
//! Modules, in the order in which a write passes through: `member` (the facade) → `raft`
//! (the only module that names openraft) → `log` (append-only segments, group commit) → `state`
//! (keys, values and watch history in redb) → `watch`. `disk`, `data_dir`, `snapshot`, `entry` and
//! `codec` are what these share. `serve` is a member as a program: it reads certificates (`tls`),
//! counts syncs (`disk_metrics`) and serves the HTTP API (`http`). `restore` writes a data directory
//! without serving it.

mod codec;
mod data_dir;
pub mod disk;
mod disk_metrics;
mod entry;
mod http;
mod log;
mod member;
mod raft;
mod restore;
mod serve;
mod snapshot;
mod state;
mod tls;
mod watch;

pub use bellerophon_store_client::api;
pub use data_dir::{FORMAT_LEVEL_MAX, FORMAT_LEVEL_MIN};
pub use disk::Disk;
pub use http::{TokenError, TokenFiles};
pub use member::{
    Member, MemberConfig, OpenError, Range, ReadResult, RestoreOptions, Timing, Write,
};
pub use raft::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, SnapshotStream, TransportError,
};
pub use restore::{RestoreError, restore_directory};
pub use serve::{Addresses, ServeError, ServeOptions, Server};
pub use snapshot::{SnapshotHeader, SnapshotReader, verify as verify_snapshot};
pub use tls::{TlsError, TlsFiles, member_name};
pub use watch::{WatchItem, WatchStream};
