//! Server: HTTPS for the webhooks of a Manager.
//!
//! In: a listener and the present certificate. Out: answers of the service.
//! Guarantees: the number of connections is bounded, further ones wait in the backlog of the
//! kernel; a handshake or header that takes longer than [`HANDSHAKE_TIMEOUT`] ends its connection;
//! on a stop, reviews that are being answered are finished.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::service::WebhookService;
use crate::http_server::accept;

/// An API server reuses its connections; there are few API servers.
const CONNECTIONS_MAX: usize = 1024;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long reviews that are being answered may take after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The certificate that is served now. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ServedCertificate(Arc<watch::Sender<Option<Arc<CertifiedKey>>>>);

impl ServedCertificate {
    pub(crate) fn set(&self, certificate: Option<Arc<CertifiedKey>>) {
        self.0.send_replace(certificate);
    }

    pub(crate) fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }

    /// Waits until there is one.
    pub(crate) async fn available(&self) {
        // The sender is not dropped meanwhile: it is borrowed.
        _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}

impl Default for ServedCertificate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

/// The one cryptographic provider, named so that no process-wide default is needed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1.
pub(crate) fn tls_config(certificate: ServedCertificate) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    service: WebhookService,
    stop: CancellationToken,
) {
    let serve = |stream: TcpStream| {
        // A review is one small write.
        _ = stream.set_nodelay(true);
        serve_connection(stream, acceptor.clone(), service.clone(), stop.clone())
    };
    let mut connections = accept(listener, CONNECTIONS_MAX, serve, &stop).await;
    let drained = timeout(DRAIN_TIMEOUT, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!("reviews were not answered within {DRAIN_TIMEOUT:?} after the stop");
    }
    connections.shutdown().await;
}

/// Serves one connection until it ends, or, after `stop`, until its requests are answered.
pub(crate) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    acceptor: TlsAcceptor,
    service: WebhookService,
    stop: CancellationToken,
) {
    let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let stream = match stop.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => stream,
        Some(Ok(Err(error))) => {
            // The API server logs the same as an error of the call.
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
        _ => return,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    let service = TowerToHyperService::new(service);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
}
