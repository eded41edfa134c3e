//! Workers: concurrency, and what happens at a stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::sleep;

use crate::harness::{Log, create, fixture, manager, maps, run, server, settle};

/// The number of reconciles that run, and the highest number so far.
#[derive(Default)]
struct Running {
    log: Log,
    now: AtomicUsize,
    most: AtomicUsize,
}

async fn count(running: Arc<Running>, req: Request<ConfigMap>) -> Result<Action, Error> {
    let now = running.now.fetch_add(1, Ordering::SeqCst) + 1;
    running.most.fetch_max(now, Ordering::SeqCst);
    sleep(Duration::from_secs(5)).await;
    running.now.fetch_sub(1, Ordering::SeqCst);
    running.log.push(req.key().name());
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn one_key_is_never_with_two_workers() {
    let server = server().await;
    let mut mgr = manager(&server.client());
    let maps = maps(&mut mgr);
    let running = Arc::new(Running::default());
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .concurrency(4)
        .context(running.clone())
        .reconcile(count);
    run(mgr, async {
        settle().await;
        for _ in 0..10 {
            handle.enqueue(ObjectKey::namespaced("default", "one"), "test");
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    assert_eq!(running.most.load(Ordering::SeqCst), 1);
    assert_eq!(
        running.log.all(),
        ["one", "one"],
        "a key that is enqueued while it is reconciled is requeued once"
    );
}

#[tokio::test(start_paused = true)]
async fn concurrency_bounds_the_reconciles_of_different_keys() {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let running = Arc::new(Running::default());
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .concurrency(4)
        .context(running.clone())
        .reconcile(count);
    for i in 0..10 {
        create(&client, &format!("map-{i}")).await;
    }
    run(mgr, async {
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    assert_eq!(running.most.load(Ordering::SeqCst), 4);
    assert_eq!(running.log.all().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_running_reconciles_and_begins_no_other() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            log.push("started");
            req.cancellation_token().cancelled().await;
            sleep(Duration::from_secs(20)).await;
            log.push("finished");
            Ok(Action::await_change())
        });
    create(&client, "a").await;
    create(&client, "b").await;
    run(mgr, settle()).await;
    assert_eq!(log.all(), ["started", "finished"]);
}
