//! Controller: watches kinds, queues keys, and has workers reconcile them.
//!
//! In: shared informers. Out: calls of a reconciler.
//! Holds: one key is never with two workers; every change that passes its predicate leads to a reconcile that begins after it;
//! one failing, slow or panicking object delays no other; a key is not reconciled on a cache older than the controller's own writes.

mod core; // what the parts share
mod gate; // no acting on a cache older than one's own write
mod handler; // from changes to keys
mod outcome; // what a reconcile ends with
mod owners; // from a child to its owner
mod predicate; // which changes count
mod reconcile; // what an author writes
mod worker; // from keys to calls

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Resource;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Cause, CauseEvent, Entropy, HandlerHandle, HandlerOptions, Metrics, ObjectKey, Priority,
    QueueOptions, RateLimit, SharedInformer, SyncError, TraceBus, WorkQueue,
};
use core::Core;
pub(crate) use core::kind_name;
use handler::{Enqueue, Map};
pub use outcome::{Failure, Outcome, ReconcileResult};
use owners::Owners;
pub use predicate::Predicate;
pub use reconcile::{Reconcile, Request, Writes};
use worker::Worker;

/// How long a controller waits for its caches, as in controller-runtime.
const CACHE_SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Whose turn it is among keys of one priority. [`Line`](crate::Line) argues what is fair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come, first served, whoever it is: fair between objects, as client-go is.
    #[default]
    FirstCome,
    /// Namespaces take turns, so that one with many changes does not hold up the others; first come, first served within
    /// a namespace.
    ByNamespace,
}

/// Settings of a controller that have a sensible default.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Its name in metrics, logs, traces and as field manager; the lower-case kind unless set.
    pub name: Option<String>,
    /// How many keys are reconciled at once.
    pub workers: usize,
    /// Whose turn it is among keys of one priority.
    pub order: Order,
    /// How long failed keys wait.
    pub rate_limit: RateLimit,
    /// How long one reconcile may take; no limit unless set.
    pub reconcile_timeout: Option<Duration>,
    /// How long the caches may take to sync.
    pub cache_sync_timeout: Duration,
    /// Every object is reconciled again once in this time, at low priority; `None` leaves it to the informer's options.
    pub resync: Option<Duration>,
    /// Where metrics go.
    pub metrics: Metrics,
    /// Where traces go.
    pub trace: TraceBus,
    /// Where jitter comes from.
    pub entropy: Entropy,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            name: None,
            workers: 1,
            order: Order::FirstCome,
            rate_limit: RateLimit::default(),
            reconcile_timeout: None,
            cache_sync_timeout: CACHE_SYNC_TIMEOUT,
            resync: None,
            metrics: Metrics::new(),
            trace: TraceBus::off(),
            entropy: Entropy::from_os(),
        }
    }
}

/// Why a controller could not start or go on.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// A cache cannot be filled.
    #[error("controller {controller} cannot start: {source}")]
    Sync {
        /// The controller.
        controller: Arc<str>,
        /// Which cache, and why.
        source: SyncError,
    },
    /// A cache took too long.
    #[error("controller {controller} cannot start: its caches were not synced within {limit:?}")]
    SyncTimeout {
        /// The controller.
        controller: Arc<str>,
        /// The limit.
        limit: Duration,
    },
}

type Wire = Box<dyn FnOnce(&Arc<Core>, &CancellationToken) -> HandlerHandle + Send>;

/// Describes a controller. Reads as a sentence:
///
/// ```no_run
/// # use bellerophon::{Controller, Outcome, Request, SharedInformer};
/// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
/// # fn example(maps: SharedInformer<ConfigMap>, deployments: SharedInformer<Deployment>) {
/// let controller = Controller::of(&maps)
///     .owns(&deployments)
///     .workers(4)
///     .reconcile_with(async |_request: Request<ConfigMap>| Ok(Outcome::Done));
/// # }
/// ```
#[must_use = "a builder does nothing until reconcile_with"]
pub struct ControllerBuilder<K> {
    primary: SharedInformer<K>,
    predicate: Option<Predicate<K>>,
    wires: Vec<Wire>,
    options: ControllerOptions,
}

