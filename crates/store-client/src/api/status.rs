//! The status of a member, as `GET /admin/v1/status` returns it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ClusterId, MemberId, Revision};

/// The status of a member, as it sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The format levels that the program reads and writes.
    pub supported_format_levels: FormatLevels,
    /// The level of the data; 0 if unformatted.
    pub format_level: u32,
    /// What the member can do.
    pub state: MemberState,
    /// The cluster; absent if unformatted.
    pub cluster_id: Option<ClusterId>,
    /// The member; absent if unformatted.
    pub member_id: Option<MemberId>,
    /// The role in the cluster; absent unless joining or running.
    pub role: Option<Role>,
    /// The current term.
    pub term: u64,
    /// The leader of that term, if known.
    pub leader: Option<MemberId>,
    /// The index of the last entry in the log.
    pub last_log_index: u64,
    /// The index of the last entry that is known to be committed.
    pub committed_index: u64,
    /// The index of the last entry in the state.
    pub applied_index: u64,
    /// The revision of the state.
    pub revision: Revision,
    /// Watches can begin after this revision.
    pub compacted_revision: Revision,
    /// Bytes of keys and values.
    pub data_bytes: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// The membership in effect at this member.
    pub membership: Membership,
    /// Replication to each other member. Empty unless leader.
    pub replication: BTreeMap<MemberId, Replication>,
    /// Requests since the start of the process.
    pub requests: RequestCounts,
    /// Milliseconds since a quorum last acknowledged this leader. Absent unless leader.
    pub last_quorum_contact_ms: Option<u64>,
    /// The last snapshot of this member, if any.
    pub snapshot: Option<SnapshotStatus>,
    /// Details for people; empty if there is nothing to report.
    pub message: String,
}

/// A range of format levels, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormatLevels {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

/// What a member can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// The data directory is empty: the member belongs to no cluster.
    Unformatted,
    /// Formatted, and not yet in a membership that it has applied.
    Joining,
    /// Part of the membership.
    Running,
    /// The storage failed; the process exits.
    Failed,
}

/// The role of a member in Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Replicates its log to the others.
    Leader,
    /// A voter that follows a leader.
    Follower,
    /// Not a voter.
    Learner,
    /// A voter in an election.
    Candidate,
}

/// A membership configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The index of its log entry: what `expectedMembershipIndex` is compared with.
    pub index: u64,
    /// The voters; during a joint configuration those of both sets.
    pub voters: BTreeSet<MemberId>,
    /// The other members.
    pub learners: BTreeSet<MemberId>,
    /// All members.
    pub members: BTreeMap<MemberId, MembershipMember>,
    /// Whether two sets of voters are in effect.
    pub is_joint: bool,
}

/// A member in the membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MembershipMember {
    /// `host:port` of the peer listener.
    pub address: String,
}

/// Replication from the leader to one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replication {
    /// The last index that is known to be in the member's log.
    pub matched_index: u64,
    /// Entries between that and the leader's last one.
    pub lag: u64,
    /// Milliseconds since the member last acknowledged the leader; absent before the first time.
    pub last_contact_ms: Option<u64>,
}

/// Requests since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCounts {
    /// Gets and lists.
    pub reads: u64,
    /// Puts and deletes.
    pub writes: u64,
}

/// A snapshot of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The index of the last entry in it.
    pub index: u64,
    /// Its revision.
    pub revision: Revision,
    /// Its size.
    pub bytes: u64,
}
