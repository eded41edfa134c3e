//! The tower service: from an HTTP request to a response, for every transport.
//! Guarantees: every request is answered; a panic in a handler becomes a 500 for that request
//! alone; bodies, time and concurrency are bounded.

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bellerophon_apimachinery::{duration::parse_duration, error::ApiError};
use bellerophon_resources::print::IncludeObject;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, field::Empty};

use crate::{
    admission::{self, AdmissionOutput, Operation},
    aggregation::Aggregator,
    api::Api,
    audit::{AuditLog, Record, Recorder},
    auth::{self, Attributes, Authenticator, PeerCertificate, User},
    connect::{self, ConnectRequest, Connector, RequestBody as RequestBodyStream},
    flow_control::{Classified, Collections, Permit, Work},
    http::{
        body::Body,
        negotiate::{self, Format, Offer},
        query::Query,
        request_info::{CONNECT_SUBRESOURCES, RequestInfo},
        response::{add_warnings, error_response},
        route::{Discovery, ResourcePath, Route},
    },
    listen::{
        ClientConnection, TrackedConnection,
        request_body::{BodyError, RequestBodies, RequestBody},
    },
    metrics::MeasuredRequest,
    non_resource::{self, EndpointRequest, NonResourceEndpoints, ServerState},
    observe::{self, ObservedRequest},
    offload::offload,
    registry::{Catalog, RemoteVersion, Resource, Subresource},
    respond::{Shape, answer},
    verbs::{self, Call, Target, Warnings},
    write,
};

/// A request that is no watch is answered within this time, or the shorter one that it names.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that take longer are logged. Mirrors the threshold of kube-apiserver's traces.
const SLOW_REQUEST: Duration = Duration::from_millis(500);

/// The part of its time limit for which a request may wait for seats.
const QUEUE_WAIT_FRACTION: u32 = 4;

/// The shared state of requests.
pub(crate) struct Server {
    pub(crate) api: Arc<Api>,
    pub(crate) authenticator: Authenticator,
    /// The non-resource endpoints.
    pub(crate) endpoints: NonResourceEndpoints,
    /// Passes on requests to kubelets, pods and Services.
    pub(crate) connector: Connector,
    /// Passes on requests to other API servers.
    aggregator: Aggregator,
    bodies: RequestBodies,
    audit: Option<Arc<AuditLog>>,
    /// Whether an observer receives accepted writes.
    is_observed: bool,
}

impl Server {
    /// A server over this state.
    pub(crate) fn new(
        api: Arc<Api>,
        authenticator: Authenticator,
        endpoints: NonResourceEndpoints,
        connector: Connector,
        aggregator: Aggregator,
        audit: Option<AuditLog>,
    ) -> Self {
        Self {
            api,
            authenticator,
            endpoints,
            connector,
            aggregator,
            bodies: RequestBodies::default(),
            audit: audit.map(Arc::new),
            is_observed: false,
        }
    }

    /// Describes requests to an observer of writes.
    pub(crate) fn observed(self) -> Self {
        Self {
            is_observed: true,
            ..self
        }
    }

    /// Runs the aggregation controller until `stop` is cancelled.
    pub(crate) async fn run_aggregation(&self, stop: CancellationToken) {
        self.aggregator.run(&self.api, &self.connector, stop).await;
    }
}

/// The server as a tower service. Clones share one server.
#[derive(Clone)]
pub struct ApiService {
    server: Arc<Server>,
    /// The user of requests without credentials: the holder of an in-process handle is trusted, a
    /// socket is not.
    trusted: Option<Arc<User>>,
}

impl std::fmt::Debug for ApiService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiService")
    }
}

impl ApiService {
    pub(crate) fn new(server: Arc<Server>, trusted: Option<User>) -> Self {
        Self {
            server,
            trusted: trusted.map(Arc::new),
        }
    }

    /// The same server, where requests without credentials come from this user. They are authorized
    /// as those of any client with that user, who is also in the group `system:authenticated`.
    ///
    /// The holder of a service is trusted by the server and may name any user.
    #[must_use]
    pub fn as_user<'a>(&self, user: &str, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let user = User {
            name: user.to_owned(),
            groups: groups.into_iter().map(str::to_owned).collect(),
            ..User::default()
        };
        Self::new(self.server.clone(), Some(user.authenticated()))
    }
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BodyError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

