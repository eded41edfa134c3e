//! Held: what keeps nodes from rebooting that is neither on them nor in the ledger.
//!
//! In: rules with blockers, nodes that want to reboot. Out: nodes held by pods, policies held by alerts.
//! Holds: nothing is asked unless a node of the policy waits; a Prometheus that does not answer holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{Api, Client, Config, api::ListParams, client::Body, core::Selector};
use serde::Deserialize;
use tokio::time::timeout;
use tracing::warn;

use super::plan::{Held, Nodes};
use crate::{policy::Alerts, rules::Rules};

/// Pods a page.
const PAGE: u32 = 500;

/// How long Prometheus has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much of an answer is read.
const ANSWER_MAX: usize = 1 << 20;

/// Asks what the rules want to know.
///
/// # Errors
/// Pods cannot be listed.
pub(crate) async fn ask(client: &Client, rules: &[Rules], nodes: &Nodes) -> Result<Held, kube::Error> {
    let mut held = Held::default();
    for rules in rules {
        let mut waiting = nodes.values().filter(|node| node.needed().is_some() && rules.selects(node));
        if waiting.next().is_none() {
            continue;
        }
        for selector in &rules.spec.blockers.pods {
            let by_pods = held.by_pods.entry(rules.policy.clone()).or_default();
            by_pods.extend(nodes_with(client, selector).await?.unwrap_or_else(|| nodes.keys().cloned().collect()));
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
async fn nodes_with(client: &Client, selector: &LabelSelector) -> Result<Option<BTreeSet<String>>, kube::Error> {
    let Ok(selector) = Selector::try_from(selector.clone()) else { return Ok(None) };
    let mut params = ListParams::default().labels_from(&selector).limit(PAGE);
    let (pods, mut nodes) = (Api::<Pod>::all(client.clone()), BTreeSet::new());
    loop {
        let page = pods.list(&params).await?;
        let runs = |pod: &&Pod| !matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"));
        nodes.extend(page.items.iter().filter(runs).filter_map(|pod| pod.spec.as_ref()?.node_name.clone()));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(Some(nodes)),
        }
    }
}

/// Whether Prometheus answers, and with nothing.
async fn is_quiet(alerts: &Alerts, policy: &str) -> bool {
    let found = timeout(PATIENCE, query(alerts)).await.unwrap_or_else(|_| Err("it does not answer".into()));
    match found {
        Ok(found) if found.is_empty() => true,
        Ok(found) => {
            warn!(policy, alerts = ?found, "alerts hold reboots");
            false
        }
        Err(error) => {
            warn!(policy, url = alerts.url, error, "Prometheus cannot be asked, which holds reboots");
            false
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
}

/// The names of what a query finds.
async fn query(alerts: &Alerts) -> Result<Vec<String>, String> {
    let url = alerts.url.parse().map_err(|_| "not a URL".to_owned())?;
    // Any HTTP server can be asked by a client without credentials.
    let client = Client::try_from(Config::new(url)).map_err(|error| error.to_string())?;
    let request = http::Request::get(format!("/api/v1/query?query={}", escaped(&alerts.query))).body(Body::empty());
    let answer = client.send(request.map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(|error| error.to_string())?.to_bytes();
    let answer: Answer = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    Ok(answer.data.result.into_iter().map(|mut series| series.metric.remove("alertname").unwrap_or_else(|| "a series".into())).collect())
}

/// A query as part of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escaped(r#"ALERTS{alertstate="firing"} > 0"#), "ALERTS%7Balertstate%3D%22firing%22%7D%20%3E%200");
    }
}
