//! Cluster: starts and stops all controllers and owns their tasks.
//!
//! Input: a client and a [`Level`]. Output: a running [`Cluster`].
//! Guarantees: no controller reconciles before its caches are synced; no task of the cluster is
//! left when [`Cluster::stop`] returns.

use std::fmt;

use bellerophon::{
    Entropy, Manager, ManagerError, ManagerOptions, Metrics, SharedInformerFactory, SyncError,
    TraceBus, WallClock,
};
use kube::Client;
use thiserror::Error;
use tokio::{sync::watch, task::JoinError};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    context::{Context, Loop, Settings},
    core,
    nodes::{self, Nodes},
    scheduler, workloads,
};

/// Which controllers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Simulated nodes only, for a control plane that runs elsewhere.
    Nodes,
    /// Garbage collector, namespace, service account, root CA, cluster role aggregation, endpoints,
    /// volume protection and TTL-after-finished controllers.
    Core,
    /// `Core`, the workload controllers, the scheduler and simulated nodes.
    #[default]
    Full,
}

/// Why a cluster could not start, or stopped.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// A cache could not be synced.
    #[error("the cluster cannot start: {0}")]
    Sync(#[from] SyncError),
    /// A controller failed.
    #[error("a controller of the cluster failed: {0}")]
    Controller(#[from] ManagerError),
    /// The manager task panicked outside of a reconcile.
    #[error("a controller of the cluster ended unexpectedly: {0}")]
    Task(#[from] JoinError),
    /// The controllers have ended, so the cluster cannot become ready.
    #[error("the cluster was stopped")]
    Stopped,
}

/// Options of a cluster; see [`Cluster::builder`].
#[must_use = "a builder does nothing until start"]
pub struct Builder {
    client: Client,
    level: Level,
    nodes: usize,
    root_ca: String,
    clock: WallClock,
    entropy: Entropy,
    trace: TraceBus,
    metrics: Metrics,
}

impl Builder {
    /// Which controllers run. Default: [`Level::Full`].
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Number of simulated nodes. Default: 0. Ignored at [`Level::Core`].
    pub fn nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// CA bundle of the API server in PEM, published to every namespace as ConfigMap
    /// `kube-root-ca.crt`. Default: none, and no ConfigMap is published.
    pub fn root_ca(self, pem: impl Into<String>) -> Self {
        Self {
            root_ca: pem.into(),
            ..self
        }
    }

    /// Clock of the timestamps written into objects. Default: the system clock.
    pub fn clock(self, clock: WallClock) -> Self {
        Self { clock, ..self }
    }

    /// Seeds the random number generator of names, ties and jitter. Default: seeded by the OS.
    pub fn seed(self, seed: u64) -> Self {
        Self {
            entropy: Entropy::seeded(seed),
            ..self
        }
    }

    /// Receives the reconcile trace of the controllers. Default: off.
    pub fn trace(self, trace: TraceBus) -> Self {
        Self { trace, ..self }
    }

    /// Registry of the controllers' metrics. Default: a registry of its own.
    pub fn metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Starts the controllers. They run until [`Cluster::stop`]. Dropping the cluster aborts them.
    pub fn start(self) -> Cluster {
        let ctx = Context::new(Settings {
            client: self.client.clone(),
            clock: self.clock,
            entropy: self.entropy.clone(),
            trace: self.trace,
            metrics: self.metrics.clone(),
            root_ca: self.root_ca,
        });
        let mut controllers = Vec::new();
        let mut nodes = None;
        if self.level != Level::Nodes {
            controllers.extend(core::controllers(&ctx));
        }
        if self.level == Level::Full {
            controllers.extend(workloads::controllers(&ctx));
            controllers.extend(scheduler::controllers(&ctx));
        }
        if self.level != Level::Core {
            let (kubelets, handle) = nodes::kubelets(&ctx, self.nodes);
            controllers.extend(kubelets);
            nodes = Some(handle);
        }
        if self.level == Level::Full {
            controllers.extend(nodes::controllers(&ctx));
        }
        let kept = ctx.take_kept();
        controllers.extend(kept.writers);
        let options = ManagerOptions {
            metrics: self.metrics,
            entropy: self.entropy,
            clock: self.clock,
            ..ManagerOptions::default()
        };
        let manager = controllers.into_iter().fold(
            Manager::new(self.client, options).factory(&ctx.factory),
            |manager, controller| match controller {
                Loop::Controller(controller) => manager.controller(controller),
                Loop::Background { name, work } => manager.background(name, work),
            },
        );
        let stop = CancellationToken::new();
        let factory = ctx.factory;
        let leases = kept.leases;
        let task = AbortOnDropHandle::new(tokio::spawn({
            let stop = stop.clone();
            async move {
                let ended = manager.run(stop).await;
                drop(leases);
                ended
            }
        }));
        Cluster {
            stop,
            task: Some(task),
            factory,
            nodes,
            readiness: kept.awaited,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("level", &self.level)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// A running cluster: controllers, scheduler and simulated nodes of one API server.
///
/// All state is in the API server, so another instance can take over at any point. Two instances
/// must not run against the same API server concurrently.
pub struct Cluster {
    stop: CancellationToken,
    /// The manager task; `None` once its result was returned.
    task: Option<AbortOnDropHandle<Result<(), ManagerError>>>,
    factory: SharedInformerFactory,
    nodes: Option<Nodes>,
    /// Readiness of the components beyond synced caches, by name.
    readiness: Vec<(&'static str, watch::Receiver<bool>)>,
}

impl Cluster {
    /// Returns a builder with the default options. The client needs cluster-admin permissions.
    pub fn builder(client: Client) -> Builder {
        Builder {
            client,
            level: Level::default(),
            nodes: 0,
            root_ca: String::new(),
            clock: WallClock::system(),
            entropy: Entropy::from_os(),
            trace: TraceBus::off(),
            metrics: Metrics::new(),
        }
    }

    /// Waits until the caches are synced and every node is Ready. May be called repeatedly.
    ///
    /// # Errors
    /// A cache could not be synced, or a controller failed.
    pub async fn ready(&mut self) -> Result<(), ClusterError> {
        let factory = self.factory.clone();
        let readiness = self.readiness.clone();
        let all_ready = async {
            factory.wait_for_sync().await?;
            for (component, mut ready) in readiness {
                ready
                    .wait_for(|ready| *ready)
                    .await
                    .map_err(|_| ClusterError::Stopped)?;
                tracing::debug!(component, "ready");
            }
            Ok(())
        };
        tokio::select! {
            biased;
            ended = self.ended() => Err(ended.err().unwrap_or(ClusterError::Stopped)),
            ready = all_ready => ready,
        }
    }

    /// Handle to the simulated nodes; `None` at [`Level::Core`].
    pub fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }

    /// Waits until the controllers end by themselves, which happens only when one of them fails.
    ///
    /// # Errors
    /// Why they ended; returned by one call only.
    pub async fn ended(&mut self) -> Result<(), ClusterError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        Ok(ended??)
    }

    /// Stops all controllers and waits for running reconciles.
    ///
    /// # Errors
    /// A controller failed, or did not end within the grace period.
    pub async fn stop(mut self) -> Result<(), ClusterError> {
        self.stop.cancel();
        self.ended().await
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("caches", &self.factory)
            .finish_non_exhaustive()
    }
}
