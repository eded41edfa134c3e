//! The custom resource: which Secret is copied, and to which namespaces.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The source Secret and the destinations of its copies.
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
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "SecSynchStatus",
    doc = "A SecSynch keeps copies of a Secret in other namespaces up to date.",
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
    /// The name of the source Secret, and of its copies.
    #[schemars(length(min = 1, max = 253), regex(pattern = names::SUBDOMAIN))]
    pub secret_name: String,
    /// The namespace of the source Secret.
    #[schemars(length(min = 1, max = 63), regex(pattern = names::LABEL))]
    pub source_namespace: String,
    /// The destination namespaces: names, or patterns in which `*` matches any text. A namespace
    /// accepts copies by its annotation `secsynch.tutorial.study.dev/accept-from`.
    #[serde(default)]
    #[schemars(length(max = 10_000))]
    #[schemars(inner(length(min = 1, max = 63), regex(pattern = names::LABEL_WITH_WILDCARDS)))]
    pub destination_namespaces: Vec<String>,
    /// Further destination namespaces, selected by their labels. An empty selector selects nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::LabelSelector>")]
    pub destination_selector: Option<LabelSelector>,
    /// What to do if another Secret of the name exists in a destination namespace.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,
}

impl SecSynchSpec {
    /// The first field with an invalid name. The schema of the CRD rejects them; an object that was
    /// stored before the schema had patterns may have one.
    pub(crate) fn invalid_field(&self) -> Option<&'static str> {
        if !names::is_subdomain(&self.secret_name) {
            return Some("secretName");
        }
        (!names::is_label(&self.source_namespace)).then_some("sourceNamespace")
    }
}

/// What to do if another Secret of the name exists in a destination namespace.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum ConflictPolicy {
    /// It is left unchanged, and reported as a failure.
    #[default]
    Fail,
    /// It is left unchanged, and not reported.
    Skip,
    /// It is replaced by a copy, if its annotation `secsynch.tutorial.study.dev/accept-from` has
    /// the namespace of the source. It is released, not deleted, when the copy is no longer
    /// desired.
    Adopt,
}

/// The observed state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecSynchStatus {
    /// The time of the last write or deletion of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::Time>")]
    pub last_sync_time: Option<Time>,
    /// The number of copies that are up to date.
    #[serde(default)]
    pub synced: i64,
    /// The number of desired copies.
    #[serde(default)]
    pub total: i64,
    /// The number of copies that could not be written.
    #[serde(default)]
    pub failed: i64,
    /// The first ten failures, by namespace.
    #[serde(default)]
    pub failures: Vec<SyncFailure>,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every copy is up to date. `Accepted`: every destination accepts its copy.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}

/// A destination namespace whose copy is not up to date.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct SyncFailure {
    /// The namespace.
    pub namespace: String,
    /// The reason in CamelCase.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(secret_name: &str, source_namespace: &str) -> SecSynchSpec {
        serde_json::from_value(serde_json::json!({
            "secretName": secret_name, "sourceNamespace": source_namespace,
        }))
        .expect("a spec")
    }

    #[test]
    fn names_are_dns_labels_and_subdomains() {
        let long = "a".repeat(64);
        for (secret_name, source_namespace, invalid) in [
            ("s", "a", None),
            ("my.secret-1", "team-a", None),
            (&*long, "a", None),
            ("", "a", Some("secretName")),
            ("..", "a", Some("secretName")),
            ("S", "a", Some("secretName")),
            ("s/../t", "a", Some("secretName")),
            ("s", "", Some("sourceNamespace")),
            ("s", "a.b", Some("sourceNamespace")),
            ("s", "-a", Some("sourceNamespace")),
            ("s", &*long, Some("sourceNamespace")),
            ("s", "victim/secrets/exists?a=", Some("sourceNamespace")),
        ] {
            let found = spec(secret_name, source_namespace).invalid_field();
            assert_eq!(found, invalid, "{source_namespace}/{secret_name}");
        }
    }
}
