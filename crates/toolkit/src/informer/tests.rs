//! The promises of a shared informer, on a scripted server in paused time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ApiResource};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    CauseEvent,
    key::ObjectKey,
    source::{
        SourceError,
        scripted::{Cut, Scripted},
    },
};

/// What a handler was told, and what it therefore believes to exist.
#[derive(Default)]
struct Told {
    objects: BTreeMap<ObjectKey, String>,
    log: Vec<String>,
    /// Calls that do not fit what was told before.
    lies: Vec<String>,
}

#[derive(Clone, Default)]
struct View(Arc<Mutex<Told>>);

impl View {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> Vec<String> {
        assert_eq!(self.lock().lies, [""; 0]);
        self.lock().log.clone()
    }
}

fn version(object: &ConfigMap) -> String {
    object
        .resource_version()
        .expect("cached objects have a version")
}

impl EventHandler<ConfigMap> for View {
    fn on_add(&self, object: &Arc<ConfigMap>, in_initial_list: bool) {
        let mut told = self.lock();
        told.log.push(format!(
            "{}{}",
            if in_initial_list { "*" } else { "+" },
            object.name_any()
        ));
        if told
            .objects
            .insert(ObjectKey::of(&**object), version(object))
            .is_some()
        {
            told.lies.push(format!("{} added twice", object.name_any()));
        }
    }

    fn on_update(&self, old: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        let mut told = self.lock();
        told.log.push(format!("~{}", new.name_any()));
        if old.uid() != new.uid()
            || told.objects.insert(ObjectKey::of(&**new), version(new)) != Some(version(old))
        {
            told.lies
                .push(format!("{} updated from something else", new.name_any()));
        }
    }

    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        let mut told = self.lock();
        told.log.push(format!("-{}", last.key.name()));
        if told.objects.remove(&last.key).is_none() {
            told.lies
                .push(format!("{} deleted without being there", last.key.name()));
        }
    }
}

impl View {
    /// The same for a handler that is told keys only.
    fn on_key(&self, change: KeyChange<'_>) {
        let mut told = self.lock();
        let sign = match change.event {
            CauseEvent::Added if change.in_initial_list => "*",
            CauseEvent::Added => "+",
            CauseEvent::Updated => "~",
            CauseEvent::Resync => "=",
            CauseEvent::Deleted => "-",
            CauseEvent::Generic | CauseEvent::Retry => "?",
        };
        told.log.push(format!("{sign}{}", change.key.name()));
        let version = change
            .resource_version
            .expect("cached objects have a version");
        let (key, was) = (change.key.clone(), told.objects.remove(change.key));
        let fits = match change.event {
            CauseEvent::Added => was.is_none(),
            CauseEvent::Updated => was.is_some_and(|was| was != version),
            CauseEvent::Resync => was.as_ref() == Some(&version),
            CauseEvent::Deleted => was.is_some(),
            CauseEvent::Generic | CauseEvent::Retry => false,
        };
        if !fits {
            told.lies
                .push(format!("{sign}{key} does not fit what was told before"));
        }
        if change.event != CauseEvent::Deleted {
            told.objects.insert(key, version);
        }
    }
}

/// A running informer of one scripted server.
struct Running {
    informer: SharedInformer<ConfigMap>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), AlreadyRun>>,
}

impl Running {
    fn start(informer: SharedInformer<ConfigMap>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (informer, stop) = (informer.clone(), stop.clone());
            async move { informer.run(stop).await }
        });
        Self {
            informer,
            stop,
            task,
        }
    }

    async fn on(server: &Scripted) -> Self {
        let running = Self::start(informer(server, options(1)));
        running
            .informer
            .wait_for_sync()
            .await
            .expect("the server answers");
        running
    }

    fn cached(&self) -> BTreeMap<ObjectKey, String> {
        self.informer
            .lister()
            .list()
            .iter()
            .map(|object| (ObjectKey::of(&**object), version(object)))
            .collect()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("it ran once");
    }
}

fn options(seed: u64) -> InformerOptions<ConfigMap> {
    InformerOptions {
        entropy: Entropy::seeded(seed),
        ..InformerOptions::default()
    }
}

fn informer(server: &Scripted, options: InformerOptions<ConfigMap>) -> SharedInformer<ConfigMap> {
    let server = server.clone();
    SharedInformer::from_sources(
        ApiResource::erase::<ConfigMap>(&()),
        move |_| Arc::new(server.clone()),
        options,
    )
}

