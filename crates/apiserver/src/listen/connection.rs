//! One connection, from handshake to close.
//! In: an accepted TCP stream. Out: its requests, each with the peer's certificate and the
//! connection as extensions.
//! Guarantees: a connection is closed by its peer, by idleness, by a stop, by unread responses or
//! at the connection limit; when idle or stopped, running requests may finish.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use hyper::{body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use super::{
    Limits, Serve,
    gated::gated,
    response_body::ResponseBody,
    tracker::{ClientConnection, TrackedConnection},
    unsent::{check_interval, until_stalled, wait_until_writable},
};
use crate::auth::PeerCertificate;

/// A connection's flow-control windows: one large object in flight per stream, several per
/// connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The response to a plain HTTP request on the HTTPS port.
const PLAIN_HTTP_ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\nconnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// How much of its request is read first.
const PLAIN_HTTP_READ_BYTES: usize = 4096;

/// Why a connection ended early; only ever logged.
pub(super) type Ended = Box<dyn std::error::Error + Send + Sync>;

/// Tasks that HTTP/2 spawns for its streams: owned by the listener, and cut when it cuts.
#[derive(Clone)]
struct Owned {
    tasks: TaskTracker,
    abort: CancellationToken,
    connection: Arc<TrackedConnection>,
    /// The time between two checks for unread responses.
    check_interval: Duration,
}

impl<F> Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let abort = self.abort.clone();
        let connection = self.connection.clone();
        let future = until_stalled(future, self.check_interval);
        let stream = async move {
            tokio::select! {
                _ = future => {}
                () = gated(Box::pin(abort.cancelled())) => {}
            }
        };
        self.tasks
            .spawn(async move { connection.run(stream).await });
    }
}

/// Shared by all connections.
pub(super) struct Connections {
    tls: TlsAcceptor,
    handshakes: Semaphore,
    limits: Limits,
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    pub(super) fn new(
        tls: TlsAcceptor,
        limits: Limits,
        stop: CancellationToken,
        abort: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            tls,
            handshakes: Semaphore::new(limits.handshakes_max),
            limits,
            stop,
            abort,
            tasks,
        }
    }

    /// Serves one peer until the connection ends.
    pub(super) async fn run<S: Serve>(
        &self,
        stream: TcpStream,
        client: &Arc<ClientConnection>,
        service: S,
    ) -> Result<(), Ended> {
        let tracked = client.tracked();
        let mut serving = pin!(self.serve(stream, client, service));
        tokio::select! {
            ended = serving.as_mut() => ended,
            () = gated(Box::pin(tracked.closed())) => {
                // The last response may still be in hyper's buffer.
                if tracked.is_idle() {
                    let _late = timeout(CLOSE_TIMEOUT, serving).await;
                }
                Err(CLOSED.into())
            }
            () = gated(Box::pin(self.abort.cancelled())) => Err("cut after the drain timeout".into()),
        }
    }

    async fn handshake(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, Ended> {
        // A connection waits for the handshake semaphore only after it has sent its first byte, so
        // that silent peers hold no permit.
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first[0].is_ascii_uppercase() {
            // Closing with bytes unread would reset the connection before the answer is seen.
            let _read = stream.read(&mut [0; PLAIN_HTTP_READ_BYTES]).await?;
            stream.write_all(PLAIN_HTTP_ANSWER).await?;
            stream.shutdown().await?;
            return Err("it sent an HTTP request to an HTTPS server".into());
        }
        let turn = self.handshakes.acquire().await?;
        let stream = self.tls.accept(stream).await?;
        drop(turn);
        Ok(stream)
    }

    async fn serve<S: Serve>(
        &self,
        stream: TcpStream,
        client: &Arc<ClientConnection>,
        service: S,
    ) -> Result<(), Ended> {
        let tracked = client.tracked();
        let handshake = timeout(self.limits.handshake_timeout, self.handshake(stream));
        let handshake = tokio::select! {
            handshake = handshake => handshake,
            () = tracked.closed() => return Err(CLOSED.into()),
            () = self.stop.cancelled() => return Ok(()),
        };
        let stream = handshake.map_err(|_| "the TLS handshake took too long")??;
        let shutdown = self.stop.child_token();
        let serving = self.serve_http(stream, client, service, &shutdown);
        let check_interval = check_interval(self.limits.write_timeout);
        let mut serving = pin!(until_stalled(serving, check_interval));
        let unhealthy = pin!(async {
            tokio::select! {
                health = Watchdog::new(&self.limits, tracked).run() => health,
                () = tracked.closed() => Unhealthy::Idle,
            }
        });
        let unhealthy = tokio::select! {
            ended = serving.as_mut() => return ended.unwrap_or_else(|| Err(UNREAD.into())),
            unhealthy = gated(unhealthy) => unhealthy,
        };
        if matches!(unhealthy, Unhealthy::Stalled) {
            return Err(UNREAD.into());
        }
        shutdown.cancel();
        tokio::select! {
            ended = serving => ended.unwrap_or_else(|| Err(UNREAD.into())),
            () = sleep_until(Instant::now() + self.limits.drain_timeout) => {
                Err("an idle peer would not close".into())
            }
        }
    }

    /// Serves requests until the peer ends the connection, or gracefully shuts it down.
    async fn serve_http<S: Serve>(
        &self,
        stream: TlsStream<TcpStream>,
        client: &Arc<ClientConnection>,
        service: S,
        shutdown: &CancellationToken,
    ) -> Result<(), Ended> {
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| PeerCertificate::from_der(chain.first()?));
        let client = client.clone();
        let http = builder(
            &self.limits,
            Owned {
                tasks: self.tasks.clone(),
                abort: self.abort.clone(),
                connection: client.tracked().clone(),
                check_interval: check_interval(self.limits.write_timeout),
            },
        );
        let stop = self.stop.clone();
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            request.extensions_mut().insert(client.tracked().clone());
            request.extensions_mut().insert(client.clone());
            let running = client.tracked().begin();
            let response = service.clone().oneshot(request);
            let stop = stop.clone();
            async move {
                wait_until_writable(running.connection()).await;
                if running.connection().is_closed() {
                    // HTTP/2 ends this task without a response.
                    pending::<()>().await;
                }
                let response = response.await;
                response
                    .map(|response| response.map(|body| ResponseBody::new(body, running, &stop)))
            }
        });
        let mut connection =
            pin!(http.serve_connection_with_upgrades(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = gated(Box::pin(shutdown.cancelled())) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    }
}

