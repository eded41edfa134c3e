//! `bellerophon up`: a cluster for as long as the command runs.
//! In: options. Out: a kubeconfig, the facts of the start, and whatever clients ask for.
//! Holds: nobody is told of a cluster that is not ready; a start that fails ends everything it began.
//!
//! Start: server → loops and nodes → ready. Stop: loops and nodes → server.

use std::{io::stdout, net::SocketAddr};

use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::Cluster;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::{arguments::UpOptions, failure::Failure, ready::Ready, stop::Signals};

/// Serves until a signal comes.
///
/// # Errors
/// The address is taken, the kubeconfig cannot be written, or a loop of the cluster cannot go on.
pub(crate) async fn up(options: &UpOptions, started: Instant) -> Result<(), Failure> {
    let wanted = options.cluster()?;
    let mut signals = Signals::listen().map_err(Failure::caused_by("cannot listen for signals"))?;
    let server = ApiServer::builder().listen(options.listen).start().await.map_err(Failure::of)?;
    warn_of_exposure(options.listen);
    let mut cluster = wanted.map(|(level, nodes)| {
        let root_ca = server.root_ca().unwrap_or_default();
        Cluster::builder(server.client()).level(level).nodes(nodes).root_ca(root_ca).start()
    });
    let served = serve(&server, cluster.as_mut(), options, started, &mut signals).await;
    signals.grant(stop(cluster, server)).await.map_err(Failure::caused_by("cannot listen for signals"))?;
    info!("stopped");
    served
}

async fn serve(
    server: &ApiServer,
    mut cluster: Option<&mut Cluster>,
    options: &UpOptions,
    started: Instant,
    signals: &mut Signals,
) -> Result<(), Failure> {
    server.write_kubeconfig(&options.kubeconfig).map_err(|e| Failure::of(e).advising("name another file with --kubeconfig"))?;
    if let Some(cluster) = &mut cluster {
        tokio::select! {
            ready = cluster.ready() => ready.map_err(Failure::of)?,
            signal = signals.next() => return signal.map_err(Failure::caused_by("cannot listen for signals")),
        }
    }
    let url = server.url().expect("the server was given an address");
    let ready = Ready::new(url, &options.kubeconfig, started).map_err(Failure::caused_by("cannot name the kubeconfig"))?;
    ready.tell(options.output, &mut stdout().lock()).map_err(Failure::caused_by("cannot write to stdout"))?;
    info!(?ready, "serving");
    tokio::select! {
        signal = signals.next() => signal.map_err(Failure::caused_by("cannot listen for signals")),
        ended = ended(cluster) => ended,
    }
}

/// Waits until the loops of a cluster fail; for ever if there are none.
async fn ended(cluster: Option<&mut Cluster>) -> Result<(), Failure> {
    match cluster {
        Some(cluster) => cluster.ended().await.map_err(Failure::of),
        None => std::future::pending().await,
    }
}

async fn stop(cluster: Option<Cluster>, server: ApiServer) {
    if let Some(cluster) = cluster
        && let Err(error) = cluster.stop().await
    {
        error!(%error, "the cluster did not stop in order");
    }
    server.shutdown().await;
}

fn warn_of_exposure(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(%address, "other machines can reach this server, and whoever has its kubeconfig is its administrator; use 127.0.0.1 to keep it to this one");
    }
}
