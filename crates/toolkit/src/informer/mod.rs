//! Shared informer: one cache of one kind, for all who read it and all who want to be told.
//! In: one feed for each watched namespace. Out: listers and handlers.
//! Holds: see [`SharedInformer`].

pub(crate) mod core; // what the feeds write
mod handler; // who is told
mod index; // the objects
#[cfg(test)]
mod interleavings; // the promises where threads meet
mod lister; // reads
mod mailbox; // what a handler has still to be told
mod options; // what is cached, and how
mod status; // synced, or why not
#[cfg(test)]
mod tests; // the promises, on a scripted server

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::{Client, Resource, core::ApiResource};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet, time::Duration};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use self::{
    core::InformerStats,
    handler::{EventHandler, HandlerHandle, HandlerOptions, KeyChange, Tombstone},
    index::IndexError,
    lister::Lister,
    options::{CacheForm, InformerOptions, Namespaces, Transform},
    status::SyncError,
};
use self::{
    core::{Core, Scope},
    status::Status,
};
pub(crate) use self::{handler::Handler, options::Change};
use crate::{
    clock::Entropy,
    controller::kind_name,
    fifo::KnownKeys,
    reflector::{InitialList, Prepare, Reflector},
    source::{KubeListWatch, ListWatch},
};

/// The informer was run before; it runs once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the informer of {0} was run already; make another one")]
pub struct AlreadyRun(String);

impl AlreadyRun {
    pub(crate) fn of(what: &str) -> Self {
        Self(what.to_owned())
    }
}

type Sources<K> = dyn Fn(Option<&str>) -> Arc<dyn ListWatch<K>> + Send + Sync;

struct Shared<K> {
    core: Arc<Core<K>>,
    kind: ApiResource,
    sources: Box<Sources<K>>,
    namespaces: watch::Sender<Namespaces>,
    prepare: Arc<Prepare<K>>,
    initial: InitialList,
    page_size: u32,
    resync: Option<Duration>,
    entropy: Entropy,
    ran: AtomicBool,
}

/// One cache of one kind, shared by every lister and handler. Clones are the same informer.
///
/// It promises:
/// - The cache follows the server. A cut watch resumes; a relist tells handlers of every object that vanished meanwhile,
///   once. The old cache stays readable while a new list is taken.
/// - Handlers hear of one object in order, and of each object that is there when they come exactly once as added,
///   whenever they come. Each has a task of its own: a slow one delays no other.
/// - Memory is bounded by the number of objects: a slow handler's backlog merges per object.
/// - Objects are shared and never change. A deleted object that was made again under its name is a deletion and an
///   addition, not an update.
///
/// ```no_run
/// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use bellerophon::{InformerOptions, SharedInformer};
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use tokio_util::sync::CancellationToken;
///
/// let informer = SharedInformer::<ConfigMap>::new(client, (), InformerOptions::default());
/// let stop = CancellationToken::new();
/// let running = tokio::spawn({
///     let (informer, stop) = (informer.clone(), stop.clone());
///     async move { informer.run(stop).await }
/// });
/// informer.wait_for_sync().await?;
/// println!("{} config maps", informer.lister().len());
/// stop.cancel();
/// running.await??;
/// # Ok(())
/// # }
/// ```
pub struct SharedInformer<K>(Arc<Shared<K>>);

impl<K> Clone for SharedInformer<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> std::fmt::Debug for SharedInformer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedInformer")
            .field(&self.0.core.what)
            .finish()
    }
}

impl<K: Resource + DeserializeOwned + Send + Sync + 'static> SharedInformer<K> {
    /// An informer of a kind on a Kubernetes API. It asks nothing of the server before it is run.
    ///
    /// The kind is `()` for types that know it; `PartialObjectMeta<K>` caches metadata only; `DynamicObject` takes an
    /// `ApiResource` found at run time.
    pub fn new(client: Client, kind: K::DynamicType, options: InformerOptions<K>) -> Self {
        let erased = ApiResource::erase::<K>(&kind);
        let (labels, fields) = (options.labels.clone(), options.fields.clone());
        let whole = !matches!(options.transform.0, Change::StripManagedFields);
        let sources = move |namespace: Option<&str>| -> Arc<dyn ListWatch<K>> {
            let source = KubeListWatch::new(client.clone(), &kind, namespace);
            let source = if whole {
                source
            } else {
                source.without_managed_fields()
            };
            let source = labels
                .iter()
                .fold(source, |source, labels| source.labels(labels));
            Arc::new(
                fields
                    .iter()
                    .fold(source, |source, fields| source.fields(fields)),
            )
        };
        Self::from_sources(erased, sources, options)
    }
}

