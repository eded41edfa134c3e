//! Builder: describes a controller of a Manager.
//! In: kinds, mappings, predicates, settings. Out: a controller that the Manager runs.
//! Guarantees: modifiers qualify the kind named last; nothing is generic but the conversion of the
//! user's functions.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use bellerophon_kinds::Kind;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

use super::action::{Action, Error};
use super::enqueue::{Enqueue, Mapping};
use super::options::ControllerOptions;
use super::owners::Owners;
use super::predicate::{Predicate, PredicateFn};
use super::request::{ReconcileFn, Reconciler, Request, erase};
use super::worker::Worker;
use super::{Controller, ControllerHandle, Controllers};
use crate::ObjectKey;
use crate::client::ClientConfig;
use crate::cluster::Cluster;
use crate::gate::Core;
use crate::informer::{InformerHandle, InformerOptions, SharedInformer, kind_name};
use crate::queue::{QueueOptions, WorkQueue};

/// Describes a controller. It does nothing until [`reconcile`](Self::reconcile).
///
/// `K` is the reconciled kind; `W` the kind named last, which [`informer`](Self::informer) and
/// [`predicate`](Self::predicate) qualify.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::{ConfigMap, Secret}};
///
/// async fn reconcile(_req: Request<ConfigMap>) -> Result<Action, Error> {
///     Ok(Action::await_change())
/// }
///
/// fn setup(mgr: &mut Manager) {
///     mgr.controller::<ConfigMap>()
///         .predicate(Predicate::resource_version_changed())
///         .owns::<Deployment>()
///         .predicate(Predicate::generation_changed())
///         .watches::<Secret>(|secret| vec![ObjectKey::in_namespace_of(secret, "settings")])
///         .concurrency(4)
///         .reconcile(reconcile);
/// }
/// ```
#[must_use = "a builder does nothing until `reconcile`"]
pub struct ControllerBuilder<'m, K, W = K> {
    description: Description<'m>,
    kinds: PhantomData<fn() -> (K, W)>,
}

/// A builder without its types.
struct Description<'m> {
    cluster: &'m mut Cluster,
    controllers: &'m mut Controllers,
    /// The reconciled kind, then those of `owns` and `watches`.
    watches: Vec<Watch>,
    streams: Vec<BoxStream<'static, ObjectKey>>,
    name: Option<String>,
    options: ControllerOptions,
    location: &'static Location<'static>,
}

struct Watch {
    /// Set by `informer`.
    informer: Option<Arc<InformerHandle>>,
    /// The informer of the kind with default options.
    default: fn(&mut Cluster, &'static Location<'static>) -> Arc<InformerHandle>,
    mapping: Map,
    predicate: Option<PredicateFn>,
    /// Where the kind was named.
    location: &'static Location<'static>,
}

enum Map {
    Itself,
    Owner,
    Function(super::enqueue::MapFn),
}

impl Watch {
    fn new<C: Kind>(mapping: Map, location: &'static Location<'static>) -> Self {
        let default = |cluster: &mut Cluster, location| {
            let options = InformerOptions::<C>::default();
            cluster.informer_at(options, location).handle
        };
        Self {
            informer: None,
            default,
            mapping,
            predicate: None,
            location,
        }
    }
}

impl<'m, K: Kind> ControllerBuilder<'m, K, K> {
    #[track_caller]
    pub(crate) fn new(cluster: &'m mut Cluster, controllers: &'m mut Controllers) -> Self {
        Self {
            description: Description {
                cluster,
                controllers,
                watches: vec![Watch::new::<K>(Map::Itself, Location::caller())],
                streams: Vec::new(),
                name: None,
                options: ControllerOptions::default(),
                location: Location::caller(),
            },
            kinds: PhantomData,
        }
    }
}

