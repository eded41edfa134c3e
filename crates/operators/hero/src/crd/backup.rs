//! The custom resources Backup (one snapshot file) and ScheduledBackup.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One backup of a store.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[kube(
    group = "stable.bellerophon.io",
    version = "v1beta7",
    kind = "Backup",
    plural = "backups",
    shortname = "bhb",
    namespaced,
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "BackupStatus",
    doc = "A Backup is one snapshot of a Bellerophon, written to a file and verified.",
    printcolumn(name = "Hero", type_ = "string", json_path = ".spec.hero"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.bytes"),
    printcolumn(
        name = "File",
        type_ = "string",
        json_path = ".status.file",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// The name of the Bellerophon in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub hero: String,
}

/// The observed backup.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// How far it is. `Completed` and `Failed` are final.
    #[serde(default)]
    pub phase: BackupPhase,
    /// Why it failed, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The cluster that was backed up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The claim that holds the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The name of the file in the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The UID of the Pod that writes the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The SHA-256 of the file in hexadecimal, verified after it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The revision of the store in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Unsigned>")]
    pub revision: Option<u64>,
    /// The size of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Unsigned>")]
    pub bytes: Option<u64>,
    /// The image of the Pods that write and delete the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When it fails if it has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub deadline_at: Option<Time>,
    /// When the backup began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub started_at: Option<Time>,
    /// When it was `Completed` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub ended_at: Option<Time>,
}

/// How far a backup is.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum BackupPhase {
    /// It has not begun.
    #[default]
    Pending,
    /// A Pod writes and verifies the file.
    Running,
    /// The file is written, and its checksum was verified.
    Completed,
    /// There is no file to rely on.
    Failed,
}

impl BackupPhase {
    /// Whether the phase never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// When backups of a store are taken, and how many are kept.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[kube(
    group = "stable.bellerophon.io",
    version = "v1beta7",
    kind = "ScheduledBackup",
    plural = "scheduledbackups",
    shortname = "bhs",
    namespaced,
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "ScheduledBackupStatus",
    doc = "A ScheduledBackup creates Backups of a Bellerophon and deletes old ones.",
    printcolumn(name = "Hero", type_ = "string", json_path = ".spec.hero"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.lastScheduledAt"),
    printcolumn(
        name = "Completed",
        type_ = "date",
        json_path = ".status.lastCompletedAt"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledBackupSpec {
    /// The name of the Bellerophon in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub hero: String,
    /// A cron schedule in UTC, such as `0 3 * * *` or `@every 6h`.
    #[schemars(length(min = 1, max = 100))]
    pub schedule: String,
    /// The number of completed backups that are kept. Failed ones older than the oldest kept one
    /// are deleted too.
    #[serde(default = "seven")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: i32,
    /// Whether no further backups are taken.
    #[serde(default)]
    pub suspend: bool,
}

fn seven() -> i32 {
    7
}

/// The observed schedule.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledBackupStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time of the schedule that the last backup was created for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub last_scheduled_at: Option<Time>,
    /// When the last completed backup ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub last_completed_at: Option<Time>,
    /// `Valid`: the schedule can be parsed.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
