//! Shared informer factory: one informer per resource and selection for a whole program.
//! In: requests for informers, and the namespaces they follow. Out: handles to shared informers.
//! Guarantees: equal requests share one informer; it stops when its last handle is dropped; all
//! informers follow the namespaces of the factory, which can change at any time.

use std::{
    any::TypeId,
    collections::BTreeMap,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bellerophon_kinds::{Kind, KindScope};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Client, Resource,
    core::{ApiResource, DynamicObject, PartialObjectMeta},
};
use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    InformerHandle, SharedInformer, SyncError, begun,
    handler::Handler,
    informer::{Informer, InformerConfig},
    options::{CacheMode, InformerOptions, ListWatchFn, Namespaces, Scopes, Settings},
};
use crate::{
    clock::Rng,
    list_watch::{KubeListWatch, ListWatch},
    metrics::Metrics,
    trace::Trace,
};

/// Options of all informers of a factory.
///
/// ```
/// use bellerophon::informer::{CacheMode, FactoryOptions, Namespaces};
///
/// let options = FactoryOptions {
///     namespaces: Namespaces::named(["team-a", "team-b"]),
///     cache_mode: Some(CacheMode::Decoded),
///     ..FactoryOptions::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct FactoryOptions {
    /// Where they watch at first; [`SharedInformerFactory::set_namespaces`] changes it.
    pub namespaces: Namespaces,
    /// How caches keep objects, where an informer sets nothing else.
    pub cache_mode: Option<CacheMode>,
    /// The registry of their metrics.
    pub metrics: Metrics,
    /// Where changes are traced as they reach the caches.
    pub trace: Trace,
    /// The source of jitter.
    pub rng: Rng,
}

impl Default for FactoryOptions {
    fn default() -> Self {
        Self {
            namespaces: Namespaces::All,
            cache_mode: None,
            metrics: Metrics::new(),
            trace: Trace::off(),
            rng: Rng::from_os(),
        }
    }
}

/// A mistake in the setup of a program, and where it was made.
#[derive(Clone, Debug)]
pub(crate) struct SetupError {
    pub(crate) message: String,
    pub(crate) location: &'static Location<'static>,
}

impl std::fmt::Display for SetupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.location)
    }
}

/// The mistakes found so far. Once they were taken, further ones are logged.
#[derive(Clone, Debug)]
pub(crate) struct SetupErrors(Arc<Mutex<Option<Vec<SetupError>>>>);

impl SetupErrors {
    /// Errors are collected until they are taken.
    pub(crate) fn collected() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    /// Errors are logged.
    fn logged() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn add(&self, message: String, location: &'static Location<'static>) {
        match &mut *self.lock() {
            Some(errors) => errors.push(SetupError { message, location }),
            None => tracing::error!(%location, message),
        }
    }