impl<K> ControllerBuilder<K>
where
    K: Resource + Send + Sync + 'static,
    K::Scope: 'static,
{
    /// Changes of the controlled kind that count; all unless said. Several: all must pass.
    pub fn with_predicate(mut self, predicate: Predicate<K>) -> Self {
        self.predicate = Some(match self.predicate.take() {
            Some(first) => first.and(predicate),
            None => predicate,
        });
        self
    }

    /// A change of an object brings its controlling owner, if that is of the controlled kind.
    ///
    /// Owner references do not say whether the owner has a namespace. The type of the controlled kind says so; of a kind
    /// known only at run time, the owner is the cluster-scoped object of that name if the cache has one, and otherwise
    /// the object in the child's namespace.
    pub fn owns<C: Resource + Send + Sync + 'static>(self, children: &SharedInformer<C>) -> Self {
        let owners = Owners::of(&self.primary);
        self.watches(children, move |child| owners.controlling(child))
    }

    /// A change of an object brings the keys that the function finds for it. An update asks for the old and the new form.
    pub fn watches<W: Resource + Send + Sync + 'static>(
        self,
        informer: &SharedInformer<W>,
        map: impl Fn(&W) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Self {
        self.watch(informer, Map::By(Arc::new(map)), None)
    }

    /// As [`watches`](Self::watches), for the changes that pass the predicate and for all deletions.
    pub fn watches_if<W: Resource + Send + Sync + 'static>(
        self,
        informer: &SharedInformer<W>,
        predicate: Predicate<W>,
        map: impl Fn(&W) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Self {
        self.watch(informer, Map::By(Arc::new(map)), Some(predicate))
    }

    /// How many keys are reconciled at once; 1 unless said.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// Its name; the lower-case kind unless said.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// All other settings. Replaces what was said before.
    pub fn with_options(mut self, options: ControllerOptions) -> Self {
        self.options = options;
        self
    }

    /// Completes the controller. Caches keep for it what changes from now on until it runs, once for each object: a standby
    /// costs no more than there are objects, however long it waits.
    pub fn reconcile_with(self, reconciler: impl Reconcile<K>) -> Controller {
        let options = self.options;
        let name: Arc<str> = options
            .name
            .unwrap_or_else(|| self.primary.kind().kind.to_lowercase())
            .into();
        let queue = WorkQueue::new(QueueOptions {
            rate_limit: options.rate_limit,
            entropy: options.entropy,
            observer: Some(options.metrics.queue_observer(&name)),
        });
        options.metrics.watch_queue(&name, &queue);
        let metrics = options.metrics.controller(&name);
        let workers = options.workers.max(1);
        metrics
            .max_concurrent_reconciles
            .set(i64::try_from(workers).unwrap_or(i64::MAX));
        let core = Arc::new(Core::new(
            name,
            queue,
            options.order,
            options.trace,
            metrics,
        ));
        let kind = kind_name(self.primary.kind());
        let lister = self.primary.lister();
        let cache = core.watch_cache(kind.clone(), lister.clone());
        let enqueue = Enqueue {
            core: core.clone(),
            kind: kind.clone(),
            cache,
            map: Map::Itself,
            predicate: self.predicate,
        };
        let begun = CancellationToken::new();
        let mut handles = vec![self.primary.add_handler_when(
            begun.clone(),
            enqueue.into_handler(),
            HandlerOptions {
                resync: options.resync,
            },
        )];
        handles.extend(self.wires.into_iter().map(|wire| wire(&core, &begun)));
        let worker = Arc::new(Worker {
            core: core.clone(),
            kind: kind.clone(),
            reconciler: Arc::new(reconciler),
            get: Arc::new(move |key: &ObjectKey| lister.get(key)),
            time_max: options.reconcile_timeout,
        });
        let start = Box::new(move |stop: CancellationToken| {
            Box::pin(worker.clone().run(stop)) as BoxFuture<'static, ()>
        });
        Controller {
            core,
            kind,
            handles,
            begun,
            start,
            workers,
            cache_sync_timeout: options.cache_sync_timeout,
        }
    }

    fn watch<W>(
        mut self,
        informer: &SharedInformer<W>,
        map: Map<W>,
        predicate: Option<Predicate<W>>,
    ) -> Self
    where
        W: Resource + Send + Sync + 'static,
    {
        let informer = informer.clone();
        self.wires.push(Box::new(move |core, begun| {
            let kind = kind_name(informer.kind());
            let cache = core.watch_cache(kind.clone(), informer.lister());
            let enqueue = Enqueue {
                core: core.clone(),
                kind,
                cache,
                map,
                predicate,
            };
            informer.add_handler_when(
                begun.clone(),
                enqueue.into_handler(),
                HandlerOptions::default(),
            )
        }));
        self
    }
}

