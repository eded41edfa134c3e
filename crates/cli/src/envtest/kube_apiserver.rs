//! The `kube-apiserver` of the drop-in.
//!
//! In: a command line of kube-apiserver, with the files that it names. Out: the embedded API server
//! on the address that it names, with certificates, keys and users of the test environment.
//!
//! Guarantees: a taken address ends the process immediately, so that the environment tries another;
//! SIGTERM ends it within [`SHUTDOWN_MAX`], whatever watches are open; it ends with its parent.

use std::{
    io::{self, Write},
    time::Duration,
};

use bellerophon_apiserver::{ApiServer, StartError};
use bellerophon_cluster::Cluster;
use tokio::time::timeout;
use tracing::warn;

use super::{
    Profile, etcd_client,
    flags::Flags,
    parent::Parent,
    program,
    server_flags::{self, FLAGS, ServerFlags},
};
use crate::{error::CliError, flags::OutputFormat, logs, signals::Signals, up, watches::Watches};

/// How long the end of requests is awaited after SIGTERM. Suites wait for it, and a request that
/// takes longer is of a client that ends with them.
const SHUTDOWN_MAX: Duration = Duration::from_millis(700);

const HELP: &str = "\
kube-apiserver of `bellerophon envtest`: the embedded API server of bellerophon.

Usage: kube-apiserver [flags]

Flags that have an effect:
";

/// Runs the program.
///
/// # Errors
/// A file that cannot be read, an address that cannot be listened on.
pub(super) fn main(arguments: Vec<String>, profile: Profile) -> Result<(), CliError> {
    let parent = Parent::current();
    let mut flags = Flags::parse(FLAGS, arguments);
    let mut out = io::stdout();
    if flags.bool("help", false) {
        let print = out
            .write_all(HELP.as_bytes())
            .and_then(|()| out.write_all(server_flags::help().as_bytes()));
        return print.map_err(CliError::new);
    }
    if flags.bool("version", false) {
        return writeln!(out, "Kubernetes v{}", super::KUBERNETES_VERSION).map_err(CliError::new);
    }
    logs::init(verbosity(&flags), OutputFormat::Text)?;
    let server_flags = ServerFlags::read(&mut flags)?;
    program::warn(&flags);
    program::runtime()?.block_on(serve(server_flags, profile, parent))
}

/// `--v` of klog as a number of `-v` of this binary: 0 to 2 are what a server logs in production.
fn verbosity(flags: &Flags) -> u8 {
    match flags.last("v").and_then(|v| v.parse::<u8>().ok()) {
        None | Some(0..=2) => 0,
        Some(3..=4) => 1,
        Some(5..=7) => 2,
        Some(_) => 3,
    }
}

/// Serves until a signal, or the end of the parent.
async fn serve(flags: ServerFlags, profile: Profile, parent: Parent) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let etcd = flags.etcd;
    let snapshot = match &etcd {
        Some(etcd) => etcd_client::load(etcd).await,
        None => Vec::new(),
    };
    let server = ApiServer::builder()
        .listen(flags.listen)
        .options(flags.options)
        .limits(flags.limits)
        .restore(snapshot);
    let server = match flags.audit {
        Some(audit) => server.audit(audit),
        None => server,
    };
    let server = server.start().await.map_err(|error| match &error {
        StartError::Listen { .. } | StartError::Keys(_) => CliError::new(error),
        StartError::Audit(_) | StartError::Bootstrap(_) => {
            CliError::context("cannot start the API server")(error)
        }
    })?;
    let mut cluster = start_controllers(&server, profile).await?;
    let controllers_ended = async {
        match &mut cluster {
            Some(cluster) => cluster.ended().await.map_err(CliError::new),
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        signal = signals.next() => signal.map_err(CliError::new),
        () = parent.ended() => Ok(()),
        result = controllers_ended => result,
    };
    let stop = async {
        if let Some(cluster) = cluster
            && let Err(error) = cluster.stop().await
        {
            warn!(%error, "controllers failed to stop");
        }
        if let Some(etcd) = &etcd {
            etcd_client::save(etcd, server.snapshot()).await;
        }
        server.shutdown().await;
    };
    if timeout(SHUTDOWN_MAX, stop).await.is_err() {
        warn!("requests were aborted");
    }
    result
}

/// Starts the controllers of the profile. Their caches sync while the environment waits for
/// `/healthz`.
async fn start_controllers(
    server: &ApiServer,
    profile: Profile,
) -> Result<Option<Cluster>, CliError> {
    let Some(level) = profile.level() else {
        return Ok(None);
    };
    let builder = up::cluster_builder(server, level, Watches::new(false)).await?;
    Ok(Some(builder.start()))
}
