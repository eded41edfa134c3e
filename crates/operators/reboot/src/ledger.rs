//! Ledger: every grant there is, in one object.
//!
//! In: grants and their ends. Out: the same, in one order for everybody.
//! Holds: a grant exists only once it stands here, and stands here until its end stands on the Node; one grant a node; an
//! id is never used twice.
//!
//! Why one object, and not the status of each policy: slots are compared and swapped by the version of what holds them. One
//! object serves nodes without a policy, outlives policies that are deleted, and is the same for a node that moves from one
//! pool to another, so no change of policies, labels or leaders lets two controllers spend one slot. It is small (about
//! 400 bytes a grant) and written once for all grants and ends of one moment.

use bellerophon_operator::schemas;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{notes::GrantId, policy::Drain};

/// The name of the one ledger.
pub const LEDGER: &str = "cluster";

/// How many grants there may be at once; what a ledger takes stays far below what a server stores.
pub(crate) const GRANTS_MAX: usize = 1000;

/// All grants of a cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "reboot.bellerophon.io",
    version = "v1alpha1",
    kind = "RebootLedger",
    plural = "rebootledgers",
    derive = "PartialEq",
    doc = "The RebootLedger is written by the reboot controller alone: every node that may reboot now stands in it.",
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
    /// How many grants there ever were.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub issued: i64,
    /// Those that have not ended.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub grants: Vec<Grant>,
    /// When the grants of each pool last changed.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub changes: Vec<Change>,
}

/// Permission for one node to reboot once.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Its name, never used again.
    #[schemars(length(min = 1, max = 64))]
    pub id: String,
    /// The node, by name and uid: another one of its name has no part in it.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// The uid of the node.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
    /// The boot that is to end. The grant is spent as soon as the node has another one.
    #[schemars(length(min = 1, max = 64))]
    pub boot_id: String,
    /// The policy it was given under; empty for the default.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub policy: String,
    /// Why somebody wanted it.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// When it was given.
    #[schemars(with = "schemas::Time")]
    pub granted_at: Time,
    /// No reboot is begun after this.
    #[schemars(with = "schemas::Time")]
    pub expires_at: Time,
    /// When a node that has not come back counts as lost.
    #[schemars(with = "schemas::Time")]
    pub back_by: Time,
    /// How the node is emptied.
    #[serde(default)]
    pub drain: Drain,
}

impl Grant {
    /// Its name.
    pub(crate) fn id(&self) -> Option<GrantId> {
        GrantId::read(&self.id)
    }
}

/// When the grants of a pool last changed.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The policy; empty for the default.
    #[schemars(length(max = 253))]
    pub policy: String,
    /// When.
    #[schemars(with = "schemas::Time")]
    pub at: Time,
}

impl RebootLedger {
    /// The grant of that name.
    pub(crate) fn grant(&self, id: &GrantId) -> Option<&Grant> {
        self.spec
            .grants
            .iter()
            .find(|grant| grant.id == id.as_str())
    }

    /// The name of the next grant: it has a part of the ledger's uid, for ledgers that are deleted and made again.
    pub(crate) fn next_id(&self) -> Option<GrantId> {
        let uid: String = self
            .metadata
            .uid
            .as_deref()?
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        GrantId::read(&format!(
            "{}-{}",
            uid.to_ascii_lowercase(),
            self.spec.issued.saturating_add(1)
        ))
    }

    /// Adds a grant.
    pub(crate) fn issue(&mut self, grant: Grant) {
        debug_assert!(
            self.spec
                .grants
                .iter()
                .all(|known| known.node != grant.node),
            "one grant a node"
        );
        self.spec.issued = self.spec.issued.saturating_add(1);
        self.touch(&grant.policy, grant.granted_at.0);
        self.spec.grants.push(grant);
    }

    /// Takes out a grant whose slot is free again.
    pub(crate) fn free(&mut self, id: &str, now: Timestamp) {
        if let Some(at) = self.spec.grants.iter().position(|grant| grant.id == id) {
            let grant = self.spec.grants.remove(at);
            self.touch(&grant.policy, now);
        }
    }

    /// When the grants of a pool last changed.
    pub(crate) fn changed(&self, policy: &str) -> Option<Timestamp> {
        self.spec
            .changes
            .iter()
            .find(|change| change.policy == policy)
            .map(|change| change.at.0)
    }

    /// Forgets pools that are no more.
    pub(crate) fn keep_pools(&mut self, is_known: impl Fn(&str) -> bool) {
        self.spec.changes.retain(|change| is_known(&change.policy));
    }

    fn touch(&mut self, policy: &str, now: Timestamp) {
        let at = Time(crate::notes::whole_seconds(now));
        match self
            .spec
            .changes
            .iter_mut()
            .find(|change| change.policy == policy)
        {
            Some(change) => change.at = at,
            None => self.spec.changes.push(Change {
                policy: policy.to_owned(),
                at,
            }),
        }
    }
}