impl<'m, K: Kind, W: Kind> ControllerBuilder<'m, K, W> {
    /// A change of an object of kind `C` enqueues its controlling owner, if that is of kind `K`.
    ///
    /// Owner references do not contain a namespace. The type `K` determines whether the owner has
    /// one; the owner of a `DynamicObject` is the cluster-scoped object of that name if the cache
    /// has it, and else the object in the child's namespace.
    #[track_caller]
    pub fn owns<C: Kind>(self) -> ControllerBuilder<'m, K, C> {
        self.watch(Watch::new::<C>(Map::Owner, Location::caller()))
    }

    /// A change of an object of kind `C` enqueues the keys that the function returns. For an update
    /// it is called with the old and with the new state.
    #[track_caller]
    pub fn watches<C: Kind>(
        self,
        map: impl Fn(&C) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> ControllerBuilder<'m, K, C> {
        let erased = move |object: &dyn Any| {
            map(object
                .downcast_ref()
                .expect("an informer of C caches only C"))
        };
        let mapping = Map::Function(Arc::new(erased));
        self.watch(Watch::new::<C>(mapping, Location::caller()))
    }

    /// Uses this informer for the kind named last: a selection, or the resource of a
    /// `DynamicObject`. Default: the Manager's informer of the kind.
    pub fn informer(mut self, informer: &SharedInformer<W>) -> Self {
        self.last().informer = Some(informer.handle.clone());
        self
    }

    /// The changes of the kind named last that lead to a reconcile; default: all. Of several, all
    /// must pass. Deletions always pass.
    pub fn predicate(mut self, predicate: Predicate<W>) -> Self {
        let last = self.last();
        last.predicate = Some(match last.predicate.take() {
            Some(first) => first.and(predicate.erased),
            None => predicate.erased,
        });
        self
    }

    /// Reconciles the keys of a stream as they come: timers, channels. The stream is polled while
    /// the controller runs.
    pub fn reconcile_on(mut self, keys: impl Stream<Item = ObjectKey> + Send + 'static) -> Self {
        self.description.streams.push(keys.boxed());
        self
    }

    /// Its name in metrics, logs and traces, and the default field manager; default: the kind in
    /// lower case. It must be unique in the Manager.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.description.name = Some(name.into());
        self
    }

    /// How many keys are reconciled concurrently; default: 1.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.description.options.concurrency = Some(concurrency);
        self
    }

    /// Other settings. A field that is set replaces an earlier one; the others stay.
    pub fn with_options(mut self, options: ControllerOptions) -> Self {
        self.description.options = options.or(&self.description.options);
        self
    }

    /// A value for an async function of two arguments.
    pub fn context<C: Send + Sync + 'static>(self, context: Arc<C>) -> ContextBuilder<'m, K, C> {
        ContextBuilder {
            description: self.description,
            context,
            kind: PhantomData,
        }
    }

    /// Completes the controller. The Manager runs it.
    ///
    /// # Setup errors
    /// Another controller of the Manager has its name, or a `DynamicObject` has no informer.
    pub fn reconcile(self, reconciler: impl Reconciler<K>) -> ControllerHandle {
        self.description.complete(erase(reconciler))
    }

    fn watch<C: Kind>(mut self, watch: Watch) -> ControllerBuilder<'m, K, C> {
        self.description.watches.push(watch);
        ControllerBuilder {
            description: self.description,
            kinds: PhantomData,
        }
    }

    fn last(&mut self) -> &mut Watch {
        let watches = &mut self.description.watches;
        watches
            .last_mut()
            .expect("the reconciled kind is always there")
    }
}