impl ApiService {
    async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let (mut head, body) = request.into_parts();
        auth::move_websocket_token(&mut head.headers);
        let format = error_format(&head.headers);
        let begun = Instant::now();
        let span = tracing::debug_span!("request", method = %head.method, path = head.uri.path(), user = Empty);
        let mut classified = None;
        let Api { clock, entropy, .. } = &*self.server.api;
        let mut recorder = Recorder::new(self.server.audit.as_ref(), clock, entropy.uid());
        let outcome = {
            // Pinned here: the futures around it would each copy its several kilobytes.
            let responding = pin!(self.respond(&head, body, &mut classified, &mut recorder));
            caught(&head, responding).instrument(span.clone()).await
        };
        let mut response = outcome.unwrap_or_else(|error| {
            // The message may quote the body of the request, so it is not logged.
            tracing::debug!(parent: &span, code = error.code(), reason = %error.reason(), "request refused");
            recorder.failed(&error);
            error_response(&error, format)
        });
        if let Some(classified) = &classified {
            classified.add_headers(response.headers_mut());
        }
        if let Ok(value) = HeaderValue::try_from(recorder.audit_id.as_str()) {
            response.headers_mut().insert("audit-id", value);
        }
        let response = recorder.finish(response).await;
        let response = self.server.connector.run_websocket(response);
        let duration = begun.elapsed();
        let code = response.status().as_u16();
        if duration >= SLOW_REQUEST {
            tracing::info!(parent: &span, method = %head.method, path = head.uri.path(), code, ?duration, "slow request");
        } else {
            tracing::debug!(parent: &span, code, ?duration, "request answered");
        }
        response
    }

    async fn respond<B>(
        &self,
        head: &http::request::Parts,
        body: B,
        classified: &mut Option<Classified>,
        recorder: &mut Recorder<'_>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let route = Route::parse(head.uri.path());
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let source_ip = || {
            let connection = head.extensions.get::<Arc<ClientConnection>>();
            connection.map(|connection| connection.peer.ip().to_string())
        };
        let user = match self.authenticate(head) {
            Ok(user) => user,
            Err(error) => {
                let request_info = request_info(head, &route, &query.unwrap_or_default());
                recorder
                    .unauthenticated(head, &request_info, &error, source_ip())
                    .await;
                return Err(error);
            }
        };
        let query = query?;
        Span::current().record("user", user.name.as_str());
        if let Some(connection) = head.extensions.get::<Arc<TrackedConnection>>() {
            connection.authenticated(&user);
        }
        let request_info = Arc::new(request_info(head, &route, &query));
        recorder
            .received(head, &request_info, &user, source_ip())
            .await;
        let user = match auth::wanted_user(&head.headers)? {
            None => user,
            Some(wanted) => {
                let attributes = Attributes::of(&request_info, &user);
                let user = auth::impersonate(&wanted, &attributes, &*self.server.api)?;
                recorder.impersonates(&user);
                user
            }
        };
        let flow_control = &self.server.api.flow_control;
        *classified = flow_control.classify(&request_info, &user);
        let classified = classified.as_ref();
        let attributes = Attributes::of(&request_info, &user);
        let decision = auth::authorize(&attributes, &*self.server.api);
        recorder.authorized(&decision);
        decision.into_result(&attributes)?;
        let catalog = self.server.api.registry.catalog();
        if let Some(remote) = served_by(&route, &catalog) {
            // The other server has its own flow control: the seat is released before the request is
            // forwarded.
            drop(self.acquire(classified, Work::ONE, REQUEST_TIMEOUT).await?);
            let request = ConnectRequest {
                api: &self.server.api,
                user: &user,
                head,
                path: &ResourcePath::default(),
                query: &query,
                counted: Arc::new(()),
            };
            return self.delegate(&request, remote, &request_info, body).await;
        }
        let path = match route {
            Route::Resource(path) => {
                let request = Allowed {
                    request_info,
                    user,
                    classified,
                    record: recorder.record(),
                };
                return self.resource(path, head, query, body, request).await;
            }
            Route::Discovery(route) => {
                let _permit = self.acquire(classified, Work::ONE, REQUEST_TIMEOUT).await?;
                return self.server.endpoints.discover(&catalog, &route, head);
            }
            Route::Other(path) => path,
        };
        let _permit = self.acquire(classified, Work::ONE, REQUEST_TIMEOUT).await?;
        let request = EndpointRequest {
            path: &path,
            query: &query,
            head,
        };
        let state = ServerState {
            api: &self.server.api,
            authenticator: &self.server.authenticator,
            endpoints: &self.server.endpoints,
        };
        non_resource::answer(&state, &request)
    }

    /// Passes on a request to another API server. It has the time limit of a request of this
    /// server.
    async fn delegate<B>(
        &self,
        request: &ConnectRequest<'_>,
        remote: &RemoteVersion,
        request_info: &RequestInfo,
        body: B,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let body = connect::request_body(body);
        let connector = &self.server.connector;
        let aggregator = &self.server.aggregator;
        let delegated = aggregator.proxy(connector, request, remote, body);
        if request_info.is_long_running() {
            return Ok(delegated.await);
        }
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let response = timeout_at(deadline, delegated).await;
        response.map_err(|_| ApiError::request_timeout())
    }

    /// The seats of a request; `None` if it needs none.
    async fn acquire<'a>(
        &'a self,
        classified: Option<&'a Classified>,
        work: Work,
        request_timeout: Duration,
    ) -> Result<Option<Permit<'a>>, ApiError> {
        let Some(classified) = classified else {
            return Ok(None);
        };
        let wait_max = request_timeout / QUEUE_WAIT_FRACTION;
        let flow_control = &self.server.api.flow_control;
        match flow_control.acquire(classified, work, wait_max).await {
            Ok(permit) => Ok(Some(permit)),
            Err(rejection) => {
                let retry_after_seconds = rejection.retry_after_seconds;
                tracing::debug!(retry_after_seconds, "request rejected by flow control");
                Err(ApiError::Rejected {
                    retry_after_seconds,
                })
            }
        }
    }

    fn authenticate(&self, head: &http::request::Parts) -> Result<User, ApiError> {
        if let Some(user) = self
            .trusted
            .as_ref()
            .filter(|_| !head.headers.contains_key(header::AUTHORIZATION))
        {
            return Ok(User::clone(user));
        }
        let api = &self.server.api;
        let peer = head.extensions.get::<PeerCertificate>();
        self.server
            .authenticator
            .authenticate(&head.headers, peer, &**api, api.clock.now())
    }

    async fn resource<B>(
        &self,
        path: ResourcePath,
        head: &http::request::Parts,
        query: Query,
        body: B,
        request: Allowed<'_>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let found = find(&self.server.api, &path, &head.method)?;
        let subresource = found
            .subresource
            .as_ref()
            .map_or("", |subresource| subresource.name);
        let measured = MeasuredRequest {
            resource: &found.resource,
            subresource,
            path: &path,
            head,
            query: &query,
        };
        let running = self.server.endpoints.metrics.begin(&measured);
        if CONNECT_SUBRESOURCES.contains(&subresource) {
            let connected = Arc::new(running.connect());
            let admission = self.admit_connection(&found.resource, &path, &query, &request.user);
            if let Err(error) = admission.await {
                connected.answered(error.code());
                return Err(error);
            }
            let request = ConnectRequest {
                api: &self.server.api,
                user: &request.user,
                head,
                path: &path,
                query: &query,
                counted: connected.clone(),
            };
            let outcome = self.connect(&request, connect::request_body(body)).await;
            connected.answered(match &outcome {
                Ok(response) => response.status().as_u16(),
                Err(error) => error.code(),
            });
            return outcome;
        }
        let warnings = found.warnings.clone();
        let outcome = running.answered(self.run(found, path, head, query, body, request).await);
        let warnings = warnings.take();
        if warnings.is_empty() {
            return outcome;
        }
        let mut response =
            outcome.unwrap_or_else(|error| error_response(&error, error_format(&head.headers)));
        add_warnings(response.headers_mut(), warnings);
        Ok(response)
    }

    /// Lets webhooks and policies see a connection. Warnings are not sent: an upgraded connection has
    /// no headers left.
    async fn admit_connection(
        &self,
        resource: &Resource,
        path: &ResourcePath,
        query: &Query,
        user: &User,
    ) -> Result<(), ApiError> {
        let Some(mut options) = connect::options_object(path, query) else {
            return Ok(());
        };
        let attributes = admission::Attributes {
            user,
            resource,
            subresource: &path.subresource,
            namespace: &path.namespace,
            name: &path.name,
            query,
            deadline: Instant::now() + REQUEST_TIMEOUT,
            output: &AdmissionOutput::default(),
        };
        let operation = Operation::Connect;
        let api = &self.server.api;
        write::admit(api, &attributes, operation, false, &mut options, None).await
    }

    /// Passes on a request. It has no time limit and is not compressed.
    async fn connect(
        &self,
        request: &ConnectRequest<'_>,
        body: RequestBodyStream,
    ) -> Result<Response<Body>, ApiError> {
        if request.path.subresource == "log" {
            // A log is plain text whatever the client accepts, but the client must accept
            // something.
            let accept = negotiate::joined(&request.head.headers, &header::ACCEPT);
            negotiate::wanted(accept.as_deref(), Offer::BuiltIn { streams: false })?;
        }
        let response = self.server.connector.connect(request, body).await?;
        let is_log = request.path.subresource == "log" && response.body().is_stream();
        Ok(if is_log && connect::is_websocket(request.head) {
            connect::accept_log(request.head, response)
        } else {
            response
        })
    }

    async fn run<B>(
        &self,
        found: Found,
        path: ResourcePath,
        head: &http::request::Parts,
        query: Query,
        body: B,
        request: Allowed<'_>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let api = &self.server.api;
        let watch = path.watch
            || (found.subresource.is_none()
                && path.name.is_empty()
                && head.method == Method::GET
                && query.flag("watch"));
        let custom = found.resource.is_custom();
        let streams = head.method == Method::GET && path.name.is_empty();
        let verbs = found
            .subresource
            .as_ref()
            .map_or(found.resource.verbs, |subresource| subresource.verbs);
        let offer = match (watch, custom) {
            (false, false) if verbs == ["create"] => Offer::Unread,
            (true, custom) => Offer::Watch { custom },
            (false, true) => Offer::Custom { streams },
            (false, false) => Offer::BuiltIn { streams },
        };
        let wanted = negotiate::wanted(
            negotiate::joined(&head.headers, &header::ACCEPT).as_deref(),
            offer,
        )?;
        let shape = Shape {
            wanted,
            include: IncludeObject::parse(query.get("includeObject").unwrap_or_default())?,
            gzip: negotiate::joined(&head.headers, &header::ACCEPT_ENCODING)
                .is_some_and(|e| e.contains("gzip")),
            pretty: query.flag("pretty"),
            one_event_per_chunk: connect::is_websocket(head),
        };
        let request_timeout = match watch {
            true => REQUEST_TIMEOUT,
            false => request_timeout(&query)?,
        };
        let deadline = Instant::now() + request_timeout;
        let Allowed {
            request_info,
            user,
            classified,
            record,
        } = request;
        // The body is read before the request has seats: a client that sends slowly holds none. It
        // is counted until the request is answered.
        let body = match head.method {
            Method::GET => RequestBody::default(),
            _ => {
                let body = self.server.bodies.read(body, &user, deadline).await;
                if let Err(ApiError::TooManyRequests {
                    retry_after_seconds,
                    ..
                }) = body
                    && let Some(classified) = classified
                {
                    let seconds = u64::from(retry_after_seconds);
                    api.flow_control.hold_back(classified, seconds).await;
                }
                body?
            }
        };
        let mut record = record;
        if let Some(record) = record.as_deref_mut() {
            record.request_body(&body.bytes);
        }
        let collection = Collection {
            api,
            resource: &found.resource,
        };
        let work = classified.map_or(Work::ONE, |classified| {
            let attributes = Attributes::of(&request_info, &user);
            api.flow_control
                .estimate(classified, &attributes, &query, &collection)
        });
        let permit = self.acquire(classified, work, request_timeout).await?;
        let watching = watch.then(|| {
            let tracker = &api.flow_control.watches;
            let (namespace, name) = request_info.scope();
            tracker.register(&found.resource.collection, namespace, name, &query)
        });
        let call = Call {
            target: Target {
                resource: found.resource.clone(),
                namespace: path.namespace,
                name: path.name,
            },
            subresource: found.subresource,
            query,
            content_type: negotiate::joined(&head.headers, &header::CONTENT_TYPE),
            body: body.bytes.clone(),
            user,
            user_agent: negotiate::joined(&head.headers, &header::USER_AGENT).unwrap_or_default(),
            warnings: found.warnings,
            deadline,
            admission: AdmissionOutput::default(),
        };
        // Pinned here, so that the futures below hold a reference instead of a copy each: in debug
        // builds the copies overflow the stack of a thread.
        let observed = self
            .server
            .is_observed
            .then(|| ObservedRequest::of(&head.method, &call, self.trusted.is_some()))
            .flatten();
        let dispatched = pin!(observe::with_request(
            observed,
            verbs::dispatch(
                api,
                &self.server.authenticator,
                &head.method,
                &call,
                path.watch,
            )
        ));
        let running = pin!(async { answer(api, &found.resource, dispatched.await?, &shape) });
        // Requests of this process are not offloaded: their tasks may run on threads that must not
        // block.
        let is_long = self.trusted.is_none() && call.may_take_long(api, &head.method);
        let running = async {
            if is_long {
                offload(running).await
            } else {
                running.await
            }
        };
        let running = pin!(timeout_at(deadline, running));
        let outcome = match &permit {
            Some(permit) => permit.run(running).await,
            None => running.await,
        };
        call.warnings.add(call.admission.take_warnings());
        if let Some(record) = record {
            let has_request = record.has_request_object();
            record.admission_annotations = call.admission.take_annotations(has_request);
        }
        let mut response = match outcome {
            // A webhook that was given the rest of the time has failed; the request has timed out.
            Err(_) | Ok(Err(_)) if Instant::now() >= deadline => {
                return Err(ApiError::request_timeout());
            }
            outcome => outcome.map_err(|_| ApiError::request_timeout())??,
        };
        if watch && connect::is_websocket(head) {
            response = connect::accept_watch(head, response);
        }
        Ok(match watching.flatten() {
            // Counts as a watcher until the body is dropped.
            Some(watching) => response.map(|body| body.with_guard(watching)),
            None => response,
        })
    }
}