    pub(crate) fn take(&self) -> Vec<SetupError> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<SetupError>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Two requests with the same identity share an informer.
#[derive(Clone)]
struct Identity {
    kind: TypeId,
    resource: ApiResource,
    labels: Option<String>,
    fields: Option<String>,
    namespaces: Option<Namespaces>,
    list_watch: Option<ListWatchFn>,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        let same_source = match (&self.list_watch, &other.list_watch) {
            (None, None) => true,
            // Functions cannot be compared, but clones of one source are the same source.
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_source
            && self.kind == other.kind
            && self.resource == other.resource
            && self.labels == other.labels
            && self.fields == other.fields
            && self.namespaces == other.namespaces
    }
}

struct Entry {
    identity: Identity,
    informer: Arc<Informer>,
    handle: Weak<InformerHandle>,
    stop: CancellationToken,
    /// Where it watches: its own namespaces, or those of the factory for `None`.
    namespaces: Option<Namespaces>,
    started: bool,
}

#[derive(Default)]
struct State {
    /// In the order of the first requests.
    entries: BTreeMap<u64, Entry>,
    next_id: u64,
    /// The task of a factory that was started by itself.
    task: Option<JoinHandle<()>>,
}

pub(super) struct Inner {
    client: Client,
    cache_mode: Option<CacheMode>,
    metrics: Metrics,
    trace: Trace,
    rng: Rng,
    errors: SetupErrors,
    state: Mutex<State>,
    chosen: watch::Sender<Namespaces>,
    /// The selected scopes; `None` until the names are known.
    scopes: watch::Sender<Option<Scopes>>,
    /// Notified when an informer was added.
    added: Notify,
    stop: CancellationToken,
}

/// Held by all handles of one informer; the last one stops it.
pub(super) struct Lease {
    id: u64,
    factory: Arc<Inner>,
}

impl Lease {
    pub(super) fn errors(&self) -> &SetupErrors {
        &self.factory.errors
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let entry = self.factory.lock().entries.remove(&self.id);
        // Its handlers may hold handles themselves and are dropped here, without the lock.
        if let Some(entry) = entry {
            entry.stop.cancel();
        }
    }
}

/// Makes and runs shared informers, one per resource and selection, for programs whose informers
/// come and go; a [`Manager`](crate::manager::Manager) has one. Clones are the same factory.
///
/// An informer runs while a handle to it, or to one of its listers or indexes, exists.
///
/// ```
/// use bellerophon::informer::{FactoryOptions, InformerOptions, SharedInformerFactory};
/// use k8s_openapi::api::core::v1::Namespace;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = bellerophon_apiserver::ApiServer::builder().start().await?;
/// # let client = server.client();
/// let informers = SharedInformerFactory::start(client, FactoryOptions::default());
/// let namespaces = informers.informer::<Namespace>(InformerOptions::default());
/// informers.wait_for_cache_sync().await?;
/// let lister = namespaces.lister();
/// assert!(lister.iter().any(|namespace| namespace.metadata.name.as_deref() == Some("default")));
/// informers.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedInformerFactory(Arc<Inner>);

impl std::fmt::Debug for SharedInformerFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedInformerFactory")
            .field("informers", &self.0.lock().entries.len())
            .finish_non_exhaustive()
    }
}

impl SharedInformerFactory {
    /// Starts a factory. It runs until [`SharedInformerFactory::stop`].
    pub fn start(client: Client, options: FactoryOptions) -> Self {
        let factory = Self::new(client, options, SetupErrors::logged());
        let task = tokio::spawn(factory.clone().run());
        factory.0.lock().task = Some(task);
        factory
    }

    /// A factory that is run by a manager.
    pub(crate) fn new(client: Client, options: FactoryOptions, errors: SetupErrors) -> Self {
        Self(Arc::new(Inner {
            client,
            cache_mode: options.cache_mode,
            metrics: options.metrics,
            trace: options.trace,
            rng: options.rng,
            errors,
            state: Mutex::default(),
            chosen: watch::Sender::new(options.namespaces),
            scopes: watch::Sender::new(None),
            added: Notify::new(),
            stop: CancellationToken::new(),
        }))
    }

    /// The informer of a resource and selection.
    ///
    /// Equal type, resource, selectors, namespaces and source are one informer. It is started
    /// immediately, or with its Manager.
    ///
    /// # Setup errors
    /// The other options contradict those of an earlier request, or a `DynamicObject` has no
    /// resource. A Manager returns them from `run`; afterwards they are logged.
    #[track_caller]
    pub fn informer<K: Kind>(&self, options: InformerOptions<K>) -> SharedInformer<K> {
        self.informer_at(options, Location::caller())
    }

