//! The custom resource RebootPolicy: how many nodes of a pool may be unavailable, when they may
//! reboot, what blocks them, and how they are drained.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::window::Window;

/// How the nodes of a pool reboot.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "reboot.bellerophon.io",
    version = "v1alpha1",
    kind = "RebootPolicy",
    plural = "rebootpolicies",
    shortname = "rbp",
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "RebootPolicyStatus",
    doc = "A RebootPolicy limits how many nodes of a pool are unavailable, and when they reboot.",
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
    /// The nodes of the pool, selected by their labels. Default: all nodes.
    #[serde(default)]
    #[schemars(with = "schemas::LabelSelector")]
    pub node_selector: LabelSelector,
    /// If several policies select a node, the one with the highest priority applies, then the first
    /// by name.
    #[serde(default)]
    pub priority: i32,
    /// The maximum number of unavailable nodes: a number, or a percentage, rounded down to at least
    /// one.
    #[serde(default = "one")]
    #[schemars(with = "schemas::IntOrString")]
    pub max_unavailable: IntOrString,
    /// The minimum number of available nodes: a number, or a percentage, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schemas::IntOrString>")]
    pub min_available: Option<IntOrString>,
    /// Whether nodes that were cordoned by others count as unavailable.
    #[serde(default = "yes")]
    pub count_cordoned: bool,
    /// When reboots may start. Default: always.
    #[serde(default)]
    #[schemars(length(max = 50))]
    pub windows: Vec<Window>,
    /// The minimum time between a grant or the end of one and the next grant.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub minimum_gap_seconds: i64,
    /// The maximum of a jitter that is added to the minimum gap.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub jitter_seconds: i64,
    /// How long a node must be Ready after its reboot before its slot is released.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 0, max = 86_400))]
    pub settle_seconds: i64,
    /// How long a node may take to come back after its drain before it is considered lost.
    #[serde(default = "quarter_of_an_hour")]
    #[schemars(range(min = 60, max = 86_400))]
    pub boot_timeout_seconds: i64,
    /// The number of lost nodes at which no further reboots of the pool are granted.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 10_000))]
    pub failure_threshold: i32,
    /// Which waiting node is granted first.
    #[serde(default)]
    pub order: Order,
    /// When control-plane nodes reboot.
    #[serde(default)]
    pub control_plane: ControlPlane,
    /// What requests reboots in addition to annotations.
    #[serde(default)]
    pub requests: Requests,
    /// What blocks reboots.
    #[serde(default)]
    pub blockers: Blockers,
    /// How a node is drained.
    #[serde(default)]
    pub drain: Drain,
    /// Whether no further reboots are granted.
    #[serde(default)]
    pub paused: bool,
    /// Whether no reboots are granted; nodes that would be granted have the reason `DryRun`.
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
    /// The policy of nodes that no RebootPolicy selects.
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

/// Which waiting node is granted first.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Order {
    /// The node that has waited longest, across windows.
    #[default]
    LongestWaiting,
    /// The first node by name.
    Name,
}

/// When control-plane nodes reboot. At most one of them has a grant.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum ControlPlane {
    /// After all other nodes.
    #[default]
    Last,
    /// Before all other nodes.
    First,
    /// As any other node.
    Any,
}

/// What requests reboots in addition to annotations.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// A Prometheus query for nodes that need a reboot. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<NodeAlerts>,
}

/// A Prometheus query whose series name nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAlerts {
    /// The URL of Prometheus, such as `http://prometheus.monitoring:9090`.
    #[schemars(length(min = 1, max = 1024), pattern(r"^https?://"))]
    pub url: String,
    /// The query. Each series of its result names a node. A failed query names none.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// The label with the name of the node. A port is removed from its value.
    #[serde(default = "node")]
    #[schemars(length(min = 1, max = 256))]
    pub label: String,
    /// How long after its last reboot a node is not requested again, since alerts keep firing for
    /// some time after their cause is resolved.
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

/// What blocks reboots.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blockers {
    /// Label selectors of pods. A node does not reboot while a selected pod runs on it.
    #[serde(default)]
    #[schemars(length(max = 20))]
    #[schemars(with = "Vec<schemas::LabelSelector>")]
    pub pods: Vec<LabelSelector>,
    /// A Prometheus query. No reboots are granted while it has a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<Alerts>,
}

/// A Prometheus query that blocks reboots.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alerts {
    /// The URL of Prometheus, such as `http://prometheus.monitoring:9090`.
    #[schemars(length(min = 1, max = 1024), pattern(r"^https?://"))]
    pub url: String,
    /// The query. Any result and any failure of the query block. Default: firing alerts.
    #[serde(default = "firing")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
}

fn firing() -> String {
    r#"ALERTS{alertstate="firing"}"#.into()
}

/// How a node is drained before it reboots.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Whether pods are evicted.
    #[serde(default)]
    pub mode: DrainMode,
    /// The maximum duration of the drain.
    #[serde(default = "quarter_of_an_hour")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: i64,
    /// What happens after the timeout.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// What happens to pods without a controller, which would not be recreated.
    #[serde(default)]
    pub unmanaged_pods: UnmanagedPods,
    /// The grace period of each pod. Default: the pod's own.
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

/// Whether pods are evicted.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum DrainMode {
    /// Through the eviction API, which respects PodDisruptionBudgets.
    #[default]
    Evict,
    /// Pods stay and restart with the node, for clusters without spare capacity.
    None,
}

/// What happens after the timeout of a drain.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum OnTimeout {
    /// The node is uncordoned, its slot is released, and it waits for another grant.
    #[default]
    GiveUp,
    /// The node reboots with the remaining pods, regardless of their PodDisruptionBudgets.
    Reboot,
}

/// What happens to pods without a controller.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum UnmanagedPods {
    /// They stay and restart with the node.
    #[default]
    Leave,
    /// They are evicted and not recreated.
    Evict,
}

/// The observed state of a pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootPolicyStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of nodes in the pool.
    #[serde(default)]
    pub nodes: i64,
    /// The number of nodes that wait for a reboot.
    #[serde(default)]
    pub needed: i64,
    /// The number of nodes with a grant.
    #[serde(default)]
    pub granted: i64,
    /// The number of unavailable nodes.
    #[serde(default)]
    pub unavailable: i64,
    /// The maximum number of unavailable nodes.
    #[serde(default)]
    pub limit: i64,
    /// `BreakerOpen`: too many nodes did not come back. `Valid`: the policy is valid.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