/// The time that a request has: its parameter `timeout`, or that of the server. Mirrors
/// `WithRequestDeadline`.
///
/// # Errors
/// 400 for a parameter that is no duration.
fn request_timeout(query: &Query) -> Result<Duration, ApiError> {
    let text = query.get("timeout").unwrap_or_default();
    if text.is_empty() {
        return Ok(REQUEST_TIMEOUT);
    }
    let timeout = parse_duration(text).map_err(|why| {
        ApiError::BadRequest(format!(
            "invalid timeout specified in the request URL - {why}"
        ))
    })?;
    Ok(match timeout {
        Duration::ZERO => REQUEST_TIMEOUT,
        timeout => timeout.min(REQUEST_TIMEOUT),
    })
}

fn request_info(head: &http::request::Parts, route: &Route, query: &Query) -> RequestInfo {
    match route {
        Route::Resource(path) => RequestInfo::of_resource(&head.method, path, query),
        _ => RequestInfo::of_path(&head.method, head.uri.path()),
    }
}

/// The version of a group that another server serves, if the path is one of its paths.
fn served_by<'a>(route: &Route, catalog: &'a Catalog) -> Option<&'a RemoteVersion> {
    let (group, version) = match route {
        Route::Resource(path) => (&path.group, &path.version),
        Route::Discovery(Discovery::Version { group, version }) => (group, version),
        Route::Discovery(_) => return None,
        Route::Other(path) => {
            let (group, version) = path.strip_prefix("/openapi/v3/apis/")?.split_once('/')?;
            let remote = catalog.remote(group, version)?;
            return remote.openapi_url.is_some().then_some(remote);
        }
    };
    catalog.remote(group, version).map(Arc::as_ref)
}

