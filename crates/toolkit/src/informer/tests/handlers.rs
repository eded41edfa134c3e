//! Events that handlers receive, and their order.

use tokio::time::sleep;

use super::*;
use crate::list_watch::ListWatchError;

#[tokio::test(start_paused = true)]
async fn handler_added_late_receives_every_object_once() {
    let server = server_with("abc");
    let running = Running::on(&server).await;
    server.apply("a");
    running.caught_up(&server).await;
    let recorder = Recorder::default();
    let registration = running.informer.add_event_handler(recorder.clone());
    server.apply("d");
    let synced = registration.wait_for_cache_sync().await;
    synced.expect("the cache is synced");
    recorder.caught_up(&server).await;
    assert_eq!(recorder.log(), ["*a", "*b", "*c", "+d"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn handler_added_before_the_start_receives_the_initial_list() {
    let server = server_with("ab");
    let informer = informer(&server, InformerOptions::default());
    let recorder = Recorder::default();
    let registration = informer.add_event_handler(recorder.clone());
    let running = Running::start(informer);
    let synced = registration.wait_for_cache_sync().await;
    synced.expect("the cache is synced");
    assert_eq!(recorder.log(), ["*a", "*b"]);
    assert_eq!(registration.backlog(), 0);
    running.stop().await;
    assert!(matches!(
        registration.wait_for_cache_sync().await,
        Err(SyncError::Stopped { .. })
    ));
}

/// Deletions that a relist found used to reach no handler in other libraries.
#[tokio::test(start_paused = true)]
async fn relist_reports_vanished_keys_exactly_once() {
    let server = server_with("abc");
    let running = Running::on(&server).await;
    let recorder = running.recorder().await;
    let reset = ListWatchError::Unreachable("reset".into());
    server.inject(WatchFault::Failed(reset));
    tokio::task::yield_now().await;
    server.delete("b");
    server.apply("d");
    server.compact();
    recorder.caught_up(&server).await;
    let expired = ListWatchError::Expired("compacted".into());
    server.inject(WatchFault::Failed(expired));
    server.apply("a");
    recorder.caught_up(&server).await;
    assert_eq!(recorder.log(), ["*a", "*b", "*c", "-b", "+d", "~a"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_handler_has_its_own_resync_period() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let with_period = |period: Option<Duration>| {
        let recorder = Recorder::default();
        let typed = Typed {
            handler: recorder.clone(),
            kind: PhantomData::<fn() -> ConfigMap>,
        };
        let handler = Handler::Objects(Box::new(typed));
        running
            .informer
            .handle
            .add_handler(handler, period, begun());
        recorder
    };
    let minutely = with_period(Some(Duration::from_secs(60)));
    let never = with_period(None);
    let disabled = with_period(Some(Duration::ZERO));
    sleep(Duration::from_secs(130)).await;
    assert_eq!(minutely.log(), ["*a", "*b", "~a", "~b", "~a", "~b"]);
    assert_eq!(never.log(), ["*a", "*b"]);
    assert_eq!(disabled.log(), ["*a", "*b"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn key_handler_receives_the_event_of_each_key() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let recorder = Recorder::default();
    let receiver = recorder.clone();
    let handler = Handler::Keys(Box::new(move |change| receiver.on_key(change)));
    let minutely = Some(Duration::from_secs(60));
    let handle = &running.informer.handle;
    let registration = handle.add_handler(handler, minutely, begun());
    let synced = registration.wait_for_cache_sync().await;
    synced.expect("the cache is synced");
    server.apply("a");
    server.apply("c");
    recorder.caught_up(&server).await;
    server.delete("b");
    recorder.caught_up(&server).await;
    sleep(Duration::from_secs(61)).await;
    assert_eq!(recorder.log(), ["*a", "*b", "~a", "+c", "-b", "=a", "=c"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn removed_handler_receives_nothing_more() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let removed = Recorder::default();
    let kept = Recorder::default();
    let registration = running.informer.add_event_handler(removed.clone());
    running.informer.add_event_handler(kept.clone());
    let synced = registration.wait_for_cache_sync().await;
    synced.expect("the cache is synced");
    registration.remove();
    server.apply("b");
    kept.caught_up(&server).await;
    assert_eq!(removed.log(), ["*a"]);
    running.stop().await;
}

/// What a removed handler had not received used to count as backlog until the next change.
#[tokio::test(start_paused = true)]
async fn removed_handler_has_no_backlog() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let registration = running.informer.add_event_handler(Recorder::default());
    assert_eq!(running.informer.stats().backlog, 2);
    registration.remove();
    assert_eq!(running.informer.stats().backlog, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn object_recreated_between_two_events_is_deleted_and_added() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let recorder = running.recorder().await;
    server.delete("a");
    server.apply("a");
    let expired = ListWatchError::Expired("compacted".into());
    server.inject(WatchFault::Failed(expired));
    recorder.caught_up(&server).await;
    assert_eq!(recorder.log(), ["*a", "-a", "+a"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn panicking_handler_continues_with_the_next_object() {
    struct Panicking(Recorder);
    impl EventHandler<ConfigMap> for Panicking {
        fn on_add(&self, object: &Arc<ConfigMap>, in_initial_list: bool) {
            assert_ne!(object.name_any(), "a", "this call panics");
            self.0.on_add(object, in_initial_list);
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let recorder = Recorder::default();
    let handler = Panicking(recorder.clone());
    let registration = running.informer.add_event_handler(handler);
    let synced = registration.wait_for_cache_sync().await;
    synced.expect("it continues");
    assert_eq!(recorder.log(), ["*b"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_handler_delays_no_other() {
    struct Blocked(Arc<Mutex<()>>);
    impl EventHandler<ConfigMap> for Blocked {
        fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {
            drop(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    struct Counting(watch::Sender<usize>);
    impl EventHandler<ConfigMap> for Counting {
        fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {
            self.0.send_modify(|count| *count += 1);
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    let server = server_with("abc");
    let running = Running::on(&server).await;
    let lock = Arc::new(Mutex::new(()));
    let (counts, mut count) = watch::channel(0);
    let blocked = {
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let blocked = running.informer.add_event_handler(Blocked(lock.clone()));
        let counting = running.informer.add_event_handler(Counting(counts));
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let synced = counting.wait_for_cache_sync().await;
                synced.expect("the other handler is not blocked");
                server.apply("d");
                let delivered = count.wait_for(|count| *count == 4).await;
                delivered.expect("the handler exists");
            });
        });
        assert!(!blocked.has_synced());
        drop(guard);
        blocked
    };
    let synced = blocked.wait_for_cache_sync().await;
    synced.expect("the lock is released");
    running.stop().await;
}
