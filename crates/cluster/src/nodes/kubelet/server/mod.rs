//! The HTTP server of the kubelets: logs, exec, attach, port-forward, pods and statistics.
//!
//! In: byte streams on which the API server speaks HTTP/1.1. Out: responses with the paths, status
//! codes and messages of upstream's `pkg/kubelet/server`, and upgraded connections.
//! Guarantees: who connects in process is not authenticated, who connects to a socket always is; a
//! kubelet serves the pods of its node only; when the cluster
//! has stopped, every connection is closed.

mod access; // authentication and authorization of clients of sockets
mod handler; // responses to requests
mod logs; // options and existence of logs
mod relay; // streams of clients and processes
mod response; // text, JSON, logs and errors
mod route; // paths
mod socket; // HTTPS on loopback
mod stats; // /stats/summary
mod streams; // streams of container runtimes
#[cfg(test)]
mod tests; // clients of an API server that dials kubelets
mod usage; // CPU and memory of containers

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon::client::ReconcileClient;
use bellerophon::clock::Clock;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use self::handler::Handler;
use self::usage::Samples;
use super::super::simulated_node::SimulatedNodes;

pub(in crate::nodes) use self::logs::container_status;
pub use self::socket::KubeletSockets;
pub(crate) use self::streams::{
    BoxedIo, ContainerStreams, LogOptions, LogStream, PodRef, Process, Resize, StreamError,
    StreamOptions, Usage,
};
pub(crate) use self::usage::Sample;

/// Bytes that wait in each direction of a connection.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// The kubelets of a cluster, as an API server reaches them: by the InternalIP of a Node and
/// `status.daemonEndpoints.kubeletEndpoint.Port`. Cheap to clone.
///
/// Create it before the API server, whose dialer connects through it, and pass it to
/// [`Builder::kubelets`](crate::Builder::kubelets). It has no kubelet while no cluster runs, and
/// those of one cluster at a time. It also connects to the metrics server of the cluster.
///
/// ```
/// use bellerophon_apiserver::{ApiServer, InProcessDialer};
/// use bellerophon_cluster::Kubelets;
///
/// let kubelets = Kubelets::default();
/// let dialed = kubelets.clone();
/// let dialer = InProcessDialer::new(move |address| dialed.connect(address));
/// let server = ApiServer::builder().dialer(dialer);
/// ```
#[derive(Clone, Default)]
pub struct Kubelets {
    server: Arc<Mutex<Option<Arc<KubeletServer>>>>,
    /// Other servers of the cluster, by address.
    listeners: Arc<Mutex<HashMap<SocketAddr, Listener>>>,
}

/// Connects to a server.
type Listener = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

impl Kubelets {
    /// Connects to an address of a node or of the metrics server; `None` if it is none of the
    /// running cluster.
    ///
    /// The kubelet speaks HTTP/1.1 on the stream. It answers as long as the cluster runs, and does
    /// not authenticate: who can connect has access to all pods of the node. The metrics server
    /// requires TLS and the client certificate of the API server's front proxy.
    ///
    /// # Errors
    /// Nothing listens on the port, or the node is powered off, booting or partitioned.
    pub fn connect(&self, address: SocketAddr) -> Option<io::Result<DuplexStream>> {
        if let Some(listener) = self.lock_listeners().get(&address).cloned() {
            return Some(Ok(listener()));
        }
        let server = self.server()?;
        let node = server.nodes.with_host_ip(address.ip())?;
        if !node.is_reachable() {
            let unreachable = "connect: no route to host";
            return Some(Err(io::Error::new(
                io::ErrorKind::HostUnreachable,
                unreachable,
            )));
        }
        if address.port() != node.kubelet_port {
            let refused = "connect: connection refused";
            return Some(Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                refused,
            )));
        }
        Some(Ok(server.connect(node.name)))
    }

    /// Has the kubelets of a cluster until the token is cancelled, or the future is dropped. Then
    /// their connections are closed.
    pub(crate) async fn serve(
        self,
        server: KubeletServer,
        sockets: Option<KubeletSockets>,
        stop: CancellationToken,
    ) {
        let tasks = server.tasks.clone();
        let registration = self.register(server);
        if let Some(sockets) = sockets {
            registration.server.listen(sockets);
        }
        stop.cancelled().await;
        drop(registration);
        tasks.close();
        tasks.wait().await;
    }

    fn register(self, server: KubeletServer) -> Registration {
        let server = Arc::new(server);
        *self.lock() = Some(server.clone());
        Registration {
            kubelets: self,
            server,
        }
    }

    /// Connects to a server at this address until the listening is dropped.
    pub(crate) fn listen(
        &self,
        address: SocketAddr,
        connect: impl Fn() -> DuplexStream + Send + Sync + 'static,
    ) -> Listening {
        let listener: Listener = Arc::new(connect);
        self.lock_listeners().insert(address, listener.clone());
        Listening {
            kubelets: self.clone(),
            address,
            listener,
        }
    }

    /// The kubelet of a node, to read its statistics; `None` if it cannot be reached.
    pub(crate) fn reachable(&self, node: &str) -> Option<Arc<KubeletServer>> {
        let server = self.server()?;
        let is_reachable = server.nodes.get(node)?.is_reachable();
        is_reachable.then_some(server)
    }

    fn server(&self) -> Option<Arc<KubeletServer>> {
        self.lock().clone()
    }

    fn lock_listeners(&self) -> MutexGuard<'_, HashMap<SocketAddr, Listener>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<KubeletServer>>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Kubelets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelets").finish_non_exhaustive()
    }
}

/// An address at which a server is connected to. Dropping it ends that.
pub(crate) struct Listening {
    kubelets: Kubelets,
    address: SocketAddr,
    listener: Listener,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listeners = self.kubelets.lock_listeners();
        // The next cluster may have started before the task of this one was dropped.
        if listeners
            .get(&self.address)
            .is_some_and(|current| Arc::ptr_eq(current, &self.listener))
        {
            listeners.remove(&self.address);
        }
    }
}

/// The kubelets of a running cluster. Dropping it closes their connections.
struct Registration {
    kubelets: Kubelets,
    server: Arc<KubeletServer>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.server.stop.cancel();
        let mut current = self.kubelets.lock();
        // The next cluster may have started before the task of this one was dropped.
        if current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &self.server))
        {
            *current = None;
        }
    }
}

/// The server of all kubelets of a cluster.
#[derive(Clone)]
pub(crate) struct KubeletServer {
    nodes: Arc<SimulatedNodes>,
    /// Reads pods as the user of the kubelets.
    client: ReconcileClient,
    streams: Arc<dyn ContainerStreams>,
    clock: Clock,
    samples: Arc<Samples>,
    /// The connections, and the streams of upgraded ones.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Of a connection to a socket; its streams hold it, too.
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl KubeletServer {
    pub(crate) fn new(
        nodes: Arc<SimulatedNodes>,
        client: ReconcileClient,
        streams: Arc<dyn ContainerStreams>,
        clock: Clock,
    ) -> Self {
        Self {
            nodes,
            client,
            streams,
            clock,
            samples: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            permit: None,
        }
    }

    /// Serves a connection to the kubelet of a node.
    fn connect(&self, node: String) -> DuplexStream {
        let (client, server) = duplex(CONNECTION_BUFFER_BYTES);
        let handler = Arc::new(Handler {
            node,
            server: self.clone(),
            client: None,
        });
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(handler.respond(request).await) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        self.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "connection to a kubelet ended");
            }
        });
        client
    }

    /// Runs a task until the cluster stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let permit = self.permit.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
            drop(permit);
        });
    }
}
