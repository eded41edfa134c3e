//! The status of a Bellerophon: identity, members, intents and conditions.
//!
//! Invariants: `clusterId` and `bootstrapped` never change back; a member's `id` is used for one
//! claim only; a phase is written before the mutation that it announces.

use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The observed store.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BellerophonStatus {
    /// What the operator is doing, in one word.
    #[serde(default)]
    pub phase: Phase,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of healthy voters.
    #[serde(default)]
    pub replicas: i32,
    /// The label selector of the members' Pods, for autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The identity of the cluster. It is written before the first member exists and never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Whether the first member was initialized. An empty disk is a lost disk from then on.
    #[serde(default)]
    pub bootstrapped: bool,
    /// The name of the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The image that was accepted last. New Pods have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The version that all members had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The format level of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Unsigned>")]
    pub format_level: Option<u32>,
    /// The ids of the voters in the last membership that was seen committed.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Unsigned>")]
    pub voters: Vec<u64>,
    /// The members, oldest first.
    #[serde(default)]
    pub members: Vec<MemberStatus>,
    /// The restore that the store began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreStatus>,
    /// What the autopilot decided.
    #[serde(default)]
    pub autopilot: AutopilotStatus,
    /// `Ready`, `Available`, `Progressing`, `QuorumLost`, `UpgradeRefused` and `Anomaly`.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}

/// What the operator is doing.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Nothing exists yet.
    #[default]
    Pending,
    /// The first member is being created.
    Bootstrapping,
    /// The first member is being restored from a backup.
    Restoring,
    /// All members are as desired.
    Running,
    /// Members are being added or removed.
    Scaling,
    /// Members are being replaced by Pods of another image.
    Upgrading,
    /// A member is unhealthy, or being restarted or replaced.
    Healing,
    /// There is no leader, and the members may come back.
    Unavailable,
    /// A majority of the voters has lost its data. The operator changes nothing any more.
    QuorumLost,
    /// The operator cannot continue; the condition `Progressing` has the reason.
    Blocked,
    /// The object is being deleted.
    Terminating,
}

/// What a member is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum MemberRole {
    /// It counts for the quorum.
    #[default]
    Voter,
    /// A learner that serves reads.
    Reader,
}

/// How far a member is.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize,
)]
pub enum MemberPhase {
    /// Its id is allocated; claim and Pod are being created.
    #[default]
    Pending,
    /// Its data directory is about to be formatted, or was.
    Formatting,
    /// It is formatted, and added as a learner that catches up.
    Joining,
    /// It has caught up once and is about to become a voter.
    Promoting,
    /// It is as desired: a voter or a reader.
    Active,
    /// It is about to leave the membership; Pod and claim follow.
    Removing,
}

/// One member.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// The name of its Pod and of its claim. Random, and never used twice.
    pub name: String,
    /// Its id in the membership. An id is used for one claim only.
    #[schemars(with = "schemas::Unsigned")]
    pub id: u64,
    /// What it is for.
    #[serde(default)]
    pub role: MemberRole,
    /// How far it is.
    #[serde(default)]
    pub phase: MemberPhase,
    /// The UID of its claim, written before the data directory is formatted. Another claim of its
    /// name is not its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_uid: Option<String>,
    /// Whether it takes part in replication and is at most `lagEntriesMax` behind.
    #[serde(default)]
    pub healthy: bool,
    /// Its role in the consensus: `Leader`, `Follower`, `Learner` or `Candidate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The number of entries that it was behind when the status was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Unsigned>")]
    pub lag: Option<u64>,
    /// The version of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Since when it has been unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub unhealthy_since: Option<Time>,
    /// When the autopilot decided to restart it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub restarted_at: Option<Time>,
    /// Why it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_reason: Option<String>,
}

/// The restore that a store began with.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreStatus {
    /// How far it is.
    #[serde(default)]
    pub phase: RestorePhase,
    /// The claim that holds the file.
    pub claim: String,
    /// The name of the file.
    pub file: String,
    /// The SHA-256 of the file in hexadecimal.
    pub checksum: String,
    /// The revision of the new store begins beyond this one.
    #[schemars(with = "schemas::Unsigned")]
    pub min_revision: u64,
    /// The UID of the Pod of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The number of failed attempts. Each attempt has its own claim.
    #[serde(default)]
    #[schemars(with = "schemas::Unsigned")]
    pub failures: u32,
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum RestorePhase {
    /// The data directory is being written.
    #[default]
    Running,
    /// The data directory is complete.
    Completed,
    /// Every attempt failed.
    Failed,
}

/// What the autopilot decided.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AutopilotStatus {
    /// The desired number of readers.
    #[serde(default)]
    pub readers: i32,
    /// When that number changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub readers_changed_at: Option<Time>,
    /// When a log was compacted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub compacted_at: Option<Time>,
}

impl BellerophonStatus {
    /// A member by its name.
    pub fn member(&self, name: &str) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.name == name)
    }

    /// A member by its name, to change it.
    pub fn member_mut(&mut self, name: &str) -> Option<&mut MemberStatus> {
        self.members.iter_mut().find(|member| member.name == name)
    }

    /// Whether two states are equal apart from lags, which change with every write to the store.
    pub fn is_same(&self, other: &Self) -> bool {
        let without_lag = |status: &Self| {
            let mut status = status.clone();
            for member in &mut status.members {
                member.lag = None;
            }
            status
        };
        without_lag(self) == without_lag(other)
    }
}
