//! Fairness between namespaces.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::controller::ControllerOptions;
use bellerophon::prelude::*;
use bellerophon::queue::Fairness;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::time::sleep;

use crate::harness::{Log, config_map, create_namespace, manager, maps, run, server, settle};

/// When the only object of a quiet namespace is reconciled, enqueued after thirty of a busy one.
struct Quiet {
    /// Its position among all reconciles.
    position: usize,
    /// The reconciles that ended before it was created: a control plane takes some time to create
    /// the others.
    ended_before: usize,
}

async fn reconcile_a_quiet_namespace(fairness: Fairness) -> Quiet {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    for name in ["busy", "quiet"] {
        create_namespace(&client, name, json!({})).await;
    }
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let options = ControllerOptions {
        fairness: Some(fairness),
        ..ControllerOptions::default()
    };
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            log.push(req.key().to_string());
            sleep(Duration::from_secs(1)).await;
            Ok(Action::await_change())
        });
    let mut ended_before = 0;
    run(mgr, async {
        settle().await;
        let create = async |namespace: &str, name: &str| {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
            let created = maps.create(&PostParams::default(), &config_map(name)).await;
            created.unwrap();
        };
        for i in 0..30 {
            create("busy", &format!("map-{i:02}")).await;
        }
        ended_before = log.all().len().saturating_sub(1);
        create("quiet", "only").await;
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    let reconciled = log.all();
    let busy: Vec<_> = reconciled
        .iter()
        .filter(|key| key.starts_with("busy/"))
        .cloned()
        .collect();
    let expected: Vec<_> = (0..30).map(|i| format!("busy/map-{i:02}")).collect();
    assert_eq!(busy, expected, "in order within a namespace");
    let position = reconciled.iter().position(|key| key == "quiet/only");
    Quiet {
        position: position.unwrap(),
        ended_before,
    }
}

#[tokio::test(start_paused = true)]
async fn busy_namespace_delays_a_quiet_one_only_without_fairness() {
    let quiet = reconcile_a_quiet_namespace(Fairness::Fifo).await;
    assert_eq!(quiet.position, 30);
    let quiet = reconcile_a_quiet_namespace(Fairness::ByNamespace).await;
    let position = quiet.position - quiet.ended_before;
    assert!(position <= 3, "at position {position}");
}
