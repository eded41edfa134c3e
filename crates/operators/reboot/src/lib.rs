//! The Reboot operator: an administrator marks nodes, and they reboot one after another, never more than allowed, each
//! coming back as it was.
//!
//! ```text
//! kubectl annotate node a reboot.bellerophon.io/reboot-needed=kernel
//!     │
//! controller ─ a slot in the ledger, compared and swapped → reboot-now ─→ agent: cordon, drain, reboot
//!     └── the slot is free: another boot id, Ready for a while, uncordoned ←─────────────────┘
//! ```
//!
//! Both sides are a pure plan and a small loop that applies it. What holds across crashes, stale caches and two controllers
//! at once rests on two things: a grant exists only in the [`RebootLedger`], which is swapped as a whole; and every step of a
//! grant is one write to one version of its Node, which ends it there for ever.

mod agent; // on every node
mod controller; // once in a cluster
#[expect(
    unreachable_pub,
    reason = "deriving validation rules makes a copy of the type that nobody can reach"
)]
mod ledger; // all grants
#[cfg(test)]
mod model; // random rollouts
mod notes; // what is written on Nodes
pub mod people; // what somebody at a terminal asks
#[expect(
    clippy::duplicated_attributes,
    reason = "columns of one type are not the same column"
)]
#[expect(
    unreachable_pub,
    reason = "deriving validation rules makes a copy of the type that nobody can reach"
)]
mod policy; // how pools reboot
mod rules; // policies, read once
mod simulated; // machines that are none
mod state; // a Node, and every write of the protocol
mod window; // when

pub use agent::{AgentOptions, Command, Logind, Machine, MachineError, agents};
pub use controller::controller;
pub use ledger::{Change, Grant, LEDGER, RebootLedger, RebootLedgerSpec};
pub use notes::{CORDONED, GrantId, IN_PROGRESS, LAST, NEEDED, NOW, PAUSED, Prefix, WAITING};
pub use policy::{
    Alerts, Blockers, ControlPlane, Drain, DrainMode, NodeAlerts, OnTimeout, Order, RebootPolicy,
    RebootPolicySpec, RebootPolicyStatus, Requests, UnmanagedPods,
};
pub use simulated::simulated;
pub use window::{Day, Window};

use std::sync::Arc;

use bellerophon_operator::{Operator, Place, Rights, SetupError, allow};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

/// The group of its kinds.
const GROUP: &str = "reboot.bellerophon.io";

/// The controller, for whoever runs it.
pub const OPERATOR: Operator = Operator {
    name: "reboot",
    summary: "nodes that are marked reboot one after another, never more than allowed",
    definitions: || vec![RebootPolicy::crd(), RebootLedger::crd()],
    rights: || {
        vec![
            allow(Rights::CACHE, GROUP, "rebootpolicies"),
            allow(&["patch"], GROUP, "rebootpolicies/status"),
            allow(
                &["list", "watch", "create", "update"],
                GROUP,
                "rebootledgers",
            ),
            allow(&["get", "list", "watch", "patch"], "", "nodes"),
            allow(&["list"], "", "pods"),
        ]
    },
    guards: Vec::new,
    place: Place::Anywhere,
    switches: &[],
    controllers: |setup| {
        Ok(vec![controller(
            setup,
            prefix()?,
            std::env::var("NODE_NAME").ok(),
        )])
    },
};

/// The agent, for whoever runs it on a node.
pub const AGENT: Operator = Operator {
    name: "reboot-agent",
    summary: "empties and reboots the node it runs on when the reboot controller lets it",
    definitions: Vec::new,
    rights: || {
        let ledger = PolicyRule {
            resource_names: Some(vec![LEDGER.into()]),
            ..allow(&["get"], GROUP, "rebootledgers")
        };
        vec![
            ledger,
            allow(&["list", "watch", "patch"], "", "nodes"),
            allow(&["list"], "", "pods"),
            allow(&["create"], "", "pods/eviction"),
        ]
    },
    guards: || vec![own_node_policy(), own_node_binding()],
    place: Place::EveryNode(&["/run/dbus"]),
    switches: &[],
    controllers: |setup| Ok(agents(setup, &prefix()?, vec![from_environment()?])),
};

/// The name of the guard, and of its binding.
const OWN_NODE: &str = "reboot-agent-own-node";

/// Keeps every account called `reboot-agent` to the Node that its token was made for, and there to what the agent writes.
fn own_node_policy() -> Value {
    let account = "request.userInfo.username.startsWith('system:serviceaccount:') && request.userInfo.username.endsWith(':reboot-agent')";
    let node = "authentication.kubernetes.io/node-name";
    let own = format!(
        "'{node}' in request.userInfo.extra && request.userInfo.extra['{node}'] == [request.name]"
    );
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": OWN_NODE},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]},
            ]},
            "matchConditions": [{"name": "agents", "expression": account}],
            "validations": [
                {"expression": own, "message": "the reboot agent may change the Node it runs on, and no other"},
                {"expression": "object.metadata.?labels == oldObject.metadata.?labels && object.spec.?taints == oldObject.spec.?taints",
                 "message": "the reboot agent changes no labels and no taints"},
            ],
        },
    })
}

fn own_node_binding() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": OWN_NODE},
        "spec": {"policyName": OWN_NODE, "validationActions": ["Deny"]},
    })
}

/// The prefix that the environment names: `REBOOT_PREFIX`, or the usual one.
///
/// # Errors
/// It is no prefix of annotations.
pub fn prefix() -> Result<Prefix, SetupError> {
    let Ok(text) = std::env::var("REBOOT_PREFIX") else {
        return Ok(Prefix::default());
    };
    Ok(Prefix::read(&text).ok_or_else(|| {
        format!("REBOOT_PREFIX is {text:?}, which is no DNS subdomain such as reboot.example.com")
    })?)
}

/// The agent that the environment describes: `NODE_NAME`, `REBOOT_COMMAND` (the login manager unless set), `REBOOT_SENTINEL`.
fn from_environment() -> Result<AgentOptions, SetupError> {
    let node = std::env::var("NODE_NAME")
        .map_err(|_| "NODE_NAME is not set; it names the node that the agent runs on")?;
    let machine: Arc<dyn Machine> = match std::env::var("REBOOT_COMMAND") {
        Ok(line) => Arc::new(
            Command::read(&line)
                .ok_or("REBOOT_COMMAND is empty; name a program, or leave it unset")?,
        ),
        Err(_) => Arc::new(Logind::default()),
    };
    Ok(AgentOptions {
        node,
        machine,
        sentinel: std::env::var_os("REBOOT_SENTINEL").map(Into::into),
    })
}
