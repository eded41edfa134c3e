//! The tower service: a request in, a response out, whatever the transport.
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

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, field::Empty};

use crate::{
    aggregation::Aggregator,
    api::Api,
    audit::{AuditLog, Record, RecordDetails},
    auth::{self, Attributes, Authenticator, PeerCertificate, User},
    connect::{self, ConnectRequest, Connector, RequestBody as RequestBodyStream},
    error::ApiError,
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
    print::IncludeObject,
    registry::{Catalog, RemoteVersion, Resource, Subresource},
    respond::{Shape, answer},
    verbs::{self, Call, Target, Warnings},
};

/// A request that is no watch is answered within this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that take longer are logged. Mirrors the threshold of kube-apiserver's traces.
const SLOW_REQUEST: Duration = Duration::from_millis(500);

/// The part of its time limit for which a request may wait for seats.
const QUEUE_WAIT_FRACTION: u32 = 4;

/// Everything a request needs.
pub(crate) struct Server {
    pub(crate) api: Arc<Api>,
    pub(crate) authenticator: Authenticator,
    /// What is served besides resources.
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

    /// Keeps what is known of other API servers up to date until `stop` is cancelled.
    pub(crate) async fn run_aggregation(&self, stop: CancellationToken) {
        self.aggregator.run(&self.api, &self.connector, stop).await;
    }
}

/// The server as a tower service. Clones share one server.
#[derive(Clone)]
pub struct ApiService {
    server: Arc<Server>,
    /// Who asks when a request carries no credentials of its own: the holder of an in-process
    /// handle is trusted, a socket is not.
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
        let (head, body) = request.into_parts();
        let format = error_format(&head.headers);
        let begun = Instant::now();
        let span = tracing::debug_span!("request", method = %head.method, path = head.uri.path(), user = Empty);
        let mut classified = None;
        let mut recorder = Recorder::new(&self.server);
        let outcome = {
            // Pinned here: the futures around it would each copy its several kilobytes.
            let responding = pin!(self.respond(&head, body, &mut classified, &mut recorder));
            caught(&head, responding).instrument(span.clone()).await
        };
        let mut response = outcome.unwrap_or_else(|error| {
            // The message may quote the body of the request, so it is not logged.
            tracing::debug!(parent: &span, code = error.code(), reason = error.reason(), "request refused");
            error_response(&error, format)
        });
        if let Some(classified) = &classified {
            classified.add_headers(response.headers_mut());
        }
        let audit_id = recorder
            .audit_id
            .take()
            .unwrap_or_else(|| self.server.api.entropy.uid());
        let mut response = recorder.finish(response).await;
        if let Ok(value) = HeaderValue::try_from(audit_id) {
            response.headers_mut().insert("audit-id", value);
        }
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
        let user = self.authenticate(head)?;
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        Span::current().record("user", user.name.as_str());
        if let Some(connection) = head.extensions.get::<Arc<TrackedConnection>>() {
            connection.authenticated(&user);
        }
        let request_info = match &route {
            Route::Resource(path) => RequestInfo::of_resource(&head.method, path, &query),
            _ => RequestInfo::of_path(&head.method, head.uri.path()),
        };
        let request_info = Arc::new(request_info);
        let sender = self.server.audit.as_ref().map(|_| user.clone());
        let user = self.acting_user(&request_info, &head.headers, user)?;
        recorder.begin(head, &request_info, sender, &user).await;
        let flow_control = &self.server.api.flow_control;
        *classified = flow_control.classify(&request_info, &user);
        let classified = classified.as_ref();
        auth::check(&Attributes::of(&request_info, &user), &*self.server.api)?;
        let catalog = self.server.api.registry.catalog();
        if let Some(remote) = served_by(&route, &catalog) {
            // The other server has flow control of its own: the seat is given back before it is
            // asked.
            drop(self.acquire(classified, Work::ONE).await?);
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
                    record: recorder.record.as_mut(),
                };
                return self.resource(path, head, query, body, request).await;
            }
            Route::Discovery(asked) => {
                let _permit = self.acquire(classified, Work::ONE).await?;
                return self.server.endpoints.discover(&catalog, &asked, head);
            }
            Route::Other(path) => path,
        };
        let _permit = self.acquire(classified, Work::ONE).await?;
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
    ) -> Result<Option<Permit<'a>>, ApiError> {
        let Some(classified) = classified else {
            return Ok(None);
        };
        let wait_max = REQUEST_TIMEOUT / QUEUE_WAIT_FRACTION;
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

    /// The user that the request is made as.
    fn acting_user(
        &self,
        request_info: &RequestInfo,
        headers: &HeaderMap,
        user: User,
    ) -> Result<User, ApiError> {
        match auth::wanted_user(headers)? {
            Some(wanted) => auth::impersonate(
                &wanted,
                &Attributes::of(request_info, &user),
                &*self.server.api,
            ),
            None => Ok(user),
        }
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
        let asked = MeasuredRequest {
            resource: &found.resource,
            subresource,
            path: &path,
            head,
            query: &query,
        };
        let running = self.server.endpoints.metrics.begin(&asked);
        if CONNECT_SUBRESOURCES.contains(&subresource) {
            let connected = Arc::new(running.connect());
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
        self.server.connector.connect(request, body).await
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
        };
        let deadline = Instant::now() + REQUEST_TIMEOUT;
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
        if let Some(record) = record.filter(|record| record.has_request_object()) {
            let object = serde_json::from_slice(&body.bytes).ok();
            record.request_object = object.map(|object| record.shown(object));
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
        let permit = self.acquire(classified, work).await?;
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
        // Requests of this process stay where they are: their tasks may run on threads that must
        // not block.
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
        let response = outcome.map_err(|_| ApiError::request_timeout())??;
        Ok(match watching.flatten() {
            // Counts as a watcher until the body is dropped.
            Some(watching) => response.map(|body| body.with_guard(watching)),
            None => response,
        })
    }
}

