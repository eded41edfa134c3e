//! The spec of a Bellerophon: image, members, storage, backups and autopilot.
//!
//! Field names of the original definition (`winged_horse_name`, `is_atomatic_rifle`) are kept as
//! they are spelt there; all other fields are in camel case.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::BellerophonStatus;

/// The desired store.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "stable.bellerophon.io",
    version = "v1beta7",
    kind = "Bellerophon",
    root = "BellerophonDefinition",
    singular = "hero",
    plural = "heroes",
    shortname = "bh",
    category = "all",
    namespaced,
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "BellerophonStatus",
    doc = "A Bellerophon is a replicated key-value store: one Pod and one claim per member.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(
        name = "Horse",
        type_ = "string",
        json_path = ".spec.winged_horse_name",
        priority = 1
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        json_path = ".status.image",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BellerophonSpec {
    /// The name of the horse; the value of `WINGED_HORSE_NAME` in the environment of every member.
    #[serde(rename = "winged_horse_name")]
    #[schemars(length(min = 1, max = 63))]
    pub winged_horse_name: String,
    /// The image of the store. A change rolls all members, the leader last. A tag with a version
    /// lets the operator refuse a downgrade or a skipped version before it replaces a member.
    #[schemars(length(min = 1))]
    pub image: String,
    /// The number of voters.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: i32,
    /// The volume of each member.
    #[serde(default)]
    pub storage: Storage,
    /// Scheduled backups.
    #[serde(default)]
    pub backup: BackupPolicy,
    /// Automatic actions of the operator.
    #[serde(default)]
    pub autopilot: Autopilot,
    /// How the store begins. It is read once, before the first member exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
}

pub(super) fn three() -> i32 {
    3
}

/// The weapons of a hero. The operator keeps them and does not interpret them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Weapons {
    /// Whether the rifle reloads itself. The spelling is that of the original definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_atomatic_rifle: Option<bool>,
    /// A picture of the weapons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What explodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explosive: Option<String>,
}

/// The volume of each member.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// The requested size. It applies to members that are created later.
    #[serde(default = "one_gibibyte")]
    #[schemars(regex(pattern = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub size: String,
    /// The storage class; default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// What happens to the claim of a removed member, and to all claims when the Bellerophon is
    /// deleted.
    #[serde(default)]
    pub claim_policy: ClaimPolicy,
}

fn one_gibibyte() -> String {
    "1Gi".to_owned()
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            size: one_gibibyte(),
            class_name: None,
            claim_policy: ClaimPolicy::default(),
        }
    }
}

/// What happens to the claim of a removed member.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum ClaimPolicy {
    /// It is kept, labelled as retired, and never mounted again by the operator.
    #[default]
    Retain,
    /// It is deleted after the member has left the membership and its Pod is gone.
    Delete,
}

/// Scheduled backups of the store.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupPolicy {
    /// A cron schedule, such as `0 3 * * *` or `@every 6h`; default: no scheduled backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub schedule: Option<String>,
    /// The number of completed backups that are kept.
    #[serde(default = "seven")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: i32,
    /// The size of the claim that holds the backups.
    #[serde(default = "five_gibibytes")]
    #[schemars(regex(pattern = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub size: String,
    /// The storage class of that claim; default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// How long one backup may take before it is `Failed`.
    #[serde(default = "ten_minutes")]
    #[schemars(range(min = 10, max = 86_400))]
    pub timeout_seconds: i64,
}

fn seven() -> i32 {
    7
}

fn five_gibibytes() -> String {
    "5Gi".to_owned()
}

fn ten_minutes() -> i64 {
    600
}

impl Default for BackupPolicy {
    fn default() -> Self {
        Self {
            schedule: None,
            keep: seven(),
            size: five_gibibytes(),
            class_name: None,
            timeout_seconds: ten_minutes(),
        }
    }
}

/// Automatic actions of the operator.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Autopilot {
    /// Whether members that stay unhealthy are restarted, then replaced.
    #[serde(default = "yes")]
    pub heal: bool,
    /// How long a member is unhealthy before its Pod is restarted.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 30, max = 86_400))]
    pub restart_after_seconds: i64,
    /// How long a member is unhealthy before a new member replaces it.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 60, max = 604_800))]
    pub replace_after_seconds: i64,
    /// The number of log entries that a member may be behind the leader and still be healthy. No
    /// learner becomes a voter above it.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub lag_entries_max: i64,
    /// Learners that serve reads.
    #[serde(default)]
    pub readers: Readers,
    /// The size of a member's log above which it is compacted; 0: never.
    #[serde(default = "quarter_gibibyte")]
    #[schemars(range(min = 0, max = 1_099_511_627_776_i64))]
    pub compact_log_bytes: i64,
}

fn yes() -> bool {
    true
}

fn five_minutes() -> i64 {
    300
}

fn half_an_hour() -> i64 {
    1800
}

fn thousand() -> i64 {
    1000
}

fn quarter_gibibyte() -> i64 {
    256 << 20
}

impl Default for Autopilot {
    fn default() -> Self {
        Self {
            heal: yes(),
            restart_after_seconds: five_minutes(),
            replace_after_seconds: half_an_hour(),
            lag_entries_max: thousand(),
            readers: Readers::default(),
            compact_log_bytes: quarter_gibibyte(),
        }
    }
}

/// Learners that serve reads, scaled by the rate of reads.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Readers {
    /// The minimum number of readers.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20))]
    pub min: i32,
    /// The maximum number of readers.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20))]
    pub max: i32,
    /// The number of reads per second that one member is expected to serve.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub reads_per_second: i64,
    /// The minimum time between two changes of the number of readers.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 10, max = 86_400))]
    pub cooldown_seconds: i64,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            min: 0,
            max: 0,
            reads_per_second: thousand(),
            cooldown_seconds: five_minutes(),
        }
    }
}

/// How the store begins.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// A backup to begin with; default: the store begins empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreSource>,
}

/// A backup, by its object or by its file.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Eq, Serialize)]
#[x_kube(validation = Rule::new("has(self.backup) != (has(self.claim) && has(self.file) && has(self.checksum))").message("name either a Backup, or the claim, file and checksum of one"))]
#[serde(rename_all = "camelCase")]
pub struct RestoreSource {
    /// The name of a completed Backup in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// The claim that holds the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The name of the file in the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub file: Option<String>,
    /// The SHA-256 of the file in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub checksum: Option<String>,
    /// The highest revision that clients of the old store have seen; the revision of the new store
    /// begins beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub revision: Option<i64>,
}
