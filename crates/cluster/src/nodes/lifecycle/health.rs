//! Node health: conditions of nodes without heartbeats, and taints that follow from conditions.
//!
//! In: a Node, whether its grace period has ended, the `NoExecute` policy. Out: conditions to
//! write, desired taints.
//! Guarantees: taints of others are kept; an existing taint keeps its `timeAdded`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::node_status::condition;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Condition type, condition status, taint key (upstream `nodeConditionToTaintKeyStatusMap`).
const CONDITION_TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// The conditions that become `Unknown` without heartbeats.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What to do with the `NoExecute` taint of an unhealthy node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoExecutePolicy {
    /// Add it: the pods are evicted.
    Add,
    /// Keep it if the node has it, but do not add it now.
    Keep,
    /// Remove it: no node is ready, so the nodes are not the cause.
    Remove,
}

/// The status of the `Ready` condition; empty without one.
pub(crate) fn ready_status(node: &Node) -> &str {
    node.status
        .as_ref()
        .and_then(|status| condition(status, "Ready"))
        .map_or("", |ready| &ready.status)
}

/// Whether the node has the `NoExecute` taint of an unhealthy node.
pub(crate) fn has_no_execute_taint(node: &Node) -> bool {
    taints_of(node).any(|taint| {
        taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE)
    })
}

/// The conditions to set to `Unknown` on a node without heartbeats. Mirrors `tryUpdateNodeHealth`.
pub(crate) fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let current = |type_: &str| {
        node.status
            .as_ref()
            .and_then(|status| condition(status, type_))
    };
    let unknown = KUBELET_CONDITIONS
        .into_iter()
        .filter_map(|type_| match current(type_) {
            Some(current) if current.status == "Unknown" => None,
            Some(current) => Some(NodeCondition {
                status: "Unknown".into(),
                reason: Some("NodeStatusUnknown".into()),
                message: Some("Kubelet stopped posting node status.".into()),
                last_transition_time: Some(Time(now)),
                ..current.clone()
            }),
            None => Some(NodeCondition {
                type_: type_.into(),
                status: "Unknown".into(),
                reason: Some("NodeStatusNeverUpdated".into()),
                message: Some("Kubelet never posted node status.".into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
            }),
        });
    unknown.collect()
}

