//! The guarantees of a shared informer, on a scripted server in paused time.

mod handlers; // events of handlers
mod histories; // random histories
mod namespaces; // several reflectors of one informer
mod reflecting; // the cache follows the server
mod stats; // statistics and metrics

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ApiResource};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    informer::InformerConfig,
    options::{ListWatchFn, Scopes},
    *,
};
use crate::{
    clock::Rng,
    key::ObjectKey,
    list_watch::scripted::{Scripted, WatchFault},
    queue::CauseEvent,
    trace::Trace,
};

/// Virtual time after which a condition counts as never fulfilled.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// What a handler received, and the objects it therefore knows.
#[derive(Default)]
struct Received {
    /// Known objects and their versions.
    objects: BTreeMap<ObjectKey, String>,
    log: Vec<String>,
    /// Calls that contradict earlier ones.
    contradictions: Vec<String>,
}

/// A handler that records its calls.
#[derive(Clone, Default)]
struct Recorder {
    received: Arc<Mutex<Received>>,
    calls: watch::Sender<usize>,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls so far: `*a` and `+a` added in and after the initial list, `~a` updated, `-a`
    /// deleted, `=a` resync.
    fn log(&self) -> Vec<String> {
        self.assert_no_contradiction();
        self.lock().log.clone()
    }

    fn assert_no_contradiction(&self) {
        assert_eq!(self.lock().contradictions, [""; 0]);
    }

    /// Waits until it knows exactly the objects of the server.
    async fn caught_up(&self, server: &Scripted) {
        let mut calls = self.calls.subscribe();
        let caught_up = calls.wait_for(|_| self.lock().objects == server.content());
        let caught_up = timeout(WAIT_MAX, caught_up).await;
        assert!(caught_up.is_ok(), "the handler never caught up");
    }

    fn called(&self) {
        self.calls.send_modify(|calls| *calls += 1);
    }

    /// Records a change of a key, for a handler of keys.
    fn on_key(&self, change: KeyChange<'_>) {
        let mut received = self.lock();
        let sign = match change.event {
            CauseEvent::Added if change.in_initial_list => "*",
            CauseEvent::Added => "+",
            CauseEvent::Updated => "~",
            CauseEvent::Resync => "=",
            CauseEvent::Deleted => "-",
            CauseEvent::Generic | CauseEvent::Retry => "?",
        };
        received.log.push(format!("{sign}{}", change.key.name()));
        let version = change
            .resource_version
            .expect("cached objects have a version");
        let key = change.key.clone();
        let before = received.objects.remove(change.key);
        let is_consistent = match change.event {
            CauseEvent::Added => before.is_none(),
            CauseEvent::Updated => before.is_some_and(|before| before != version),
            CauseEvent::Resync => before.as_ref() == Some(&version),
            CauseEvent::Deleted => before.is_some(),
            CauseEvent::Generic | CauseEvent::Retry => false,
        };
        if !is_consistent {
            let contradiction = format!("{sign}{key} contradicts earlier calls");
            received.contradictions.push(contradiction);
        }
        if change.event != CauseEvent::Deleted {
            received.objects.insert(key, version);
        }
        drop(received);
        self.called();
    }
}

fn version(object: &ConfigMap) -> String {
    object
        .resource_version()
        .expect("cached objects have a version")
}

impl EventHandler<ConfigMap> for Recorder {
    fn on_add(&self, object: &Arc<ConfigMap>, in_initial_list: bool) {
        let mut received = self.lock();
        let name = object.name_any();
        let sign = if in_initial_list { "*" } else { "+" };
        received.log.push(format!("{sign}{name}"));
        let key = ObjectKey::from_object(&**object);
        if received.objects.insert(key, version(object)).is_some() {
            received.contradictions.push(format!("{name} added twice"));
        }
        drop(received);
        self.called();
    }

    fn on_update(&self, old: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        let mut received = self.lock();
        let name = new.name_any();
        received.log.push(format!("~{name}"));
        let key = ObjectKey::from_object(&**new);
        let before = received.objects.insert(key, version(new));
        if old.uid() != new.uid() || before != Some(version(old)) {
            let contradiction = format!("{name} updated from another state");
            received.contradictions.push(contradiction);
        }
        drop(received);
        self.called();
    }

    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        let mut received = self.lock();
        let name = last.key.name();
        received.log.push(format!("-{name}"));
        if received.objects.remove(&last.key).is_none() {
            let contradiction = format!("{name} deleted without being known");
            received.contradictions.push(contradiction);
        }
        drop(received);
        self.called();
    }
}

/// A running informer.
struct Running {
    informer: SharedInformer<ConfigMap>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(informer: SharedInformer<ConfigMap>) -> Self {
        let stop = CancellationToken::new();
        let running = informer.handle.informer.clone();
        Self {
            task: tokio::spawn(running.run(stop.clone())),
            informer,
            stop,
        }
    }

    /// Starts an informer of one server and waits until it is synced.
    async fn on(server: &Scripted) -> Self {
        let running = Self::start(informer(server, InformerOptions::default()));
        let synced = running.informer.wait_for_cache_sync().await;
        synced.expect("the server responds");
        running
    }

    fn cached(&self) -> BTreeMap<ObjectKey, String> {
        let objects = self.informer.lister().list();
        objects
            .iter()
            .map(|object| (ObjectKey::from_object(&**object), version(object)))
            .collect()
    }

    /// Waits until a condition of the cache holds, evaluated whenever the cache changes.
    async fn wait_for(&self, condition: impl Fn(&Self) -> bool) {
        let mut changes = self.informer.handle.core().changes.subscribe();
        let fulfilled = timeout(WAIT_MAX, changes.wait_for(|_| condition(self))).await;
        assert!(fulfilled.is_ok(), "the condition was never fulfilled");
    }

    /// Waits until the cache has exactly the objects of the server.
    async fn caught_up(&self, server: &Scripted) {
        self.wait_for(|running| running.cached() == server.content())
            .await;
    }

    /// Waits until the cache is synced, also after errors that a retry does not resolve.
    async fn synced_despite_errors(&self) {
        let mut status = self.informer.handle.core().status.subscribe();
        let synced = timeout(WAIT_MAX, status.wait_for(|status| status.synced)).await;
        assert!(synced.is_ok(), "the cache was never synced");
    }

    /// Adds a recording handler whose initial list was delivered.
    async fn recorder(&self) -> Recorder {
        let recorder = Recorder::default();
        let registration = self.informer.add_event_handler(recorder.clone());
        let synced = registration.wait_for_cache_sync().await;
        synced.expect("the cache is synced");
        recorder
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no task panics");
    }
}

fn informer(server: &Scripted, options: InformerOptions<ConfigMap>) -> SharedInformer<ConfigMap> {
    let server = server.clone();
    seeded_informer(Arc::new(move |_| Arc::new(server.clone())), options, 1)
}

fn seeded_informer(
    list_watch: ListWatchFn,
    options: InformerOptions<ConfigMap>,
    seed: u64,
) -> SharedInformer<ConfigMap> {
    let informer = Informer::new(InformerConfig {
        resource: ApiResource::erase::<ConfigMap>(&()),
        codec: ConfigMap::codec(),
        list_watch,
        settings: options.settings(None),
        trace: Trace::off(),
        rng: Rng::seeded(seed),
    });
    SharedInformer::new(Arc::new(InformerHandle {
        informer: Arc::new(informer),
        lease: None,
    }))
}

fn server_with(names: &str) -> Scripted {
    let server = Scripted::new("n");
    names
        .chars()
        .for_each(|name| server.apply(&name.to_string()));
    server
}
