//! Connect subresources: requests that are passed on to kubelets, pods and endpoints of Services.
//! In: an authorized request to `log`, `exec`, `attach`, `portforward` or `proxy`. Out: the
//! response of the backend, or an upgraded connection.
//!
//! Guarantees:
//! - Nothing is buffered as a whole: bodies are passed on as they arrive, in both directions.
//! - The backend's connection is closed when the client is gone, and when the server stops.
//! - A client in the same process gets the upgraded connection of the backend itself, as
//!   [`OnUpgrade`] in the extensions of the response; for one on a socket, bytes are copied.

mod admitted; // options as admission sees them
mod backend; // dial, request, response
mod bridge; // upgraded connections
mod dial; // how backends are reached
mod headers; // what is passed on
mod html; // links of pages
mod kubelet; // pods/log, exec, attach, portforward
mod location; // where a request is sent
mod options; // query parameters
mod proxy; // the upgrade-aware reverse proxy
mod redirect; // redirects of webhooks
mod resolve; // pods, services and nodes by name
mod rewrite; // links of responses
mod stream; // the byte stream to a backend
mod tag; // start tags
mod trust; // certificates of webhooks
mod url; // paths and queries
mod verifier; // TLS clients
mod webhooks; // calls of webhooks
mod websocket; // logs and watches as messages

pub use dial::{ByteStream, Dialer, Dialing, InProcessDialer, LoopbackDialer, TcpDialer};

pub(crate) use admitted::options_object;
pub(crate) use backend::RequestBody;
pub(crate) use location::{Location, Scheme, TlsPeer};
pub(crate) use stream::Counted;
pub(crate) use verifier::accept_any_certificate;
pub(crate) use webhooks::{Handler as WebhookHandler, WebhookConnections};
pub(crate) use websocket::{accept_log, accept_watch, is_websocket};

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_resources::kinds::ProxyTarget;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{Method, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    auth::{self, Attributes, User},
    http::{body::Body, query::Query, request_info::RequestInfo, route::ResourcePath},
    listen::{ClientConnection, request_body::BodyError},
};
use backend::{Backends, Unreachable};
use resolve::Locations;
use verifier::Verifier;

/// The limit of a document that the server itself fetches.
const FETCHED_MAX_BYTES: usize = 16 << 20;

/// An authorized request to a connect subresource.
pub(crate) struct ConnectRequest<'a> {
    pub(crate) api: &'a Api,
    pub(crate) user: &'a User,
    pub(crate) head: &'a http::request::Parts,
    pub(crate) path: &'a ResourcePath,
    pub(crate) query: &'a Query,
    /// Lives as long as the connection to the backend.
    pub(crate) counted: Counted,
}

impl ConnectRequest<'_> {
    /// The connection of a client that is not in this process.
    fn connection(&self) -> Option<&Arc<ClientConnection>> {
        self.head.extensions.get()
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.connection().map(|connection| connection.peer.ip())
    }

    /// Mirrors `ensureAuthorizedForVerb` with the verb `create`: a WebSocket request is a GET,
    /// whose verb `get` must not be enough for a shell.
    fn check_create(&self) -> Result<(), ApiError> {
        let request_info = RequestInfo::of_resource(&Method::POST, self.path, &Query::default());
        auth::check(&Attributes::of(&request_info, self.user), self.api)
    }

    /// A request to a backend with the method and the headers of this one.
    fn forwarded(&self, headers: http::HeaderMap, body: RequestBody) -> Request<RequestBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.headers_mut() = headers;
        request
    }
}

/// Connects clients with backends.
#[derive(Debug)]
pub(crate) struct Connector {
    backends: Backends,
}

impl Connector {
    /// Connects through this dialer until `stop` is cancelled.
    ///
    /// # Errors
    /// The TLS library refuses its configuration.
    pub(crate) fn new(
        dialer: Arc<dyn Dialer>,
        stop: CancellationToken,
    ) -> Result<Self, rustls::Error> {
        let unverified = Arc::new(Verifier::Any.client_config()?);
        Ok(Self {
            backends: Backends::new(dialer, stop, unverified),
        })
    }

    /// Passes on a request.
    ///
    /// # Errors
    /// The object does not exist, or its backend does not respond.
    pub(crate) async fn connect(
        &self,
        request: &ConnectRequest<'_>,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        let path = request.path;
        if !allows(&path.subresource, &request.head.method) {
            return Err(ApiError::MethodNotAllowed);
        }
        let locations = Locations {
            api: request.api,
            dialer: &*self.backends.dialer,
            namespace: &path.namespace,
        };
        if path.subresource == "log" {
            return self.log(request, &locations).await;
        }
        if request.query.has("dryRun") {
            return Err(ApiError::BadRequest("dryRun is not supported".into()));
        }
        if path.subresource != "proxy" {
            return self.stream(request, &locations, body).await;
        }
        let catalog = request.api.registry.catalog();
        let resource = catalog.find(&path.group, &path.version, &path.resource);
        let location = match resource.and_then(|resource| resource.strategy.proxy) {
            Some(ProxyTarget::Node) => locations.node_proxy(&path.name)?,
            Some(ProxyTarget::Pod) => locations.pod_proxy(&path.name)?,
            Some(ProxyTarget::Service) => locations.service_proxy(&path.name)?,
            None => return Err(ApiError::NoSuchResource),
        };
        self.proxy(request, location, body).await
    }

    /// The body of a GET request of the server itself.
    ///
    /// # Errors
    /// No connection, no response, or one that is too large.
    pub(crate) async fn fetch(
        &self,
        location: &Location,
        headers: http::HeaderMap,
    ) -> Result<Response<Bytes>, String> {
        let mut request = Request::new(request_body(Empty::<Bytes>::new()));
        *request.headers_mut() = headers;
        let host = kubelet::host(location);
        request.headers_mut().insert(http::header::HOST, host);
        let sent = self.backends.send(location, request, Arc::new(())).await;
        let (head, mut body) = sent
            .map_err(|unreachable| match unreachable {
                Unreachable::Dial(why) | Unreachable::Exchange(why) => why,
            })?
            .into_parts();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| error.to_string())?;
            if bytes.len() + chunk.len() > FETCHED_MAX_BYTES {
                return Err(format!("the response exceeds {FETCHED_MAX_BYTES} bytes"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Response::from_parts(head, bytes.freeze()))
    }

    /// Waits until every connection is closed. They are once the server stops.
    pub(crate) async fn closed(&self) {
        self.backends.tasks.close();
        self.backends.tasks.wait().await;
    }
}

/// Whether a subresource has a method. Mirrors `ConnectMethods`.
fn allows(subresource: &str, method: &Method) -> bool {
    let methods: &[Method] = match subresource {
        "log" => &[Method::GET],
        "proxy" => &[
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::HEAD,
            Method::OPTIONS,
        ],
        _ => &[Method::GET, Method::POST],
    };
    methods.contains(method)
}

/// A body of any type as the body of a request to a backend.
pub(crate) fn request_body<B>(body: B) -> RequestBody
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BodyError>,
{
    PassedOn(Box::pin(body)).boxed_unsync()
}

/// A body of any type, with its length.
struct PassedOn<B>(Pin<Box<B>>);

impl<B> http_body::Body for PassedOn<B>
where
    B: http_body::Body,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.0.as_mut().poll_frame(cx));
        let in_bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            Ok(frame.map_data(in_bytes))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
