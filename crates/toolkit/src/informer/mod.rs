//! Shared informer: one cache of one resource, for all readers and event handlers.
//! In: lists and watches. Out: listers, indexes and event handlers.
//! Guarantees: see [`SharedInformer`].

pub(crate) mod core; // the cache that reflectors write
mod factory; // one informer per resource and selection
mod handler; // event handlers
mod handler_queue; // pending events of a handler
mod index; // reads by a value
#[expect(
    clippy::module_inception,
    reason = "the informer without its type is the core of the module"
)]
mod informer; // a cache and its reflectors
#[cfg(test)]
mod interleavings; // the guarantees under concurrent threads
mod lister; // reads
mod options; // options of an informer
mod status; // synced, or why not
pub(crate) mod store; // the objects
#[cfg(test)]
mod tests; // the guarantees, on a scripted server

use std::any::{Any, TypeId};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use bellerophon_kinds::Kind;
use kube::core::ApiResource;
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;

pub use self::index::{Index, controller_uid};
use self::{core::Core, factory::Lease, handler::Typed, status::Status, store::IndexFn};
pub(crate) use self::{
    core::kind_name,
    factory::{SetupError, SetupErrors},
    handler::{Handler, ObjectHandler},
    informer::Informer,
};
pub use self::{
    factory::{FactoryOptions, SharedInformerFactory},
    handler::{EventHandler, HandlerRegistration, KeyChange, Tombstone},
    lister::Lister,
    options::{CacheMode, InformerOptions, ListWatchFn, Namespaces, Transform},
    status::SyncError,
};
pub use crate::informer_stats::InformerStats;
pub use crate::list_watch::{
    KubeListWatch, ListPage, ListRequest, ListWatch, ListWatchError, WatchEvent, WatchFrom,
    WatchRequest, WatchStream,
};
pub use crate::reflector::InitialList;

/// An informer that runs as long as this handle exists.
pub(crate) struct InformerHandle {
    pub(crate) informer: Arc<Informer>,
    /// `None` for an informer that is run by a test.
    lease: Option<Lease>,
}

impl InformerHandle {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.informer.core
    }

    /// Adds a handler that is called only once `begun` is cancelled. What it has missed by then is
    /// merged per object, and objects that were added and deleted in between are left out.
    pub(crate) fn add_handler(
        &self,
        handler: Handler,
        resync_period: Option<Duration>,
        begun: CancellationToken,
    ) -> HandlerRegistration {
        self.core().add_handler(handler, resync_period, begun)
    }
}

/// One cache of one resource, shared by every lister, index and handler. Clones are the same
/// informer, which runs as long as one of them, or a lister or index of it, exists.
///
/// It guarantees:
/// - The cache follows the server. A dropped watch resumes; a relist reports every object that was
///   deleted in between, once. The old cache stays readable while a new list is received.
/// - Handlers receive the changes of one object in order, and each object that exists when they are
///   added exactly once as added. Each has its own task: a slow one delays no other.
/// - Memory is bounded by the number of objects: the backlog of a slow handler merges per object.
/// - Objects are shared and never change. An object that was deleted and created again under its
///   name is a deletion and an addition, not an update.
///
/// ```no_run
/// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use bellerophon::informer::{FactoryOptions, InformerOptions, SharedInformerFactory};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let informers = SharedInformerFactory::start(client, FactoryOptions::default());
/// let maps = informers.informer::<ConfigMap>(InformerOptions::default());
/// maps.wait_for_cache_sync().await?;
/// println!("{} config maps", maps.lister().len());
/// informers.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct SharedInformer<K> {
    pub(crate) handle: Arc<InformerHandle>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for SharedInformer<K> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> std::fmt::Debug for SharedInformer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedInformer")
            .field(&self.handle.core().name)
            .finish()
    }
}

impl<K: Kind> SharedInformer<K> {
    pub(crate) fn new(handle: Arc<InformerHandle>) -> Self {
        Self {
            handle,
            kind: PhantomData,
        }
    }

    /// The resource of its objects.
    pub fn resource(&self) -> &ApiResource {
        &self.handle.informer.resource
    }

