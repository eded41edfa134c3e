//! Calls webhooks: over HTTPS through the dialer, or by a handler in the process.
//! In: a request with its address. Out: the whole response.
//!
//! Guarantees: HTTP/1.1, so that requests spread over the endpoints of a Service; up to 25 idle
//! connections per webhook are reused for 90 seconds; a response of more than 8 MiB is refused
//! while it is read, and so is one of a handler; redirects are followed as Go's client does, up to
//! 10 requests.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{Dialer, redirect, stream::BackendStream, trust};
use crate::webhook_client::{Scheme, WebhookAddress, WebhookRequest, WebhookTransport};

/// How long an address may take to dial, the TLS handshake included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle connections of one webhook, and how long they are kept. Mirrors client-go's transport.
const IDLE_MAX: usize = 25;
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Webhooks whose connections and TLS configurations are kept; all are forgotten when there are
/// more.
const CLIENTS_MAX: usize = 256;

/// Larger responses are refused: an object has at most 3 MiB, and so has a sensible patch of it.
const RESPONSE_MAX_BYTES: usize = 8 << 20;

/// Unread bytes of a response, and the limit of its head.
const BUFFER_MAX_BYTES: usize = 64 << 10;

/// A handler in this process.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<Bytes>> + Send + Sync>;

/// Sends requests to webhooks.
pub(crate) struct WebhookConnections {
    dialer: Arc<dyn Dialer>,
    stop: CancellationToken,
    /// By their URL without a query.
    handlers: HashMap<String, Handler>,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    configs: HashMap<Arc<[u8]>, Arc<ClientConfig>>,
    idle: HashMap<Key, Vec<Idle>>,
}

/// The key of a pooled connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    scheme: Scheme,
    host: String,
    server_name: String,
    ca_bundle: Arc<[u8]>,
}

struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

impl WebhookConnections {
    pub(crate) fn new(
        dialer: Arc<dyn Dialer>,
        stop: CancellationToken,
        handlers: HashMap<String, Handler>,
    ) -> Self {
        Self {
            dialer,
            stop,
            handlers,
            clients: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, request: &WebhookRequest) -> Result<Response<Bytes>, String> {
        let key = Key {
            scheme: request.scheme,
            host: request.host.clone(),
            server_name: request.server_name.clone(),
            ca_bundle: request.ca_bundle.clone(),
        };
        while let Some(sender) = self.take_idle(&key) {
            match self.exchange(sender, &key, request).await {
                // The webhook closed the connection while the request was sent.
                Err(Failed::Unsent(_)) => {}
                Err(Failed::Sent(why)) => return Err(why),
                Ok(response) => return Ok(response),
            }
        }
        let sender = self.connect(request).await?;
        let sent = self.exchange(sender, &key, request).await;
        sent.map_err(|failed| match failed {
            Failed::Unsent(why) | Failed::Sent(why) => why,
        })
    }

    fn take_idle(&self, key: &Key) -> Option<SendRequest<Full<Bytes>>> {
        let mut clients = self.lock();
        let idle = clients.idle.get_mut(key)?;
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() < IDLE_TIMEOUT && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, key: &Key, sender: SendRequest<Full<Bytes>>) {
        if !sender.is_ready() {
            return;
        }
        let mut clients = self.lock();
        if clients.idle.len() >= CLIENTS_MAX && !clients.idle.contains_key(key) {
            clients.idle.clear();
        }
        let idle = clients.idle.entry(key.clone()).or_default();
        if idle.len() < IDLE_MAX {
            let since = Instant::now();
            idle.push(Idle { sender, since });
        }
    }

    async fn connect(&self, request: &WebhookRequest) -> Result<SendRequest<Full<Bytes>>, String> {
        let address = resolve(request).await?;
        let dialing = async {
            let stream = self.dialer.dial(address).await;
            let stream = stream.map_err(|error| format!("dial tcp {address}: {error}"))?;
            let stream = BackendStream::new(stream, &self.stop, Arc::new(()));
            if request.scheme == Scheme::Http {
                return self.handshake(stream).await;
            }
            let config = self.config(&request.ca_bundle)?;
            let name = ServerName::try_from(request.server_name.clone())
                .map_err(|error| error.to_string())?;
            let connected = TlsConnector::from(config).connect(name, stream).await;
            let stream =
                connected.map_err(|error| trust::describe(&error, &request.server_name))?;
            self.handshake(stream).await
        };
        match timeout(DIAL_TIMEOUT, dialing).await {
            Ok(dialed) => dialed,
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        }
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<SendRequest<Full<Bytes>>, String> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_MAX_BYTES)
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let stop = self.stop.clone();
        tokio::spawn(async move {
            if let Some(Err(error)) = stop.run_until_cancelled(connection).await {
                tracing::debug!(%error, "connection to a webhook ended");
            }
        });
        Ok(sender)
    }

