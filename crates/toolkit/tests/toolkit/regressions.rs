//! Defects seen in other libraries. The comment of each test describes what used to
//! happen there.
//!
//! An HTTP 410 at the start of a watch that never led to a new list is in `refusals.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellerophon::informer::{InformerOptions, KubeListWatch};
use bellerophon::prelude::*;
use http::HeaderValue;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Client, Resource};
use tokio::time::{Instant, sleep};

use crate::harness::{
    Fault, Log, api, create, delete, faulty_client, fixture, is_watch, log_state, manager, maps,
    run, server, set_data, set_query, settle,
};

/// The store used to drop what a new list no longer had without an event: an owner was never
/// reconciled after the deletion of its child.
#[tokio::test(start_paused = true)]
async fn deletion_missed_by_a_dropped_watch_is_reconciled() {
    let server = server().await;
    let log = Log::default();
    let disconnected = Arc::new(AtomicBool::new(false));
    let is_disconnected = disconnected.clone();
    // Watches end after a second, so that the client can be disconnected between two of them.
    let client = faulty_client(&server, move |request| {
        if is_watch(request) {
            set_query(request, "timeoutSeconds", "1");
        }
        match is_disconnected.load(Ordering::SeqCst) {
            true => Fault::Disconnect,
            false => Fault::None,
        }
    });
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(log_state);
    let client = server.client();
    run(mgr, async {
        create(&client, "a").await;
        create(&client, "b").await;
        settle().await;
        assert_eq!(log.take(), ["a exists", "b exists"]);
        disconnected.store(true, Ordering::SeqCst);
        settle().await;
        delete(&client, "b").await;
        disconnected.store(false, Ordering::SeqCst);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(log.take(), ["b deleted"], "once, and nothing else");
    })
    .await;
}

/// Reconciles used to fall from 149 to 9 in these 30 s, because one back-off covered all watches of
/// a controller.
#[tokio::test(start_paused = true)]
async fn forbidden_secondary_watch_does_not_slow_the_others() {
    let server = server().await;
    let log = Log::default();
    let forbidden = Arc::new(AtomicBool::new(false));
    let is_forbidden = forbidden.clone();
    let restricted: Client = faulty_client(&server, move |request| {
        if is_forbidden.load(Ordering::SeqCst) {
            let user = HeaderValue::from_static("nobody");
            request.headers_mut().insert("impersonate-user", user);
        }
        Fault::None
    });
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let source = restricted.clone();
    let secrets = mgr.informer::<Secret>(InformerOptions {
        list_watch: Some(Arc::new(move |namespace| {
            let path = Secret::url_path(&(), namespace);
            Arc::new(KubeListWatch::new(source.clone(), path))
        })),
        ..InformerOptions::default()
    });
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .owns::<Secret>()
        .informer(&secrets)
        .context(Arc::new(log.clone()))
        .reconcile(log_state);
    create(&client, "one").await;
    run(mgr, async {
        settle().await;
        forbidden.store(true, Ordering::SeqCst);
        // Longer than any watch lasts: that of the secrets has ended and cannot be opened again.
        sleep(Duration::from_secs(11 * 60)).await;
        let refused = api::<Secret>(&restricted).list(&Default::default()).await;
        assert!(refused.is_err());
        log.take();
        for round in 0..150 {
            set_data(&client, "one", "round", &round.to_string()).await;
            sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(log.take().len(), 150);
    })
    .await;
}

/// A subscriber used to sleep until an unrelated timer if the object of its event was deleted
/// already: the next object waited for 2 s, or forever.
#[tokio::test(start_paused = true)]
async fn object_deleted_before_it_is_read_does_not_delay_the_next() {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let logs = ["first", "second"].map(|name| {
        let log = Log::default();
        mgr.controller::<ConfigMap>()
            .informer(&maps)
            .name(name)
            .context(Arc::new(log.clone()))
            .reconcile(log_state);
        log
    });
    run(mgr, async {
        settle().await;
        let start = Instant::now();
        create(&client, "short-lived").await;
        delete(&client, "short-lived").await;
        create(&client, "next").await;
        for log in &logs {
            log.line("next exists").await;
        }
        let limit = server.time_without_timers();
        assert!(start.elapsed() <= limit, "no timer was needed");
    })
    .await;
}

/// Twelve objects used to be reconciled in another order at each run, and under constant load one
/// could starve.
#[tokio::test(start_paused = true)]
async fn objects_are_reconciled_in_the_order_of_their_changes() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            log.push(req.key().name());
            sleep(Duration::from_secs(1)).await;
            Ok(Action::await_change())
        });
    run(mgr, async {
        settle().await;
        let names: Vec<_> = (0..12)
            .map(|i| format!("map-{:02}", (i * 7) % 12))
            .collect();
        for name in &names {
            create(&client, name).await;
        }
        sleep(Duration::from_secs(60)).await;
        assert_eq!(log.all(), names);
    })
    .await;
}
