//! Reboots requested by Prometheus alerts.
//!
//! Inputs: policies with a query, nodes. Output: requests, as an administrator writes them.
//!
//! Guarantees: an alert requests once: a node that waits, reboots or has just rebooted is skipped,
//! however long its alert fires; a failed query requests nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

use super::{
    plan::{NodeEvent, NodeUpdate, Nodes},
    prometheus::{self, Labels},
};
use crate::{
    parsed_policy::ParsedPolicy,
    policy::NodeAlerts,
    state::{NodePatch, NodeState},
};

/// The requests of all policies.
pub(crate) async fn alert_requests(
    policies: &[ParsedPolicy],
    nodes: &Nodes,
    now: Timestamp,
) -> Vec<NodeUpdate> {
    let mut requests = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        let alerts = policy.spec.requests.alerts.as_ref();
        let Some(alerts) = alerts.filter(|_| policy.has_alert_requests()) else {
            continue;
        };
        let series = match prometheus::query(&alerts.url, &alerts.query).await {
            Ok(series) => series,
            Err(error) => {
                warn!(
                    policy = policy.name,
                    url = alerts.url,
                    error,
                    "cannot query Prometheus for nodes that need a reboot"
                );
                continue;
            }
        };
        let by_node = series_by_node(&series, &alerts.label);
        // A query requests reboots only in the pool of its policy.
        let pool = nodes.values().filter(|node| {
            let mut policies = policies.iter();
            policies.position(|policy| policy.selects(node)) == Some(index)
        });
        requests.extend(pool.filter_map(|node| {
            let series = by_node.get(node.name.as_str())?;
            request(node, alerts, series, now)
        }));
    }
    requests
}

/// Series by the node that their label names, without a port.
fn series_by_node<'a>(series: &'a [Labels], label: &str) -> BTreeMap<&'a str, &'a Labels> {
    // `instance`, the most common label of targets, has a port.
    let without_port = |value: &'a str| value.split_once(':').map_or(value, |(host, _)| host);
    series
        .iter()
        .filter_map(|labels| Some((without_port(labels.get(label)?), labels)))
        .collect()
}

/// The request of a node that a series names.
fn request(
    node: &NodeState,
    alerts: &NodeAlerts,
    series: &Labels,
    now: Timestamp,
) -> Option<NodeUpdate> {
    let is_pending =
        node.needed().is_some() || node.has_order() || node.is_in_progress() || node.is_terminating;
    let repeat_after = SignedDuration::from_secs(alerts.repeat_after_seconds);
    // An alert keeps firing for its own range after the cause is gone, and must not reboot the node
    // a second time.
    let is_recent = node
        .last()
        .is_some_and(|last| now.duration_since(last.at) < repeat_after);
    if is_pending || is_recent {
        return None;
    }
    let alert_name = series.get("alertname").map_or("", String::as_str);
    let reason = format!("alert {alert_name}").trim().to_owned();
    Some(NodeUpdate {
        node: node.name.clone(),
        patch: NodePatch::request(&reason),
        event: Some(NodeEvent::Requested { reason }),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::{super::prometheus::tests, *};
    use crate::{
        annotations::{GrantId, IN_PROGRESS, LAST, LastReboot, NEEDED, NOW, RebootResult},
        policy::RebootPolicy,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn node(name: &str) -> NodeState {
        NodeState {
            name: name.into(),
            ..NodeState::default()
        }
    }

    fn policies(url: &str, label: &str) -> Vec<ParsedPolicy> {
        let alerts = json!({"url": url, "query": "reboot_required > 0", "label": label});
        let policy: RebootPolicy = serde_json::from_value(json!({
            "apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootPolicy",
            "metadata": {"name": "all"},
            "spec": {"requests": {"alerts": alerts}},
        }))
        .expect("a RebootPolicy");
        ParsedPolicy::parse_all([&policy])
    }

    async fn requests(label: &str, nodes: &[NodeState]) -> Vec<NodeUpdate> {
        let (url, _request) = tests::serve("200 OK", tests::TWO_SERIES.into()).await;
        let nodes = nodes
            .iter()
            .map(|node| (node.name.clone(), Arc::new(node.clone())))
            .collect();
        alert_requests(&policies(&url, label), &nodes, at(10_000)).await
    }

    #[tokio::test]
    async fn alert_requests_a_reboot_of_the_node_it_names() {
        let expected = |node: &str, reason: &str| NodeUpdate {
            node: node.into(),
            patch: NodePatch::request(reason),
            event: Some(NodeEvent::Requested {
                reason: reason.into(),
            }),
        };
        let nodes = [node("a"), node("b"), node("c")];
        let by_node = requests("node", &nodes).await;
        assert_eq!(by_node, [expected("a", "alert DiskFull")]);
        let by_instance = requests("instance", &nodes).await;
        assert_eq!(by_instance, [expected("b", "alert")]);
    }

    #[tokio::test]
    async fn firing_alert_requests_one_reboot() {
        let rebooted_at = |second| LastReboot {
            id: GrantId::parse("g-1").expect("an ID"),
            result: RebootResult::Done,
            at: at(second),
            failures: 0,
        };
        let terminating = NodeState {
            is_terminating: true,
            ..node("a")
        };
        for (what, node, is_requested) in [
            (
                "it waits",
                node("a").with_annotation(NEEDED, "kernel"),
                false,
            ),
            (
                "it has an order",
                node("a").with_annotation(NOW, "x"),
                false,
            ),
            (
                "a reboot is in progress",
                node("a").with_annotation(IN_PROGRESS, "x"),
                false,
            ),
            ("it is terminating", terminating, false),
            (
                "it has just rebooted",
                node("a").with_annotation(LAST, rebooted_at(9_999)),
                false,
            ),
            (
                "it rebooted an hour ago",
                node("a").with_annotation(LAST, rebooted_at(6_400)),
                true,
            ),
        ] {
            let requests = requests("node", &[node]).await;
            assert_eq!(!requests.is_empty(), is_requested, "{what}");
        }
    }

    #[tokio::test]
    async fn failed_query_requests_nothing() {
        let (url, _request) = tests::serve("500 Internal Server Error", String::new()).await;
        let nodes = Nodes::from([("a".to_owned(), Arc::new(node("a")))]);
        let requests = alert_requests(&policies(&url, "node"), &nodes, at(0)).await;
        assert_eq!(requests, []);
    }
}
