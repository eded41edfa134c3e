//! Types of the HTTP API of the store, as JSON has them.
//!
//! Guarantees: field names are camelCase; unknown fields are ignored, so a client of one version
//! reads the responses of the next; counters and revisions are `u64`.

mod admin;
mod base64_bytes;
mod error;
mod ids;
mod keys;
mod status;

pub use admin::{
    AddLearnerRequest, AllocateResponse, ChangeMembershipRequest, FormatRequest, InitializeRequest,
    RaiseFormatLevelRequest, RestoreResult, TransferLeaderRequest,
};
pub use error::{ErrorBody, Reason, StoreError};
pub use ids::{ClusterId, Identity, InvalidClusterId, MemberId, Revision};
pub use keys::{
    Consistency, ErrorKind, Event, InvalidKey, Item, KEY_BYTES_MAX, Key, LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX, ListPage, ProgressKind, VALUE_BYTES_MAX, WatchLine, WriteResult,
};
pub use status::{
    FormatLevels, MemberState, Membership, MembershipMember, Replication, RequestCounts, Role,
    SnapshotStatus, Status,
};
