//! Alert rules, runbooks and dashboard agree with the metrics of the operator.

use std::collections::BTreeSet;

use bellerophon::{manager::Manager, testing};
use bellerophon_testkit::TestCluster;

use crate::fixture::{cluster_on, members};

const ALERTS: &str = include_str!("../../../../../docs/operators/bellerophon-alerts.yaml");
const DASHBOARD: &str = include_str!("../../../../../docs/operators/bellerophon-dashboard.json");
const PAGE: &str = include_str!("../../../../../docs/operators/bellerophon.md");

/// The names of the operator's metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("hero_")).collect()
}

#[test]
fn every_alert_has_a_runbook() {
    let alerts: Vec<&str> = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert_eq!(alerts.len(), 7);
    for alert in alerts {
        assert!(
            PAGE.contains(&format!("\n### {alert}\n")),
            "no runbook of {alert}"
        );
        let anchor = format!("bellerophon.md#{}", alert.to_lowercase());
        assert!(
            ALERTS.contains(&anchor),
            "{alert} has no link to its runbook"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn alerts_and_dashboard_use_exported_metrics() {
    let (cluster, _) = cluster_on(TestCluster::api_server_only().await).await;
    let mut mgr = Manager::new(cluster.client.clone(), testing::options(1));
    bellerophon_hero::setup(&mut mgr, members());
    let exported = mgr.metrics().encode();
    for (file, text) in [("alerts", ALERTS), ("dashboard", DASHBOARD), ("page", PAGE)] {
        let used = metrics_in(text);
        assert!(!used.is_empty(), "{file} uses no metric");
        for metric in used {
            let name = metric.trim_end_matches("_total");
            assert!(
                exported.contains(&format!("# HELP {name} ")),
                "{file} uses {metric}"
            );
        }
    }
    cluster.stop().await;
}

#[test]
fn dashboard_is_json() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    assert_eq!(dashboard["panels"].as_array().map(Vec::len), Some(9));
}
