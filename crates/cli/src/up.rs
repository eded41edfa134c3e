//! `bellerophon up`: a cluster for as long as the command runs.
//! In: options. Out: a kubeconfig, the facts of the start, and whatever clients ask for.
//! Holds: nobody is told of a cluster that is not ready; a start that fails ends everything it began.
//!
//! Start: server → loops and nodes → operators → ready. Stop: operators → loops and nodes → server.

use std::{future::pending, io::stdout, net::SocketAddr};

use bellerophon::{ManagerOptions, TraceBus, WallClock};
use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::Cluster;
use bellerophon_operator::{
    Operator, RunError, RunOptions, Running as Operators, controllers_of, define, manager_of,
};
use bellerophon_reboot::{agents, simulated};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::{arguments::UpOptions, demo, failure::Failure, ready::Ready, stop::Signals, trace};

/// Serves until a signal comes.
///
/// # Errors
/// The address is taken, the kubeconfig cannot be written, or a loop of the cluster cannot go on.
pub(crate) async fn up(options: &UpOptions, started: Instant) -> Result<(), Failure> {
    let no_signals = || Failure::caused_by("cannot listen for signals");
    let mut signals = Signals::listen().map_err(no_signals())?;
    let operators = options.operators()?;
    let mut running = Running::start(options).await?;
    let served = tokio::select! {
        served = running.serve(options, &operators, started) => served,
        signal = signals.next() => signal.map_err(no_signals()),
    };
    signals.grant(running.stop()).await.map_err(no_signals())?;
    info!("stopped");
    served
}

/// Everything that runs.
struct Running {
    server: ApiServer,
    /// `None` for a bare server.
    cluster: Option<Cluster>,
    /// `None` until the cluster is ready, and where none is wanted.
    operators: Option<Operators>,
    /// What the loops of the cluster record.
    bus: TraceBus,
    clock: WallClock,
}

impl Running {
    async fn start(options: &UpOptions) -> Result<Self, Failure> {
        let wanted = options.cluster()?;
        let (bus, clock) = (TraceBus::new(trace::RECORDS_MAX), WallClock::system());
        let builder = ApiServer::builder().listen(options.listen);
        let builder = if wanted.is_some() {
            builder.page(trace::PATH, trace::page(bus.clone(), clock))
        } else {
            builder
        };
        let server = builder.start().await.map_err(Failure::of)?;
        warn_of_exposure(options.listen);
        let cluster = wanted.map(|(level, nodes)| {
            let builder = Cluster::builder(admin_client(&server))
                .level(level)
                .nodes(nodes)
                .clock(clock)
                .trace(bus.clone());
            builder
                .root_ca(server.root_ca().unwrap_or_default())
                .start()
        });
        Ok(Self {
            server,
            cluster,
            operators: None,
            bus,
            clock,
        })
    }

    /// Says when all is ready; returns only if something fails.
    async fn serve(
        &mut self,
        options: &UpOptions,
        operators: &[Operator],
        started: Instant,
    ) -> Result<(), Failure> {
        let written = self.server.write_kubeconfig(&options.kubeconfig);
        written.map_err(|e| Failure::of(e).advising("name another file with --kubeconfig"))?;
        if let Some(cluster) = &mut self.cluster {
            cluster.ready().await.map_err(Failure::of)?;
        }
        self.start_operators(operators).await?;
        let url = self.server.url().expect("the server was given an address");
        let ready = Ready::new(url, &options.kubeconfig, started)
            .map_err(Failure::caused_by("cannot name the kubeconfig"))?;
        ready
            .tell(options.output, &mut stdout().lock())
            .map_err(Failure::caused_by("cannot write to stdout"))?;
        info!(?ready, "serving");
        let client = admin_client(&self.server);
        let demo = async {
            if options.demo {
                demo::run(&client, operators, &self.bus, self.clock, options.output).await
            } else {
                pending().await
            }
        };
        let cluster_ended = async {
            match &mut self.cluster {
                Some(cluster) => cluster.ended().await.map_err(Failure::of),
                None => pending().await,
            }
        };
        let operators_ended = async {
            match &mut self.operators {
                Some(operators) => operators.ended().await.map_err(Failure::of),
                None => pending().await,
            }
        };
        tokio::select! {
            told = demo => told,
            ended = cluster_ended => ended,
            ended = operators_ended => ended,
        }
    }

    /// Defines the kinds of operators and waits until their caches are synced. Every simulated node has a reboot agent if there
    /// is somebody to let it reboot.
    async fn start_operators(&mut self, wanted: &[Operator]) -> Result<(), Failure> {
        if wanted.is_empty() {
            return Ok(());
        }
        define(&admin_client(&self.server), wanted)
            .await
            .map_err(Failure::of)?;
        let manager = ManagerOptions {
            clock: self.clock,
            ..ManagerOptions::default()
        };
        let options = RunOptions {
            trace: self.bus.clone(),
            manager,
            ..RunOptions::default()
        };
        let reboots = wanted
            .iter()
            .any(|operator| operator.name == bellerophon_reboot::OPERATOR.name);
        let nodes = self
            .cluster
            .as_ref()
            .and_then(Cluster::nodes)
            .filter(|_| reboots);
        let manager = manager_of(admin_client(&self.server), options, |setup| {
            let mut controllers = controllers_of(wanted, setup)?;
            if let Some(nodes) = nodes {
                let (ask, tell) = (nodes.clone(), nodes.clone());
                let machines = simulated(
                    nodes.names(),
                    move |node| ask.boot_id(node),
                    move |node| tell.reboot(node),
                );
                controllers.extend(agents(setup, &bellerophon_reboot::prefix()?, machines));
            }
            Ok(controllers)
        });
        let running = Operators::start(manager.map_err(RunError::Setup).map_err(Failure::of)?);
        self.operators
            .insert(running)
            .ready()
            .await
            .map_err(Failure::of)
    }

    async fn stop(self) {
        if let Some(operators) = self.operators
            && let Err(error) = operators.stop().await
        {
            error!(%error, "the operators did not stop in order");
        }
        if let Some(cluster) = self.cluster
            && let Err(error) = cluster.stop().await
        {
            error!(%error, "the cluster did not stop in order");
        }
        self.server.shutdown().await;
    }
}

/// A client of the embedded server as its administrator. It is not `ApiServer::client`, whose
/// feature makes the server wait for kube to compile.
fn admin_client(server: &ApiServer) -> kube::Client {
    kube::Client::new(server.service(), "default")
}

fn warn_of_exposure(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(%address, "other machines can reach this server, and whoever has its kubeconfig is its administrator; use 127.0.0.1 to keep it to this one");
    }
}
