//! Shared informer factory: one informer a kind and selection for a whole program.
//! In: who wants to follow which kind, and in which namespaces. Out: leases on shared informers.
//! Holds: equal wishes share one informer; it stops when its last lease is dropped; all follow the same namespaces, which
//! can change at any time.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Client, Resource, ResourceExt, core::PartialObjectMeta};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    clock::Entropy,
    informer::{
        AlreadyRun, EventHandler, HandlerOptions, InformerOptions, Lister, Namespaces,
        SharedInformer, SyncError, Tombstone,
    },
    metrics::Metrics,
    trace::TraceBus,
};

/// The namespaces that every informer of a factory follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FactoryNamespaces {
    /// All.
    #[default]
    All,
    /// These.
    Named(BTreeSet<String>),
    /// Those whose labels match, whenever they come to match. It needs the right to list and watch namespaces.
    Labelled(String),
}

/// What all informers of a factory have in common.
#[derive(Clone, Debug)]
pub struct FactoryOptions {
    /// Where they watch at first; [`SharedInformerFactory::set_namespaces`] changes it.
    pub namespaces: FactoryNamespaces,
    /// Where changes are traced as they reach the caches.
    pub trace: TraceBus,
    /// Where jitter comes from.
    pub entropy: Entropy,
}

impl Default for FactoryOptions {
    fn default() -> Self {
        Self {
            namespaces: FactoryNamespaces::All,
            trace: TraceBus::off(),
            entropy: Entropy::from_os(),
        }
    }
}

/// Two wishes with the same identity share an informer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    kind: TypeId,
    path: String,
    labels: Option<String>,
    fields: Option<String>,
    reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The namespaces of the factory.
    Followed,
    Everything,
}

/// An informer whose kind only its leases know.
trait Member: Send + Sync {
    fn run(&self, stop: CancellationToken) -> BoxFuture<'static, Result<(), AlreadyRun>>;
    fn set_namespaces(&self, namespaces: Namespaces);
    fn block(&self, reason: SyncError);
    fn wait_for_sync(&self) -> BoxFuture<'static, Result<(), SyncError>>;
    fn report_to(&self, metrics: &Metrics);
    fn as_any(&self) -> &dyn Any;
}

impl<K: Resource + Send + Sync + 'static> Member for SharedInformer<K> {
    fn run(&self, stop: CancellationToken) -> BoxFuture<'static, Result<(), AlreadyRun>> {
        let informer = self.clone();
        async move { informer.run(stop).await }.boxed()
    }

    fn set_namespaces(&self, namespaces: Namespaces) {
        Self::set_namespaces(self, namespaces);
    }

    fn block(&self, reason: SyncError) {
        Self::block(self, reason);
    }

    fn wait_for_sync(&self) -> BoxFuture<'static, Result<(), SyncError>> {
        let informer = self.clone();
        async move { informer.wait_for_sync().await }.boxed()
    }

    fn report_to(&self, metrics: &Metrics) {
        metrics.watch_informer(self);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Entry {
    identity: Identity,
    member: Box<dyn Member>,
    held: Weak<Held>,
    stop: CancellationToken,
    started: bool,
}

#[derive(Default)]
struct State {
    /// In the order they were asked for.
    entries: BTreeMap<u64, Entry>,
    next_id: u64,
    /// Where informers report, those of `entries` and those to come.
    metrics: Option<Metrics>,
}

struct Inner {
    client: Client,
    trace: TraceBus,
    entropy: Entropy,
    state: Mutex<State>,
    chosen: watch::Sender<FactoryNamespaces>,
    /// What was chosen, by name; `None` until the names are known.
    namespaces: watch::Sender<Option<Namespaces>>,
    /// Told when an informer was asked for that did not exist.
    arrivals: Notify,
    ran: AtomicBool,
}

/// Held by all leases of one informer; the last one ends it.
struct Held {
    id: u64,
    factory: Arc<Inner>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let entry = self.factory.lock().entries.remove(&self.id);
        // With the informer go its handlers, which may hold leases themselves: the lock must be free again.
        if let Some(entry) = entry {
            entry.stop.cancel();
        }
    }
}

/// A share in an informer. The informer and its handlers stop when the last lease is dropped.
#[derive(Clone)]
pub struct InformerLease<K> {
    informer: SharedInformer<K>,
    _held: Arc<Held>,
}

impl<K> std::fmt::Debug for InformerLease<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InformerLease")
            .field(&self.informer)
            .finish()
    }
}

impl<K> Deref for InformerLease<K> {
    type Target = SharedInformer<K>;

    fn deref(&self) -> &SharedInformer<K> {
        &self.informer
    }
}

