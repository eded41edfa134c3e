//! The Reboot operator: reboots annotated nodes within the limits of their RebootPolicies.
//!
//! ```text
//! kubectl annotate node a reboot.bellerophon.io/reboot-needed=kernel
//!     │
//! controller ─ grant in the ledger, compare-and-swap → reboot-now ─→ agent: cordon, drain, reboot
//!     └── slot released: new boot ID, Ready for the settle time, uncordoned ←──────────────┘
//! ```
//!
//! Controller and agent are each a pure plan and a reconciler that applies it. The guarantees
//! across crashes, stale caches and two active controllers rest on two properties: a grant exists
//! only in the [`RebootLedger`], which is replaced as a whole by compare-and-swap; and every step
//! of a grant is one write to one resource version of its Node, where the result stays.

mod agent; // the DaemonSet: drains and reboots its node
mod annotations; // the annotations of Nodes
pub mod commands; // the operations of `bellerophon reboot`
mod controller; // the Deployment: grants reboots
#[expect(
    unreachable_pub,
    reason = "the derive of validation rules repeats the type inside of a function"
)]
mod ledger; // the custom resource RebootLedger
#[cfg(test)]
mod model; // model test with random faults
mod parsed_policy; // a parsed RebootPolicy
#[expect(
    clippy::duplicated_attributes,
    reason = "several columns have the same type"
)]
#[expect(
    unreachable_pub,
    reason = "the derive of validation rules repeats the type inside of a function"
)]
mod policy; // the custom resource RebootPolicy
mod simulated; // agents of simulated machines
mod state; // the state of a Node, and its patches
mod window; // maintenance windows

pub use agent::{AgentOptions, Command, Logind, Machine, MachineError, agents};
pub use annotations::{
    AnnotationPrefix, COMMITTED, CORDONED, GrantId, IN_PROGRESS, LAST, NEEDED, NOW, PAUSED, WAITING,
};
pub use controller::controller;
pub use ledger::{Grant, LEDGER, PoolChange, RebootLedger, RebootLedgerSpec};
pub use policy::{
    Alerts, Blockers, ControlPlane, Drain, DrainMode, NodeAlerts, OnTimeout, Order, RebootPolicy,
    RebootPolicySpec, RebootPolicyStatus, Requests, UnmanagedPods,
};
pub use simulated::simulated_agents;
pub use window::{Day, Window};

use std::{sync::Arc, time::Duration};

use bellerophon::{controller::ControllerOptions, manager::Manager};
use bellerophon_operator::{INFORMER_VERBS, Operator, Placement, RoleAggregation, Switches, allow};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};
use thiserror::Error;

/// The API group of the CRDs.
const GROUP: &str = "reboot.bellerophon.io";

