//! One exchange with a backend: dial, request, response.
//! In: a location and a request. Out: the response, whose body is read as the client reads it.
//!
//! Guarantees: one connection per request, closed when the body of the response is read or dropped;
//! at most 64 KiB of a response wait in memory; a connection that is upgraded belongs to the task
//! that takes the upgrade.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use http::{Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{task::AbortHandle, time::timeout};
use tokio_rustls::TlsConnector;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ByteStream, Dialer, Location,
    location::{Scheme, TlsPeer},
    stream::{BackendStream, Counted},
};
use crate::listen::request_body::BodyError;

/// How long an address may take to dial, the TLS handshake included; as kube-apiserver's transport.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Unread bytes of a response, and the limit of its head.
const BUFFER_MAX_BYTES: usize = 64 << 10;

/// The body of a request to a backend.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// Why there is no response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreachable {
    /// The address cannot be dialed.
    Dial(String),
    /// The connection failed before there was a response.
    Exchange(String),
}

/// Sends requests to backends.
#[derive(Debug)]
pub(crate) struct Backends {
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) stop: CancellationToken,
    /// The connections, and the bridges of upgraded ones.
    pub(super) tasks: TaskTracker,
    /// For `https` to pods and endpoints, for which no CA is configured.
    unverified: Arc<ClientConfig>,
}

impl Backends {
    pub(super) fn new(
        dialer: Arc<dyn Dialer>,
        stop: CancellationToken,
        unverified: Arc<ClientConfig>,
    ) -> Self {
        Self {
            dialer,
            stop,
            tasks: TaskTracker::new(),
            unverified,
        }
    }

    /// Sends a request to a location, whose path and query replace those of the request.
    ///
    /// # Errors
    /// The backend cannot be reached, or does not answer in HTTP/1.1.
    pub(super) async fn send(
        &self,
        location: &Location,
        mut request: Request<RequestBody>,
        counted: Counted,
    ) -> Result<Response<BackendBody>, Unreachable> {
        let stream = self
            .dial(location, counted)
            .await
            .map_err(Unreachable::Dial)?;
        let failed = |error: hyper::Error| Unreachable::Exchange(describe(&error));
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_MAX_BYTES)
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let task = self.tasks.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to a backend ended");
            }
        });
        let mut connection = Connection(Some(task.abort_handle()));
        let target = location.path_and_query();
        *request.uri_mut() = target
            .parse::<Uri>()
            .map_err(|error| Unreachable::Exchange(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // The task ends by itself once it has handed over the stream.
            connection.detach();
        }
        Ok(response.map(|body| BackendBody {
            body,
            _connection: connection,
        }))
    }

    async fn dial(
        &self,
        location: &Location,
        counted: Counted,
    ) -> Result<Box<dyn ByteStream>, String> {
        let address = location.address()?;
        let dialing = async {
            let stream = self.dialer.dial(address).await?;
            let stream = BackendStream::new(stream, &self.stop, counted);
            Ok::<Box<dyn ByteStream>, io::Error>(match location.scheme {
                Scheme::Http => Box::new(stream),
                Scheme::Https => {
                    let peer = location.tls.clone().unwrap_or_else(|| TlsPeer {
                        name: ServerName::IpAddress(location.ip.into()),
                        config: self.unverified.clone(),
                    });
                    let connector = TlsConnector::from(peer.config);
                    Box::new(connector.connect(peer.name, stream).await?)
                }
            })
        };
        let dialing = timeout(DIAL_TIMEOUT, dialing);
        match self.stop.run_until_cancelled(dialing).await {
            Some(Ok(Ok(stream))) => Ok(stream),
            Some(Ok(Err(error))) => Err(format!("dial tcp {address}: {error}")),
            Some(Err(_)) => Err(format!("dial tcp {address}: i/o timeout")),
            None => Err(format!("dial tcp {address}: the API server stops")),
        }
    }
}

/// An error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The task of a connection. It is aborted when this is dropped.
struct Connection(Option<AbortHandle>);

impl Connection {
    /// Lets the task end by itself.
    fn detach(&mut self) {
        self.0 = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The body of a response of a backend. Dropping it closes the connection.
pub(super) struct BackendBody {
    body: Incoming,
    _connection: Connection,
}

impl BackendBody {
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Stream for BackendBody {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}
