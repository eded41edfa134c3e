//! Policy: how many nodes of a pool may be away at once, when, and how they are emptied.
//!
//! In: RebootPolicies. Out: rules that can be asked.
//! Holds: what cannot be read allows nothing.

use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::window::Window;

/// How nodes of a pool reboot.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "reboot.bellerophon.io",
    version = "v1alpha1",
    kind = "RebootPolicy",
    plural = "rebootpolicies",
    shortname = "rbp",
    derive = "PartialEq",
    status = "RebootPolicyStatus",
    doc = "A RebootPolicy says how many of its nodes may be away at once, when they may reboot, and what holds them back.",
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Needed", type_ = "integer", json_path = ".status.needed"),
    printcolumn(name = "Granted", type_ = "integer", json_path = ".status.granted"),
    printcolumn(
        name = "Unavailable",
        type_ = "integer",
        json_path = ".status.unavailable"
    ),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".status.limit"),
    printcolumn(
        name = "Breaker",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="BreakerOpen")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("type(self.maxUnavailable) == int ? self.maxUnavailable >= 0 : self.maxUnavailable.matches('^(100|[1-9]?[0-9])%$')").message("must be a number from 0, or a percentage such as 5%").field_path(".maxUnavailable"))]
#[x_kube(validation = Rule::new("!has(self.minAvailable) || (type(self.minAvailable) == int ? self.minAvailable >= 0 : self.minAvailable.matches('^(100|[1-9]?[0-9])%$'))").message("must be a number from 0, or a percentage such as 90%").field_path(".minAvailable"))]
pub struct RebootPolicySpec {
    /// Which nodes: those with these labels; all unless said.
    #[serde(default)]
    #[schemars(with = "schemas::LabelSelector")]
    pub node_selector: LabelSelector,
    /// Of several policies that select a node, the one with the highest priority counts, then the first by name.
    #[serde(default)]
    pub priority: i32,
    /// How many nodes may be unavailable at once: a number, or a percentage, rounded down but at least one.
    #[serde(default = "one")]
    #[schemars(with = "schemas::IntOrString")]
    pub max_unavailable: IntOrString,
    /// How many nodes must stay available: a number, or a percentage, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::IntOrString>")]
    pub min_available: Option<IntOrString>,
    /// Whether nodes that others cordoned count as unavailable.
    #[serde(default = "yes")]
    pub count_cordoned: bool,
    /// When reboots may begin; always unless said.
    #[serde(default)]
    #[schemars(length(max = 50))]
    pub windows: Vec<Window>,
    /// How long nothing is granted after the last grant or end.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub minimum_gap_seconds: i64,
    /// Up to so much is added to the gap, differently each time.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub jitter_seconds: i64,
    /// How long a node must have been Ready again before its slot is free.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 0, max = 86_400))]
    pub settle_seconds: i64,
    /// How long a node may be away after its drain before it counts as lost.
    #[serde(default = "quarter_of_an_hour")]
    #[schemars(range(min = 60, max = 86_400))]
    pub boot_timeout_seconds: i64,
    /// So many lost nodes stop all further reboots of the pool.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 10_000))]
    pub failure_threshold: i32,
    /// Who comes first.
    #[serde(default)]
    pub order: Order,
    /// When it is the turn of control-plane nodes.
    #[serde(default)]
    pub control_plane: ControlPlane,
    /// What asks for reboots, besides annotations.
    #[serde(default)]
    pub requests: Requests,
    /// What holds nodes back.
    #[serde(default)]
    pub blockers: Blockers,
    /// How a node is emptied.
    #[serde(default)]
    pub drain: Drain,
    /// Nothing more is granted.
    #[serde(default)]
    pub paused: bool,
    /// Nothing is granted; nodes say when they would have been.
    #[serde(default)]
    pub dry_run: bool,
}

fn one() -> IntOrString {
    IntOrString::Int(1)
}

fn yes() -> bool {
    true
}

fn half_a_minute() -> i64 {
    30
}

fn quarter_of_an_hour() -> i64 {
    900
}

fn three() -> i32 {
    3
}