    /// Reads of the cache.
    pub fn lister(&self) -> Lister<K> {
        Lister {
            handle: self.handle.clone(),
            kind: PhantomData,
        }
    }

    /// An index of its objects: the function returns the values under which an object is found.
    ///
    /// It can be added at any time, and has every cached object when this returns. Equal name and
    /// function are one index. The function is called once for each version of an object; one that
    /// panics leaves the object out of this index.
    ///
    /// # Setup errors
    /// Another function has the name. [`Manager::run`](crate::manager::Manager::run) returns it.
    #[track_caller]
    pub fn index<F>(&self, name: &'static str, function: F) -> Index<K>
    where
        F: Fn(&K) -> Vec<String> + Send + Sync + 'static,
    {
        let erased = move |object: &dyn Any| {
            function(
                object
                    .downcast_ref()
                    .expect("an informer of K caches only K"),
            )
        };
        let index_fn = IndexFn {
            name,
            identity: TypeId::of::<F>(),
            function: Arc::new(erased),
        };
        Index {
            id: self.handle.index(index_fn, Location::caller()),
            handle: self.handle.clone(),
            kind: PhantomData,
        }
    }

    /// Adds a handler, at any time. Objects that are cached already come first, as added in the
    /// initial list.
    pub fn add_event_handler(
        &self,
        handler: impl EventHandler<K> + 'static,
    ) -> HandlerRegistration {
        let typed = Typed {
            handler,
            kind: PhantomData::<fn() -> K>,
        };
        self.handle
            .add_handler(Handler::Objects(Box::new(typed)), None, begun())
    }

    /// Adds a handler that receives the keys of changed objects. All else is as for
    /// [`add_event_handler`](Self::add_event_handler), and a [compact](CacheMode) cache decodes
    /// nothing for it.
    ///
    /// ```
    /// use bellerophon::informer::SharedInformer;
    /// use bellerophon::queue::WorkQueue;
    /// use k8s_openapi::api::core::v1::Pod;
    ///
    /// fn enqueue(pods: &SharedInformer<Pod>, queue: WorkQueue) {
    ///     pods.add_key_handler(move |change| queue.add(change.key.clone()));
    /// }
    /// ```
    pub fn add_key_handler(
        &self,
        handler: impl Fn(KeyChange<'_>) + Send + Sync + 'static,
    ) -> HandlerRegistration {
        self.handle
            .add_handler(Handler::Keys(Box::new(handler)), None, begun())
    }

    /// Whether the first list of every watched namespace is in the cache. A namespace that is added
    /// later makes it false until its list is there too.
    pub fn has_synced(&self) -> bool {
        let status = self.handle.core().status.borrow();
        status.synced && !status.stopped
    }

    /// Waits until [`SharedInformer::has_synced`].
    ///
    /// # Errors
    /// The server refuses for a reason that a retry does not resolve, or the informer stopped. The
    /// informer keeps retrying, so a later call succeeds once the cause is removed.
    pub async fn wait_for_cache_sync(&self) -> Result<(), SyncError> {
        self.handle.informer.wait_for_cache_sync().await
    }

    /// Statistics: its cache, and the requests of its reflectors.
    pub fn stats(&self) -> InformerStats {
        self.handle.core().stats()
    }
}

impl InformerHandle {
    fn index(&self, index_fn: IndexFn, location: &'static Location<'static>) -> store::IndexId {
        let name = index_fn.name;
        let (id, conflicts) = self.core().index(index_fn);
        if conflicts {
            let resource = &self.core().name;
            let message = format!("the index {name:?} of {resource} has two different functions");
            match &self.lease {
                Some(lease) => lease.errors().add(message, location),
                None => tracing::error!(%location, message),
            }
        }
        id
    }
}

impl Informer {
    async fn wait_for_cache_sync(&self) -> Result<(), SyncError> {
        Status::settled(&self.core.name, &mut self.core.status.subscribe()).await
    }
}

/// A token for handlers that are called from the start.
fn begun() -> CancellationToken {
    let begun = CancellationToken::new();
    begun.cancel();
    begun
}