    /// The same, requested at this location.
    pub(crate) fn informer_at<K: Kind>(
        &self,
        options: InformerOptions<K>,
        location: &'static Location<'static>,
    ) -> SharedInformer<K> {
        let codec = K::codec();
        let settings = options.settings(self.0.cache_mode);
        let resource = options.resource.or_else(|| codec.resource());
        let resource = resource.unwrap_or_else(|| {
            let kind = std::any::type_name::<K>();
            let message = format!("an informer of {kind} needs InformerOptions::resource");
            self.0.errors.add(message, location);
            ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("", "", "Unknown"))
        });
        let own_namespaces = match codec.scope() {
            // The namespaces of a Manager do not restrict kinds that have none.
            KindScope::Cluster => Some(Namespaces::All),
            KindScope::Namespaced | KindScope::Dynamic => options.namespaces,
        };
        let identity = Identity {
            kind: TypeId::of::<K>(),
            resource,
            labels: options.labels,
            fields: options.fields,
            namespaces: own_namespaces,
            list_watch: options.list_watch,
        };
        SharedInformer::new(self.0.handle(identity, settings, codec, location))
    }

    /// Changes the namespaces of every informer without its own. Objects of namespaces that are no
    /// longer watched are reported as deleted.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        self.0.chosen.send_replace(namespaces);
    }

    /// Waits until every informer requested so far is synced.
    ///
    /// # Errors
    /// That of the first informer that cannot be.
    pub async fn wait_for_cache_sync(&self) -> Result<(), SyncError> {
        let entries = self.0.lock().informers();
        for informer in entries {
            informer.wait_for_cache_sync().await?;
        }
        Ok(())
    }

    /// Stops every informer. All tasks have ended when this returns.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        let task = self.0.lock().task.take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the informers ended unexpectedly");
        }
    }

    /// Stops it without waiting.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.0.stop.clone()
    }

    /// Runs informers as they are requested, until it is stopped. All have ended when this returns.
    pub(crate) async fn run(self) {
        let inner = &self.0;
        let mut chosen = inner.chosen.subscribe();
        let mut scopes = inner.scopes.subscribe();
        let mut selection = inner.choose(&chosen.borrow_and_update());
        let mut running = JoinSet::new();
        loop {
            inner.start_all(scopes.borrow_and_update().as_ref(), &mut running);
            tokio::select! {
                biased;
                () = inner.stop.cancelled() => break,
                _ = chosen.changed() => {
                    let choice = chosen.borrow_and_update().clone();
                    // The old selection has ended before the new one begins, so it cannot overwrite
                    // the new names.
                    stop_selection(selection.take()).await;
                    selection = inner.choose(&choice);
                }
                _ = scopes.changed() => {}
                () = inner.added.notified() => {}
                Some(_) = running.join_next() => {}
            }
        }
        inner
            .lock()
            .entries
            .values()
            .for_each(|entry| entry.stop.cancel());
        while running.join_next().await.is_some() {}
        stop_selection(selection).await;
        // Informers that were never started are stopped too, for callers that wait for their sync.
        // Their handlers may hold handles, and are dropped without the lock.
        let informers = inner.lock().informers();
        for informer in informers {
            informer.core.stop();
            informer.core.drop_handlers();
        }
    }
}