impl Default for RebootPolicySpec {
    /// What counts for nodes without a policy.
    fn default() -> Self {
        Self {
            node_selector: LabelSelector::default(),
            priority: 0,
            max_unavailable: one(),
            min_available: None,
            count_cordoned: yes(),
            windows: Vec::new(),
            minimum_gap_seconds: 0,
            jitter_seconds: 0,
            settle_seconds: half_a_minute(),
            boot_timeout_seconds: quarter_of_an_hour(),
            failure_threshold: three(),
            order: Order::default(),
            control_plane: ControlPlane::default(),
            requests: Requests::default(),
            blockers: Blockers::default(),
            drain: Drain::default(),
            paused: false,
            dry_run: false,
        }
    }
}

/// Who comes first.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Order {
    /// Who has waited longest, across windows.
    #[default]
    LongestWaiting,
    /// By name.
    Name,
}

/// When it is the turn of control-plane nodes. There is never more than one of them away.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum ControlPlane {
    /// After all others.
    #[default]
    Last,
    /// Before all others.
    First,
    /// As any other.
    Any,
}

/// What asks for reboots, besides annotations.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// The nodes that this query names want to reboot; none unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<NodeAlerts>,
}

/// A question to Prometheus that nodes answer.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAlerts {
    /// Where Prometheus is, such as `http://prometheus.monitoring:9090`.
    #[schemars(length(min = 1, max = 1024), pattern(r"^https?://"))]
    pub url: String,
    /// Each series of its result names a node; a Prometheus that does not answer names none.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// The label with the name of the node; a port behind it is left out.
    #[serde(default = "node")]
    #[schemars(length(min = 1, max = 256))]
    pub label: String,
    /// How long after the end of its last reboot a node is not asked again: alerts go on for a while after their cause is gone.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 60, max = 604_800))]
    pub repeat_after_seconds: i64,
}

fn node() -> String {
    "node".into()
}

fn an_hour() -> i64 {
    3600
}

/// What holds nodes back.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blockers {
    /// A node with a pod that one of these selects does not reboot while the pod runs.
    #[serde(default)]
    #[schemars(length(max = 20))]
    #[schemars(with = "Vec<schemas::LabelSelector>")]
    pub pods: Vec<LabelSelector>,
    /// Nothing is granted while this query has a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<Alerts>,
}

/// A question to Prometheus.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alerts {
    /// Where Prometheus is, such as `http://prometheus.monitoring:9090`.
    #[schemars(length(min = 1, max = 1024), pattern(r"^https?://"))]
    pub url: String,
    /// Any result blocks; firing alerts unless said. A Prometheus that does not answer blocks too.
    #[serde(default = "firing")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
}

fn firing() -> String {
    r#"ALERTS{alertstate="firing"}"#.into()
}

/// How a node is emptied before it reboots.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Whether pods are moved at all.
    #[serde(default)]
    pub mode: DrainMode,
    /// How long pods may take to go.
    #[serde(default = "quarter_of_an_hour")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: i64,
    /// What follows when they do not.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// What happens to pods that nobody would make again.
    #[serde(default)]
    pub unmanaged_pods: UnmanagedPods,
    /// How long each pod has to end; its own time unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub grace_period_seconds: Option<i64>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            mode: DrainMode::default(),
            timeout_seconds: quarter_of_an_hour(),
            on_timeout: OnTimeout::default(),
            unmanaged_pods: UnmanagedPods::default(),
            grace_period_seconds: None,
        }
    }
}

/// Whether pods are moved.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum DrainMode {
    /// By eviction, so that disruption budgets are kept.
    #[default]
    Evict,
    /// Pods stay, and start again with the node: for clusters with nowhere to go.
    None,
}

/// What follows when pods do not go in time.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum OnTimeout {
    /// The node is uncordoned, gives its slot back and tries again later.
    #[default]
    GiveUp,
    /// The node reboots with the pods that are left, whatever their budgets say.
    Reboot,
}

/// What happens to pods without a controller.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum UnmanagedPods {
    /// They stay, and start again with the node: evicted, they would be lost.
    #[default]
    Leave,
    /// They are evicted.
    Evict,
}

/// What the controller last saw of a pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootPolicyStatus {
    /// The generation of the spec this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many nodes it counts for.
    #[serde(default)]
    pub nodes: i64,
    /// How many of them wait for a reboot.
    #[serde(default)]
    pub needed: i64,
    /// How many of them may reboot now.
    #[serde(default)]
    pub granted: i64,
    /// How many of them are unavailable, for whatever reason.
    #[serde(default)]
    pub unavailable: i64,
    /// How many may be.
    #[serde(default)]
    pub limit: i64,
    /// `BreakerOpen`: too many nodes did not come back. `Valid`: the policy can be read.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
