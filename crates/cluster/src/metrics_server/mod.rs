//! Metrics server: `metrics.k8s.io/v1beta1`, the usage of CPU and memory by nodes and pods.
//!
//! In: the caches of nodes and pods, and the statistics of the kubelets. Out: NodeMetrics and
//! PodMetrics, behind the APIService `v1beta1.metrics.k8s.io` and the Service
//! `kube-system/metrics-server`, as with metrics-server.
//! Guarantees: statistics are read when a request needs them, not periodically. Only the API server
//! can connect: a connection needs the client certificate of its front proxy, and the API server
//! uses it only for requests that it has authorized. No socket is opened.

pub(crate) mod api; // types of metrics.k8s.io/v1beta1
mod handler; // responses to requests
mod registration; // Service, EndpointSlice and APIService
mod table; // tables for kubectl get
#[cfg(test)]
mod tests; // access to metrics

use std::convert::Infallible;
use std::sync::Arc;

use bellerophon::manager::{Manager, Runnable, RunnableGroup};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::handler::Handler;
use self::registration::{ADDRESS, NAMESPACE, Registrar, SERVICE};
use crate::component::Component;
use crate::index;
use crate::nodes::Kubelets;
use crate::tls::{self, ClientCertificates};

/// The user that reads the authority of the front proxy: the service account of metrics-server.
pub(crate) const ACCOUNT: &str = "metrics-server";

/// The user that registers the metrics server.
pub(crate) const REGISTRAR: &str = "metrics-server-registration";

/// Bytes that wait in each direction of a connection.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Adds the metrics server. The receiver is true once it is registered, or cannot be.
pub(crate) fn setup(mgr: &mut Manager, kubelets: Kubelets) -> watch::Receiver<bool> {
    let (registered, receiver) = watch::channel(false);
    let pods = index::pods(mgr);
    let handler = Handler {
        by_node_name: index::by_node_name(&pods),
        pods: pods.lister(),
        nodes: mgr.lister(),
        kubelets: kubelets.clone(),
        clock: mgr.clock(),
    };
    let registrar = Registrar {
        reader: Component::ControllerManager.client(mgr, ACCOUNT),
        writer: Component::ControllerManager.client(mgr, REGISTRAR),
    };
    let clock = mgr.clock();
    let serve = async move |stop: CancellationToken| {
        let connections = stop.child_token();
        // Connections also end with a task that is aborted.
        let _ended = connections.clone().drop_guard();
        let started = async {
            let authority = registrar.front_proxy_authority().await?;
            // The name by which the API server verifies the server of an APIService.
            let names = vec![format!("{SERVICE}.{NAMESPACE}.svc")];
            // Only the front proxy can connect.
            let clients = ClientCertificates::Required(&authority);
            let (acceptor, ca_bundle) = tls::acceptor(names, clients, clock)?;
            let server = MetricsServer {
                handler: Arc::new(handler),
                acceptor,
                tasks: TaskTracker::new(),
                stop: connections,
            };
            let connected = server.clone();
            let listening = kubelets.listen(ADDRESS, move || connected.connect());
            registrar.register(&ca_bundle).await?;
            Ok::<_, String>((server, listening))
        };
        let started = stop.run_until_cancelled(started).await;
        if let Some(Err(error)) = &started {
            warn!(error, "there is no metrics API");
        }
        registered.send_replace(true);
        stop.cancelled().await;
        if let Some(Ok((server, listening))) = started {
            drop(listening);
            server.tasks.close();
            server.tasks.wait().await;
        }
        Ok(())
    };
    mgr.add("metrics-server", serve.in_group(RunnableGroup::Always));
    receiver
}

/// The server of the API group.
#[derive(Clone)]
struct MetricsServer {
    handler: Arc<Handler>,
    acceptor: TlsAcceptor,
    /// The connections.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl MetricsServer {
    /// Serves a connection.
    fn connect(&self) -> DuplexStream {
        let (client, server) = duplex(CONNECTION_BUFFER_BYTES);
        let handler = self.handler.clone();
        let acceptor = self.acceptor.clone();
        let stop = self.stop.clone();
        let serve = async move {
            let stream = match acceptor.accept(server).await {
                Ok(stream) => stream,
                Err(error) => return debug!(%error, "TLS handshake with a client failed"),
            };
            let service = service_fn(move |request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(handler.respond(&request).await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                debug!(%error, "connection to the metrics server ended");
            }
        };
        self.tasks.spawn(async move {
            stop.run_until_cancelled(serve).await;
        });
        client
    }
}
