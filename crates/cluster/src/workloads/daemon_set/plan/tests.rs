//! Plans for nodes and pods given as text.

use serde_json::{Value, json};

use super::*;
use crate::workloads::revision::CONTROLLER_REVISION_HASH_LABEL;
use crate::workloads::test_objects::pod;

/// A DaemonSet with an update strategy.
fn set(strategy: Value) -> DaemonSet {
    let template = json!({ "spec": { "containers": [] } });
    serde_json::from_value(json!({
        "metadata": { "name": "agent", "generation": 2 },
        "spec": { "selector": {}, "template": template, "updateStrategy": strategy },
    }))
    .unwrap()
}

fn rolling(max_surge: Value, max_unavailable: Value) -> Value {
    json!({
        "type": "RollingUpdate",
        "rollingUpdate": { "maxSurge": max_surge, "maxUnavailable": max_unavailable },
    })
}

/// `node:revision:state` per pod. States: `ready`, `unready`, `failed`, `succeeded`, `terminating`.
fn pods(text: &str) -> PodsByNode {
    let mut by_node = PodsByNode::new();
    for (index, pod_text) in text.split_whitespace().enumerate() {
        let parts: Vec<_> = pod_text.split(':').collect();
        let builder = pod(&format!("{}-{}", parts[0], parts[1]))
            .label(CONTROLLER_REVISION_HASH_LABEL, parts[1])
            .created(index as i64)
            .on(parts[0]);
        let builder = match parts[2] {
            "ready" => builder.running().ready(),
            "unready" => builder.running(),
            "failed" => builder.phase("Failed"),
            "succeeded" => builder.phase("Succeeded"),
            _ => builder.running().ready().deleting(),
        };
        by_node
            .entry(parts[0].into())
            .or_default()
            .push(builder.cached());
    }
    by_node
}

/// Nodes by name: `name` should run a pod, `name?` continues to run one, `name!` should not.
fn nodes(text: &str) -> BTreeMap<String, NodeEligibility> {
    let eligibility = |node: &str| match node.chars().last() {
        Some('?') => NodeEligibility::ContinueRunning,
        Some('!') => NodeEligibility::Excluded,
        _ => NodeEligibility::Run,
    };
    text.split_whitespace()
        .map(|node| {
            (
                node.trim_end_matches(['?', '!']).to_owned(),
                eligibility(node),
            )
        })
        .collect()
}

fn check(case: &str, strategy: &Value, node_text: &str, pod_text: &str, expected: &str) {
    let set = set(strategy.clone());
    let state = DaemonSetState {
        set: &set,
        hash: "new",
        nodes: &nodes(node_text),
        pods: &pods(pod_text),
        now: Timestamp::from_second(100).unwrap(),
    };
    let plan = plan(&state, |_| None);
    let mut actions: Vec<_> = plan.create.iter().map(|node| format!("+{node}")).collect();
    actions.extend(plan.delete.iter().map(|pod| format!("-{}", pod.name_any())));
    actions.sort();
    assert_eq!(
        actions.join(" "),
        expected,
        "{case}: nodes {node_text}, pods {pod_text}"
    );
}

#[test]
fn every_eligible_node_has_one_pod() {
    let strategy = rolling(json!(0), json!(1));
    for (case, nodes, pods, expected) in [
        ("no pods", "a b c!", "", "+a +b"),
        ("complete", "a b", "a:new:ready b:new:ready", ""),
        ("continues to run", "a?", "a:new:ready", ""),
        ("not created where it only continues to run", "a?", "", ""),
        ("should not run", "a!", "a:new:ready", "-a-new"),
        ("should not run, terminating", "a!", "a:new:terminating", ""),
        (
            "terminating pod is replaced when it is gone",
            "a",
            "a:new:terminating",
            "",
        ),
        ("failed", "a", "a:new:failed", "-a-new"),
        ("succeeded", "a", "a:new:succeeded", "-a-new"),
        (
            "surplus: the newer is deleted",
            "a",
            "a:old:ready a:new:ready",
            "-a-new",
        ),
    ] {
        check(case, &strategy, nodes, pods, expected);
    }
}