/// Makes and runs shared informers, one for each kind and selection. Clones are the same factory.
///
/// Nothing is listed or watched that nobody asked for by name, and nothing before the factory runs.
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
    /// A factory on a Kubernetes API.
    pub fn new(client: Client, options: FactoryOptions) -> Self {
        Self(Arc::new(Inner {
            client,
            trace: options.trace,
            entropy: options.entropy,
            state: Mutex::default(),
            chosen: watch::Sender::new(options.namespaces),
            namespaces: watch::Sender::new(None),
            arrivals: Notify::new(),
            ran: AtomicBool::new(false),
        }))
    }

    /// The informer of a namespaced kind, in the namespaces of the factory. Namespaces, trace and entropy of the options do
    /// not count.
    ///
    /// Whoever asks for the same type, kind and selectors gets the same informer, with the other options of whoever asked
    /// first. While the factory runs it is started at once, otherwise when the factory is run.
    pub fn informer<K>(&self, kind: K::DynamicType, options: InformerOptions<K>) -> InformerLease<K>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        self.lease(kind, options, Reach::Followed)
    }

    /// Like [`SharedInformerFactory::informer`], of a cluster-scoped kind, or of a namespaced one wherever its objects are.
    pub fn cluster_informer<K>(
        &self,
        kind: K::DynamicType,
        options: InformerOptions<K>,
    ) -> InformerLease<K>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        self.lease(kind, options, Reach::Everything)
    }

    /// Reports every informer in these metrics, those that exist and those to come. A [`Manager`](crate::Manager) does it
    /// for the factories it runs.
    pub fn report_to(&self, metrics: &Metrics) {
        let mut state = self.0.lock();
        state
            .entries
            .values()
            .for_each(|entry| entry.member.report_to(metrics));
        state.metrics = Some(metrics.clone());
    }

    /// Changes the namespaces of every informer that follows them. Objects of namespaces that are left are reported as
    /// deleted. It takes effect while the factory runs.
    pub fn set_namespaces(&self, namespaces: FactoryNamespaces) {
        self.0.chosen.send_replace(namespaces);
    }

    /// Waits until every informer that was asked for so far is synced.
    ///
    /// # Errors
    /// That of the first informer that cannot be.
    pub async fn wait_for_sync(&self) -> Result<(), SyncError> {
        let waits: Vec<_> = self
            .0
            .lock()
            .entries
            .values()
            .map(|entry| entry.member.wait_for_sync())
            .collect();
        futures_util::future::try_join_all(waits).await.map(|_| ())
    }

    /// Runs informers as they are asked for, until `stop`. All have ended when this returns.
    ///
    /// # Errors
    /// It was run before.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), AlreadyRun> {
        let inner = &self.0;
        if inner.ran.swap(true, Ordering::SeqCst) {
            return Err(AlreadyRun::of("every kind"));
        }
        let (mut chosen, mut namespaces) = (inner.chosen.subscribe(), inner.namespaces.subscribe());
        let mut selecting = inner.choose(&chosen.borrow_and_update());
        let mut running = JoinSet::new();
        loop {
            inner.spread(namespaces.borrow_and_update().as_ref(), &mut running);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = chosen.changed() => {
                    let choice = chosen.borrow_and_update().clone();
                    end(selecting.take()).await;
                    selecting = inner.choose(&choice);
                }
                _ = namespaces.changed() => {}
                () = inner.arrivals.notified() => {}
                Some(_) = running.join_next() => {}
            }
        }
        inner
            .lock()
            .entries
            .values()
            .for_each(|entry| entry.stop.cancel());
        while running.join_next().await.is_some() {}
        end(selecting).await;
        Ok(())
    }

    fn lease<K>(
        &self,
        kind: K::DynamicType,
        mut options: InformerOptions<K>,
        reach: Reach,
    ) -> InformerLease<K>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        let (labels, fields) = (options.labels.clone(), options.fields.clone());
        let identity = Identity {
            kind: TypeId::of::<K>(),
            path: K::url_path(&kind, None),
            labels,
            fields,
            reach,
        };
        let mut state = self.0.lock();
        let shared = state
            .entries
            .values()
            .filter(|entry| entry.identity == identity)
            .find_map(|entry| entry.lease::<K>());
        if let Some(lease) = shared {
            return lease;
        }
        (options.namespaces, options.entropy, options.trace) = (
            Namespaces::All,
            self.0.entropy.clone(),
            self.0.trace.clone(),
        );
        let informer = SharedInformer::new(self.0.client.clone(), kind, options);
        state
            .metrics
            .iter()
            .for_each(|metrics| metrics.watch_informer(&informer));
        let id = state.next_id;
        state.next_id += 1;
        let held = Arc::new(Held {
            id,
            factory: self.0.clone(),
        });
        let member = Box::new(informer.clone());
        let entry = Entry {
            identity,
            member,
            held: Arc::downgrade(&held),
            stop: CancellationToken::new(),
            started: false,
        };
        state.entries.insert(id, entry);
        drop(state);
        self.0.arrivals.notify_one();
        InformerLease {
            informer,
            _held: held,
        }
    }
}