/// The outcome of a handler; a panic in it is the failure of this request alone.
async fn caught<T>(
    head: &http::request::Parts,
    handler: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    AssertUnwindSafe(handler)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            tracing::error!(method = %head.method, path = head.uri.path(), "a handler panicked");
            Err(ApiError::Internal(
                "the server could not finish this request; see its log".into(),
            ))
        })
}

/// A request that its user may make.
struct Allowed<'a> {
    request_info: Arc<RequestInfo>,
    user: User,
    /// `None` if the request is not subject to flow control.
    classified: Option<&'a Classified>,
    /// `None` if the request is not in the audit log.
    record: Option<&'a mut Record>,
}

/// The collection of a request, for the estimate of its work.
struct Collection<'a> {
    api: &'a Api,
    resource: &'a Resource,
}

impl Collections for Collection<'_> {
    fn size(&self) -> Option<(usize, usize)> {
        self.api.store.size(&self.resource.collection)
    }

    fn watchers(&self, namespace: &str, name: &str) -> usize {
        let watches = &self.api.flow_control.watches;
        watches.count(&self.resource.collection, namespace, name)
    }
}

/// The resource and subresource of a path.
struct Found {
    resource: Arc<Resource>,
    subresource: Option<Subresource>,
    /// Warnings about the request, and those that are added while it runs.
    warnings: Warnings,
}

