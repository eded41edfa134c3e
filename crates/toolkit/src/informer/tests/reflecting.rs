//! The cache follows the server through faults.

use tokio::time::Instant;

use super::*;
use crate::list_watch::ListWatchError;

/// A watch that was refused with HTTP 410 used to be requested forever in other libraries.
#[tokio::test(start_paused = true)]
async fn http_410_on_watch_start_relists() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    server.fail_watches([ListWatchError::Expired("too old resource version".into())]);
    server.inject(WatchFault::Ended);
    server.apply("b");
    running.caught_up(&server).await;
    assert_eq!(server.requests(), ["stream", "watch@2", "stream"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn busy_or_unreachable_server_is_resumed_without_a_list() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let busy = ListWatchError::Busy {
        message: "too many requests".into(),
        retry_after: None,
    };
    let unreachable = ListWatchError::Unreachable("connection refused".into());
    server.fail_watches([busy, unreachable]);
    server.inject(WatchFault::Ended);
    server.apply("b");
    running.caught_up(&server).await;
    assert_eq!(
        server.requests(),
        ["stream", "watch@2", "watch@2", "watch@2"]
    );
    assert_eq!(running.informer.stats().relists, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn half_open_watch_is_replaced_within_75_s() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    server.inject(WatchFault::Frozen);
    server.apply("b");
    let frozen = Instant::now();
    running.caught_up(&server).await;
    assert!(
        frozen.elapsed() <= Duration::from_secs(75),
        "without events for {:?}",
        frozen.elapsed()
    );
    assert_eq!(running.informer.stats().relists, 1, "it resumed");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn server_that_never_ends_initial_events_is_paged() {
    let server = server_with("abcde");
    server.never_end_initial_events();
    let options = InformerOptions {
        page_size: Some(2),
        ..InformerOptions::default()
    };
    let running = Running::start(informer(&server, options));
    let synced = running.informer.wait_for_cache_sync().await;
    synced.expect("pages are served");
    assert_eq!(running.cached(), server.content());
    assert_eq!(
        server.requests()[..4],
        ["stream", "list", "list+2", "list+4"]
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_cache_sync_fails_immediately_and_names_the_reason() {
    let cases = [
        (
            ListWatchError::Forbidden("access denied".into()),
            "cannot list configmaps: access denied; grant list and watch on it",
        ),
        (
            ListWatchError::NotFound("404".into()),
            "cannot list configmaps: the server does not serve it; \
             install its CustomResourceDefinition or use a served version",
        ),
    ];
    for (error, message) in cases {
        let server = server_with("a");
        server.fail_watches([error.clone(), error]);
        let running = Running::start(informer(&server, InformerOptions::default()));
        let start = Instant::now();
        let refused = running.informer.wait_for_cache_sync().await;
        assert_eq!(refused.expect_err("it is refused").to_string(), message);
        assert_eq!(start.elapsed(), Duration::ZERO);
        running.synced_despite_errors().await;
        assert_eq!(
            running.informer.wait_for_cache_sync().await,
            Ok(()),
            "it kept retrying"
        );
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_is_counted_and_skipped() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    server.send_undecodable("a");
    server.apply("c");
    running.caught_up(&server).await;
    assert_eq!(running.informer.stats().undecodable, 1);
    assert_eq!(running.informer.stats().watches, 1, "the watch stayed open");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_cached_only_on_request() {
    let server = server_with("a");
    for (transform, kept) in [
        (Transform::strip_managed_fields(), false),
        (Transform::none(), true),
    ] {
        let options = InformerOptions {
            transform: Some(transform),
            ..InformerOptions::default()
        };
        let running = Running::start(informer(&server, options));
        let synced = running.informer.wait_for_cache_sync().await;
        synced.expect("the server responds");
        let lister = running.informer.lister();
        let object = lister.get(&ObjectKey::namespaced("n", "a"));
        let object = object.expect("it is cached");
        assert_eq!(!object.managed_fields().is_empty(), kept);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_informer_is_readable_and_is_not_run_again() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let informer = running.informer.clone();
    running.stop().await;
    assert!(!informer.has_synced());
    assert_eq!(informer.lister().len(), 1, "the cache stays readable");
    if cfg!(debug_assertions) {
        let again = informer.handle.informer.clone();
        let ended = tokio::spawn(again.run(CancellationToken::new())).await;
        assert!(ended.is_err_and(|error| error.is_panic()));
    }
}

#[tokio::test(start_paused = true)]
async fn await_condition_returns_with_the_change_that_fulfils_it() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let lister = running.informer.lister();
    let key = ObjectKey::namespaced("n", "b");
    let start = Instant::now();
    let (created, ()) = tokio::join!(
        lister.await_condition(&key, |object| object.is_some()),
        async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            server.apply("b");
        }
    );
    assert_eq!(
        created.map(|object| object.name_any()).as_deref(),
        Some("b")
    );
    assert_eq!(
        start.elapsed(),
        Duration::from_secs(5),
        "no polling interval"
    );
    server.delete("b");
    let deleted = lister
        .await_condition(&key, |object| object.is_none())
        .await;
    assert_eq!(deleted.map(|object| object.name_any()), None);
    let (stopped, ()) = tokio::join!(
        lister.await_condition(&key, |object| object.is_some()),
        running.stop()
    );
    assert_eq!(stopped.map(|object| object.name_any()), None);
}