/// The desired taints of a node; `None` if it has them. Mirrors `doNoScheduleTaintingPass` and
/// `processTaintBaseEviction`.
pub(crate) fn desired_taints(
    node: &Node,
    no_execute: NoExecutePolicy,
    now: Timestamp,
) -> Option<Vec<Taint>> {
    let status = |type_: &str| {
        node.status
            .as_ref()
            .and_then(|status| condition(status, type_))
            .map(|condition| condition.status.as_str())
    };
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let mut desired: Vec<(&str, &str)> = Vec::new();
    let has_no_execute = match no_execute {
        NoExecutePolicy::Add => true,
        NoExecutePolicy::Keep => has_no_execute_taint(node),
        NoExecutePolicy::Remove => false,
    };
    for (type_, condition_status, key) in CONDITION_TAINTS {
        if status(type_) == Some(condition_status) {
            desired.push((key, NO_SCHEDULE));
            // Pressure conditions repel new pods but evict none.
            if type_ == "Ready" && has_no_execute {
                desired.push((key, NO_EXECUTE));
            }
        }
    }
    if unschedulable {
        desired.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let is_desired = |taint: &Taint| {
        desired
            .iter()
            .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
    };
    let mut taints: Vec<_> = taints_of(node)
        .filter(|taint| !is_managed(taint) || is_desired(taint))
        .cloned()
        .collect();
    let missing: Vec<_> = desired
        .iter()
        .filter(|(key, effect)| {
            !taints_of(node).any(|taint| taint.key == *key && taint.effect == *effect)
        })
        .map(|(key, effect)| Taint {
            key: (*key).into(),
            effect: (*effect).into(),
            value: None,
            time_added: Some(Time(now)),
        })
        .collect();
    let unchanged = missing.is_empty() && taints.len() == taints_of(node).count();
    taints.extend(missing);
    (!unchanged).then_some(taints)
}

/// Whether this controller adds and removes the taint.
fn is_managed(taint: &Taint) -> bool {
    let is_condition_taint = CONDITION_TAINTS.iter().any(|(_, _, key)| taint.key == *key);
    match taint.effect.as_str() {
        NO_SCHEDULE => is_condition_taint || taint.key == UNSCHEDULABLE,
        NO_EXECUTE => taint.key == NOT_READY || taint.key == UNREACHABLE,
        _ => false,
    }
}

fn taints_of(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A node with conditions as `Type=Status` and taints as `key:Effect`.
    fn node(conditions: &str, taints: &str, unschedulable: bool) -> Node {
        let conditions: Vec<_> = conditions
            .split_whitespace()
            .map(|c| c.split_once('=').unwrap())
            .map(|(t, s)| json!({"type": t, "status": s}))
            .collect();
        let taints: Vec<_> = taints
            .split_whitespace()
            .map(|t| t.split_once(':').unwrap())
            .map(|(k, e)| json!({"key": full(k), "effect": e}))
            .collect();
        let node = json!({
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"conditions": conditions},
        });
        serde_json::from_value(node).unwrap()
    }

    fn full(key: &str) -> String {
        if key.contains('/') {
            key.into()
        } else {
            format!("node.kubernetes.io/{key}")
        }
    }

    #[test]
    fn taints_follow_conditions() {
        use NoExecutePolicy::{Add, Keep, Remove};
        let cases = [
            ("Ready=True", "", false, Add, None),
            ("Ready=True", "not-ready:NoSchedule", false, Add, Some("")),
            (
                "Ready=True",
                "unreachable:NoSchedule unreachable:NoExecute me.io/x:NoExecute",
                false,
                Add,
                Some("me.io/x:NoExecute"),
            ),
            (
                "Ready=False",
                "",
                false,
                Add,
                Some("not-ready:NoSchedule not-ready:NoExecute"),
            ),
            ("Ready=False", "", false, Keep, Some("not-ready:NoSchedule")),
            (
                "Ready=Unknown",
                "not-ready:NoSchedule not-ready:NoExecute",
                false,
                Keep,
                Some("unreachable:NoSchedule unreachable:NoExecute"),
            ),
            (
                "Ready=Unknown",
                "unreachable:NoSchedule unreachable:NoExecute",
                false,
                Keep,
                None,
            ),
            (
                "Ready=Unknown",
                "unreachable:NoSchedule unreachable:NoExecute",
                false,
                Remove,
                Some("unreachable:NoSchedule"),
            ),
            (
                "Ready=True DiskPressure=True",
                "",
                true,
                Add,
                Some("disk-pressure:NoSchedule unschedulable:NoSchedule"),
            ),
            ("Ready=True", "unschedulable:NoSchedule", true, Add, None),
            (
                "Ready=True",
                "unschedulable:NoSchedule",
                false,
                Add,
                Some(""),
            ),
        ];
        for (conditions, current, unschedulable, no_execute, expected) in cases {
            let desired = desired_taints(
                &node(conditions, current, unschedulable),
                no_execute,
                Timestamp::UNIX_EPOCH,
            );
            let desired = desired.map(|taints| {
                let taints = taints.iter().map(|taint| {
                    format!(
                        "{}:{}",
                        taint.key.trim_start_matches("node.kubernetes.io/"),
                        taint.effect
                    )
                });
                taints.collect::<Vec<_>>().join(" ")
            });
            assert_eq!(
                desired.as_deref(),
                expected,
                "{conditions} with {current} {no_execute:?}"
            );
        }
    }

    #[test]
    fn kubelet_conditions_become_unknown_without_heartbeats() {
        let unknown = |conditions: &str| -> Vec<String> {
            let unknown = unknown_conditions(&node(conditions, "", false), Timestamp::UNIX_EPOCH);
            unknown
                .into_iter()
                .map(|c| format!("{} {}", c.type_, c.reason.unwrap()))
                .collect()
        };
        let stopped = [
            "Ready NodeStatusUnknown",
            "MemoryPressure NodeStatusUnknown",
        ];
        assert_eq!(
            unknown(
                "Ready=True MemoryPressure=False DiskPressure=Unknown PIDPressure=Unknown \
                 NetworkUnavailable=False"
            ),
            stopped
        );
        assert_eq!(unknown("")[0], "Ready NodeStatusNeverUpdated");
        assert!(
            unknown(
                "Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown"
            )
            .is_empty()
        );
    }
}
