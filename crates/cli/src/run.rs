//! `bellerophon run`: runs operators on any cluster until a signal.
//!
//! Guarantee: the command installs nothing; the error of a missing CRD or permission names the
//! command that installs it.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use bellerophon::client::connect;
use bellerophon::controller::{ControllerError, ControllerOptions};
use bellerophon::informer::{Namespaces, SyncError};
use bellerophon::leader::LeaderElectionOptions;
use bellerophon::manager::{Manager, ManagerError, ManagerOptions, Runnable, RunnableGroup};
use bellerophon::trace::Trace;
use bellerophon_operator::{Operator, WEBHOOKS, manager, webhook_options};
use bellerophon_page::{LiveSource, Page, PageOptions, Source, TextEndpoint};
use clap::Args;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{error::CliError, flags::address, operators, progress, trace};

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A comma-separated list of operators, or all
    #[arg(value_name = "OPERATOR,…")]
    operators: String,

    /// The kubeconfig; default: KUBECONFIG, or the service account of the pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig; default: its current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The only namespace to watch; default: all namespaces
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,

    /// Enable a feature that is off by default; see docs/operators
    #[arg(long = "allow", value_name = "SWITCH")]
    feature_switches: Vec<String>,

    /// Elect a leader by a Lease, so that one of several replicas is active
    #[arg(long)]
    leader_elect: bool,

    /// The maximum number of concurrent reconciles of each controller
    #[arg(long, value_name = "N", default_value = "2", value_parser = workers)]
    workers: usize,

    /// The address of /healthz, /readyz and /metrics; default: not served
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    metrics: Option<SocketAddr>,

    /// The address of the live page, on loopback; its URL is printed. Default: not served
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    page: Option<SocketAddr>,

    /// Serve the webhooks of the operators. With https://HOST:PORT, register them with this URL;
    /// without a value, with https://127.0.0.1:9443. With NAMESPACE/SERVICE, serve them on port 9443
    /// for this Service, which `manifests --webhooks` registers
    #[arg(
        long,
        value_name = "LOCATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    webhooks: Option<String>,
}

/// Runs operators until a signal.
///
/// # Errors
/// The cluster cannot be reached, or a CRD or permission is missing.
pub(crate) async fn run(arguments: &RunArguments) -> Result<(), CliError> {
    let operators = operators::parse_list(&arguments.operators)?;
    let has_controllers = |operator: &Operator| !(operator.permissions)().is_empty();
    // A process that runs nothing would look healthy forever.
    if !operators.iter().any(has_controllers) {
        let message = format!("{:?} has no controllers to run", arguments.operators);
        return Err(
            CliError::Usage(message).with_hint("to install its CRDs, see `bellerophon manifests`")
        );
    }
    // Before the cluster is contacted: usage errors do not depend on it.
    check_feature_switches(&operators, &arguments.feature_switches)?;
    let config = config(
        arguments.kubeconfig.as_deref(),
        arguments.context.as_deref(),
    )
    .await?;
    let leader_election = arguments.leader_elect.then(|| LeaderElectionOptions {
        // In a pod this is the namespace of its service account, where the manifests grant access
        // to Leases.
        lease_namespace: config.default_namespace.clone(),
        ..LeaderElectionOptions::new(lease_name(&operators))
    });
    // Without a page the trace has no reader.
    let trace = match arguments.page {
        Some(_) => Trace::new(trace::RECORDS_MAX),
        None => Trace::off(),
    };
    let webhooks_name = format!("{}-webhooks", lease_name(&operators));
    let location = arguments.webhooks.as_deref().unwrap_or_default();
    let webhooks = webhook_options(&webhooks_name, location).map_err(CliError::Usage)?;
    let options = ManagerOptions {
        trace,
        webhooks,
        identity: Some(identity()),
        namespaces: match &arguments.namespace {
            Some(namespace) => Namespaces::named([namespace]),
            None => Namespaces::All,
        },
        controller: ControllerOptions {
            concurrency: Some(arguments.workers),
            ..ControllerOptions::default()
        },
        metrics_bind_address: arguments.metrics,
        health_probe_bind_address: arguments.metrics,
        leader_election,
        ..ManagerOptions::default()
    };
    let client = connect(config).map_err(CliError::new)?;
    let webhooks = arguments.webhooks.iter().map(|_| WEBHOOKS.to_owned());
    let switches = arguments.feature_switches.iter().cloned();
    let switches = switches.chain(webhooks).collect();
    let mut manager = manager(client, &operators, &switches, options);
    if let Some(address) = arguments.page {
        add_page(&mut manager, address).await?;
    }
    let names: Vec<&str> = operators.iter().map(|operator| operator.name).collect();
    info!(operators = ?names, "Waiting for informer caches to sync");
    progress::report(&format!(
        "running {}; -v logs each reconcile, Ctrl-C stops",
        names.join(", ")
    ));
    let result = manager.run().await;
    info!("Shutting down workers");
    result.map_err(|error| with_install_hint(error, &names))
}

