//! The custom resource with all grants of a cluster.
//!
//! Guarantees: a grant exists only while it is in the ledger, and is removed after its result is
//! on the Node; a node has at most one grant; an ID is never used twice.
//!
//! Grants are in one object, not in the status of each policy, because slots are allocated by
//! compare-and-swap on the resource version of the object that has them. One object covers nodes
//! without a policy, outlives deleted policies, and is the same for a node that moves from one pool
//! to another, so that no change of policies, labels or leaders allocates one slot twice. It has
//! about 400 bytes per grant and is written once for all changes of a reconcile.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    annotations::{GrantId, truncate_to_seconds},
    policy::Drain,
};

/// The name of the only RebootLedger.
pub const LEDGER: &str = "cluster";

/// The maximum number of grants, which keeps the object below etcd's default limit of 1.5 MiB.
pub(crate) const GRANTS_MAX: usize = 1000;

/// The grants of a cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "reboot.bellerophon.io",
    version = "v1alpha1",
    kind = "RebootLedger",
    plural = "rebootledgers",
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    doc = "The RebootLedger has the grants of all nodes. Only the reboot controller writes it.",
    printcolumn(name = "Issued", type_ = "integer", json_path = ".spec.issued"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".spec.grants[*].node"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.issued >= oldSelf.issued").message("numbers of grants are never used twice"))]
pub struct RebootLedgerSpec {
    /// The number of grants ever issued.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub issued: i64,
    /// The grants that hold a slot.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub grants: Vec<Grant>,
    /// The time of the last change of each pool's grants.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub changes: Vec<PoolChange>,
}

/// The permission of one node to reboot once.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The ID of the grant, which is never used again.
    #[schemars(length(min = 1, max = 64))]
    pub id: String,
    /// The name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// The UID of the node, so that a recreated node of the same name does not have the grant.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
    /// The boot ID before the reboot. The grant is used once the node has another one.
    #[schemars(length(min = 1, max = 64))]
    pub boot_id: String,
    /// The policy of the grant; empty for the default policy.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub policy: String,
    /// The reason of the request.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// When the grant was issued.
    #[schemars(with = "schemas::Time")]
    pub granted_at: Time,
    /// No reboot starts after this time.
    #[schemars(with = "schemas::Time")]
    pub expires_at: Time,
    /// When a node that has not come back is considered lost.
    #[schemars(with = "schemas::Time")]
    pub back_by: Time,
    /// How the node is drained.
    #[serde(default)]
    pub drain: Drain,
}

impl Grant {
    /// The ID, if it is valid.
    pub(crate) fn id(&self) -> Option<GrantId> {
        GrantId::parse(&self.id)
    }
}

/// The time of the last change of a pool's grants.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolChange {
    /// The policy; empty for the default policy.
    #[schemars(length(max = 253))]
    pub policy: String,
    /// The time of the change.
    #[schemars(with = "schemas::Time")]
    pub at: Time,
}

impl RebootLedger {
    /// The grant with this ID.
    pub(crate) fn grant(&self, id: &GrantId) -> Option<&Grant> {
        self.spec
            .grants
            .iter()
            .find(|grant| grant.id == id.as_str())
    }

    /// The ID of the next grant: eight characters of the ledger's UID, so that a recreated ledger
    /// repeats no ID, and a number. `None` if the ledger has no UID yet.
    pub(crate) fn next_id(&self) -> Option<GrantId> {
        let uid: String = self
            .metadata
            .uid
            .as_deref()?
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        GrantId::parse(&format!(
            "{}-{}",
            uid.to_ascii_lowercase(),
            self.spec.issued.saturating_add(1)
        ))
    }

    /// Adds a grant, which takes a slot.
    pub(crate) fn issue(&mut self, grant: Grant) {
        debug_assert!(
            self.spec
                .grants
                .iter()
                .all(|known| known.node != grant.node),
            "a node has at most one grant"
        );
        // Counted in the same write as the grant: IDs are unique because that write is a
        // compare-and-swap.
        self.spec.issued = self.spec.issued.saturating_add(1);
        self.set_changed(&grant.policy, grant.granted_at.0);
        self.spec.grants.push(grant);
    }

    /// Removes a grant, which releases its slot.
    pub(crate) fn release(&mut self, id: &str, now: Timestamp) {
        if let Some(index) = self.spec.grants.iter().position(|grant| grant.id == id) {
            let grant = self.spec.grants.remove(index);
            self.set_changed(&grant.policy, now);
        }
    }

    /// The time of the last change of a pool's grants.
    pub(crate) fn last_changed(&self, policy: &str) -> Option<Timestamp> {
        self.spec
            .changes
            .iter()
            .find(|change| change.policy == policy)
            .map(|change| change.at.0)
    }

    /// Removes the change times of other pools.
    pub(crate) fn retain_pools(&mut self, is_pool: impl Fn(&str) -> bool) {
        self.spec.changes.retain(|change| is_pool(&change.policy));
    }

    fn set_changed(&mut self, policy: &str, now: Timestamp) {
        let at = Time(truncate_to_seconds(now));
        match self
            .spec
            .changes
            .iter_mut()
            .find(|change| change.policy == policy)
        {
            Some(change) => change.at = at,
            None => self.spec.changes.push(PoolChange {
                policy: policy.to_owned(),
                at,
            }),
        }
    }
}
