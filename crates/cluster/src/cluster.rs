//! Cluster: starts every loop in order, stops every loop in order, and owns every task.
//!
//! In: a client and what to run. Out: a running cluster.
//! Holds: no loop acts before its caches are synced; when [`Cluster::stop`] returns nothing of it runs any more.

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

/// How much of a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Simulated nodes and nothing else, for a control plane that runs elsewhere.
    Nodes,
    /// What every API server needs: garbage collection, namespaces, service accounts, roles, endpoints and the like.
    Core,
    /// Also workloads, the scheduler and nodes.
    #[default]
    Full,
}

/// Why a cluster could not start or go on.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// A cache cannot be filled.
    #[error("the cluster cannot start: {0}")]
    Sync(#[from] SyncError),
    /// A loop cannot go on.
    #[error("a loop of the cluster cannot go on: {0}")]
    Loop(#[from] ManagerError),
    /// A loop panicked outside of any reconcile.
    #[error("a loop of the cluster ended unexpectedly: {0}")]
    Task(#[from] JoinError),
    /// The loops have ended, so it will never be ready.
    #[error("the cluster was stopped")]
    Stopped,
}

/// Describes a cluster; see [`Cluster::builder`].
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
    /// How much runs; everything unless said.
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// How many simulated nodes there are; none unless said, and none at [`Level::Core`].
    pub fn nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// What clients of the server trust, in PEM: every namespace gets it as config map `kube-root-ca.crt`.
    pub fn root_ca(self, pem: impl Into<String>) -> Self {
        Self {
            root_ca: pem.into(),
            ..self
        }
    }

    /// The time of day that is written into objects; this machine's unless said.
    pub fn clock(self, clock: WallClock) -> Self {
        Self { clock, ..self }
    }

    /// Makes every random choice repeatable: names, ties, jitter.
    pub fn seed(self, seed: u64) -> Self {
        Self {
            entropy: Entropy::seeded(seed),
            ..self
        }
    }

    /// Where loops report what they noticed, why they acted and what they wrote.
    pub fn trace(self, trace: TraceBus) -> Self {
        Self { trace, ..self }
    }

    /// Where loops count and time what they do.
    pub fn metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Starts the loops. They run until [`Cluster::stop`], or until the cluster is dropped, which ends them at once.
    pub fn start(self) -> Cluster {
        let ctx = Context::new(Settings {
            client: self.client.clone(),
            clock: self.clock,
            entropy: self.entropy.clone(),
            trace: self.trace,
            metrics: self.metrics.clone(),
            root_ca: self.root_ca,
        });
        let mut loops = Vec::new();
        let mut nodes = None;
        if self.level != Level::Nodes {
            loops.extend(core::loops(&ctx));
        }
        if self.level == Level::Full {
            loops.extend(workloads::loops(&ctx));
            loops.extend(scheduler::controllers(&ctx));
        }
        if self.level != Level::Core {
            let (kubelets, handle) = nodes::kubelets(&ctx, self.nodes);
            loops.extend(kubelets);
            nodes = Some(handle);
        }
        if self.level == Level::Full {
            loops.extend(nodes::controllers(&ctx));
        }
        let kept = ctx.take_kept();
        loops.extend(kept.writers);
        let options = ManagerOptions {
            metrics: self.metrics,
            entropy: self.entropy,
            clock: self.clock,
            ..ManagerOptions::default()
        };
        let manager = loops.into_iter().fold(
            Manager::new(self.client, options).factory(&ctx.factory),
            |manager, one| match one {
                Loop::Controller(controller) => manager.controller(controller),
                Loop::Background { name, work } => manager.background(name, work),
            },
        );
        let (stop, factory, leases) = (CancellationToken::new(), ctx.factory, kept.leases);
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
            awaited: kept.awaited,
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

/// A running cluster: loops and simulated nodes that make objects of an API server come true.
///
/// It keeps no state that the API does not have: another one can take over at any point. Two at once on one server fight.
pub struct Cluster {
    stop: CancellationToken,
    /// `None` once somebody was told how it ended.
    task: Option<AbortOnDropHandle<Result<(), ManagerError>>>,
    factory: SharedInformerFactory,
    nodes: Option<Nodes>,
    awaited: Vec<(&'static str, watch::Receiver<bool>)>,
}

impl Cluster {
    /// How to start one, through a client that may do everything.
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

    /// Waits until the caches are synced and every node is Ready. It can be asked again at any time.
    ///
    /// # Errors
    /// A cache cannot be filled, or a loop ended.
    pub async fn ready(&mut self) -> Result<(), ClusterError> {
        let (factory, awaited) = (self.factory.clone(), self.awaited.clone());
        let all = async {
            factory.wait_for_sync().await?;
            for (name, mut so) in awaited {
                so.wait_for(|so| *so)
                    .await
                    .map_err(|_| ClusterError::Stopped)?;
                tracing::debug!(name, "ready");
            }
            Ok(())
        };
        tokio::select! {
            biased;
            ended = self.ended() => Err(ended.err().unwrap_or(ClusterError::Stopped)),
            ready = all => ready,
        }
    }

    /// Operates the simulated nodes; `None` at [`Level::Core`].
    pub fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }

    /// Waits until the loops end by themselves, which they do only when one of them fails.
    ///
    /// # Errors
    /// Why they ended; told once.
    pub async fn ended(&mut self) -> Result<(), ClusterError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        Ok(ended??)
    }

    /// Stops every loop and waits for what they have begun.
    ///
    /// # Errors
    /// A loop had failed, or did not end in time.
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