impl<K: Resource + Send + Sync + 'static> SharedInformer<K> {
    /// An informer over any source: `sources` makes the one of a namespace, or of all for `None`, and sees to selectors
    /// itself. For a type that knows its kind, that is `ApiResource::erase::<K>(&())`.
    pub fn from_sources(
        kind: ApiResource,
        sources: impl Fn(Option<&str>) -> Arc<dyn ListWatch<K>> + Send + Sync + 'static,
        options: InformerOptions<K>,
    ) -> Self {
        let what = if kind.group.is_empty() {
            kind.plural.clone()
        } else {
            format!("{}.{}", kind.plural, kind.group)
        };
        let core = Arc::new(Core::new(
            what,
            options.cache.decoded_max(),
            (options.trace, kind_name(&kind)),
        ));
        let prepare = Prepare {
            core: core.clone(),
            transform: options.transform.0,
            form: options.cache,
        };
        Self(Arc::new(Shared {
            core,
            kind,
            sources: Box::new(sources),
            namespaces: watch::Sender::new(options.namespaces),
            prepare: Arc::new(prepare),
            initial: options.initial_list,
            page_size: options.page_size,
            resync: options.resync,
            entropy: options.entropy,
            ran: AtomicBool::new(false),
        }))
    }

    /// The kind of its objects.
    pub fn kind(&self) -> &ApiResource {
        &self.0.kind
    }

    /// Reads of the cache.
    pub fn lister(&self) -> Lister<K> {
        Lister(self.0.core.clone())
    }

    /// Adds a handler, before the start or at any time after. Objects that are cached already come first, as added in
    /// the initial list. It is called while the informer runs.
    pub fn add_handler(
        &self,
        handler: impl EventHandler<K> + 'static,
        options: HandlerOptions,
    ) -> HandlerHandle {
        self.add_handler_when(at_once(), Handler::Objects(Box::new(handler)), options)
    }

    /// Adds a handler that is told which objects changed, and does not see them. All else is as for
    /// [`add_handler`](Self::add_handler), and a [compact](CacheForm) cache need not decode anything for it.
    ///
    /// ```
    /// use bellerophon::{HandlerOptions, SharedInformer, WorkQueue};
    /// use k8s_openapi::api::core::v1::Pod;
    ///
    /// fn enqueue(pods: &SharedInformer<Pod>, queue: WorkQueue) {
    ///     pods.add_key_handler(move |change| queue.add(change.key.clone()), HandlerOptions::default());
    /// }
    /// ```
    pub fn add_key_handler(
        &self,
        handler: impl Fn(KeyChange<'_>) + Send + Sync + 'static,
        options: HandlerOptions,
    ) -> HandlerHandle {
        self.add_handler_when(at_once(), Handler::Keys(Box::new(handler)), options)
    }

    /// Adds a handler that is called only once `begun` is cancelled. What it has missed by then comes merged for each
    /// object, and what came and went meanwhile not at all.
    pub(crate) fn add_handler_when(
        &self,
        begun: CancellationToken,
        handler: Handler<K>,
        options: HandlerOptions,
    ) -> HandlerHandle {
        let options = HandlerOptions {
            resync: options.resync.or(self.0.resync),
        };
        self.0.core.add_handler(handler, options, begun)
    }

    /// Adds an index by name, before the start or at any time after; cached objects are in it when this returns. The
    /// function gives the values under which an object is found. It is asked once for each version of an object.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add_index(
        &self,
        name: impl Into<String>,
        function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<(), IndexError> {
        self.0.core.add_index(name.into(), Arc::new(function))
    }

    /// Changes the watched namespaces, also while it runs. Objects of namespaces that are left are reported as deleted;
    /// those of namespaces that go on being watched stay, also from some namespaces to all and back.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        self.0.namespaces.send_if_modified(|was| {
            let changed = *was != namespaces;
            *was = namespaces;
            changed
        });
    }

    /// Whether the first list of every watched namespace is in the cache. A namespace that is added later takes it back
    /// until its own list is there.
    pub fn has_synced(&self) -> bool {
        let status = self.0.core.status.borrow();
        status.synced && !status.stopped
    }

    /// Waits until [`SharedInformer::has_synced`]. Somebody must run the informer meanwhile.
    ///
    /// # Errors
    /// The server refuses for a reason that waiting does not mend, named in the error, or the informer stopped. It goes
    /// on trying, so that waiting again makes sense once somebody acted.
    pub async fn wait_for_sync(&self) -> Result<(), SyncError> {
        Status::settled(&self.0.core.what, &mut self.0.core.status.subscribe()).await
    }

    /// Says why it cannot even be run yet.
    pub(crate) fn block(&self, reason: SyncError) {
        self.0.core.block(reason);
    }

    /// What it holds, and what happened so far.
    pub fn stats(&self) -> InformerStats {
        self.0.core.stats()
    }

    /// The same for those who must not keep the informer alive.
    pub(crate) fn stats_while_alive(&self) -> impl Fn() -> Option<InformerStats> + Send + use<K> {
        let informer = Arc::downgrade(&self.0);
        move || informer.upgrade().map(|shared| shared.core.stats())
    }

    /// The resource, for people.
    pub(crate) fn what(&self) -> &str {
        &self.0.core.what
    }

    /// Runs the informer until `stop`. Feeds stop first, then handlers are told what is left; all tasks have ended when
    /// this returns. Dropping the future ends them at once.
    ///
    /// # Errors
    /// It was run before.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), AlreadyRun> {
        let shared = &self.0;
        if shared.ran.swap(true, Ordering::SeqCst) {
            return Err(AlreadyRun::of(&shared.core.what));
        }
        let mut namespaces = shared.namespaces.subscribe();
        let finish = CancellationToken::new();
        let mut feeds = BTreeMap::new();
        let mut handlers = JoinSet::new();
        loop {
            let scopes = namespaces.borrow_and_update().scopes();
            shared.core.watch_scopes(&scopes);
            self.follow(&scopes, &mut feeds, &stop).await;
            for slot in shared.core.unserved() {
                handlers.spawn(slot.deliver(shared.core.clone(), finish.clone()));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = namespaces.changed() => {}
                () = shared.core.arrivals.notified() => {}
                Some(_) = handlers.join_next() => {}
            }
        }
        for feed in feeds.into_values() {
            feed.ended().await;
        }
        shared.core.stop();
        finish.cancel();
        while handlers.join_next().await.is_some() {}
        Ok(())
    }

    /// Ends feeds that are no longer wanted and starts those that are new. Objects that a new feed will list stay, and its
    /// list tells what became of them; the others go.
    async fn follow(
        &self,
        scopes: &BTreeSet<Scope>,
        feeds: &mut BTreeMap<Scope, Feed>,
        stop: &CancellationToken,
    ) {
        let unwanted: Vec<_> = feeds
            .keys()
            .filter(|scope| !scopes.contains(*scope))
            .cloned()
            .collect();
        let mut left = KnownKeys::new();
        for feed in unwanted
            .iter()
            .filter_map(|scope| feeds.remove(scope))
            .collect::<Vec<_>>()
        {
            left.extend(feed.ended().await);
        }
        for scope in scopes
            .iter()
            .filter(|scope| !feeds.contains_key(*scope))
            .collect::<Vec<_>>()
        {
            let (known, others) = left
                .into_iter()
                .partition(|key| scope.is_none() || key.namespace() == scope.as_deref());
            left = others;
            feeds.insert(scope.clone(), self.feed(scope, known, stop));
        }
        self.0.core.forget(left);
    }

    fn feed(&self, scope: &Scope, known: KnownKeys, stop: &CancellationToken) -> Feed {
        let shared = &self.0;
        let stop = stop.child_token();
        let reflector = Reflector {
            source: (shared.sources)(scope.as_deref()),
            prepare: shared.prepare.clone(),
            scope: scope.clone(),
            initial: shared.initial,
            page_size: shared.page_size,
            entropy: shared.entropy.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(reflector.run(known, stop.clone())));
        Feed { stop, task }
    }
}

/// One running reflector.
struct Feed {
    stop: CancellationToken,
    task: AbortOnDropHandle<KnownKeys>,
}

impl Feed {
    /// Ends it, and says what it leaves in the cache.
    async fn ended(self) -> KnownKeys {
        self.stop.cancel();
        self.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a reflector did not end by itself");
            KnownKeys::new()
        })
    }
}

/// A token for handlers that are called from the start.
fn at_once() -> CancellationToken {
    let begun = CancellationToken::new();
    begun.cancel();
    begun
}