/// How long controller and agents wait for their caches. A reboot can make the API server
/// unreachable for a long time, and a process that exits then only delays its work.
const CACHE_SYNC_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The description of the controller.
pub const OPERATOR: Operator = Operator {
    name: "reboot",
    summary: "reboots annotated nodes within the limits of their RebootPolicies",
    crds: || vec![RebootPolicy::crd(), RebootLedger::crd()],
    permissions: || {
        vec![
            allow(INFORMER_VERBS, GROUP, "rebootpolicies"),
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
    admission_policies: Vec::new,
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::Deployment,
    feature_switches: &[],
    webhooks: None,
    setup: setup_controller,
};

fn setup_controller(mgr: &mut Manager, _switches: &Switches) {
    match prefix() {
        Ok(prefix) => controller(mgr, prefix, std::env::var("NODE_NAME").ok()),
        Err(error) => mgr.setup_error(error.to_string()),
    }
}

/// The description of the agent.
pub const AGENT: Operator = Operator {
    name: "reboot-agent",
    summary: "drains and reboots its node when the reboot controller grants it",
    crds: Vec::new,
    permissions: || {
        let ledger = PolicyRule {
            resource_names: Some(vec![LEDGER.into()]),
            ..allow(&["get"], GROUP, "rebootledgers")
        };
        vec![
            ledger,
            allow(&["list", "watch", "patch"], "", "nodes"),
            allow(&["patch"], "", "nodes/status"),
            allow(&["list"], "", "pods"),
            allow(&["create"], "", "pods/eviction"),
        ]
    },
    admission_policies: || vec![own_node_policy(), own_node_binding()],
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::DaemonSet {
        host_paths: &["/run/dbus"],
    },
    feature_switches: &[],
    webhooks: None,
    setup: setup_agent,
};

fn setup_agent(mgr: &mut Manager, _switches: &Switches) {
    let setup = prefix().and_then(|prefix| Ok((prefix, agent_from_environment()?)));
    match setup {
        Ok((prefix, agent)) => agents(mgr, &prefix, vec![agent]),
        Err(error) => mgr.setup_error(error.to_string()),
    }
}

/// The options of both controllers.
fn controller_options() -> ControllerOptions {
    ControllerOptions {
        cache_sync_timeout: Some(CACHE_SYNC_TIMEOUT),
        ..ControllerOptions::default()
    }
}

/// The name of the admission policy and its binding.
const OWN_NODE: &str = "reboot-agent-own-node";

/// Restricts every service account named `reboot-agent` to updates of the Node that its token is
/// bound to, without changes of labels and taints.
fn own_node_policy() -> Value {
    // In any namespace: the policy does not know where the agent is installed.
    let is_agent = "request.userInfo.username.startsWith('system:serviceaccount:') && \
                    request.userInfo.username.endsWith(':reboot-agent')";
    let node = "authentication.kubernetes.io/node-name";
    let is_own_node = format!(
        "'{node}' in request.userInfo.extra && request.userInfo.extra['{node}'] == [request.name]"
    );
    // If it could set its labels and taints, a compromised node could attract pods and their
    // Secrets.
    let is_unchanged = "object.metadata.?labels == oldObject.metadata.?labels && \
                        object.spec.?taints == oldObject.spec.?taints";
    let nodes = json!({
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["nodes", "nodes/status"],
    });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": OWN_NODE},
        "spec": {
            // An expression that fails must not permit an update.
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [nodes]},
            "matchConditions": [{"name": "agents", "expression": is_agent}],
            "validations": [
                {
                    "expression": is_own_node,
                    "message": "the reboot agent may update only the Node it runs on",
                },
                {
                    "expression": is_unchanged,
                    "message": "the reboot agent must not change labels or taints",
                },
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

/// An environment variable is missing or invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EnvironmentError {
    /// The annotation prefix is invalid.
    #[error("REBOOT_PREFIX is {0:?}, which is not a DNS subdomain such as reboot.example.com")]
    Prefix(String),
    /// The agent's node is unknown.
    #[error("NODE_NAME is not set; set it to the name of the agent's node")]
    NodeName,
    /// The command that reboots the machine is empty.
    #[error("REBOOT_COMMAND is empty; set it to a command, or leave it unset")]
    Command,
}

/// The annotation prefix of the environment variable `REBOOT_PREFIX`, or the default.
///
/// # Errors
/// The value is not a DNS subdomain.
pub fn prefix() -> Result<AnnotationPrefix, EnvironmentError> {
    let Ok(text) = std::env::var("REBOOT_PREFIX") else {
        return Ok(AnnotationPrefix::default());
    };
    AnnotationPrefix::parse(&text).ok_or(EnvironmentError::Prefix(text))
}

/// The agent of the environment variables `NODE_NAME`, `REBOOT_COMMAND` (default: logind) and
/// `REBOOT_SENTINEL`.
fn agent_from_environment() -> Result<AgentOptions, EnvironmentError> {
    let node = std::env::var("NODE_NAME").map_err(|_| EnvironmentError::NodeName)?;
    let machine: Arc<dyn Machine> = match std::env::var("REBOOT_COMMAND") {
        Ok(line) => Arc::new(Command::parse(&line).ok_or(EnvironmentError::Command)?),
        Err(_) => Arc::new(Logind::default()),
    };
    Ok(AgentOptions {
        node,
        machine,
        sentinel: std::env::var_os("REBOOT_SENTINEL").map(Into::into),
    })
}