impl State {
    fn informers(&self) -> Vec<Arc<Informer>> {
        self.entries
            .values()
            .map(|entry| entry.informer.clone())
            .collect()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(
        self: &Arc<Self>,
        identity: Identity,
        settings: Settings,
        codec: &'static bellerophon_kinds::KindCodec,
        location: &'static Location<'static>,
    ) -> Arc<InformerHandle> {
        let mut state = self.lock();
        let mut entries = state.entries.values();
        let shared = entries.find(|entry| entry.identity == identity);
        // The last handle may be dropped right now: then a new informer takes its place.
        if let Some(handle) = shared.and_then(|entry| entry.handle.upgrade()) {
            drop(state);
            if let Some(setting) = handle.informer.merge(settings) {
                let resource = &handle.core().name;
                let message = format!("the informer of {resource} has contradicting {setting}");
                self.errors.add(message, location);
            }
            return handle;
        }
        let informer = Arc::new(Informer::new(InformerConfig {
            resource: identity.resource.clone(),
            codec,
            list_watch: self.list_watch(&identity, codec.is_metadata_only()),
            settings,
            trace: self.trace.clone(),
            rng: self.rng.clone(),
        }));
        self.metrics
            .track_informer(&informer.core.name, informer.stats_while_alive());
        let cache = Arc::downgrade(&informer);
        self.trace.track_informer(cache);
        let id = state.next_id;
        state.next_id += 1;
        let handle = Arc::new(InformerHandle {
            informer: informer.clone(),
            lease: Some(Lease {
                id,
                factory: self.clone(),
            }),
        });
        let entry = Entry {
            namespaces: identity.namespaces.clone(),
            identity,
            informer,
            // Weak: the factory alone does not keep an informer running.
            handle: Arc::downgrade(&handle),
            stop: CancellationToken::new(),
            started: false,
        };
        state.entries.insert(id, entry);
        drop(state);
        // After the lock is released; `Notify` keeps the permit if the factory does not run yet.
        self.added.notify_one();
        handle
    }

    fn list_watch(&self, identity: &Identity, metadata_only: bool) -> ListWatchFn {
        if let Some(list_watch) = &identity.list_watch {
            return list_watch.clone();
        }
        let client = self.client.clone();
        let resource = identity.resource.clone();
        let labels = identity.labels.clone();
        let fields = identity.fields.clone();
        Arc::new(move |namespace| -> Arc<dyn ListWatch> {
            let path = DynamicObject::url_path(&resource, namespace);
            let mut source = KubeListWatch::new(client.clone(), path);
            if metadata_only {
                source = source.metadata_only();
            }
            if let Some(labels) = &labels {
                source = source.labels(labels);
            }
            if let Some(fields) = &fields {
                source = source.fields(fields);
            }
            Arc::new(source)
        })
    }

    /// Sets the scopes of informers, and starts those whose scopes are known.
    fn start_all(self: &Arc<Self>, scopes: Option<&Scopes>, running: &mut JoinSet<()>) {
        for entry in self.lock().entries.values_mut() {
            let was_started = entry.started;
            match &entry.namespaces {
                None => match scopes {
                    // The labelled namespaces are not known yet. Starting with none would report an
                    // empty cache as synced.
                    None => continue,
                    Some(scopes) => entry.informer.set_scopes(scopes.clone()),
                },
                Some(Namespaces::All) => entry.informer.set_scopes(Scopes::All),
                Some(Namespaces::Named(names)) => {
                    entry.informer.set_scopes(Scopes::Named(names.clone()));
                }
                Some(Namespaces::Labelled(labels)) if !was_started => {
                    entry.started = true;
                    running.spawn(self.clone().run_labelled(
                        entry.informer.clone(),
                        labels.clone(),
                        entry.stop.clone(),
                    ));
                    continue;
                }
                Some(Namespaces::Labelled(_)) => continue,
            }
            entry.started = true;
            if !was_started {
                running.spawn(entry.informer.clone().run(entry.stop.clone()));
            }
        }
    }

    /// Runs an informer with its own selection of namespaces.
    async fn run_labelled(
        self: Arc<Self>,
        informer: Arc<Informer>,
        labels: String,
        stop: CancellationToken,
    ) {
        let scopes = watch::Sender::new(None);
        let mut known = scopes.subscribe();
        let block = {
            let informer = informer.clone();
            move |reason| informer.core.block(reason)
        };
        let selection = Selection::start(&self, labels, scopes, block);
        let first = match stop
            .run_until_cancelled(known.wait_for(Option::is_some))
            .await
        {
            Some(Ok(first)) => first.clone(),
            _ => None,
        };
        if let Some(first) = first {
            informer.set_scopes(first);
            let follow = async {
                while known.changed().await.is_ok() {
                    if let Some(scopes) = known.borrow_and_update().clone() {
                        informer.set_scopes(scopes);
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = informer.clone().run(stop) => {}
                () = follow => {}
            }
        }
        stop_selection(Some(selection)).await;
    }

    /// Acts on a choice of namespaces. What is returned keeps it up to date until it is stopped.
    fn choose(self: &Arc<Self>, chosen: &Namespaces) -> Option<Selection> {
        match chosen {
            Namespaces::All => {
                self.scopes.send_replace(Some(Scopes::All));
                None
            }
            Namespaces::Named(names) => {
                self.scopes.send_replace(Some(Scopes::Named(names.clone())));
                None
            }
            Namespaces::Labelled(labels) => {
                let factory = self.clone();
                let block = move |reason: SyncError| {
                    let state = factory.lock();
                    let waiting = state.entries.values().filter(|entry| !entry.started);
                    waiting.for_each(|entry| entry.informer.core.block(reason.clone()));
                };
                let scopes = self.scopes.clone();
                Some(Selection::start(self, labels.clone(), scopes, block))
            }
        }
    }
}

/// Follows the namespaces with some labels.
struct Selection {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Selection {
    /// Publishes the names as soon as all are known, and whenever they change; `block` receives the
    /// reason why they cannot be known.
    fn start(
        factory: &Inner,
        labels: String,
        scopes: watch::Sender<Option<Scopes>>,
        block: impl Fn(SyncError) + Send + Sync + 'static,
    ) -> Self {
        let codec = PartialObjectMeta::<Namespace>::codec();
        let resource = ApiResource::erase::<Namespace>(&());
        let path = DynamicObject::url_path(&resource, None);
        let source = KubeListWatch::new(factory.client.clone(), path).metadata_only();
        let source: Arc<dyn ListWatch> = Arc::new(source.labels(labels));
        let informer = Arc::new(Informer::new(InformerConfig {
            resource,
            codec,
            list_watch: Arc::new(move |_| source.clone()),
            settings: Settings::default(),
            trace: Trace::off(),
            rng: factory.rng.clone(),
        }));
        let stop = CancellationToken::new();
        let task = tokio::spawn(follow_namespaces(informer, scopes, block, stop.clone()));
        Self {
            stop,
            task: AbortOnDropHandle::new(task),
        }
    }
}

async fn follow_namespaces(
    informer: Arc<Informer>,
    scopes: watch::Sender<Option<Scopes>>,
    block: impl Fn(SyncError) + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let publish = {
        let core = informer.core.clone();
        move || {
            let store = core.store();
            let names = store
                .entries()
                .map(|(key, _)| key.name().to_owned())
                .collect();
            let names = Some(Scopes::Named(names));
            scopes.send_if_modified(|current| {
                let changed = *current != names;
                *current = names;
                changed
            });
        }
    };
    let publish = Arc::new(publish);
    // Publishing during the first list would start and stop reflectors for every page of it.
    let complete = Arc::new(AtomicBool::new(false));
    let on_change = {
        let publish = publish.clone();
        let complete = complete.clone();
        move |_: super::KeyChange<'_>| {
            if complete.load(Ordering::SeqCst) {
                publish();
            }
        }
    };
    let handler = Handler::Keys(Box::new(on_change));
    let registration = informer.core.add_handler(handler, None, begun());
    let begin = async {
        if let Err(reason) = registration.wait_for_cache_sync().await {
            // Reported once. The informer keeps retrying, and the permission may be granted later.
            block(reason);
            registration.synced().await;
        }
        complete.store(true, Ordering::SeqCst);
        publish();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = informer.run(stop) => {}
        () = begin => {}
    }
}

/// Waits for the end of a selection, so that it cannot publish after its successor.
async fn stop_selection(selection: Option<Selection>) {
    if let Some(Selection { stop, task }) = selection {
        stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(%error, "the selection of namespaces ended unexpectedly");
        }
    }
}
