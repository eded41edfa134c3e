//! Cluster: all controllers of a control plane in one Manager.
//!
//! Input: a client and what to run. Output: a running cluster.
//! Guarantees: no controller reconciles before its caches are synced; when [`Cluster::stop`]
//! returns, all tasks have ended.

use std::fmt;
use std::sync::Arc;

use bellerophon::clock::{Clock, Rng};
use bellerophon::informer::CacheMode;
use bellerophon::manager::{
    ControllerClients, Manager, ManagerError, ManagerOptions, RunningManager,
};
use bellerophon::metrics::Metrics;
use bellerophon::trace::Trace;
use kube::Client;
use thiserror::Error;
use tokio::sync::watch;

use crate::component::Component;
use crate::identity::Identity;
use crate::nodes::{self, KubeletSockets, Kubelets, Nodes, ProcessNodes};
use crate::{core, metrics_server, scheduler, workloads};

/// How much of a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Simulated nodes only, for a control plane that runs elsewhere.
    Nodes,
    /// What every API server needs: garbage collector, namespaces, service accounts, cluster roles,
    /// endpoints and the like.
    Core,
    /// Also workloads, the scheduler and nodes.
    #[default]
    Full,
}

/// Why a cluster could not start, or stopped.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// A controller cannot start, or stopped with an error.
    #[error("the cluster cannot run: {0}")]
    Manager(#[from] ManagerError),
    /// The controllers have ended, so the cluster will never be ready.
    #[error("the cluster was stopped")]
    Stopped,
}

/// The client of an identity.
type ClientFor = Arc<dyn Fn(&Identity) -> Client + Send + Sync>;

/// Describes a cluster; see [`Cluster::builder`].
#[must_use = "a builder does nothing until start"]
pub struct Builder {
    client: Client,
    client_for: Option<ClientFor>,
    level: Level,
    nodes: usize,
    process_nodes: Option<ProcessNodes>,
    /// `None` if the API server does not reach them.
    kubelets: Option<Kubelets>,
    kubelet_sockets: Option<KubeletSockets>,
    root_ca: String,
    clock: Clock,
    rng: Rng,
    trace: Trace,
    metrics: Metrics,
}

impl Builder {
    /// Lets every controller act as its own user, as in a real cluster: the service accounts of
    /// kube-controller-manager's controllers, `system:kube-scheduler`, a user for the kubelets.
    /// Their permissions are those of upstream's bootstrap policy and of
    /// [`rbac_objects`](crate::rbac_objects). Default: all act as the user of the cluster's client.
    pub fn client_for(self, client: impl Fn(&Identity) -> Client + Send + Sync + 'static) -> Self {
        Self {
            client_for: Some(Arc::new(client)),
            ..self
        }
    }

    /// How much runs; default: [`Level::Full`].
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// The number of nodes; default: 0. [`Level::Core`] has none.
    pub fn nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// Runs pods as local processes; default: they are simulated.
    pub fn process_nodes(self, process_nodes: ProcessNodes) -> Self {
        Self {
            process_nodes: Some(process_nodes),
            ..self
        }
    }

    /// How the API server reaches the kubelets of the nodes, for logs, exec, attach and
    /// port-forward, and the metrics server, which [`Level::Full`] then has. Default: it does not.
    pub fn kubelets(self, kubelets: Kubelets) -> Self {
        Self {
            kubelets: Some(kubelets),
            ..self
        }
    }

    /// Where kubelets serve HTTPS, for clients that connect to them directly. Default: nowhere.
    pub fn kubelet_sockets(self, sockets: KubeletSockets) -> Self {
        Self {
            kubelet_sockets: Some(sockets),
            ..self
        }
    }

    /// The CA certificates that clients of the server trust, in PEM. Every namespace gets them as
    /// config map `kube-root-ca.crt`.
    pub fn root_ca(self, pem: impl Into<String>) -> Self {
        Self {
            root_ca: pem.into(),
            ..self
        }
    }

    /// The time that is written into objects; default: the system's.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Makes every random choice repeatable: generated names, tie-breaks, jitter.
    pub fn seed(self, seed: u64) -> Self {
        Self {
            rng: Rng::seeded(seed),
            ..self
        }
    }

