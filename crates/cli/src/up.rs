//! `bellerophon up`: an API server for as long as the command runs.
//! In: options. Out: a kubeconfig, the facts of the start, and whatever clients ask for.
//! Holds: nobody is told of a server that does not answer; a start that fails ends its server too.

use std::{io::stdout, net::SocketAddr};

use bellerophon_apiserver::ApiServer;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{arguments::UpOptions, failure::Failure, ready::Ready, stop::Signals};

/// Serves until a signal comes.
///
/// # Errors
/// The address is taken, or the kubeconfig cannot be written.
pub(crate) async fn up(options: &UpOptions, started: Instant) -> Result<(), Failure> {
    let mut signals = Signals::listen().map_err(Failure::caused_by("cannot listen for signals"))?;
    let server = ApiServer::builder().listen(options.listen).start().await.map_err(Failure::of)?;
    warn_of_exposure(options.listen);
    let served = serve(&server, options, started, &mut signals).await;
    signals.grant(server.shutdown()).await.map_err(Failure::caused_by("cannot listen for signals"))?;
    info!("stopped");
    served
}

async fn serve(server: &ApiServer, options: &UpOptions, started: Instant, signals: &mut Signals) -> Result<(), Failure> {
    server.write_kubeconfig(&options.kubeconfig).map_err(|e| Failure::of(e).advising("name another file with --kubeconfig"))?;
    let url = server.url().expect("the server was given an address");
    let ready = Ready::new(url, &options.kubeconfig, started).map_err(Failure::caused_by("cannot name the kubeconfig"))?;
    ready.tell(options.output, &mut stdout().lock()).map_err(Failure::caused_by("cannot write to stdout"))?;
    info!(?ready, "serving");
    signals.next().await.map_err(Failure::caused_by("cannot listen for signals"))
}

fn warn_of_exposure(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(%address, "other machines can reach this server, and whoever has its kubeconfig is its administrator; use 127.0.0.1 to keep it to this one");
    }
}
