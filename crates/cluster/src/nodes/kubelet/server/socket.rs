//! HTTPS sockets of the kubelets, on 127.0.0.1.
//!
//! In: TCP connections of clients. Out: requests to the same handler that the API server reaches in
//! process, with the credentials of the client.
//! Guarantees: at most [`CONNECTIONS_MAX`] connections per node, upgraded ones included, others
//! wait in the backlog of the socket; a client that sends nothing is disconnected; nothing is
//! served while the node is powered off, booting or partitioned.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::KubeletServer;
use super::access::{SocketClient, User};
use super::handler::Handler;
use crate::tls::{self, ClientCertificates};

/// The connections to one kubelet.
const CONNECTIONS_MAX: usize = 128;

/// A client has this long for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client has this long for the head of a request, and may be idle that long between two.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause after a connection could not be accepted, for example without file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// HTTPS sockets of the kubelets on 127.0.0.1, for clients that connect to a kubelet directly.
///
/// As on a kubelet with webhook authentication and authorization, a client needs a certificate of
/// the client authority or a bearer token, and permission for the subresource `proxy` of the Node,
/// or the one of the path: `pods`, `healthz`, `stats`. The port of a kubelet is in
/// `status.daemonEndpoints` of its Node.
#[derive(Debug)]
pub struct KubeletSockets {
    /// One per node, in the order of their numbers.
    listeners: Vec<TcpListener>,
    /// In PEM; empty if no client certificate is accepted.
    client_ca: String,
}

impl KubeletSockets {
    /// Listens for this number of nodes: the first one at this port, the next one at the next port.
    /// With port 0, each has a free port.
    ///
    /// # Errors
    /// A port is taken, or there are more nodes than ports.
    pub async fn bind(port: u16, nodes: usize) -> io::Result<Self> {
        let mut listeners = Vec::with_capacity(nodes);
        for offset in 0..nodes {
            let port = match port {
                0 => Some(0),
                port => u16::try_from(offset)
                    .ok()
                    .and_then(|offset| port.checked_add(offset)),
            };
            let no_port = || {
                let message = format!("no port is left for node {}", offset + 1);
                io::Error::new(io::ErrorKind::InvalidInput, message)
            };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.ok_or_else(no_port)?));
            let listener = TcpListener::bind(address).await;
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            listeners.push(listener.map_err(named)?);
        }
        Ok(Self {
            listeners,
            client_ca: String::new(),
        })
    }

    /// The authority of client certificates, in PEM; default: none is accepted.
    #[must_use]
    pub fn client_ca(self, pem: impl Into<String>) -> Self {
        Self {
            client_ca: pem.into(),
            ..self
        }
    }

    /// The port of each node.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let address = |listener: &TcpListener| listener.local_addr();
        let ports = self.listeners.iter().filter_map(|it| address(it).ok());
        ports.map(|address| address.port()).collect()
    }
}

impl KubeletServer {
    /// Accepts connections of clients until the cluster stops.
    pub(super) fn listen(&self, sockets: KubeletSockets) {
        for (node, listener) in self
            .nodes
            .names_by_number()
            .into_iter()
            .zip(sockets.listeners)
        {
            let names = vec![node.clone(), "localhost".to_owned(), "127.0.0.1".to_owned()];
            let clients = ClientCertificates::Optional(&sockets.client_ca);
            match tls::acceptor(names, clients, self.clock) {
                Ok((tls, _)) => {
                    let server = self.clone();
                    self.spawn(async move { server.accept(node, listener, tls).await });
                }
                Err(error) => warn!(node, error, "the kubelet has no socket"),
            }
        }
    }

    async fn accept(self, node: String, listener: TcpListener, tls: TlsAcceptor) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(permit) = connections.clone().acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, node, "cannot accept a connection to a kubelet");
                    sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let is_reachable = |node: &str| {
                let node = self.nodes.get(node);
                node.is_some_and(|node| node.is_reachable())
            };
            if !is_reachable(&node) {
                continue;
            }
            let server = Self {
                permit: Some(Arc::new(permit)),
                ..self.clone()
            };
            let node = node.clone();
            let tls = tls.clone();
            let serve = server.clone().serve_stream(node, stream, tls);
            server.spawn(serve);
        }
    }

    async fn serve_stream(self, node: String, stream: TcpStream, tls: TlsAcceptor) {
        let stream = match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return debug!(%error, node, "TLS handshake with a client failed"),
            Err(_) => return debug!(node, "a client did not finish the TLS handshake"),
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificate = certificates.first();
        let certificate = certificate.and_then(|certificate| User::of_certificate(certificate));
        let client = SocketClient {
            reviewer: self.client.kube().clone(),
            certificate,
        };
        let handler = Arc::new(Handler {
            node,
            server: self,
            client: Some(client),
        });
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(handler.respond(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "connection to a kubelet ended");
        }
    }
}
