//! The observed state of a store: what the plan decides on.
//!
//! In: live reads of Kubernetes objects and of members. Out: plain values without IO.
//! Guarantee: everything was read after the Bellerophon itself, so no intent in its status is newer
//! than what is known about the objects.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_store_client::api::Status;
use jiff::Timestamp;

use crate::crd::{BackupPhase, Bellerophon, MemberRole};

/// The observed state of one store.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object, read from the server.
    pub hero: Bellerophon,
    /// The time of the observation.
    pub now: Timestamp,
    /// A member name that nothing uses.
    pub fresh_name: String,
    /// A cluster id that nothing uses.
    pub fresh_cluster_id: String,
    /// The shared objects that exist and are as desired.
    pub shared: BTreeSet<SharedObject>,
    /// `minAvailable` of the PodDisruptionBudget.
    pub budget: Option<i32>,
    /// When the certificate of each member expires, by member name.
    pub certificates: BTreeMap<String, Timestamp>,
    /// The Pods of members and restores, by name.
    pub pods: BTreeMap<String, PodState>,
    /// The claims of members, retired ones included, by name.
    pub claims: BTreeMap<String, ClaimState>,
    /// What members with a running Pod reported, by name.
    pub reports: BTreeMap<String, Report>,
    /// The backup that `spec.bootstrap.restore` names; `None` if it does not exist.
    pub backup: Option<BackupState>,
    /// The reads per second of all members; `None` until it was measured.
    pub reads_per_second: Option<f64>,
    /// The number of elections in the last [`crate::sampler::WINDOW`].
    pub recent_elections: u64,
}

/// What a member reported, or why it did not.
pub type Report = Result<Box<Status>, String>;

/// An object that the members of a store share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedObject {
    /// The headless Service with the host names of members.
    PeerService,
    /// The Service for clients.
    ClientService,
    /// The Secret with the certificate authority.
    Authority,
    /// The Secret with the admin token.
    AdminToken,
    /// The Secret with the client token and the CA certificate.
    ClientToken,
    /// The ScheduledBackup of `spec.backup.schedule`; absent if that is unset.
    Schedule,
}

impl SharedObject {
    /// All shared objects, in the order in which they are created.
    pub const ALL: [Self; 6] = [
        Self::PeerService,
        Self::ClientService,
        Self::Authority,
        Self::AdminToken,
        Self::ClientToken,
        Self::Schedule,
    ];
}

/// A Pod of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// Its UID.
    pub uid: String,
    /// Its phase.
    pub phase: PodPhase,
    /// Whether it has a deletion timestamp.
    pub is_terminating: bool,
    /// When it was created.
    pub created: Timestamp,
    /// The inputs that it was created from; see [`crate::objects::revision`].
    pub revision: String,
    /// The role in its labels.
    pub role: Option<MemberRole>,
    /// How often its container was restarted.
    pub restarts: i32,
}

/// The phase of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not running yet.
    Pending,
    /// Its container runs, or is restarted by the kubelet.
    Running,
    /// It ended and is not restarted, for example after a shutdown of its node.
    Succeeded,
    /// It ended with an error, or was evicted, and is not restarted.
    Failed,
    /// Its node does not report.
    Unknown,
}

impl PodPhase {
    /// Whether the Pod ended and is not restarted.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A claim of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimState {
    /// Its UID.
    pub uid: String,
    /// The member that it was created for.
    pub member_id: Option<u64>,
    /// Whether it was created for this very Bellerophon, not for an earlier one of its name.
    pub is_own: bool,
    /// Whether it has a deletion timestamp: the data is gone as soon as the Pod is.
    pub is_terminating: bool,
    /// Whether it is labelled as retired.
    pub is_retired: bool,
}

/// A backup to restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupState {
    /// How far the backup is.
    pub phase: BackupPhase,
    /// The claim that holds the file.
    pub claim: String,
    /// The name of the file.
    pub file: String,
    /// The SHA-256 of the file in hexadecimal.
    pub checksum: String,
    /// The revision of the store in the file.
    pub revision: u64,
}