/// The version of a group that another server serves, if the path leads there.
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

/// Records one request in the audit log.
struct Recorder<'a> {
    server: &'a Server,
    /// `None` without an audit log.
    audit_id: Option<String>,
    /// `None` until the user is known, and if the policy does not record the request.
    record: Option<Record>,
}

impl<'a> Recorder<'a> {
    fn new(server: &'a Server) -> Self {
        let audit_id = server.audit.as_ref().map(|_| server.api.entropy.uid());
        Self {
            server,
            audit_id,
            record: None,
        }
    }

    async fn begin(
        &mut self,
        head: &http::request::Parts,
        request: &Arc<RequestInfo>,
        sender: Option<User>,
        user: &User,
    ) {
        let (Some(log), Some(audit_id)) = (&self.server.audit, &self.audit_id) else {
            return;
        };
        let Some(start) = log.begin(request, user) else {
            return;
        };
        let connection = head.extensions.get::<Arc<ClientConnection>>();
        let record = start.record(RecordDetails {
            audit_id: audit_id.clone(),
            request_uri: head.uri.to_string(),
            request: request.clone(),
            user: user.clone(),
            impersonator: sender.filter(|sender| sender != user),
            source_ip: connection.map(|connection| connection.peer.ip().to_string()),
            user_agent: negotiate::joined(&head.headers, &header::USER_AGENT).unwrap_or_default(),
            received: self.server.api.clock.now(),
        });
        log.received(&record).await;
        self.record = Some(record);
    }

    /// Records the response. That of a watch or connection is complete when its body is dropped.
    async fn finish(self, response: Response<Body>) -> Response<Body> {
        let (Some(log), Some(mut record)) = (&self.server.audit, self.record) else {
            return response;
        };
        let code = response.status().as_u16();
        let now = self.server.api.clock.now();
        if response.body().is_stream() {
            log.started(&record, code, now).await;
            let ended = Ended {
                log: log.clone(),
                record,
                code,
                api: self.server.api.clone(),
            };
            return response.map(|body| body.with_guard(ended));
        }
        if record.has_response_object() {
            let bytes = response.body().bytes();
            let object = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
            record.response_object = object.map(|object| record.shown(object));
        }
        log.complete(&record, code, now).await;
        response
    }
}

/// Records the end of a response that is a stream.
struct Ended {
    log: Arc<AuditLog>,
    record: Record,
    code: u16,
    api: Arc<Api>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.log
            .complete_later(&self.record, self.code, self.api.clock.now());
    }
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

/// What a path leads to.
struct Found {
    resource: Arc<Resource>,
    subresource: Option<Subresource>,
    /// What there is to say about it, and what comes up on the way.
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
    // The generic handler of custom resources has words of its own for paths that lead nowhere.
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

/// Errors come in the format that was asked for.
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
