//! Manager: owns client, informers, metrics, trace, clock, event recorders, controllers and
//! runnables.
//!
//! In: the setup of a program. Out: one call that returns when all components have ended.
//! Guarantees: every component of the Manager runs, has metrics and stays alive; no controller runs
//! before its caches are synced and the lease is held; no task outlives [`Manager::run`].

mod endpoints; // health and metrics over HTTP
mod error; // errors of a manager
mod health; // healthz and readyz
mod options; // settings
mod run; // the order of start and stop
mod runnable; // servers and background work
mod running; // a started manager
mod signal; // SIGINT and SIGTERM

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellerophon_kinds::Kind;
use futures_util::future::BoxFuture;
use kube::Client;
use tokio_util::sync::CancellationToken;

pub use error::ManagerError;
pub use health::Health;
pub use options::ManagerOptions;
use runnable::BoxRunnable;
pub use runnable::{InGroup, Runnable, RunnableGroup};
pub use running::RunningManager;
use signal::Signals;

use crate::client::connect;
use crate::clock::{Clock, Rng};
pub use crate::cluster::ControllerClients;
use crate::cluster::{Cluster, ClusterOptions};
use crate::controller::{ControllerBuilder, Controllers};
use crate::events::EventRecorder;
pub use crate::http_server::serve_http;
use crate::index::Index;
use crate::informer::{InformerOptions, Lister, SharedInformer, SharedInformerFactory};
use crate::leader::{Leadership, LeadershipSender};
use crate::metrics::Metrics;
use crate::queue::{QueueOptions, WorkQueue};
use crate::trace::Trace;
#[cfg(feature = "webhooks")]
use crate::webhook::{WebhookBuilder, WebhookService, Webhooks};

