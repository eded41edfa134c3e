//! The kind: which secret is copied, and to which namespaces.

use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A wish for copies of a secret.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name, a type and a path"
)]
#[kube(
    group = "tutorial.study.dev",
    version = "v1alpha1",
    kind = "SecSynch",
    plural = "secsynches",
    shortname = "sync",
    namespaced,
    derive = "PartialEq",
    status = "SecSynchStatus",
    doc = "A SecSynch keeps copies of a secret in other namespaces in step with it.",
    printcolumn(name = "Secret", type_ = "string", json_path = ".spec.secretName"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.sourceNamespace"),
    printcolumn(name = "Synced", type_ = "integer", json_path = ".status.synced"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Last Sync",
        type_ = "date",
        json_path = ".status.lastSyncTime",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct SecSynchSpec {
    /// The name of the secret, and of its copies.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// Where the secret is.
    #[schemars(length(min = 1, max = 63))]
    pub source_namespace: String,
    /// Where copies go: names, or patterns in which `*` stands for anything.
    #[serde(default)]
    #[schemars(length(max = 10_000))]
    pub destination_namespaces: Vec<String>,
    /// Where copies go as well: namespaces with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::LabelSelector>")]
    pub destination_selector: Option<LabelSelector>,
    /// What happens where another secret of the name is.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,
}

/// What happens where another secret of the name is.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum ConflictPolicy {
    /// It stays, and counts as a failure.
    #[default]
    Fail,
    /// It stays.
    Skip,
    /// It becomes a copy, unless another SecSynch made it.
    Adopt,
}

/// What the operator last did.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecSynchStatus {
    /// When a copy was last written or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub last_sync_time: Option<Time>,
    /// How many copies are in step.
    #[serde(default)]
    pub synced: i64,
    /// How many there should be.
    #[serde(default)]
    pub total: i64,
    /// How many could not be made.
    #[serde(default)]
    pub failed: i64,
    /// The first failures, by namespace.
    #[serde(default)]
    pub failures: Vec<SyncFailure>,
    /// The generation of the spec this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every copy is in step.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}

/// A namespace without a copy, and why.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct SyncFailure {
    /// The namespace.
    pub namespace: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}
