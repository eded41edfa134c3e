//! The accept loop: from TCP connections to requests.
//! In: a bound socket, a TLS configuration, a tower service. Out: the service's answers over
//! HTTP/1.1 and HTTP/2.
//! Guarantees: no peer can stop the loop, hold more than its share or wait forever; every task ends
//! before `serve` returns.

mod connection; // one peer, from handshake to close
mod cpu_fairness; // worker threads, shared between users
mod gated; // futures that are seldom ready
pub(crate) mod request_body; // request bodies within limits
mod response_body; // response bodies
mod tracker; // the open connections, and what they hold
mod unsent; // chunks that a peer has not read

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use connection::Connections;
use tracker::ConnectionTracker;

pub(crate) use cpu_fairness::{TaskSeat, has_grant, return_grant};
pub(crate) use tracker::{ClientConnection, TrackedConnection};

use crate::http::body::Body;

/// A service that can be served.
pub(crate) trait Serve:
    tower::Service<
        Request<Incoming>,
        Response = Response<Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
}

impl<S> Serve for S where
    S: tower::Service<
            Request<Incoming>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// How much peers may take. The times are those of kube-apiserver where it has one.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Open connections. For a further one, one that carries no request is closed; if there is
    /// none, it waits.
    pub(crate) connections_max: usize,
    /// Concurrent TLS handshakes; further ones wait within the handshake timeout.
    pub(crate) handshakes_max: usize,
    /// From accept to the end of the handshake.
    pub(crate) handshake_timeout: Duration,
    /// For a request's headers over HTTP/1.1, the wait for the next request included.
    pub(crate) header_read_timeout: Duration,
    /// Bytes of one request's headers.
    pub(crate) header_bytes_max: u32,
    /// Number of one request's headers over HTTP/1.1.
    pub(crate) headers_max: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// The interval of HTTP/2 keep-alive pings.
    pub(crate) ping_interval: Duration,
    /// How long it may take to answer.
    pub(crate) ping_timeout: Duration,
    /// From the end of the handshake to the first request.
    pub(crate) first_request_timeout: Duration,
    /// How long a connection may carry no request.
    pub(crate) idle_timeout: Duration,
    /// How long a peer may leave a chunk of a response unread: at most 64 KiB.
    pub(crate) write_timeout: Duration,
    /// Unread bytes of all responses on one connection; further ones wait.
    pub(crate) connection_unsent_bytes_max: usize,
    /// Unread bytes of all responses; beyond it, the connections of the user with the most are
    /// closed.
    pub(crate) unsent_bytes_max: usize,
    /// How long requests may run after a stop, or a connection after it was closed gracefully.
    pub(crate) drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            handshakes_max: 256,
            handshake_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(32),
            header_bytes_max: 1 << 20,
            headers_max: 512,
            streams_max: 250,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            write_timeout: Duration::from_secs(30),
            connection_unsent_bytes_max: 4 << 20,
            unsent_bytes_max: 256 << 20,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Pauses between attempts to accept while the system has no more sockets to give.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The interval of retries to close an idle connection at the connection limit.
const ROOM_RETRY: Duration = Duration::from_millis(100);

/// A bound socket, ready to serve over TLS.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    limits: Limits,
    tracker: Arc<ConnectionTracker>,
}

impl Listener {
    /// Binds; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is taken or not ours.
    pub(crate) async fn bind(
        address: SocketAddr,
        tls: Arc<ServerConfig>,
        limits: Limits,
    ) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::bind(address).await?,
            tls: TlsAcceptor::from(tls),
            tracker: ConnectionTracker::new(&limits),
            limits,
        })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// If the operating system does not return the address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`, then lets running requests end within the drain timeout and aborts the
    /// rest.
    pub(crate) async fn serve<S: Serve>(self, service: S, stop: CancellationToken) {
        let Self {
            tcp,
            tls,
            limits,
            tracker,
        } = self;
        let tasks = TaskTracker::new();
        let abort = CancellationToken::new();
        let drain_timeout = limits.drain_timeout;
        let places = Arc::new(Semaphore::new(limits.connections_max));
        let connections = Arc::new(Connections::new(
            tls,
            limits,
            stop.clone(),
            abort.clone(),
            tasks.clone(),
        ));
        loop {
            let accepted = async {
                let (stream, peer) = accept(&tcp).await;
                (stream, peer, place(&places, &tracker).await)
            };
            let Some((stream, peer, place)) = stop.run_until_cancelled(accepted).await else {
                break;
            };
            let connections = connections.clone();
            let service = service.clone();
            let client = Arc::new(ClientConnection::new(peer, tracker.open(), place));
            tasks.spawn(async move {
                let running = connections.run(stream, &client, service);
                if let Err(error) = client.tracked().run(running).await {
                    debug!(%peer, %error, "connection ended");
                }
            });
            // Connections that wait to be accepted do not keep what is ready waiting.
            yield_now().await;
        }
        drop(tcp);
        tasks.close();
        if timeout(drain_timeout, tasks.wait()).await.is_err() {
            warn!(
                tasks = tasks.len(),
                "requests still run after the drain timeout; cutting them"
            );
            abort.cancel();
            tasks.wait().await;
        }
    }
}

/// A place for a connection. While all are taken, idle connections are closed.
async fn place(places: &Arc<Semaphore>, tracker: &ConnectionTracker) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = places.clone().try_acquire_owned() {
            return place;
        }
        tracker.make_room();
        if let Ok(place) = timeout(ROOM_RETRY, places.clone().acquire_owned()).await {
            return place.expect("the semaphore is never closed");
        }
    }
}

/// The next connection. Errors of one peer are passed over; when the system is out of sockets, it
/// waits and tries again.
async fn accept(tcp: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut backoff = BACKOFF_FIRST;
    loop {
        match tcp.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%peer, %error, "cannot turn off delays");
                }
                return (stream, peer);
            }
            Err(error) if is_of_one_peer(&error) => {
                debug!(%error, "a connection was gone before it was accepted")
            }
            Err(error) => {
                warn!(%error, "cannot accept connections; trying again");
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}

fn is_of_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

#[cfg(test)]
mod tests;