/// Runs the controllers of one process, and owns everything they need.
///
/// Every controller, lister, index, informer or recorder that is created by a Manager is registered
/// with it: it runs with the Manager, in its metrics registry and trace. Setup errors (two
/// controllers of one name, contradicting options) are returned by [`run`](Self::run), with file
/// and line, before anything starts.
///
/// Start: servers, caches, `Always` runnables, lease, controllers and `LeaderElection` runnables.
/// Stop in reverse. If one component fails, the others are stopped in order and the error is
/// returned.
///
/// ```no_run
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// async fn reconcile(req: Request<ConfigMap>) -> Result<Action, Error> {
///     println!("{} because {}", req.key(), req.causes());
///     Ok(Action::await_change())
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), ManagerError> {
///     let mut mgr = Manager::try_default().await?;
///     mgr.controller::<ConfigMap>().concurrency(2).reconcile(reconcile);
///     mgr.run().await
/// }
/// ```
pub struct Manager {
    cluster: Cluster,
    options: ManagerOptions,
    controllers: Controllers,
    runnables: Vec<(String, RunnableGroup, BoxRunnable)>,
    health: Health,
    /// Set once the caches are synced; a condition of `/readyz`.
    synced: Arc<AtomicBool>,
    leadership: Leadership,
    leadership_sender: LeadershipSender,
    #[cfg(feature = "webhooks")]
    webhooks: Webhooks,
}

impl Manager {
    /// A Manager of the cluster that the kubeconfig names (`KUBECONFIG`, `~/.kube/config`), or, in
    /// a pod, of the pod's cluster.
    ///
    /// # Errors
    /// There is no usable configuration.
    pub async fn try_default() -> Result<Self, ManagerError> {
        Self::infer().await
    }

    /// Boxed, as every future of the public API that does not depend on a type: a future is
    /// compiled in the crate that polls it, and boxing it here keeps that in the toolkit.
    fn infer() -> BoxFuture<'static, Result<Self, ManagerError>> {
        Box::pin(async {
            let config = kube::Config::infer().await.map_err(ManagerError::config)?;
            let host = config.cluster_url.authority().map(ToString::to_string);
            let client = connect(config).map_err(ManagerError::config)?;
            Ok(Self::with_host(client, ManagerOptions::default(), host))
        })
    }

    /// A Manager with this client and these options. Its requests are counted in `rest_client_*`.
    pub fn new(client: Client, options: ManagerOptions) -> Self {
        Self::with_host(client, options, None)
    }

    fn with_host(client: Client, options: ManagerOptions, host: Option<String>) -> Self {
        let cluster_options = ClusterOptions {
            host: host.unwrap_or_default(),
            identity: options.identity(),
            namespaces: options.namespaces.clone(),
            cache_mode: options.cache_mode,
            controller_clients: options.controller_clients.clone(),
            metrics: options.metrics.clone(),
            trace: options.trace.clone(),
            clock: options.clock,
            rng: options.rng.clone(),
        };
        let (leadership_sender, leadership) = Leadership::channel();
        let health = Health::default();
        Self {
            cluster: Cluster::new(client, cluster_options),
            controllers: Controllers::new(options.controller.clone(), leadership.clone()),
            options,
            runnables: Vec::new(),
            synced: cache_check(&health),
            health,
            leadership,
            leadership_sender,
            #[cfg(feature = "webhooks")]
            webhooks: Webhooks::default(),
        }
    }

    /// Describes a controller of a kind; [`ControllerBuilder::reconcile`] completes it.
    #[track_caller]
    pub fn controller<K: Kind>(&mut self) -> ControllerBuilder<'_, K> {
        ControllerBuilder::new(&mut self.cluster, &mut self.controllers)
    }

    /// Declares the webhooks of a kind, which the Manager serves and registers. It needs the cargo
    /// feature `webhooks`.
    #[cfg(feature = "webhooks")]
    #[track_caller]
    pub fn webhook<K: Kind<DynamicType = ()>>(&mut self) -> WebhookBuilder<'_, K> {
        WebhookBuilder::new(&self.cluster, &mut self.webhooks, Location::caller())
    }

    /// The declared webhooks as an HTTP service, for tests and for servers of your own.
    #[cfg(feature = "webhooks")]
    pub fn webhook_service(&self) -> WebhookService {
        self.webhooks.service.clone()
    }

    /// The objects that register the declared webhooks, without a `caBundle`: webhook
    /// configurations, and the conversion of CustomResourceDefinitions.
    #[cfg(feature = "webhooks")]
    pub fn webhook_manifests(&self) -> Vec<serde_json::Value> {
        self.webhooks.manifests(&self.options.webhooks)
    }

    /// Reads the objects of a kind from the Manager's cache, which is synced before any controller
    /// of this Manager starts.
    #[track_caller]
    pub fn lister<K: Kind<DynamicType = ()>>(&mut self) -> Lister<K> {
        self.informer(InformerOptions::default()).lister()
    }

    /// Finds the objects of a kind by a value, in the same cache.
    #[track_caller]
    pub fn index<K: Kind<DynamicType = ()>>(
        &mut self,
        name: &'static str,
        function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Index<K> {
        self.informer(InformerOptions::default())
            .index(name, function)
    }

    /// The informer of a kind and selection; equal requests are one informer. It runs until the
    /// Manager stops.
    #[track_caller]
    pub fn informer<K: Kind>(&mut self, options: InformerOptions<K>) -> SharedInformer<K> {
        self.cluster.informer_at(options, Location::caller())
    }

    /// Makes and runs informers that come and go: they run while a handle exists. `run` waits for
    /// those that exist when it is called.
    pub fn informers(&self) -> SharedInformerFactory {
        self.cluster.factory.clone()
    }

    /// Records events with this `reportingController`. The Manager writes them.
    pub fn recorder(&mut self, controller: impl Into<String>) -> EventRecorder {
        self.component_recorder(&controller.into(), None)
    }

    /// A work queue whose `workqueue_*` metrics are in the Manager's registry under this name.
    pub fn work_queue<T: Clone + Eq + Hash + Send + 'static>(
        &mut self,
        name: &str,
        options: QueueOptions,
    ) -> WorkQueue<T> {
        let observer = options
            .observer
            .unwrap_or_else(|| self.metrics().queue_observer(name));
        let queue = WorkQueue::new(QueueOptions {
            observer: Some(observer),
            ..options
        });
        self.metrics().track_queue(name, &queue);
        queue
    }

    /// Runs something else with the Manager: a server, background work. Its
    /// [group](Runnable::group) determines when.
    pub fn add(&mut self, name: impl Into<String>, runnable: impl Runnable) {
        let group = runnable.group();
        let boxed: BoxRunnable = Box::new(move |stop| Box::pin(runnable.start(stop)));
        self.runnables.push((name.into(), group, boxed));
    }

    /// Adds a condition of `/healthz`: while it fails, the kubelet restarts the process. It must
    /// not block.
    pub fn healthz_check(
        &mut self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.health.add_healthz(name.into(), Arc::new(check));
    }

    /// Adds a condition of `/readyz`: while it fails, the process is not ready. It must not block.
    pub fn readyz_check(
        &mut self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.health.add_readyz(name.into(), Arc::new(check));
    }

    /// Adds a mistake of the setup, such as an invalid environment variable: [`run`](Self::run)
    /// returns it with file and line, before anything starts.
    ///
    /// ```
    /// use bellerophon::prelude::*;
    ///
    /// fn setup(mgr: &mut Manager) {
    ///     if std::env::var("NODE_NAME").is_err() {
    ///         mgr.setup_error("NODE_NAME is not set");
    ///     }
    /// }
    /// ```
    #[track_caller]
    pub fn setup_error(&mut self, message: impl Into<String>) {
        self.cluster.errors.add(message.into(), Location::caller());
    }

    /// The client of its informers and, by default, of its controllers.
    pub fn client(&self) -> &Client {
        &self.cluster.client
    }

    /// The client of a controller, by [`ManagerOptions::controller_clients`]; default: that of the
    /// Manager.
    pub fn client_of(&self, controller: &str) -> Client {
        self.cluster.client_of(controller)
    }

    /// The metrics registry of everything the Manager runs.
    pub fn metrics(&self) -> &Metrics {
        &self.options.metrics
    }

    /// The trace of everything the Manager runs.
    pub fn trace(&self) -> &Trace {
        &self.options.trace
    }

    /// The time that is written into objects.
    pub fn clock(&self) -> Clock {
        self.options.clock
    }

    /// The source of jitter.
    pub fn rng(&self) -> &Rng {
        &self.options.rng
    }

    /// Whether this process leads.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// The state that `/healthz` and `/readyz` serve.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs until SIGTERM or Ctrl-C; a second signal aborts.
    ///
    /// # Errors
    /// A setup error, or a part failed or did not end in time, or a second signal came.
    pub async fn run(self) -> Result<(), ManagerError> {
        self.run_until_signalled().await
    }

    fn run_until_signalled(self) -> BoxFuture<'static, Result<(), ManagerError>> {
        Box::pin(async move {
            let stop = CancellationToken::new();
            let mut signals = Signals::listen();
            let twice = async {
                signals.next().await;
                tracing::info!("stopping; a second signal aborts");
                stop.cancel();
                signals.next().await;
            };
            tokio::select! {
                ended = self.run_with(stop.clone(), None) => ended,
                () = twice => Err(ManagerError::Interrupted),
            }
        })
    }

    /// Runs until the future completes. All tasks have ended when this returns; dropping it aborts
    /// them.
    ///
    /// # Errors
    /// A setup error, or a part failed or did not end in time.
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ManagerError> {
        let token = CancellationToken::new();
        // It never completes, so that only the end of the run decides the result.
        let stopping = async {
            stop.await;
            token.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            ended = self.run_with(token.clone(), None) => ended,
            () = stopping => Ok(()),
        }
    }

    /// Starts the Manager in its own task.
    pub fn start(self) -> RunningManager {
        RunningManager::new(self)
    }

    /// As [`recorder`](Self::recorder), with the user agent of its requests: for a process that
    /// acts as several components. Equal requests share one recorder.
    pub fn component_recorder(
        &mut self,
        controller: &str,
        user_agent: Option<&str>,
    ) -> EventRecorder {
        self.cluster.recorder(controller, user_agent)
    }
}

/// Adds the condition that the caches are synced, which a Manager fulfils some time after its
/// start.
fn cache_check(health: &Health) -> Arc<AtomicBool> {
    let synced = Arc::new(AtomicBool::new(false));
    let is_synced = synced.clone();
    let check = move || match is_synced.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err("not synced".to_owned()),
    };
    health.add_readyz("informer-sync".to_owned(), Arc::new(check));
    synced
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("controllers", &self.controllers)
            .field("informers", &self.cluster.informers.len())
            .finish_non_exhaustive()
    }
}