#[test]
fn rolling_update_respects_max_unavailable() {
    for (case, max, nodes, pods, expected) in [
        (
            "one",
            json!(1),
            "a b c",
            "a:old:ready b:old:ready c:old:ready",
            "-a-old",
        ),
        (
            "one is in progress",
            json!(1),
            "a b c",
            "a:new:unready b:old:ready c:old:ready",
            "",
        ),
        (
            "one is terminating",
            json!(1),
            "a b c",
            "a:old:terminating b:old:ready c:old:ready",
            "",
        ),
        (
            "next one",
            json!(1),
            "a b c",
            "a:new:ready b:old:ready c:old:ready",
            "-b-old",
        ),
        (
            "unavailable pods are deleted beyond the limit",
            json!(1),
            "a b c",
            "a:old:unready b:old:unready c:old:ready",
            "-a-old -b-old",
        ),
        (
            "half, rounded up",
            json!("50%"),
            "a b c",
            "a:old:ready b:old:ready c:old:ready",
            "-a-old -b-old",
        ),
        (
            "missing pods are created before the update",
            json!(1),
            "a b c",
            "a:old:ready b:old:ready",
            "+c",
        ),
    ] {
        check(case, &rolling(json!(0), max), nodes, pods, expected);
    }
    check(
        "on delete",
        &json!({ "type": "OnDelete" }),
        "a",
        "a:old:ready",
        "",
    );
}

#[test]
fn rolling_update_respects_max_surge() {
    for (case, max, nodes, pods, expected) in [
        ("one", json!(1), "a b", "a:old:ready b:old:ready", "+a"),
        (
            "one is in progress",
            json!(1),
            "a b",
            "a:old:ready a:new:unready b:old:ready",
            "",
        ),
        (
            "new pod is available",
            json!(1),
            "a b",
            "a:old:ready a:new:ready b:old:ready",
            "-a-old",
        ),
        (
            "unavailable pods are replaced beyond the limit",
            json!(1),
            "a b",
            "a:old:unready b:old:unready",
            "+a +b",
        ),
        (
            "old pod is not ready",
            json!(1),
            "a",
            "a:old:unready a:new:unready",
            "-a-old",
        ),
        (
            "only a terminating pod",
            json!(1),
            "a",
            "a:old:terminating",
            "+a",
        ),
        (
            "on an ineligible node, needed for availability",
            json!(1),
            "a? b",
            "a:old:ready b:new:unready",
            "",
        ),
        (
            "on an ineligible node, others are available",
            json!(1),
            "a? b",
            "a:old:ready b:new:ready",
            "-a-old",
        ),
    ] {
        check(case, &rolling(max, json!(0)), nodes, pods, expected);
    }
}

#[test]
fn failed_pod_is_replaced_after_back_off() {
    let set = set(rolling(json!(0), json!(1)));
    let nodes = nodes("a");
    let by_node = pods("a:new:failed");
    let state = DaemonSetState {
        set: &set,
        hash: "new",
        nodes: &nodes,
        pods: &by_node,
        now: Timestamp::from_second(100).unwrap(),
    };
    let delayed = plan(&state, |_| Some(Duration::from_secs(8)));
    assert!(delayed.delete.is_empty());
    assert!(delayed.events.is_empty());
    assert_eq!(delayed.requeue_after, Some(Duration::from_secs(8)));
    let replaced = plan(&state, |_| None);
    assert_eq!(
        replaced.events[0].note,
        "Found failed daemon pod default/a-new on node a, will try to kill it"
    );
}

#[test]
fn unscheduled_pod_of_a_missing_node_is_deleted() {
    let set = set(rolling(json!(0), json!(1)));
    let mut by_node = pods("missing:new:ready");
    by_node
        .entry("missing".into())
        .or_default()
        .push(pod("unscheduled").cached());
    let state = DaemonSetState {
        set: &set,
        hash: "new",
        nodes: &BTreeMap::new(),
        pods: &by_node,
        now: Timestamp::from_second(0).unwrap(),
    };
    let names: Vec<_> = plan(&state, |_| None)
        .delete
        .iter()
        .map(|pod| pod.name_any())
        .collect();
    assert_eq!(
        names,
        ["unscheduled"],
        "a scheduled pod is deleted by pod garbage collection"
    );
}

#[test]
fn status_counts_pods_per_node() {
    let set = set(rolling(json!(0), json!(1)));
    let nodes = nodes("a b c d? e!");
    let by_node = pods("a:new:ready b:old:ready c:new:unready d:old:ready e:old:terminating");
    let state = DaemonSetState {
        set: &set,
        hash: "new",
        nodes: &nodes,
        pods: &by_node,
        now: Timestamp::from_second(100).unwrap(),
    };
    let expected = DaemonSetStatus {
        desired_number_scheduled: 3,
        current_number_scheduled: 3,
        number_misscheduled: 2,
        number_ready: 2,
        updated_number_scheduled: Some(2),
        number_available: Some(2),
        number_unavailable: Some(1),
        observed_generation: Some(2),
        ..DaemonSetStatus::default()
    };
    assert_eq!(state.status(), expected);
}