    fn config(&self, ca_bundle: &Arc<[u8]>) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = self.lock().configs.get(ca_bundle) {
            return Ok(config.clone());
        }
        let config = Arc::new(trust::client_config(ca_bundle)?);
        let mut clients = self.lock();
        if clients.configs.len() >= CLIENTS_MAX {
            clients.configs.clear();
        }
        clients.configs.insert(ca_bundle.clone(), config.clone());
        Ok(config)
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        key: &Key,
        request: &WebhookRequest,
    ) -> Result<Response<Bytes>, Failed> {
        let sent = http_request(request).map_err(Failed::Sent)?;
        let response = sender.send_request(sent).await.map_err(|error| {
            if error.is_canceled() || error.is_incomplete_message() {
                Failed::Unsent("EOF".into())
            } else {
                Failed::Sent(error.to_string())
            }
        })?;
        let (head, mut body) = response.into_parts();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failed::Sent(error.to_string()))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > RESPONSE_MAX_BYTES {
                return Err(Failed::Sent(too_large()));
            }
            bytes.extend_from_slice(&data);
        }
        self.keep(key, sender);
        Ok(Response::from_parts(head, bytes.freeze()))
    }
}

/// Why there is no response.
enum Failed {
    /// The connection was closed before there was one; a request on a reused connection is sent
    /// again.
    Unsent(String),
    Sent(String),
}

fn http_request(request: &WebhookRequest) -> Result<Request<Full<Bytes>>, String> {
    let mut builder = Request::builder()
        .method(&request.method)
        .uri(&request.path_and_query)
        .header(header::HOST, &request.host)
        .header(header::USER_AGENT, "kube-apiserver-admission")
        .header(header::ACCEPT, "application/json, */*");
    if !request.body.is_empty() {
        let json = HeaderValue::from_static("application/json");
        builder = builder.header(header::CONTENT_TYPE, json);
    }
    if let Some(referer) = &request.referer {
        builder = builder.header(header::REFERER, referer);
    }
    builder
        .body(Full::new(request.body.clone()))
        .map_err(|error| error.to_string())
}

async fn resolve(request: &WebhookRequest) -> Result<SocketAddr, String> {
    match &request.address {
        WebhookAddress::Socket(address) => Ok(*address),
        WebhookAddress::Unresolved(why) => Err(why.clone()),
        WebhookAddress::Name(host, port) => {
            let unresolved = |_: io::Error| format!("dial tcp: lookup {host}: no such host");
            let mut found = tokio::net::lookup_host((host.as_str(), *port))
                .await
                .map_err(unresolved)?;
            found
                .next()
                .ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))
        }
    }
}

impl WebhookConnections {
    /// One request, answered by a handler in the process or over a connection.
    async fn request(&self, request: &WebhookRequest) -> Result<Response<Bytes>, String> {
        let Some(handler) = self.handlers.get(&request.location) else {
            return self.send(request).await;
        };
        let mut forwarded = Request::new(request.body.clone());
        *forwarded.method_mut() = request.method.clone();
        *forwarded.uri_mut() = request
            .url
            .parse()
            .map_err(|error: http::uri::InvalidUri| error.to_string())?;
        let response = handler(forwarded).await;
        if response.body().len() > RESPONSE_MAX_BYTES {
            return Err(too_large());
        }
        Ok(response)
    }
}

fn too_large() -> String {
    format!("the response exceeds {RESPONSE_MAX_BYTES} bytes")
}

impl WebhookTransport for WebhookConnections {
    fn post(&self, mut request: WebhookRequest) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(async move {
            let mut sent = 1;
            loop {
                // Go names the method of the first request, and the URL of the last.
                let failed = |why: String| format!("Post {:?}: {why}", request.url);
                let response = self.request(&request).await.map_err(failed)?;
                let Some(next) = redirect::next(&request, &response).map_err(failed)? else {
                    return Ok(response);
                };
                if sent == redirect::REQUESTS_MAX {
                    return Err(failed(redirect::TOO_MANY.to_owned()));
                }
                sent += 1;
                request = next;
            }
        })
    }
}
