//! The accept loop of one listener: from connections to requests.
//!
//! In: a bound socket, optionally TLS, a handler. Out: the handler's responses over HTTP/1.1 and
//! HTTP/2.
//! Guarantees: the number of connections and streams, the time of handshakes and of headers, and
//! the size of headers are bounded. All tasks end before `serve` returns.

use std::{
    convert::Infallible, future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::body::Body;

/// Bounds of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Open connections. Further ones wait in the backlog of the operating system.
    pub(crate) connections_max: usize,
    /// The TLS handshake.
    pub(crate) handshake_timeout: Duration,
    /// The headers of a request over HTTP/1.1, including the wait for the next request.
    pub(crate) header_timeout: Duration,
    /// Bytes of the headers of a request.
    pub(crate) header_bytes_max: u32,
    /// Concurrent requests on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// How often an HTTP/2 client must acknowledge a ping, and how soon.
    pub(crate) ping_interval: Duration,
    pub(crate) ping_timeout: Duration,
    /// How long requests may run after a stop.
    pub(crate) drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A connection takes about 50 KB.
            connections_max: 2048,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            // A key of 1 KiB in percent-encoding takes 3 KiB.
            header_bytes_max: 16 << 10,
            streams_max: 1024,
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Flow-control windows: a value of 1 MiB per stream, several per connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// The pause after the operating system refused a connection for lack of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The certificate that a client presented.
pub(crate) type PeerCertificate = Option<CertificateDer<'static>>;

/// Where the TLS configuration of the next connection comes from.
pub(crate) type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// What answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers a request.
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        certificate: PeerCertificate,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// A bound socket.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: Option<TlsSource>,
    limits: Limits,
}

impl Listener {
    /// Binds an address; port 0 selects a free one.
    pub(crate) async fn bind(
        address: SocketAddr,
        tls: Option<TlsSource>,
        limits: Limits,
    ) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::bind(address).await?,
            tls,
            limits,
        })
    }

    /// The bound address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`, then lets requests end within the drain timeout.
    pub(crate) async fn serve<H: Handler>(self, handler: Arc<H>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let abort = CancellationToken::new();
        let permits = Arc::new(Semaphore::new(self.limits.connections_max));
        let drain_timeout = self.limits.drain_timeout;
        let Self { tcp, tls, limits } = self;
        let connections = Arc::new(Connections {
            tls,
            limits,
            stop: stop.clone(),
        });
        loop {
            let next = async {
                let permit = permits.clone().acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                (accept(&tcp).await, permit)
            };
            let Some(((stream, peer), permit)) = stop.run_until_cancelled(next).await else {
                break;
            };
            let connections = connections.clone();
            let handler = handler.clone();
            let abort = abort.clone();
            tasks.spawn(async move {
                let serving = connections.run(stream, handler);
                if let Some(Err(error)) = abort.run_until_cancelled(serving).await {
                    debug!(%peer, error, "connection ended");
                }
                drop(permit);
            });
        }
        drop(tcp);
        tasks.close();
        if timeout(drain_timeout, tasks.wait()).await.is_err() {
            debug!(
                connections = tasks.len(),
                "closing connections after the drain timeout"
            );
            abort.cancel();
            tasks.wait().await;
        }
    }
}

async fn accept(tcp: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match tcp.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%peer, %error, "cannot set TCP_NODELAY");
                }
                return (stream, peer);
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection, retrying");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// What all connections of a listener share.
struct Connections {
    tls: Option<TlsSource>,
    limits: Limits,
    stop: CancellationToken,
}

impl Connections {
    async fn run<H: Handler>(&self, stream: TcpStream, handler: Arc<H>) -> Result<(), String> {
        let Some(tls) = &self.tls else {
            return self.serve(stream, None, handler).await;
        };
        let handshake = TlsAcceptor::from(tls()).accept(stream);
        let stream = timeout(self.limits.handshake_timeout, handshake)
            .await
            .map_err(|_| "no TLS handshake in time".to_owned())?
            .map_err(|error| format!("TLS handshake failed: {error}"))?;
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates
            .and_then(|chain| chain.first())
            .map(|certificate| certificate.clone().into_owned());
        self.serve(stream, certificate, handler).await
    }

    async fn serve<H: Handler>(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        certificate: PeerCertificate,
        handler: Arc<H>,
    ) -> Result<(), String> {
        let service = service_fn(move |request| {
            let response = handler.clone().handle(request, certificate.clone());
            async move { Ok::<_, Infallible>(response.await) }
        });
        let builder = self.builder();
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.map_err(|error| error.to_string())
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let limits = &self.limits;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.header_bytes_max as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(limits.header_bytes_max)
            .max_concurrent_streams(limits.streams_max)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(limits.ping_interval)
            .keep_alive_timeout(limits.ping_timeout);
        builder
    }
}
