//! Alert rules, runbooks and dashboard agree with the metrics of the operator.

use std::{collections::BTreeSet, time::Duration};

use bellerophon::{manager::ManagerOptions, metrics::Metrics};
use bellerophon_hero::{Backup, crd::BackupPhase};
use bellerophon_testkit::{OperatorUnderTest, wait_until};
use kube::ResourceExt as _;
use serde_json::json;

use crate::fixture::{cluster, hero, members, operator, wait_until_running};

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
    let (cluster, account) = cluster().await;
    // The timeout is ten minutes by default.
    let spec = match cluster.has_virtual_time() {
        true => json!({"replicas": 1}),
        false => json!({"replicas": 1, "backup": {"timeoutSeconds": 60}}),
    };
    cluster.apply(hero(spec)).await;
    let metrics = Metrics::new();
    let shared = metrics.clone();
    let start = move |client, options| {
        let options = ManagerOptions {
            metrics: shared,
            ..options
        };
        operator(client, options)
    };
    let operator = OperatorUnderTest::start(start, &account);
    wait_until_running(&cluster.client, 1).await;
    let backups = cluster.namespaced::<Backup>("default");
    members().hold_tasks();
    for (name, phase) in [
        ("late", BackupPhase::Failed),
        ("done", BackupPhase::Completed),
    ] {
        cluster
            .apply(json!({
                "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Backup",
                "metadata": {"name": name}, "spec": {"hero": "icarus"},
            }))
            .await;
        wait_until(&backups, "the backup ends", |all| {
            let mut named = all.iter().filter(|backup| backup.name_any() == name);
            named.any(|it| it.status.as_ref().is_some_and(|it| it.phase == phase))
        })
        .await;
        // Metrics follow the status.
        cluster.advance(Duration::from_secs(60)).await;
        members().release_tasks();
    }
    let exported = metrics.encode();
    for (file, text) in [("alerts", ALERTS), ("dashboard", DASHBOARD), ("page", PAGE)] {
        let used = metrics_in(text);
        assert!(!used.is_empty(), "{file} uses no metric");
        for metric in used {
            assert!(
                exported.contains(&format!("\n{metric}{{")),
                "{file} uses {metric}"
            );
        }
    }
    operator.stop().await;
    cluster.stop().await;
}

#[test]
fn dashboard_is_json() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    assert_eq!(dashboard["panels"].as_array().map(Vec::len), Some(9));
}
