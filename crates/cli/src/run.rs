//! `bellerophon run`: operators on any cluster.
//! In: names of operators and a cluster. Out: what they do there, until a signal comes.
//! Holds: it installs nothing; what is missing is named with the command that adds it.

use std::{path::Path, process};

use bellerophon::{LeaderOptions, ManagerError, ManagerOptions, SyncError, WallClock};
use bellerophon_operator::{Operator, RunOptions, manager};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use tracing::info;

use crate::{arguments::RunArguments, failure::Failure, operators};

/// Runs operators until a signal comes.
///
/// # Errors
/// The cluster cannot be reached, or lacks what an operator needs.
pub(crate) async fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let wanted = operators::named(&arguments.operators)?;
    let idle: Vec<&str> = wanted
        .iter()
        .filter(|operator| (operator.rights)().is_empty())
        .map(|operator| operator.name)
        .collect();
    if idle.len() == wanted.len() {
        return Err(Failure::Misused(format!(
            "there is nothing to run in {:?}",
            arguments.operators
        ))
        .advising("it only defines kinds: see `bellerophon manifests`"));
    }
    let known = |switch: &str| {
        wanted
            .iter()
            .any(|operator| operator.switches.contains(&switch))
    };
    if let Some(unknown) = arguments.switches.iter().find(|switch| !known(switch)) {
        let switches: Vec<&str> = wanted
            .iter()
            .flat_map(|operator| operator.switches)
            .copied()
            .collect();
        return Err(Failure::Misused(format!("nothing is called {unknown:?}"))
            .advising(&format!("--allow takes: {}", switches.join(", "))));
    }
    let options = ManagerOptions {
        pages: arguments.metrics,
        clock: WallClock::system(),
        ..ManagerOptions::default()
    };
    let config = config(
        arguments.kubeconfig.as_deref(),
        arguments.context.as_deref(),
    )
    .await?;
    let namespace = config.default_namespace.clone();
    let client = client(config, &options)?;
    let identity = identity();
    let leader = arguments
        .leader_elect
        .then(|| LeaderOptions::new(namespace, lease(&wanted), &identity));
    let options = RunOptions {
        namespace: arguments.namespace.clone(),
        workers: arguments.workers,
        switches: arguments.switches.iter().cloned().collect(),
        identity,
        manager: ManagerOptions { leader, ..options },
        ..RunOptions::default()
    };
    let manager = manager(client, &wanted, options).map_err(Failure::of)?;
    let names: Vec<&str> = wanted.iter().map(|operator| operator.name).collect();
    info!(operators = ?names, "Waiting for informer caches to sync");
    let ran = manager.run_until_signal().await;
    info!("Shutting down workers");
    ran.map_err(|error| explain(error, &names))
}

/// The lease that copies of this process compete for.
fn lease(operators: &[Operator]) -> String {
    operators
        .iter()
        .map(|operator| operator.name)
        .collect::<Vec<_>>()
        .join("-")
}

/// Who this process is: the pod, or the process on this host.
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

/// Where the cluster is: as named, or as the environment says, inside a pod its own cluster.
pub(crate) async fn config(file: Option<&Path>, context: Option<&str>) -> Result<Config, Failure> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let advice = "name a file with --kubeconfig";
    if let Some(file) = file {
        let read = Kubeconfig::read_from(file).map_err(|e| Failure::of(e).advising(advice))?;
        return Config::from_custom_kubeconfig(read, &options)
            .await
            .map_err(Failure::of);
    }
    if context.is_some() {
        return Config::from_kubeconfig(&options)
            .await
            .map_err(|e| Failure::of(e).advising(advice));
    }
    Config::infer()
        .await
        .map_err(|e| Failure::of(e).advising(advice))
}

/// A client whose requests are counted.
fn client(config: Config, options: &ManagerOptions) -> Result<Client, Failure> {
    let builder = ClientBuilder::try_from(config).map_err(Failure::of)?;
    Ok(builder.with_layer(&options.metrics.client_layer()).build())
}

/// What is wrong, and the command that mends it.
fn explain(error: ManagerError, names: &[&str]) -> Failure {
    let names = names.join(",");
    let mend = match sync_error(&error) {
        Some(SyncError::NoSuchKind { .. }) => {
            format!("bellerophon manifests {names} --crds-only | kubectl apply -f -")
        }
        Some(SyncError::Forbidden { .. }) => {
            format!("bellerophon manifests {names} | kubectl apply -f -")
        }
        _ => return Failure::of(error),
    };
    Failure::of(error).advising(&mend)
}

fn sync_error(error: &ManagerError) -> Option<&SyncError> {
    match error {
        ManagerError::Sync(error) => Some(error),
        ManagerError::Controller(bellerophon::ControllerError::Sync { source, .. }) => Some(source),
        _ => None,
    }
}
