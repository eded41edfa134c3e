//! The accept loop: from TCP connections to requests.
//! In: a bound socket, a TLS configuration, a tower service. Out: the service's answers over HTTP/1.1 and HTTP/2.
//! Holds: no peer can stop the loop, hold more than its share or wait for ever; every task ends before `serve` returns.

mod activity; // how many requests a connection carries
mod connection; // one peer, from handshake to close

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Buf;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use connection::Connections;

/// What a service must be to be served.
pub(crate) trait Serve<B>:
    tower::Service<
        Request<Incoming>,
        Response = Response<B>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
}

impl<S, B> Serve<B> for S where
    S: tower::Service<
            Request<Incoming>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// What a body must be to be sent.
pub(crate) trait Sent:
    Body<Data: Buf + Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
    + Unpin
    + Send
    + 'static
{
}

impl<B> Sent for B where
    B: Body<Data: Buf + Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static
{
}

/// How much peers may take. The times are those of the real server where it has one.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Connections at once; when full, further ones wait in the kernel's backlog.
    pub(crate) connections_max: usize,
    /// TLS handshakes at once; further ones wait within their own time-out.
    pub(crate) handshakes_max: usize,
    /// From accept to the end of the handshake.
    pub(crate) handshake_timeout: Duration,
    /// For a request's headers over HTTP/1.1, the wait for the next request included.
    pub(crate) header_read_timeout: Duration,
    /// Bytes of one request's headers.
    pub(crate) header_bytes_max: u32,
    /// Number of one request's headers over HTTP/1.1.
    pub(crate) headers_max: usize,
    /// Requests at once on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// How often an HTTP/2 peer is asked whether it is still there.
    pub(crate) ping_interval: Duration,
    /// How long it may take to answer.
    pub(crate) ping_timeout: Duration,
    /// How long a connection may carry no request.
    pub(crate) idle_timeout: Duration,
    /// How long requests may go on after a stop, or a connection after it was asked to end.
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
            idle_timeout: Duration::from_secs(90),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Pauses between attempts to accept while the system has no more sockets to give.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A bound socket, ready to serve over TLS.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    limits: Limits,
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
            limits,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system cannot say.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`, then lets running requests end within the drain time-out and cuts the rest.
    pub(crate) async fn serve<S, B>(self, service: S, stop: CancellationToken)
    where
        S: Serve<B>,
        B: Sent,
    {
        let Self { tcp, tls, limits } = self;
        let (tasks, abort) = (TaskTracker::new(), CancellationToken::new());
        let drain_timeout = limits.drain_timeout;
        let places = Arc::new(Semaphore::new(limits.connections_max));
        let connections = Arc::new(Connections::new(
            tls,
            limits,
            stop.clone(),
            abort.clone(),
            tasks.clone(),
        ));
        while let Some(place) = stop
            .run_until_cancelled(places.clone().acquire_owned())
            .await
        {
            let place = place.expect("the semaphore is never closed");
            let Some((stream, peer)) = stop.run_until_cancelled(accept(&tcp)).await else {
                break;
            };
            let (connections, service) = (connections.clone(), service.clone());
            tasks.spawn(async move {
                if let Err(error) = connections.run(stream, service).await {
                    debug!(%peer, %error, "connection ended");
                }
                drop(place);
            });
        }
        drop(tcp);
        tasks.close();
        if timeout(drain_timeout, tasks.wait()).await.is_err() {
            warn!(
                tasks = tasks.len(),
                "requests still run after the drain time-out; cutting them"
            );
            abort.cancel();
            tasks.wait().await;
        }
    }
}

/// The next connection. Errors of one peer are passed over; when the system is out of sockets, it waits and tries again.
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