/// Lets virtual time pass until it is so; an hour is for ever.
async fn until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(3600);
    let mut step = Duration::from_millis(10);
    while !so() {
        assert!(Instant::now() < end, "it never came to be");
        sleep(step).await;
        step = Duration::from_secs(2).min(step * 2);
    }
}

fn server_with(names: &str) -> Scripted {
    let server = Scripted::new("n");
    names
        .chars()
        .for_each(|name| server.apply(&name.to_string()));
    server
}

#[tokio::test(start_paused = true)]
async fn handler_added_late_sees_every_object_once() {
    let server = server_with("abc");
    let running = Running::on(&server).await;
    server.apply("a");
    until(|| running.cached() == server.content()).await;
    let view = View::default();
    let handle = running
        .informer
        .add_handler(view.clone(), HandlerOptions::default());
    server.apply("d");
    handle.wait_for_sync().await.expect("it is synced");
    until(|| view.lock().objects == server.content()).await;
    assert_eq!(view.log(), ["*a", "*b", "*c", "+d"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn handler_before_the_start_is_told_the_initial_list() {
    let server = server_with("ab");
    let (informer, view) = (informer(&server, options(1)), View::default());
    let handle = informer.add_handler(view.clone(), HandlerOptions::default());
    let running = Running::start(informer);
    handle.wait_for_sync().await.expect("it is synced");
    assert_eq!(view.log(), ["*a", "*b"]);
    assert_eq!(handle.backlog(), 0);
    running.stop().await;
    assert!(matches!(
        handle.wait_for_sync().await,
        Err(SyncError::Stopped { .. })
    ));
}

/// Deletions that a relist found used to reach no handler in other libraries.
#[tokio::test(start_paused = true)]
async fn relist_reports_vanished_keys_exactly_once() {
    let server = server_with("abc");
    let running = Running::on(&server).await;
    let view = View::default();
    let handle = running
        .informer
        .add_handler(view.clone(), HandlerOptions::default());
    handle.wait_for_sync().await.expect("it is synced");
    server.cut(Cut::Failed(SourceError::Unreachable("reset".into())));
    tokio::task::yield_now().await;
    server.delete("b");
    server.apply("d");
    server.compact();
    until(|| view.lock().objects == server.content()).await;
    server.cut(Cut::Failed(SourceError::Expired("once more".into())));
    server.apply("a");
    until(|| view.lock().objects == server.content()).await;
    assert_eq!(view.log(), ["*a", "*b", "*c", "-b", "+d", "~a"]);
    running.stop().await;
}

/// A watch refused with HTTP 410 used to be asked again for ever in other libraries.
#[tokio::test(start_paused = true)]
async fn http_410_on_watch_start_relists() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    server.fail_watches([SourceError::Expired("too old resource version".into())]);
    server.cut(Cut::Ended);
    server.apply("b");
    until(|| running.cached() == server.content()).await;
    assert_eq!(server.requests(), ["stream", "watch@2", "stream"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn busy_or_refusing_server_is_resumed_without_a_list() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let busy = SourceError::Busy {
        message: "slow down".into(),
        retry_after: None,
    };
    server.fail_watches([busy, SourceError::Unreachable("connection refused".into())]);
    server.cut(Cut::Ended);
    server.apply("b");
    until(|| running.cached() == server.content()).await;
    assert_eq!(
        server.requests(),
        ["stream", "watch@2", "watch@2", "watch@2"]
    );
    assert_eq!(running.informer.stats().relists, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn half_open_watch_is_noticed_within_75_s() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    server.cut(Cut::Frozen);
    server.apply("b");
    let frozen = Instant::now();
    until(|| running.cached() == server.content()).await;
    assert!(
        frozen.elapsed() <= Duration::from_secs(75),
        "blind for {:?}",
        frozen.elapsed()
    );
    assert_eq!(running.informer.stats().relists, 1, "it resumed");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn server_that_never_ends_initial_events_is_paged() {
    let server = server_with("abcde");
    server.never_end_initial_events();
    let running = Running::start(informer(
        &server,
        InformerOptions {
            page_size: 2,
            ..options(1)
        },
    ));
    running.informer.wait_for_sync().await.expect("pages work");
    assert_eq!(running.cached(), server.content());
    assert_eq!(
        server.requests()[..4],
        ["stream", "list", "list+2", "list+4"]
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_fails_fast_and_names_the_reason() {
    let cases = [
        (
            SourceError::Forbidden("no rights".into()),
            "cannot list configmaps: no rights; grant list and watch on it",
        ),
        (
            SourceError::NoSuchKind("404".into()),
            "cannot list configmaps: the server has no such kind; install its CustomResourceDefinition or name a served version",
        ),
    ];
    for (error, message) in cases {
        let server = server_with("a");
        server.fail_watches([error.clone(), error]);
        let running = Running::start(informer(&server, options(1)));
        let start = Instant::now();
        assert_eq!(
            running
                .informer
                .wait_for_sync()
                .await
                .expect_err("it is refused")
                .to_string(),
            message
        );
        assert_eq!(start.elapsed(), Duration::ZERO);
        until(|| running.informer.has_synced()).await;
        assert_eq!(
            running.informer.wait_for_sync().await,
            Ok(()),
            "it went on trying"
        );
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_is_counted_and_passed_over() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    server.garble("a");
    server.apply("c");
    until(|| running.cached() == server.content()).await;
    assert_eq!(running.informer.stats().undecodable, 1);
    assert_eq!(running.informer.stats().watches, 1, "the watch lived on");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn handler_is_reminded_at_its_own_pace() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let (eager, calm) = (View::default(), View::default());
    running.informer.add_handler(
        eager.clone(),
        HandlerOptions {
            resync: Some(Duration::from_secs(60)),
        },
    );
    running
        .informer
        .add_handler(calm.clone(), HandlerOptions::default());
    sleep(Duration::from_secs(130)).await;
    assert_eq!(eager.log(), ["*a", "*b", "~a", "~b", "~a", "~b"]);
    assert_eq!(calm.log(), ["*a", "*b"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn handler_of_keys_is_told_what_happened_to_each() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let view = View::default();
    let handler = view.clone();
    let options = HandlerOptions {
        resync: Some(Duration::from_secs(60)),
    };
    let handle = running
        .informer
        .add_key_handler(move |change| handler.on_key(change), options);
    handle.wait_for_sync().await.expect("it is synced");
    server.apply("a");
    server.apply("c");
    until(|| view.lock().objects == server.content()).await;
    server.delete("b");
    until(|| view.lock().objects == server.content()).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(view.log(), ["*a", "*b", "~a", "+c", "-b", "=a", "=c"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn informer_sets_the_pace_for_handlers_that_do_not() {
    let server = server_with("a");
    let running = Running::start(informer(
        &server,
        InformerOptions {
            resync: Some(Duration::from_secs(60)),
            ..options(1)
        },
    ));
    let views = [None, Some(Duration::from_secs(30)), Some(Duration::ZERO)].map(|resync| {
        let view = View::default();
        running
            .informer
            .add_handler(view.clone(), HandlerOptions { resync });
        view
    });
    sleep(Duration::from_secs(70)).await;
    assert_eq!(views.map(|view| view.log().len()), [2, 3, 1]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn removed_handler_hears_nothing_more() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let (gone, kept) = (View::default(), View::default());
    let handle = running
        .informer
        .add_handler(gone.clone(), HandlerOptions::default());
    running
        .informer
        .add_handler(kept.clone(), HandlerOptions::default());
    handle.wait_for_sync().await.expect("it is synced");
    handle.remove();
    server.apply("b");
    until(|| kept.lock().objects == server.content()).await;
    assert_eq!(gone.log(), ["*a"]);
    running.stop().await;
}

/// What a removed handler had not been told used to count as backlog until the next change.
#[tokio::test(start_paused = true)]
async fn removed_handler_has_no_backlog() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let handle = running
        .informer
        .add_handler(View::default(), HandlerOptions::default());
    assert_eq!(running.informer.stats().backlog, 2);
    handle.remove();
    assert_eq!(running.informer.stats().backlog, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn object_made_again_unseen_is_deleted_and_added() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let view = View::default();
    let handle = running
        .informer
        .add_handler(view.clone(), HandlerOptions::default());
    handle.wait_for_sync().await.expect("it is synced");
    server.delete("a");
    server.apply("a");
    server.cut(Cut::Failed(SourceError::Expired("compacted".into())));
    until(|| view.lock().objects == server.content()).await;
    assert_eq!(view.log(), ["*a", "-a", "+a"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn panicking_handler_goes_on_with_the_next_object() {
    struct Panics(View);
    impl EventHandler<ConfigMap> for Panics {
        fn on_add(&self, object: &Arc<ConfigMap>, in_initial_list: bool) {
            assert_ne!(object.name_any(), "a", "this one is too much");
            self.0.on_add(object, in_initial_list);
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    let server = server_with("ab");
    let running = Running::on(&server).await;
    let view = View::default();
    let handle = running
        .informer
        .add_handler(Panics(view.clone()), HandlerOptions::default());
    handle.wait_for_sync().await.expect("it goes on");
    assert_eq!(view.log(), ["*b"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handler_delays_no_other() {
    struct Stuck(Arc<Mutex<()>>);
    impl EventHandler<ConfigMap> for Stuck {
        fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {
            drop(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    struct Signals(tokio::sync::watch::Sender<usize>);
    impl EventHandler<ConfigMap> for Signals {
        fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {
            self.0.send_modify(|count| *count += 1);
        }
        fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
        fn on_delete(&self, _: Tombstone<ConfigMap>) {}
    }
    let server = server_with("abc");
    let running = Running::on(&server).await;
    let gate = Arc::new(Mutex::new(()));
    let (counts, mut count) = tokio::sync::watch::channel(0);
    let stuck = {
        let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = running
            .informer
            .add_handler(Stuck(gate.clone()), HandlerOptions::default());
        let quick = running
            .informer
            .add_handler(Signals(counts), HandlerOptions::default());
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                quick
                    .wait_for_sync()
                    .await
                    .expect("the other one is not in its way");
                server.apply("d");
                count
                    .wait_for(|count| *count == 4)
                    .await
                    .expect("the handler lives");
            });
        });
        assert!(!stuck.has_synced());
        drop(closed);
        stuck
    };
    stuck.wait_for_sync().await.expect("the gate is open");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_cached_only_on_request() {
    let server = server_with("a");
    for (transform, kept) in [
        (Transform::strip_managed_fields(), false),
        (Transform::none(), true),
    ] {
        let running = Running::start(informer(
            &server,
            InformerOptions {
                transform,
                ..options(1)
            },
        ));
        running
            .informer
            .wait_for_sync()
            .await
            .expect("the server answers");
        let object = running
            .informer
            .lister()
            .get(&ObjectKey::namespaced("n", "a"))
            .expect("it is cached");
        assert_eq!(!object.managed_fields().is_empty(), kept);
        running.stop().await;
    }
}

fn named(names: &[&str]) -> Namespaces {
    Namespaces::Named(names.iter().map(ToString::to_string).collect())
}

#[tokio::test(start_paused = true)]
async fn watched_namespaces_change_at_run_time() {
    let servers: BTreeMap<String, Scripted> = ["m", "n"]
        .map(|name| (name.to_owned(), Scripted::new(name)))
        .into();
    servers["m"].apply("a");
    servers["n"].apply("b");
    let sources = servers.clone();
    let options = InformerOptions {
        namespaces: named(&["m"]),
        ..options(1)
    };
    let informer = SharedInformer::from_sources(
        ApiResource::erase::<ConfigMap>(&()),
        move |namespace| Arc::new(sources[namespace.expect("a namespace")].clone()),
        options,
    );
    let view = View::default();
    informer.add_handler(view.clone(), HandlerOptions::default());
    let running = Running::start(informer);
    running.informer.wait_for_sync().await.expect("m answers");
    running.informer.set_namespaces(named(&["m", "n"]));
    until(|| running.informer.lister().len() == 2).await;
    running
        .informer
        .wait_for_sync()
        .await
        .expect("n answers too");
    running.informer.set_namespaces(named(&["n"]));
    until(|| view.lock().objects == servers["n"].content()).await;
    assert_eq!(view.log(), ["*a", "*b", "-a"]);
    assert_eq!(running.informer.lister().in_namespace("m").len(), 0);
    assert_eq!(
        running
            .informer
            .lister()
            .seen_up_to(&ObjectKey::namespaced("n", "x"))
            .as_deref(),
        Some("2")
    );
    running.stop().await;
}

/// One forbidden watch used to slow all others of a controller in other libraries.
#[tokio::test(start_paused = true)]
async fn forbidden_watch_does_not_slow_another() {
    let servers: BTreeMap<String, Scripted> = ["m", "n"]
        .map(|name| (name.to_owned(), Scripted::new(name)))
        .into();
    servers["m"].fail_watches(vec![SourceError::Forbidden("never".into()); 1000]);
    servers["m"].fail_lists(vec![SourceError::Forbidden("never".into()); 1000]);
    let sources = servers.clone();
    let options = InformerOptions {
        namespaces: named(&["m", "n"]),
        ..options(1)
    };
    let informer = SharedInformer::from_sources(
        ApiResource::erase::<ConfigMap>(&()),
        move |namespace| Arc::new(sources[namespace.expect("a namespace")].clone()),
        options,
    );
    let view = View::default();
    informer.add_handler(view.clone(), HandlerOptions::default());
    let running = Running::start(informer);
    assert!(running.informer.wait_for_sync().await.is_err());
    for turn in 0..150 {
        servers["n"].apply("a");
        sleep(Duration::from_millis(200)).await;
        assert_eq!(view.lock().objects, servers["n"].content(), "turn {turn}");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scrape_tells_of_an_informer_while_it_lives() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    server.garble("a");
    until(|| running.informer.stats().undecodable == 1).await;
    let metrics = crate::Metrics::new();
    let other = Running::on(&server).await;
    metrics.watch_informer(&running.informer);
    metrics.watch_informer(&other.informer);
    sleep(Duration::from_secs(5)).await;
    let page = metrics.page();
    for line in [
        "bellerophon_informer_objects{name=\"configmaps\"} 4",
        "bellerophon_informer_undecodable_total{name=\"configmaps\"} 1",
        "bellerophon_informer_lag_seconds{name=\"configmaps\"} 0.0",
        "bellerophon_informer_silence_seconds{name=\"configmaps\"} 5.",
    ] {
        assert_eq!(
            page.matches(line).count(),
            1,
            "{line} is not once in {page}"
        );
    }
    running.stop().await;
    other.stop().await;
    assert!(!metrics.page().contains("configmaps"));
}

#[tokio::test(start_paused = true)]
async fn lag_is_the_age_of_the_oldest_untold_change() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    assert_eq!(running.informer.stats().lag, Duration::ZERO);
    // Nobody tells handlers anything once the informer has stopped.
    let stopped = running.informer.clone();
    running.stop().await;
    stopped.add_handler(View::default(), HandlerOptions::default());
    sleep(Duration::from_secs(7)).await;
    let InformerStats { lag, backlog, .. } = stopped.stats();
    assert_eq!((lag, backlog), (Duration::from_secs(7), 2));
}

#[tokio::test(start_paused = true)]
async fn informer_runs_once() {
    let server = server_with("a");
    let running = Running::on(&server).await;
    let informer = running.informer.clone();
    running.stop().await;
    assert!(informer.run(CancellationToken::new()).await.is_err());
    assert!(!informer.has_synced());
    assert_eq!(informer.lister().len(), 1, "the cache stays readable");
}

/// One random history: writes, cuts, forgotten versions, faults and restarts. Returns the requests it led to.
async fn history(seed: u64) -> Vec<String> {
    let entropy = Entropy::seeded(seed);
    let server = Scripted::new("n");
    server.chaos(Some(entropy.clone()));
    let initial_list = if entropy.below(4) == 0 {
        InitialList::Paged
    } else {
        InitialList::Streamed
    };
    let start = || {
        let views = [View::default(), View::default()];
        let informer = informer(
            &server,
            InformerOptions {
                initial_list,
                page_size: 2,
                ..options(seed)
            },
        );
        let [objects, keys] = views.clone();
        informer.add_handler(objects, HandlerOptions::default());
        informer.add_key_handler(move |change| keys.on_key(change), HandlerOptions::default());
        (Running::start(informer), views)
    };
    let (mut running, mut views) = start();
    for _ in 0..12 {
        let name = ["a", "b", "c", "d"][usize::try_from(entropy.below(4)).expect("small")];
        match entropy.below(16) {
            0..6 => server.apply(name),
            6..9 => server.delete(name),
            9 => server.cut(Cut::Ended),
            10 => server.cut(Cut::Failed(SourceError::Unreachable("reset".into()))),
            11 => server.cut(Cut::Frozen),
            12 => server.compact(),
            13 => server.bookmark(),
            14 => {
                server.delete(name);
                server.apply(name);
            }
            _ => {
                running.stop().await;
                (running, views) = start();
            }
        }
        if entropy.below(2) == 0 {
            sleep(Duration::from_millis(entropy.below(3000))).await;
        }
    }
    server.chaos(None);
    let is_told = |view: &View| view.lock().objects == server.content();
    until(|| {
        running.informer.has_synced()
            && running.cached() == server.content()
            && views.iter().all(is_told)
    })
    .await;
    views
        .iter()
        .for_each(|view| assert_eq!(view.lock().lies, [""; 0], "seed {seed}"));
    running.stop().await;
    server.requests()
}

#[tokio::test(start_paused = true)]
async fn random_histories_end_with_the_cache_of_the_server() {
    for seed in 0..10_000 {
        history(seed).await;
    }
}

#[test]
fn same_seed_makes_the_same_requests() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(history(seed))
    };
    let seeds: BTreeSet<u64> = (0..50).collect();
    for seed in seeds {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
