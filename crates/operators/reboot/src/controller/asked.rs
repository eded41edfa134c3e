//! Asked: reboots that Prometheus asks for.
//!
//! In: rules with a query, nodes. Out: requests, as a person would write them.
//! Holds: one alert asks once: a node that waits, reboots or rebooted not long ago is left alone, however long its alert goes on; a Prometheus
//! that does not answer asks for nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

use super::{
    plan::{Deed, Nodes, Told},
    prometheus::{self, Labels},
};
use crate::{
    policy::NodeAlerts,
    rules::Rules,
    state::{Edit, NodeState},
};

/// The requests of all rules.
pub(crate) async fn by_alerts(rules: &[Rules], nodes: &Nodes, now: Timestamp) -> Vec<Deed> {
    let mut asked = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let Some(source) = rule.spec.requests.alerts.as_ref().filter(|_| rule.asks()) else {
            continue;
        };
        match prometheus::ask(&source.url, &source.query).await {
            Ok(found) => {
                let named = by_node(&found, &source.label);
                let own = nodes
                    .values()
                    .filter(|node| rules.iter().position(|rule| rule.selects(node)) == Some(place));
                asked.extend(
                    own.filter_map(|node| {
                        request(node, source, named.get(node.name.as_str())?, now)
                    }),
                );
            }
            Err(error) => warn!(
                policy = rule.policy,
                url = source.url,
                error,
                "Prometheus cannot be asked which nodes need a reboot"
            ),
        }
    }
    asked
}

/// Series by the node that a label names, with or without a port.
fn by_node<'a>(found: &'a [Labels], label: &str) -> BTreeMap<&'a str, &'a Labels> {
    let host = |value: &'a str| value.split_once(':').map_or(value, |(host, _)| host);
    found
        .iter()
        .filter_map(|series| Some((host(series.get(label)?), series)))
        .collect()
}

/// The request of a node that a series names.
fn request(node: &NodeState, source: &NodeAlerts, series: &Labels, now: Timestamp) -> Option<Deed> {
    let is_at_it = node.needed().is_some() || node.has_order() || node.is_busy() || node.going;
    let repeat = SignedDuration::from_secs(source.repeat_after_seconds);
    let is_recent = node
        .last()
        .is_some_and(|last| now.duration_since(last.at) < repeat);
    if is_at_it || is_recent {
        return None;
    }
    let why = format!(
        "alert {}",
        series.get("alertname").map_or("", String::as_str)
    )
    .trim()
    .to_owned();
    Some(Deed {
        node: node.name.clone(),
        edit: Edit::request(&why),
        told: Some(Told::Asked { why }),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::prometheus::tests, *};
    use crate::{
        notes::{Ended, Fate, GrantId, IN_PROGRESS, LAST, NEEDED, NOW},
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

    fn rules(url: &str, label: &str) -> Vec<Rules> {
        let alerts =
            serde_json::json!({"url": url, "query": "reboot_required > 0", "label": label});
        let policy: RebootPolicy = serde_json::from_value(serde_json::json!({
            "apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootPolicy", "metadata": {"name": "all"},
            "spec": {"requests": {"alerts": alerts}},
        }))
        .expect("a policy");
        Rules::of_all([&policy])
    }

    async fn asked(label: &str, nodes: &[NodeState]) -> Vec<Deed> {
        let (url, _asked) = tests::serve("200 OK", tests::TWO.into()).await;
        let nodes = nodes
            .iter()
            .map(|node| (node.name.clone(), Arc::new(node.clone())))
            .collect();
        by_alerts(&rules(&url, label), &nodes, at(10_000)).await
    }

    #[tokio::test]
    async fn nodes_that_an_alert_names_ask_for_a_reboot() {
        let told = |why: &str| Some(Told::Asked { why: why.into() });
        let nodes = [node("a"), node("b"), node("c")];
        assert_eq!(
            asked("node", &nodes).await,
            [Deed {
                node: "a".into(),
                edit: Edit::request("alert DiskFull"),
                told: told("alert DiskFull")
            }]
        );
        assert_eq!(
            asked("instance", &nodes).await,
            [Deed {
                node: "b".into(),
                edit: Edit::request("alert"),
                told: told("alert")
            }]
        );
    }

    #[tokio::test]
    async fn alert_that_goes_on_asks_once() {
        let ended = |second| Ended {
            id: GrantId::read("g-1").expect("an id"),
            result: Fate::Done,
            at: at(second),
            failures: 0,
        };
        for (what, node, asks) in [
            ("waits", node("a").with_note(NEEDED, "kernel"), false),
            ("may", node("a").with_note(NOW, "x"), false),
            ("is at it", node("a").with_note(IN_PROGRESS, "x"), false),
            (
                "is deleted",
                NodeState {
                    going: true,
                    ..node("a")
                },
                false,
            ),
            (
                "has just rebooted",
                node("a").with_note(LAST, ended(9_999)),
                false,
            ),
            (
                "rebooted an hour ago",
                node("a").with_note(LAST, ended(6_400)),
                true,
            ),
        ] {
            assert_eq!(!asked("node", &[node]).await.is_empty(), asks, "{what}");
        }
    }

    #[tokio::test]
    async fn prometheus_that_is_away_asks_for_nothing() {
        let (url, _asked) = tests::serve("500 Internal Server Error", String::new()).await;
        let nodes = [("a".to_owned(), Arc::new(node("a")))]
            .into_iter()
            .collect();
        assert_eq!(by_alerts(&rules(&url, "node"), &nodes, at(0)).await, []);
    }
}
