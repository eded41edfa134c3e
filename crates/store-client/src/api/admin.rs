//! Requests of the admin API.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{ClusterId, MemberId, Revision};

/// `POST /admin/v1/initialize`: the unformatted member becomes the only voter of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeRequest {
    /// The id of the new cluster.
    pub cluster_id: ClusterId,
    /// The id of the member; 1 by convention.
    pub member_id: MemberId,
    /// `host:port` of its peer listener.
    pub address: String,
}

/// `POST /admin/v1/format`: the unformatted member waits to be added as a learner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormatRequest {
    /// The id of the existing cluster.
    pub cluster_id: ClusterId,
    /// An id from `members:allocate`.
    pub member_id: MemberId,
}

/// The response to `POST /admin/v1/members:allocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocateResponse {
    /// An id that no member had and no member will get again.
    pub member_id: MemberId,
}

/// `POST /admin/v1/members`: adds a learner without waiting until it has caught up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddLearnerRequest {
    /// The member.
    pub id: MemberId,
    /// `host:port` of its peer listener.
    pub address: String,
}

/// `PUT /admin/v1/membership`: replaces the sets of voters and learners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeMembershipRequest {
    /// The voters afterwards; each is a voter or learner now.
    pub voters: BTreeSet<MemberId>,
    /// The learners afterwards; each is a voter or learner now.
    pub learners: BTreeSet<MemberId>,
    /// `membership.index` of the status that the request is based on.
    pub expected_membership_index: u64,
}

/// `POST /admin/v1/leader:transfer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransferLeaderRequest {
    /// The voter that becomes leader.
    pub to: MemberId,
}

/// `POST /admin/v1/format-level:raise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RaiseFormatLevelRequest {
    /// The level afterwards.
    pub level: u32,
}

/// The response to `POST /admin/v1/restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreResult {
    /// The revision of the restored store: later than the snapshot's and the requested minimum.
    pub revision: Revision,
    /// The revision of the snapshot.
    pub snapshot_revision: Revision,
    /// SHA-256 of the snapshot, in hexadecimal.
    pub checksum: String,
    /// Keys in the snapshot.
    pub keys: u64,
}
