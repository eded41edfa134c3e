//! The order of start and stop.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::leader::Leadership;
use bellerophon::manager::{Health, ManagerOptions, Runnable, RunnableGroup};
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{candidate, logging_manager};
use crate::harness::{Log, create, manager, maps, server, settle};

#[tokio::test(start_paused = true)]
async fn reconcile_that_does_not_end_is_aborted_after_the_timeout() {
    let server = server().await;
    let log = Log::default();
    let start = Instant::now();
    create(&server.client(), "a").await;
    let takes = Duration::from_secs(3600);
    let mgr = logging_manager(&server, testing::options(1), "one", &log, takes);
    let mut running = mgr.start();
    running.ready().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let stopped = running.stop().await;
    assert!(matches!(stopped, Err(ManagerError::GracefulShutdown(_))));
    server.assert_elapsed(start, 35);
}

/// Tasks that were aborted used to be ending still when the manager had returned.
#[tokio::test(start_paused = true)]
async fn nothing_runs_any_more_when_the_manager_returns() {
    struct Ends(Log, &'static str);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.push(format!("{} ended", self.1));
        }
    }
    let server = server().await;
    let log = Log::default();
    create(&server.client(), "a").await;
    let mut mgr = Manager::new(
        server.client(),
        ManagerOptions {
            graceful_shutdown_timeout: Duration::ZERO,
            ..testing::options(1)
        },
    );
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, _: Request<ConfigMap>| {
            let _ends = Ends((*log).clone(), "reconcile");
            std::future::pending().await
        });
    for (name, group) in [
        ("always", RunnableGroup::Always),
        ("leading", RunnableGroup::LeaderElection),
    ] {
        let ends = Ends(log.clone(), name);
        let forever = async move |_: CancellationToken| {
            let _ends = ends;
            std::future::pending().await
        };
        mgr.add(name, forever.in_group(group));
    }
    let mut running = mgr.start();
    running.ready().await.unwrap();
    settle().await;
    let stopped = running.stop().await;
    assert!(matches!(stopped, Err(ManagerError::GracefulShutdown(_))));
    let mut ended = log.all();
    ended.sort();
    assert_eq!(ended, ["always ended", "leading ended", "reconcile ended"]);
}

const GROUPS: [RunnableGroup; 3] = [
    RunnableGroup::Servers,
    RunnableGroup::Always,
    RunnableGroup::LeaderElection,
];

/// Adds a runnable that fails after 5 s.
fn add_failing(mgr: &mut Manager, group: RunnableGroup) {
    let fail = async |_: CancellationToken| {
        sleep(Duration::from_secs(5)).await;
        Err("no space left".into())
    };
    mgr.add("disk", fail.in_group(group));
}

async fn holder(client: &Client) -> Option<String> {
    let leases = Api::<Lease>::namespaced(client.clone(), "default");
    let lease = leases.get_opt("lock").await.unwrap();
    let holder = lease.and_then(|lease| lease.spec?.holder_identity);
    holder.filter(|holder| !holder.is_empty())
}

/// A runnable that failed outside of the lease used to abort running reconciles and to keep the
/// lease.
#[tokio::test(start_paused = true)]
async fn failing_runnable_stops_the_others_in_order() {
    for group in GROUPS {
        let server = server().await;
        let client = server.client();
        let log = Log::default();
        create(&client, "a").await;
        let takes = Duration::from_secs(10);
        let mut mgr = logging_manager(&server, candidate("one"), "one", &log, takes);
        add_failing(&mut mgr, group);
        let error = mgr.run_until(std::future::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "disk failed: no space left");
        assert_eq!(holder(&client).await, None, "the lease is released");
        assert_eq!(
            log.take(),
            ["one starts a", "one ends a"],
            "running reconciles finish, group {group:?}"
        );
    }
}

/// A failure in the group of the controllers used to wait for their reconciles without a limit.
#[tokio::test(start_paused = true)]
async fn failure_is_returned_although_a_reconcile_does_not_end() {
    for group in GROUPS {
        let server = server().await;
        let start = Instant::now();
        create(&server.client(), "a").await;
        let takes = Duration::from_secs(3600);
        let options = testing::options(1);
        let mut mgr = logging_manager(&server, options, "one", &Log::default(), takes);
        add_failing(&mut mgr, group);
        let error = mgr.run_until(std::future::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "disk failed: no space left");
        server.assert_elapsed(start, 35);
    }
}

/// What a runnable observes at its start and at its stop.
struct Observer {
    log: Log,
    mgr: Observed,
}

#[derive(Clone)]
struct Observed {
    health: Health,
    leadership: Leadership,
    maps: Lister<ConfigMap>,
    client: Client,
}

impl Observer {
    async fn observe(&self, when: &str) {
        let Observed {
            health,
            leadership,
            maps,
            client,
        } = &self.mgr;
        let is_leading = leadership.term().is_some();
        let is_held = holder(client).await.is_some();
        self.log.push(format!(
            "{when}: ready {}, {} cached, leads {is_leading}, lease {is_held}",
            health.is_ready(),
            maps.len()
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn groups_start_in_order_and_stop_in_reverse() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    create(&client, "a").await;
    let mut mgr = Manager::new(client.clone(), candidate("me"));
    let maps = maps(&mut mgr);
    let observed = Observed {
        health: mgr.health(),
        leadership: mgr.leadership(),
        maps: maps.lister(),
        client,
    };
    // Added in another order than they start in.
    for (name, group) in [
        ("leading", RunnableGroup::LeaderElection),
        ("always", RunnableGroup::Always),
        ("servers", RunnableGroup::Servers),
    ] {
        let observer = Observer {
            log: log.clone(),
            mgr: observed.clone(),
        };
        let runnable = async move |stop: CancellationToken| {
            observer.observe(&format!("{name} start")).await;
            stop.cancelled().await;
            sleep(Duration::from_secs(1)).await;
            observer.observe(&format!("{name} stop")).await;
            Ok(())
        };
        mgr.add(name, runnable.in_group(group));
    }
    let mut running = mgr.start();
    running.ready().await.unwrap();
    settle().await;
    running.stop().await.unwrap();
    assert_eq!(
        log.all(),
        [
            "servers start: ready false, 0 cached, leads false, lease false",
            "always start: ready true, 1 cached, leads false, lease false",
            "leading start: ready true, 1 cached, leads true, lease true",
            "leading stop: ready true, 1 cached, leads true, lease true",
            "always stop: ready true, 1 cached, leads false, lease false",
            "servers stop: ready true, 1 cached, leads false, lease false",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_run_aborts_everything() {
    let server = server().await;
    let log = Log::default();
    create(&server.client(), "a").await;
    let takes = Duration::from_secs(10);
    let mgr = logging_manager(&server, testing::options(1), "one", &log, takes);
    let mut running = mgr.start();
    running.ready().await.unwrap();
    settle().await;
    drop(running);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log.all(), ["one starts a"]);
}

#[tokio::test(start_paused = true)]
async fn manager_without_work_runs_until_it_is_stopped() {
    let server = server().await;
    let start = Instant::now();
    let mgr = manager(&server.client());
    mgr.run_until(sleep(Duration::from_secs(60))).await.unwrap();
    server.assert_elapsed(start, 60);
}
