//! Leader election: a standby has synced caches, and takes over.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::leader::LeaderElectionOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tokio::time::sleep;

use super::{candidate, logging_manager};
use crate::harness::{Log, create, delete, maps, sample, server, settle, state};

#[tokio::test(start_paused = true)]
async fn stop_finishes_running_reconciles_and_releases_the_lease() {
    let server = server().await;
    let log = Log::default();
    create(&server.client(), "a").await;
    create(&server.client(), "b").await;
    let takes = Duration::from_secs(20);
    let mgr = logging_manager(&server, candidate("one"), "one", &log, takes);
    let health = mgr.health();
    let leadership = mgr.leadership();
    assert!(!health.is_ready());
    let mut running = mgr.start();
    running.ready().await.unwrap();
    settle().await;
    assert!(health.is_ready(), "{:?}", health.readyz());
    let term = leadership.term().expect("it leads");
    assert_eq!(term.holder, "one");
    running.stop().await.unwrap();
    assert_eq!(log.all(), ["one starts a", "one ends a"]);
    let leases = Api::<Lease>::namespaced(server.client(), "default");
    let lease = leases.get("lock").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn standby_has_synced_caches_and_takes_over() {
    let server = server().await;
    let log = Log::default();
    let first = logging_manager(&server, candidate("first"), "first", &log, Duration::ZERO);
    let mut first = first.start();
    first.ready().await.unwrap();
    let second = logging_manager(&server, candidate("second"), "second", &log, Duration::ZERO);
    let health = second.health();
    let mut second = second.start();
    create(&server.client(), "a").await;
    sleep(Duration::from_secs(30)).await;
    assert!(health.is_ready(), "the caches of the standby are synced");
    assert_eq!(
        log.all(),
        ["first starts a", "first ends a"],
        "only the leader works"
    );
    first.stop().await.unwrap();
    second.ready().await.unwrap();
    settle().await;
    assert_eq!(log.all()[2..], ["second starts a", "second ends a"]);
    second.stop().await.unwrap();
}

/// A standby used to queue every key it ever received, deleted ones included, for as long as it
/// waited.
#[tokio::test(start_paused = true)]
async fn standby_queues_nothing_until_it_leads() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let leader = Manager::new(client.clone(), candidate("leader"));
    let mut leader = leader.start();
    leader.ready().await.unwrap();
    let mut mgr = Manager::new(client.clone(), candidate("standby"));
    let metrics = mgr.metrics().clone();
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            log.push(state(&req));
            Ok(Action::await_change())
        });
    let mut standby = mgr.start();
    for name in ["a", "b", "c"] {
        create(&client, name).await;
        settle().await;
    }
    delete(&client, "b").await;
    settle().await;
    let text = metrics.encode();
    assert_eq!(
        sample(&text, "bellerophon_informer_objects", "configmaps"),
        2.0
    );
    for metric in ["workqueue_depth", "bellerophon_informer_handler_backlog"] {
        assert_eq!(sample(&text, metric, ""), 0.0, "{metric}");
    }
    leader.stop().await.unwrap();
    standby.ready().await.unwrap();
    settle().await;
    delete(&client, "a").await;
    settle().await;
    let mut log = log.all();
    if !server.has_virtual_time() {
        // Different keys have no order.
        log[..2].sort();
    }
    assert_eq!(log, ["a exists", "c exists", "a deleted"]);
    standby.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn candidate_is_named_by_the_identity_of_the_manager() {
    let server = server().await;
    let election = LeaderElectionOptions {
        lease_namespace: "default".into(),
        ..LeaderElectionOptions::new("lock")
    };
    let options = ManagerOptions {
        identity: Some("pod-1".into()),
        leader_election: Some(election),
        ..testing::options(1)
    };
    let mgr = Manager::new(server.client(), options);
    let leadership = mgr.leadership();
    let mut running = mgr.start();
    running.ready().await.unwrap();
    let term = leadership.term().expect("it leads");
    assert!(term.holder.starts_with("pod-1_"), "{}", term.holder);
    running.stop().await.unwrap();
}

/// Two processes in pods of one name used to lead in one term.
#[tokio::test(start_paused = true)]
async fn managers_with_one_identity_lead_in_different_terms() {
    let server = server().await;
    let log = Log::default();
    let options = |seed| ManagerOptions {
        identity: Some("op-0".into()),
        leader_election: Some(LeaderElectionOptions {
            lease_namespace: "default".into(),
            ..LeaderElectionOptions::new("lock")
        }),
        ..testing::options(seed)
    };
    let first = logging_manager(&server, options(1), "first", &log, Duration::ZERO);
    let first_leadership = first.leadership();
    let mut first = first.start();
    first.ready().await.unwrap();
    let second = logging_manager(&server, options(2), "second", &log, Duration::ZERO);
    let second_leadership = second.leadership();
    let mut second = second.start();
    create(&server.client(), "a").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log.all(), ["first starts a", "first ends a"]);
    assert_eq!(second_leadership.term(), None);
    let first_term = first_leadership.term().expect("it leads");
    first.stop().await.unwrap();
    second.ready().await.unwrap();
    let second_term = second_leadership.term().expect("it leads");
    assert_ne!(first_term.holder, second_term.holder);
    assert_eq!(first_term.number, 0);
    assert_eq!(second_term.number, 1);
    assert!(!first_term.is_current().await.unwrap());
    second.stop().await.unwrap();
}

/// Contradicting options used to be found once the caches were synced.
#[tokio::test(start_paused = true)]
async fn contradicting_options_are_returned_before_anything_starts() {
    let server = server().await;
    let election = LeaderElectionOptions {
        lease_duration: Duration::from_secs(1),
        ..LeaderElectionOptions::new("lock")
    };
    let options = ManagerOptions {
        leader_election: Some(election),
        ..testing::options(1)
    };
    let mut mgr = Manager::new(server.client(), options);
    let _maps = maps(&mut mgr);
    let metrics = mgr.metrics().clone();
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    assert!(matches!(error, ManagerError::Leader(_)), "{error}");
    assert!(!metrics.encode().contains("rest_client_requests_total{"));
}
