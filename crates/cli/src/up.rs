//! `bellerophon up`: runs a cluster until a signal.
//!
//! Inputs: options. Outputs: a kubeconfig, and a message on stdout when the cluster is ready.
//!
//! Guarantees: the message is printed only after everything is ready; a failed start stops what was
//! started.
//!
//! Start: API server → controllers and nodes → operators → message.
//! Stop: operators → controllers and nodes → API server.

use std::{future::pending, io::stdout, net::SocketAddr};

use bellerophon::clock::Clock;
use bellerophon::manager::{ManagerOptions, RunningManager};
use bellerophon::trace::Trace;
use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::Cluster;
use bellerophon_operator::{Operator, Switches, define, manager};
use bellerophon_reboot::{agents, simulated_agents};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::{
    arguments::UpOptions, demo, error::CliError, memory, ready::ReadyMessage, signals::Signals,
    trace,
};

/// Runs a cluster until a signal.
///
/// # Errors
/// The address is in use, the kubeconfig cannot be written, or a controller failed.
pub(crate) async fn up(options: &UpOptions, started: Instant) -> Result<(), CliError> {
    let signal_error = || CliError::context("cannot listen for signals");
    let mut signals = Signals::listen().map_err(signal_error())?;
    let operators = options.operators()?;
    let mut cluster = RunningCluster::start(options).await?;
    let result = tokio::select! {
        result = cluster.serve(options, &operators, started) => result,
        signal = signals.next() => signal.map_err(signal_error()),
        never = memory::return_at_intervals() => match never {},
    };
    signals
        .wait_for_shutdown(cluster.stop())
        .await
        .map_err(signal_error())?;
    info!("stopped");
    result
}

/// The components of a running cluster.
struct RunningCluster {
    server: ApiServer,
    /// `None` for an API server only.
    cluster: Option<Cluster>,
    /// `None` until the cluster is ready, and without operators.
    operators: Option<RunningManager>,
    /// The trace of controllers and operators.
    trace: Trace,
    clock: Clock,
}

impl RunningCluster {
    async fn start(options: &UpOptions) -> Result<Self, CliError> {
        let size = options.cluster()?;
        let trace = Trace::new(trace::RECORDS_MAX);
        let clock = Clock::system();
        let builder = ApiServer::builder().listen(options.listen);
        let builder = if size.is_some() {
            builder.page(trace::PATH, trace::endpoint(trace.clone(), clock))
        } else {
            builder
        };
        let server = builder.start().await.map_err(CliError::new)?;
        warn_if_exposed(options.listen);
        let cluster = size.map(|(level, nodes)| {
            let builder = Cluster::builder(admin_client(&server))
                .level(level)
                .nodes(nodes)
                .clock(clock)
                .trace(trace.clone());
            builder
                .root_ca(server.root_ca().unwrap_or_default())
                .start()
        });
        Ok(Self {
            server,
            cluster,
            operators: None,
            trace,
            clock,
        })
    }

    /// Prints the message when everything is ready. Returns only after a failure.
    async fn serve(
        &mut self,
        options: &UpOptions,
        operators: &[Operator],
        started: Instant,
    ) -> Result<(), CliError> {
        self.server
            .write_kubeconfig(&options.kubeconfig)
            .map_err(|error| {
                CliError::new(error).with_hint("name another file with --kubeconfig")
            })?;
        if let Some(cluster) = &mut self.cluster {
            cluster.ready().await.map_err(CliError::new)?;
        }
        self.start_operators(operators).await?;
        let url = self.server.url().expect("the server has an address");
        let message = ReadyMessage::new(url, &options.kubeconfig, started).map_err(
            CliError::context("cannot resolve the path of the kubeconfig"),
        )?;
        message
            .write(options.output, &mut stdout().lock())
            .map_err(CliError::context("cannot write to stdout"))?;
        info!(?message, "cluster is ready");
        let client = admin_client(&self.server);
        let demo = async {
            if options.demo {
                demo::run(&client, operators, &self.trace, self.clock, options.output).await
            } else {
                pending().await
            }
        };
        let cluster_ended = async {
            match &mut self.cluster {
                Some(cluster) => cluster.ended().await.map_err(CliError::new),
                None => pending().await,
            }
        };
        let operators_ended = async {
            match &mut self.operators {
                Some(operators) => operators.ended().await.map_err(CliError::new),
                None => pending().await,
            }
        };
        tokio::select! {
            result = demo => result,
            result = cluster_ended => result,
            result = operators_ended => result,
        }
    }

    /// Applies the CRDs of operators and waits until their caches are synced. With the reboot
    /// operator, every simulated node has a reboot agent.
    async fn start_operators(&mut self, operators: &[Operator]) -> Result<(), CliError> {
        if operators.is_empty() {
            return Ok(());
        }
        define(&admin_client(&self.server), operators)
            .await
            .map_err(CliError::new)?;
        let options = ManagerOptions {
            trace: self.trace.clone(),
            clock: self.clock,
            ..ManagerOptions::default()
        };
        let client = admin_client(&self.server);
        let mut mgr = manager(client, operators, &Switches::default(), options);
        let has_reboot_operator = operators
            .iter()
            .any(|operator| operator.name == bellerophon_reboot::OPERATOR.name);
        let nodes = self.cluster.as_ref().and_then(Cluster::nodes);
        if let Some(nodes) = nodes.filter(|_| has_reboot_operator) {
            let boot_ids = nodes.clone();
            let machines = nodes.clone();
            let agent_options = simulated_agents(
                nodes.names(),
                move |node| boot_ids.boot_id(node),
                move |node| machines.reboot(node),
            );
            let prefix = bellerophon_reboot::prefix().map_err(CliError::new)?;
            agents(&mut mgr, &prefix, agent_options);
        }
        let running = self.operators.insert(mgr.start());
        running.ready().await.map_err(CliError::new)
    }

    async fn stop(self) {
        if let Some(operators) = self.operators
            && let Err(error) = operators.stop().await
        {
            error!(%error, "operators failed to stop");
        }
        if let Some(cluster) = self.cluster
            && let Err(error) = cluster.stop().await
        {
            error!(%error, "controllers failed to stop");
        }
        self.server.shutdown().await;
    }
}

/// A client of the embedded server as its administrator. It is not `ApiServer::client`, whose
/// feature makes the server wait for kube to compile.
fn admin_client(server: &ApiServer) -> kube::Client {
    kube::Client::new(server.service(), "default")
}

fn warn_if_exposed(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(
            %address,
            "the API server is reachable from other machines; listen on 127.0.0.1 to prevent that"
        );
    }
}