    /// Where controllers record which events they received, why they reconciled and what they
    /// wrote.
    pub fn trace(self, trace: Trace) -> Self {
        Self { trace, ..self }
    }

    /// The metrics registry of the controllers.
    pub fn metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Starts the controllers. They run until [`Cluster::stop`], or until the cluster is dropped,
    /// which aborts them.
    pub fn start(self) -> Cluster {
        let component = Component::ControllerManager;
        let client = match &self.client_for {
            Some(client_for) => client_for(&Identity::controller_manager()),
            None => self.client,
        };
        let controller_clients = self.client_for.map(|client_for| {
            ControllerClients::new(move |controller| client_for(&Identity::of(controller)))
        });
        let mut mgr = Manager::new(
            client,
            ManagerOptions {
                controller_clients,
                identity: Some(component.name().to_owned()),
                // Controllers read the same objects in every reconcile, and some read all pods of
                // an owner or all nodes.
                cache_mode: Some(CacheMode::Decoded),
                controller: component.controller_options(),
                metrics: self.metrics,
                trace: self.trace,
                clock: self.clock,
                rng: self.rng,
                ..ManagerOptions::default()
            },
        );
        let mut readiness = Vec::new();
        if self.level != Level::Nodes {
            readiness.push(core::setup(&mut mgr, &self.root_ca));
        }
        if self.level == Level::Full {
            workloads::setup(&mut mgr);
            scheduler::setup(&mut mgr);
        }
        let mut nodes = None;
        if self.level != Level::Core {
            let kubelets = self.kubelets.clone().unwrap_or_default();
            let (simulated, ready) = nodes::setup_kubelets(
                &mut mgr,
                self.nodes,
                self.process_nodes,
                kubelets,
                self.kubelet_sockets,
            );
            nodes = Some(simulated);
            readiness.push(ready);
        }
        if self.level == Level::Full {
            nodes::setup_controllers(&mut mgr);
            let metrics_server = self.kubelets.map(|it| metrics_server::setup(&mut mgr, it));
            readiness.extend(metrics_server);
        }
        Cluster {
            manager: mgr.start(),
            nodes,
            readiness,
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

/// A running cluster: the controllers of a control plane and simulated nodes, on an API server.
///
/// It keeps no state outside of the API: another one can take over at any point. Two clusters on
/// one server conflict.
pub struct Cluster {
    manager: RunningManager,
    nodes: Option<Nodes>,
    /// Whether the garbage collector observes every resource; whether every node is Ready; whether
    /// the metrics server is registered.
    readiness: Vec<watch::Receiver<bool>>,
}

impl Cluster {
    /// Describes a cluster. The client needs all permissions, unless
    /// [`client_for`](Builder::client_for) is set.
    pub fn builder(client: Client) -> Builder {
        Builder {
            client,
            client_for: None,
            level: Level::default(),
            nodes: 0,
            process_nodes: None,
            kubelets: None,
            kubelet_sockets: None,
            root_ca: String::new(),
            clock: Clock::system(),
            rng: Rng::from_os(),
            trace: Trace::off(),
            metrics: Metrics::new(),
        }
    }

    /// Waits until the caches are synced and every node is Ready. It can be called at any time.
    ///
    /// # Errors
    /// A cache cannot be synced, or the controllers ended.
    pub async fn ready(&mut self) -> Result<(), ClusterError> {
        self.manager.ready().await?;
        let readiness = self.readiness.clone();
        let all = async {
            for mut ready in readiness {
                let ready = ready.wait_for(|ready| *ready).await;
                ready.map_err(|_| ClusterError::Stopped)?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            ended = self.manager.ended() => {
                Err(ended.map_or_else(ClusterError::Manager, |()| ClusterError::Stopped))
            }
            ready = all => ready,
        }
    }

    /// Operates the simulated nodes; `None` at [`Level::Core`].
    pub fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }

    /// Waits until the controllers end by themselves, which they do only if one of them fails.
    ///
    /// # Errors
    /// Why they ended; returned once.
    pub async fn ended(&mut self) -> Result<(), ClusterError> {
        Ok(self.manager.ended().await?)
    }

    /// Stops every controller and waits for running reconciles.
    ///
    /// # Errors
    /// A controller had failed, or did not end in time.
    pub async fn stop(self) -> Result<(), ClusterError> {
        Ok(self.manager.stop().await?)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}
