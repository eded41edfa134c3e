//! Health: what a node's silence and its conditions mean for it.
//!
//! In: a Node, whether it is silent, whether its pods may be driven out. Out: conditions to write, taints it should have.
//! Holds: taints that are not ours stay as they are; a taint that is there already keeps its time.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::node_status::condition;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Condition, the status of it that taints, the taint.
const TAINTS: [(&str, &str, &str); 6] = [
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

/// What nobody knows any more of a silent node.
const UNKNOWN: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Whether the pods of a node that is not well may be driven out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveOut {
    /// They may.
    Yes,
    /// Not now, but those that are being driven out still are.
    NotNow,
    /// Nobody is, whatever was decided before: the fault is not the nodes'.
    Nobody,
}

/// The status of the node's condition `Ready`; empty if it has none.
pub(crate) fn readiness(node: &Node) -> &str {
    node.status
        .as_ref()
        .and_then(|status| condition(status, "Ready"))
        .map_or("", |ready| &ready.status)
}

/// Whether the node drives its pods out already.
pub(crate) fn drives_out(node: &Node) -> bool {
    taints_of(node).any(|taint| {
        taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE)
    })
}

/// The conditions of a silent node that still claim to know something.
pub(crate) fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let known = |type_: &str| {
        node.status
            .as_ref()
            .and_then(|status| condition(status, type_))
    };
    let unknown = UNKNOWN.into_iter().filter_map(|type_| match known(type_) {
        Some(known) if known.status == "Unknown" => None,
        Some(known) => Some(NodeCondition {
            status: "Unknown".into(),
            reason: Some("NodeStatusUnknown".into()),
            message: Some("Kubelet stopped posting node status.".into()),
            last_transition_time: Some(Time(now)),
            ..known.clone()
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

/// The taints the node should have, if they are others than it has.
pub(crate) fn taints(node: &Node, drive_out: DriveOut, now: Timestamp) -> Option<Vec<Taint>> {
    let status = |type_: &str| {
        node.status
            .as_ref()
            .and_then(|status| condition(status, type_))
            .map(|condition| condition.status.as_str())
    };
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (type_, when, key) in TAINTS {
        if status(type_) == Some(when) {
            wanted.push((key, NO_SCHEDULE));
            let out = match drive_out {
                DriveOut::Yes => true,
                DriveOut::NotNow => drives_out(node),
                DriveOut::Nobody => false,
            };
            if type_ == "Ready" && out {
                wanted.push((key, NO_EXECUTE));
            }
        }
    }
    if unschedulable {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let is_wanted = |taint: &Taint| {
        wanted
            .iter()
            .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
    };
    let mut taints: Vec<_> = taints_of(node)
        .filter(|taint| !is_ours(taint) || is_wanted(taint))
        .cloned()
        .collect();
    let missing = wanted.iter().filter(|(key, effect)| {
        !taints_of(node).any(|taint| taint.key == *key && taint.effect == *effect)
    });
    let missing: Vec<_> = missing
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

/// Whether a taint follows from what is known of the node, and from nothing else.
fn is_ours(taint: &Taint) -> bool {
    let by_condition = TAINTS.iter().any(|(_, _, key)| taint.key == *key);
    match taint.effect.as_str() {
        NO_SCHEDULE => by_condition || taint.key == UNSCHEDULABLE,
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
        let node = json!({"spec": {"taints": taints, "unschedulable": unschedulable}, "status": {"conditions": conditions}});
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
        use DriveOut::{Nobody, NotNow, Yes};
        let cases = [
            ("Ready=True", "", false, Yes, None),
            ("Ready=True", "not-ready:NoSchedule", false, Yes, Some("")),
            (
                "Ready=True",
                "unreachable:NoSchedule unreachable:NoExecute me.io/x:NoExecute",
                false,
                Yes,
                Some("me.io/x:NoExecute"),
            ),
            (
                "Ready=False",
                "",
                false,
                Yes,
                Some("not-ready:NoSchedule not-ready:NoExecute"),
            ),
            (
                "Ready=False",
                "",
                false,
                NotNow,
                Some("not-ready:NoSchedule"),
            ),
            (
                "Ready=Unknown",
                "not-ready:NoSchedule not-ready:NoExecute",
                false,
                NotNow,
                Some("unreachable:NoSchedule unreachable:NoExecute"),
            ),
            (
                "Ready=Unknown",
                "unreachable:NoSchedule unreachable:NoExecute",
                false,
                NotNow,
                None,
            ),
            (
                "Ready=Unknown",
                "unreachable:NoSchedule unreachable:NoExecute",
                false,
                Nobody,
                Some("unreachable:NoSchedule"),
            ),
            (
                "Ready=True DiskPressure=True",
                "",
                true,
                Yes,
                Some("disk-pressure:NoSchedule unschedulable:NoSchedule"),
            ),
            ("Ready=True", "unschedulable:NoSchedule", true, Yes, None),
            (
                "Ready=True",
                "unschedulable:NoSchedule",
                false,
                Yes,
                Some(""),
            ),
        ];
        for (conditions, has, unschedulable, drive_out, wanted) in cases {
            let got = taints(
                &node(conditions, has, unschedulable),
                drive_out,
                Timestamp::UNIX_EPOCH,
            );
            let got = got.map(|taints| {
                let shown = taints.iter().map(|taint| {
                    format!(
                        "{}:{}",
                        taint.key.trim_start_matches("node.kubernetes.io/"),
                        taint.effect
                    )
                });
                shown.collect::<Vec<_>>().join(" ")
            });
            assert_eq!(
                got.as_deref(),
                wanted,
                "{conditions} with {has} {drive_out:?}"
            );
        }
    }

    #[test]
    fn silent_node_is_unknown_in_what_kubelets_say() {
        let told = |conditions: &str| -> Vec<String> {
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
            told(
                "Ready=True MemoryPressure=False DiskPressure=Unknown PIDPressure=Unknown NetworkUnavailable=False"
            ),
            stopped
        );
        assert_eq!(told("")[0], "Ready NodeStatusNeverUpdated");
        assert!(
            told("Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown")
                .is_empty()
        );
    }
}
