//! One peer, from handshake to close.
//! In: an accepted TCP stream. Out: its requests, each with the peer's certificate as an extension.
//! Holds: a connection ends by its peer, by idleness or by a stop; in the last two cases running requests may finish.

use std::pin::pin;

use hyper::{body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use super::{
    Limits, Sent, Serve,
    activity::{Activity, Tracked},
};
use crate::auth::PeerCertificate;

/// A connection's flow-control windows: one large object in flight per stream, several per connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// What a client gets that forgot the `s` of `https`.
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
}

impl<F> Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let abort = self.abort.clone();
        self.tasks
            .spawn(async move { abort.run_until_cancelled_owned(future).await.is_some() });
    }
}

/// What all connections share.
pub(super) struct Connections {
    tls: TlsAcceptor,
    http: Builder<Owned>,
    handshakes: Semaphore,
    limits: Limits,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Connections {
    pub(super) fn new(
        tls: TlsAcceptor,
        limits: Limits,
        stop: CancellationToken,
        abort: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        let http = builder(
            &limits,
            Owned {
                tasks,
                abort: abort.clone(),
            },
        );
        Self {
            tls,
            http,
            handshakes: Semaphore::new(limits.handshakes_max),
            limits,
            stop,
            abort,
        }
    }

    /// Serves one peer until it, idleness or a stop ends it.
    pub(super) async fn run<S, B>(&self, stream: TcpStream, service: S) -> Result<(), Ended>
    where
        S: Serve<B>,
        B: Sent,
    {
        let handshake = timeout(self.limits.handshake_timeout, self.handshake(stream));
        let Some(handshake) = self.stop.run_until_cancelled(handshake).await else {
            return Ok(());
        };
        let stream = handshake.map_err(|_| "the TLS handshake took too long")??;
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| PeerCertificate::from_der(chain.first()?));
        match self
            .abort
            .run_until_cancelled(self.serve(stream, peer, service))
            .await
        {
            Some(ended) => ended,
            None => Err("cut after the drain time-out".into()),
        }
    }

    async fn handshake(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, Ended> {
        // A peer takes its turn only once it has said something, so that silent ones keep nobody waiting.
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

    async fn serve<S, B>(
        &self,
        stream: TlsStream<TcpStream>,
        peer: Option<PeerCertificate>,
        service: S,
    ) -> Result<(), Ended>
    where
        S: Serve<B>,
        B: Sent,
    {
        let activity = Activity::new();
        let (counted, stop) = (activity.clone(), self.stop.clone());
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            let (running, stop) = (counted.begin(), stop.clone());
            let answer = service.clone().oneshot(request);
            async move {
                answer
                    .await
                    .map(|response| response.map(|body| Tracked::new(body, running, &stop)))
            }
        });
        let mut connection = pin!(
            self.http
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
        );
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = self.stop.cancelled() => {}
            () = activity.idle_for(self.limits.idle_timeout) => {}
        }
        connection.as_mut().graceful_shutdown();
        if self.stop.is_cancelled() {
            return connection.await;
        }
        tokio::select! {
            ended = connection => ended,
            () = sleep(self.limits.drain_timeout) => Err("an idle peer would not close".into()),
        }
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
