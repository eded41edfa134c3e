//! The blockers of policies: pods and Prometheus alerts.
//!
//! Inputs: policies with blockers, nodes with requests. Outputs: nodes blocked by pods, policies
//! blocked by alerts.
//!
//! Guarantees: blockers are evaluated only while a node of the policy waits; a failed query blocks.

use std::collections::BTreeSet;

use bellerophon::client::{ReconcileClient, WriteError};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{api::ListParams, core::Selector};
use tracing::warn;

use super::{
    plan::{ActiveBlockers, Nodes},
    prometheus,
};
use crate::{parsed_policy::ParsedPolicy, policy::Alerts};

/// Evaluates the blockers of all policies.
///
/// # Errors
/// Pods cannot be listed.
pub(crate) async fn evaluate(
    client: &ReconcileClient,
    policies: &[ParsedPolicy],
    nodes: &Nodes,
) -> Result<ActiveBlockers, WriteError> {
    let mut active = ActiveBlockers::default();
    for policy in policies {
        let is_waiting = nodes
            .values()
            .any(|node| node.needed().is_some() && policy.selects(node));
        // Lists of pods and queries cost most of a reconcile, and decide nothing without a request.
        if !is_waiting {
            continue;
        }
        for selector in &policy.spec.blockers.pods {
            let blocked = nodes_with_pods(client, selector).await?;
            // An invalid selector blocks every node.
            let blocked = blocked.unwrap_or_else(|| nodes.keys().cloned().collect());
            let by_pods = active.by_pods.entry(policy.name.clone()).or_default();
            by_pods.extend(blocked);
        }
        if let Some(alerts) = &policy.spec.blockers.alerts
            && is_blocked_by_alerts(alerts, &policy.name).await
        {
            active.by_alerts.insert(policy.name.clone());
        }
    }
    Ok(active)
}

/// The nodes of running pods that match a selector; `None` if the selector is invalid.
async fn nodes_with_pods(
    client: &ReconcileClient,
    selector: &LabelSelector,
) -> Result<Option<BTreeSet<String>>, WriteError> {
    let Ok(selector) = Selector::try_from(selector.clone()) else {
        return Ok(None);
    };
    let params = ListParams::default().labels_from(&selector);
    let pods = client.list::<Pod>(None, &params).await?;
    let running = pods.iter().filter(|pod| !is_finished(pod));
    let nodes = running.filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    Ok(Some(nodes.collect()))
}

fn is_finished(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the query fails or has a result.
async fn is_blocked_by_alerts(alerts: &Alerts, policy: &str) -> bool {
    match prometheus::query(&alerts.url, &alerts.query).await {
        Ok(series) if series.is_empty() => false,
        Ok(series) => {
            let names: Vec<&str> = series
                .iter()
                .map(|labels| labels.get("alertname").map_or("a series", String::as_str))
                .collect();
            warn!(policy, alerts = ?names, "alerts block reboots");
            true
        }
        Err(error) => {
            warn!(
                policy,
                url = alerts.url,
                error,
                "cannot query Prometheus, which blocks reboots"
            );
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::prometheus::tests::{TWO_SERIES, serve},
        *,
    };

    #[tokio::test]
    async fn only_an_empty_result_does_not_block() {
        for (status, body, is_blocked) in [
            ("200 OK", r#"{"data":{"result":[]}}"#, false),
            ("200 OK", TWO_SERIES, true),
            ("404 Not Found", "", true),
        ] {
            let (url, _request) = serve(status, body.into()).await;
            let alerts = Alerts {
                url,
                query: "up".into(),
            };
            assert_eq!(
                is_blocked_by_alerts(&alerts, "all").await,
                is_blocked,
                "{status} {body}"
            );
        }
    }
}