/// A [`ControllerBuilder`] with a context.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
///
/// async fn count(pods: Arc<Lister<Pod>>, req: Request<ConfigMap>) -> Result<Action, Error> {
///     println!("{}: {} pods", req.key(), pods.len());
///     Ok(Action::await_change())
/// }
///
/// fn setup(mgr: &mut Manager) {
///     let pods = Arc::new(mgr.lister::<Pod>());
///     mgr.controller::<ConfigMap>().context(pods).reconcile(count);
/// }
/// ```
#[must_use = "a builder does nothing until `reconcile`"]
pub struct ContextBuilder<'m, K, C> {
    description: Description<'m>,
    context: Arc<C>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind, C: Send + Sync + 'static> ContextBuilder<'_, K, C> {
    /// Completes the controller. The Manager runs it.
    pub fn reconcile<F, Fut>(self, reconcile: F) -> ControllerHandle
    where
        F: Fn(Arc<C>, Request<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, Error>> + Send + 'static,
    {
        let context = self.context;
        let reconciler = move |req: Request<K>| reconcile(context.clone(), req);
        self.description.complete(erase(reconciler))
    }
}

impl Description<'_> {
    fn complete(self, reconciler: ReconcileFn) -> ControllerHandle {
        let Self {
            cluster,
            controllers,
            watches,
            streams,
            name,
            options,
            location,
        } = self;
        let mut watches = watches.into_iter().map(|watch| {
            let informer = match watch.informer {
                Some(informer) => informer,
                None => (watch.default)(cluster, watch.location),
            };
            (informer, watch.mapping, watch.predicate)
        });
        let (primary, _, predicate) = watches.next().expect("the reconciled kind is always there");
        let others: Vec<_> = watches.collect();
        let resource = &primary.informer.resource;
        let kind = kind_name(resource);
        let name: Arc<str> = name.unwrap_or_else(|| resource.kind.to_lowercase()).into();
        // Names are claimed before anything is registered: two controllers of one name would share
        // metrics and field manager without a notice.
        controllers.claim_name(&name, location, &cluster.errors);
        let options = options.or(&controllers.options);

        let queue = WorkQueue::new(QueueOptions {
            rate_limit: options.rate_limit.unwrap_or_default(),
            rng: cluster.rng().clone(),
            observer: Some(cluster.metrics().queue_observer(&name)),
        });
        cluster.metrics().track_queue(&name, &queue);
        let metrics = cluster.metrics().controller(&name);
        let concurrency = options.concurrency();
        let gauge = i64::try_from(concurrency).unwrap_or(i64::MAX);
        metrics.max_concurrent_reconciles.set(gauge);
        let fairness = options.fairness.unwrap_or_default();
        let trace = cluster.trace().clone();
        trace.track_queue(&name, concurrency, &queue);
        let core = Arc::new(Core::new(name.clone(), queue, fairness, trace, metrics));

        // Handlers are registered now and called once the controller starts, so a standby does not
        // fill its queue.
        let begun = CancellationToken::new();
        let mut registrations = Vec::new();
        let mut add_handler = |informer: &Arc<InformerHandle>, mapping, predicate, resync| {
            let enqueue = Enqueue {
                core: core.clone(),
                codec: informer.informer.codec,
                kind: kind_name(&informer.informer.resource),
                cache: core.add_cache(informer.clone()),
                mapping,
                predicate,
            };
            let handler = enqueue.into_handler();
            registrations.push(informer.add_handler(handler, resync, begun.clone()));
        };
        // The resync period applies to the reconciled kind alone: a resync of children would
        // enqueue every owner once per child.
        add_handler(&primary, Mapping::Itself, predicate, options.resync_period);
        for (informer, mapping, predicate) in others {
            let mapping = match mapping {
                Map::Itself => Mapping::Itself,
                Map::Owner => Mapping::Owner(Owners::new(&primary)),
                Map::Function(map) => Mapping::Function(map),
            };
            add_handler(&informer, mapping, predicate, None);
        }

        let field_manager = options.field_manager.clone();
        let client = ClientConfig {
            client: cluster.client_of(&name),
            field_manager: field_manager.unwrap_or_else(|| name.to_string()).into(),
            user_agent: options.user_agent.clone(),
            mapper: cluster.rest_mapper().clone(),
        };
        let worker = Worker {
            core: core.clone(),
            kind: kind.clone(),
            reconciler,
            primary,
            recorder: cluster.recorder(&name, options.user_agent.as_deref()),
            client: Arc::new(client),
            clock: cluster.clock(),
            leadership: controllers.leadership.clone(),
            timeout: options.reconcile_timeout,
        };
        let controller = Controller {
            core,
            kind,
            registrations,
            begun,
            worker: Arc::new(worker),
            streams: Mutex::new(streams),
            concurrency,
            cache_sync_timeout: options.cache_sync_timeout(),
        };
        let handle = controller.handle();
        controllers.add(controller);
        handle
    }
}

impl<K, W> fmt::Debug for ControllerBuilder<'_, K, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerBuilder")
            .field("name", &self.description.name)
            .field("options", &self.description.options)
            .finish_non_exhaustive()
    }
}

impl<K, C> fmt::Debug for ContextBuilder<'_, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBuilder")
            .field("name", &self.description.name)
            .finish_non_exhaustive()
    }
}