impl<K> fmt::Debug for ControllerBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerBuilder")
            .field("of", &self.primary)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A controller, ready to run. Its informers are run by others, such as a [`Manager`](crate::Manager).
///
/// Dropping it takes its handlers off the informers.
pub struct Controller {
    core: Arc<Core>,
    kind: Arc<str>,
    handles: Vec<HandlerHandle>,
    /// Cancelled once changes are to be queued.
    begun: CancellationToken,
    start: Box<dyn Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>,
    workers: usize,
    cache_sync_timeout: Duration,
}

impl Controller {
    /// A controller of the objects in this informer: whole ones, metadata only, or of a kind known at run time.
    pub fn of<K>(informer: &SharedInformer<K>) -> ControllerBuilder<K>
    where
        K: Resource + Send + Sync + 'static,
    {
        ControllerBuilder {
            primary: informer.clone(),
            predicate: None,
            wires: Vec::new(),
            options: ControllerOptions::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Lets anything outside the cluster ask for a reconcile.
    pub fn trigger(&self) -> Trigger {
        Trigger {
            core: self.core.clone(),
            kind: self.kind.clone(),
        }
    }

    /// Has changes queued from now on, and waits until every object of the initial lists is in the caches and in the queue.
    ///
    /// # Errors
    /// A cache cannot be filled, or not in time.
    pub async fn wait_for_sync(&self) -> Result<(), ControllerError> {
        self.begun.cancel();
        let all = async {
            for handle in &self.handles {
                handle.wait_for_sync().await?;
            }
            Ok(())
        };
        match timeout(self.cache_sync_timeout, all).await {
            Ok(synced) => synced.map_err(|source| ControllerError::Sync {
                controller: self.core.name.clone(),
                source,
            }),
            Err(_) => Err(ControllerError::SyncTimeout {
                controller: self.core.name.clone(),
                limit: self.cache_sync_timeout,
            }),
        }
    }

    /// Waits for the caches, then reconciles until `stop`. Reconciles under way end by themselves before this returns;
    /// dropping the future ends them at once.
    ///
    /// # Errors
    /// A cache cannot be filled, or not in time.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ControllerError> {
        self.run_tracked(stop, &TaskTracker::new()).await
    }

    /// The same, for somebody who wants to know when the workers have ended after the future was dropped.
    pub(crate) async fn run_tracked(
        self,
        stop: CancellationToken,
        tracker: &TaskTracker,
    ) -> Result<(), ControllerError> {
        match stop.run_until_cancelled(self.wait_for_sync()).await {
            None => return Ok(()),
            Some(synced) => synced?,
        }
        let mut workers = JoinSet::new();
        for _ in 0..self.workers {
            workers.spawn(tracker.track_future((self.start)(stop.clone())));
        }
        while let Some(ended) = workers.join_next().await {
            // A worker catches what reconcilers do; what is left is a defect of ours, and hiding it would stop the work silently.
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.handles.iter().for_each(HandlerHandle::remove);
        self.core.queue.shut_down();
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// Asks for reconciles from outside: a timer, a web hook, another system. Never blocks, never fails.
#[derive(Clone, Debug)]
pub struct Trigger {
    core: Arc<Core>,
    kind: Arc<str>,
}

impl Trigger {
    /// Has the object reconciled. Asking often before it happens leads to one reconcile.
    pub fn reconcile(&self, key: ObjectKey) {
        let cause = Cause {
            kind: self.kind.clone(),
            key: key.clone(),
            resource_version: None,
            event: CauseEvent::Generic,
            at: Instant::now(),
        };
        self.core.enqueue(key, Priority::Normal, cause);
    }
}

#[cfg(test)]
mod tests;