/// Serves the live page with a Manager, and prints its URL.
async fn add_page(manager: &mut Manager, address: SocketAddr) -> Result<(), CliError> {
    let source = LiveSource {
        trace: manager.trace().clone(),
        clock: manager.clock(),
        // The API server runs elsewhere.
        objects: None,
        stored: None,
    };
    // `up` has this path on its API server.
    let endpoint: TextEndpoint = Arc::new(trace::endpoint(source.clone()));
    let page = Page::bind(PageOptions {
        address,
        source: Source::Live(source),
        actor: None,
        endpoint: Some((trace::PATH, endpoint)),
        rng: manager.rng().clone(),
    });
    let page = page.await.map_err(CliError::new)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "live page {}", page.url())
        .and_then(|()| out.flush())
        .map_err(CliError::context("cannot write to stdout"))?;
    let serve = async |stop: CancellationToken| {
        page.serve(stop).await;
        Ok(())
    };
    manager.add("page", serve.in_group(RunnableGroup::Servers));
    Ok(())
}

fn workers(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|workers| (1..=1000).contains(workers))
        .ok_or("not a number from 1 to 1000")
}

/// Checks that an operator has each feature switch.
fn check_feature_switches(
    operators: &[Operator],
    feature_switches: &[String],
) -> Result<(), CliError> {
    let known: Vec<&str> = operators
        .iter()
        .flat_map(|operator| operator.feature_switches)
        .copied()
        .collect();
    match feature_switches
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        Some(unknown) => Err(
            CliError::Usage(format!("unknown feature switch {unknown:?}"))
                .with_hint(&format!("--allow takes: {}", known.join(", "))),
        ),
        None => Ok(()),
    }
}

/// The Lease that replicas of this process compete for.
fn lease_name(operators: &[Operator]) -> String {
    operators
        .iter()
        .map(|operator| operator.name)
        .collect::<Vec<_>>()
        .join("-")
}

/// The identity of this process: the pod name, or host name and process ID. In leader election the
/// Manager adds a random suffix.
fn identity() -> String {
    let host =
        || std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
    std::env::var("POD_NAME").unwrap_or_else(|_| {
        format!(
            "{}-{}",
            host().unwrap_or_else(|_| "bellerophon".into()),
            process::id()
        )
    })
}

/// The client configuration of a kubeconfig file, of the environment, or of the pod.
pub(crate) async fn config(file: Option<&Path>, context: Option<&str>) -> Result<Config, CliError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let hint = "set --kubeconfig to a kubeconfig file";
    if let Some(file) = file {
        let kubeconfig =
            Kubeconfig::read_from(file).map_err(|e| CliError::new(e).with_hint(hint))?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(CliError::new);
    }
    // `infer` would fall back to the service account of the pod and ignore the context.
    if context.is_some() {
        return Config::from_kubeconfig(&options)
            .await
            .map_err(|e| CliError::new(e).with_hint(hint));
    }
    Config::infer()
        .await
        .map_err(|e| CliError::new(e).with_hint(hint))
}

/// The error of a manager, with the command that installs what is missing.
fn with_install_hint(error: ManagerError, names: &[&str]) -> CliError {
    let names = names.join(",");
    let install_command = match sync_error(&error) {
        Some(SyncError::NotServed { .. }) => {
            format!("bellerophon manifests {names} --crds-only | kubectl apply -f -")
        }
        Some(SyncError::Forbidden { .. }) => {
            format!("bellerophon manifests {names} | kubectl apply -f -")
        }
        _ => return CliError::new(error),
    };
    CliError::new(error).with_hint(&install_command)
}

fn sync_error(error: &ManagerError) -> Option<&SyncError> {
    match error {
        ManagerError::Sync(error) => Some(error),
        ManagerError::Controller(ControllerError::Sync { source, .. }) => Some(source),
        _ => None,
    }
}