impl Entry {
    /// `None` when the last lease is just being dropped.
    fn lease<K: 'static>(&self) -> Option<InformerLease<K>> {
        let informer = self
            .member
            .as_any()
            .downcast_ref::<SharedInformer<K>>()?
            .clone();
        Some(InformerLease {
            informer,
            _held: self.held.upgrade()?,
        })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells informers where to watch, and starts those that can start.
    fn spread(&self, namespaces: Option<&Namespaces>, running: &mut JoinSet<()>) {
        for entry in self.lock().entries.values_mut() {
            match (entry.identity.reach, namespaces) {
                (Reach::Followed, None) => continue,
                (Reach::Followed, Some(namespaces)) => {
                    entry.member.set_namespaces(namespaces.clone())
                }
                (Reach::Everything, _) => {}
            }
            if !std::mem::replace(&mut entry.started, true) {
                let run = entry.member.run(entry.stop.clone());
                running.spawn(async move {
                    if let Err(error) = run.await {
                        tracing::error!(%error, "an informer of the factory is run elsewhere");
                    }
                });
            }
        }
    }

    /// Acts on a choice of namespaces. What is returned keeps it up to date until it is ended.
    fn choose(self: &Arc<Self>, chosen: &FactoryNamespaces) -> Option<Selecting> {
        let labels = match chosen {
            FactoryNamespaces::All => {
                self.namespaces.send_replace(Some(Namespaces::All));
                return None;
            }
            FactoryNamespaces::Named(names) => {
                self.namespaces
                    .send_replace(Some(Namespaces::Named(names.clone())));
                return None;
            }
            FactoryNamespaces::Labelled(labels) => labels.clone(),
        };
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(self.clone().select(labels, stop.clone())));
        Some(Selecting { stop, task })
    }

    /// Follows the namespaces with these labels.
    async fn select(self: Arc<Self>, labels: String, stop: CancellationToken) {
        let options = InformerOptions {
            labels: Some(labels),
            entropy: self.entropy.clone(),
            ..InformerOptions::default()
        };
        let informer =
            SharedInformer::<PartialObjectMeta<Namespace>>::new(self.client.clone(), (), options);
        let selected = Selected {
            lister: informer.lister(),
            complete: Arc::default(),
            factory: self.clone(),
        };
        let complete = selected.complete.clone();
        let handle = informer.add_handler(selected, HandlerOptions::default());
        let begin = async {
            if let Err(reason) = handle.wait_for_sync().await {
                self.lock()
                    .entries
                    .values()
                    .filter(|entry| !entry.started)
                    .for_each(|entry| entry.member.block(reason.clone()));
                handle.synced().await;
            }
            complete.store(true, Ordering::SeqCst);
            self.publish(&informer.lister());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = informer.run(stop) => {}
            () = begin => {}
        }
    }

    fn publish(&self, namespaces: &Lister<PartialObjectMeta<Namespace>>) {
        let names = namespaces
            .list()
            .iter()
            .map(|namespace| namespace.name_any())
            .collect();
        let names = Some(Namespaces::Named(names));
        self.namespaces.send_if_modified(|was| {
            let changed = *was != names;
            *was = names;
            changed
        });
    }
}

/// A running selection of namespaces.
struct Selecting {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

/// Waits for the end of a selection, so that it cannot speak after its successor.
async fn end(selecting: Option<Selecting>) {
    if let Some(Selecting { stop, task }) = selecting {
        stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(%error, "the selection of namespaces did not end by itself");
        }
    }
}

/// Passes changes of the selected namespaces on, once all of them are known.
struct Selected {
    lister: Lister<PartialObjectMeta<Namespace>>,
    complete: Arc<AtomicBool>,
    factory: Arc<Inner>,
}

impl Selected {
    fn changed(&self) {
        if self.complete.load(Ordering::SeqCst) {
            self.factory.publish(&self.lister);
        }
    }
}

impl EventHandler<PartialObjectMeta<Namespace>> for Selected {
    fn on_add(&self, _: &Arc<PartialObjectMeta<Namespace>>, _: bool) {
        self.changed();
    }

    fn on_update(
        &self,
        _: &Arc<PartialObjectMeta<Namespace>>,
        _: &Arc<PartialObjectMeta<Namespace>>,
    ) {
    }

    fn on_delete(&self, _: Tombstone<PartialObjectMeta<Namespace>>) {
        self.changed();
    }
}
