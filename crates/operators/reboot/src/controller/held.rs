//! Held: what keeps nodes from rebooting that is neither on them nor in the ledger.
//!
//! In: rules with blockers, nodes that want to reboot. Out: nodes held by pods, policies held by alerts.
//! Holds: nothing is asked unless a node of the policy waits; a Prometheus that does not answer holds.

use std::collections::BTreeSet;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{Api, Client, api::ListParams, core::Selector};
use tracing::warn;

use super::{
    plan::{Held, Nodes},
    prometheus,
};
use crate::{policy::Alerts, rules::Rules};

/// Pods a page.
const PAGE: u32 = 500;

/// Asks what the rules want to know.
///
/// # Errors
/// Pods cannot be listed.
pub(crate) async fn ask(
    client: &Client,
    rules: &[Rules],
    nodes: &Nodes,
) -> Result<Held, kube::Error> {
    let mut held = Held::default();
    for rules in rules {
        let mut waiting = nodes
            .values()
            .filter(|node| node.needed().is_some() && rules.selects(node));
        if waiting.next().is_none() {
            continue;
        }
        for selector in &rules.spec.blockers.pods {
            let by_pods = held.by_pods.entry(rules.policy.clone()).or_default();
            by_pods.extend(
                nodes_with(client, selector)
                    .await?
                    .unwrap_or_else(|| nodes.keys().cloned().collect()),
            );
        }
        if let Some(alerts) = &rules.spec.blockers.alerts
            && !is_quiet(alerts, &rules.policy).await
        {
            held.by_alerts.insert(rules.policy.clone());
        }
    }
    Ok(held)
}

/// The nodes on which pods of a selector run; `None` if it cannot be read.
async fn nodes_with(
    client: &Client,
    selector: &LabelSelector,
) -> Result<Option<BTreeSet<String>>, kube::Error> {
    let Ok(selector) = Selector::try_from(selector.clone()) else {
        return Ok(None);
    };
    let mut params = ListParams::default().labels_from(&selector).limit(PAGE);
    let (pods, mut nodes) = (Api::<Pod>::all(client.clone()), BTreeSet::new());
    loop {
        let page = pods.list(&params).await?;
        let runs = |pod: &&Pod| {
            !matches!(
                pod.status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref()),
                Some("Succeeded" | "Failed")
            )
        };
        nodes.extend(
            page.items
                .iter()
                .filter(runs)
                .filter_map(|pod| pod.spec.as_ref()?.node_name.clone()),
        );
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(Some(nodes)),
        }
    }
}

/// Whether Prometheus answers, and with nothing.
async fn is_quiet(alerts: &Alerts, policy: &str) -> bool {
    match prometheus::ask(&alerts.url, &alerts.query).await {
        Ok(found) if found.is_empty() => true,
        Ok(found) => {
            let found: Vec<&str> = found
                .iter()
                .map(|series| series.get("alertname").map_or("a series", String::as_str))
                .collect();
            warn!(policy, alerts = ?found, "alerts hold reboots");
            false
        }
        Err(error) => {
            warn!(
                policy,
                url = alerts.url,
                error,
                "Prometheus cannot be asked, which holds reboots"
            );
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::prometheus::tests::{TWO, serve},
        *,
    };

    #[tokio::test]
    async fn only_an_answer_without_a_result_lets_go() {
        for (status, body, quiet) in [
            ("200 OK", r#"{"data":{"result":[]}}"#, true),
            ("200 OK", TWO, false),
            ("404 Not Found", "", false),
        ] {
            let (url, _asked) = serve(status, body.into()).await;
            assert_eq!(
                is_quiet(
                    &Alerts {
                        url,
                        query: "up".into()
                    },
                    "all"
                )
                .await,
                quiet,
                "{status} {body}"
            );
        }
    }
}