/// Why a connection is closed at the limit of connections.
const CLOSED: &str = "closed at the limit of connections";

/// How long such a connection may take to send what hyper has of its last response.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Why a connection is cut whose peer does not read.
const UNREAD: &str = "the peer did not read a response in time";

/// Why a connection is to end.
enum Unhealthy {
    /// It has carried no request for long.
    Idle,
    /// The peer does not read.
    Stalled,
}

/// Checks a connection at intervals.
struct Watchdog<'a> {
    limits: &'a Limits,
    connection: &'a TrackedConnection,
    interval: Duration,
    /// How many requests there were when the connection was last seen active.
    requests: usize,
    active: Instant,
    next_unsent_check: Instant,
}

impl<'a> Watchdog<'a> {
    fn new(limits: &'a Limits, connection: &'a TrackedConnection) -> Self {
        let interval = check_interval(limits.write_timeout)
            .min(limits.first_request_timeout)
            .min(limits.idle_timeout);
        Self {
            limits,
            connection,
            interval,
            requests: 0,
            active: Instant::now(),
            next_unsent_check: Instant::now(),
        }
    }

    /// Returns when the connection is to end.
    async fn run(mut self) -> Unhealthy {
        let mut ticks = interval_at(Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(unhealthy) = self.check() {
                return unhealthy;
            }
        }
    }

    fn check(&mut self) -> Option<Unhealthy> {
        let now = Instant::now();
        if self.next_unsent_check <= now {
            self.next_unsent_check = now + check_interval(self.limits.write_timeout);
            if self.connection.unsent().is_stalled() {
                return Some(Unhealthy::Stalled);
            }
        }
        let requests = self.connection.requests();
        if requests != self.requests || !self.connection.is_idle() {
            self.requests = requests;
            self.active = now;
        }
        let idle_timeout = if requests == 0 {
            self.limits
                .first_request_timeout
                .min(self.limits.idle_timeout)
        } else {
            self.limits.idle_timeout
        };
        (now.duration_since(self.active) >= idle_timeout).then_some(Unhealthy::Idle)
    }
}

fn builder(limits: &Limits, executor: Owned) -> Builder<Owned> {
    let mut builder = Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read_timeout)
        .max_buf_size(limits.header_bytes_max as usize)
        .max_headers(limits.headers_max);
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