fn find(api: &Api, path: &ResourcePath, method: &Method) -> Result<Found, ApiError> {
    let catalog = api.registry.catalog();
    let Some(resource) = catalog.find(&path.group, &path.version, &path.resource) else {
        return Err(
            if path.group.is_empty()
                || catalog.has_built_in_group(&path.group)
                || catalog.has_version(&path.group, &path.version)
            {
                ApiError::NoSuchResource
            } else {
                ApiError::NoSuchPath
            },
        );
    };
    // The generic handler of custom resources has its own messages for paths that are not served.
    let nowhere = || {
        if resource.is_custom() {
            ApiError::NoSuchPath
        } else {
            ApiError::NoSuchResource
        }
    };
    let misplaced = if resource.namespaced {
        path.namespace.is_empty() && !path.name.is_empty()
    } else {
        !path.namespace.is_empty()
    };
    if misplaced {
        return Err(nowhere());
    }
    let subresource = match path.subresource.as_str() {
        "" => None,
        name => Some(resource.subresource(name).cloned().ok_or_else(
            || match resource.custom() {
                Some(_) => ApiError::NotFound {
                    resource: resource.group_resource(),
                    name: path.name.clone(),
                },
                None => ApiError::NoSuchResource,
            },
        )?),
    };
    let everywhere = resource.namespaced && path.namespace.is_empty();
    if everywhere && *method != Method::GET {
        return Err(if resource.is_custom() {
            ApiError::NoSuchPath
        } else {
            ApiError::MethodNotAllowed
        });
    }
    let warnings = Warnings::default();
    warnings.add(resource.warning.clone());
    Ok(Found {
        resource,
        subresource,
        warnings,
    })
}

/// Errors are encoded in the requested format.
fn error_format(headers: &HeaderMap) -> Format {
    negotiate::status_format(negotiate::joined(headers, &header::ACCEPT).as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_in_a_handler_is_the_failure_of_one_request() {
        let (head, ()) = Request::get("/api/v1/pods")
            .body(())
            .expect("a request")
            .into_parts();
        let clumsy = async {
            if head.version == http::Version::HTTP_11 {
                panic!("clumsy")
            } else {
                Ok(())
            }
        };
        let error = caught(&head, clumsy).await.expect_err("it panicked");
        let response = error_response(&error, Format::Json);
        assert_eq!(response.status(), 500);
        let status: serde_json::Value =
            serde_json::from_slice(response.body().bytes().expect("a whole body")).expect("JSON");
        assert_eq!(status["kind"].as_str(), Some("Status"));
        assert_eq!(status["reason"].as_str(), Some("InternalError"));
        assert!(
            !status["message"]
                .as_str()
                .unwrap_or_default()
                .contains("clumsy"),
            "what went wrong inside stays inside"
        );
        assert_eq!(
            caught(&head, async { Ok(1) }).await,
            Ok(1),
            "the next one is served"
        );
    }
}
