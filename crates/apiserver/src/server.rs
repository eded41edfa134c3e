//! Starts and stops a server, and gives access to it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bellerophon_resources::kinds::{Component, Components};
use bellerophon_storage::MemoryStore;
use bytes::Bytes;
use futures_util::{Stream, future::BoxFuture};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    aggregation::{Aggregator, FrontProxy},
    api::Api,
    audit::{AuditLog, AuditOptions},
    auth::{Authenticator, KeyError, PublicKey, SigningKey, Tokens, User},
    bootstrap,
    clock::Clock,
    connect::{Connector, Dialer, LoopbackDialer, WebhookConnections, WebhookHandler},
    controllers,
    entropy::Entropy,
    kubeconfig::Kubeconfig,
    limits::RequestLimits,
    listen::{Limits, Listener},
    non_resource::{NonResourceEndpoints, custom::CustomEndpoint},
    observe::{self, ObservedWrite, Observer, StoredObjects},
    options::{ServerOptions, ServiceAccountKeys},
    service::{ApiService, Server},
    snapshot::{self, Snapshot},
    tls::{self, Certificates},
};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or port")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Certificates or keys could not be created.
    #[error("cannot make the server's keys: {0}")]
    Keys(String),
    /// The audit log cannot be written.
    #[error("{0}")]
    Audit(String),
    /// The objects of a new cluster could not be stored.
    #[error("cannot store the first objects of the cluster: {0}")]
    Bootstrap(String),
}

/// Builds an [`ApiServer`]: its address, options, seed and clock.
#[derive(Debug, Default)]
pub struct Builder {
    listen: Option<SocketAddr>,
    seed: Option<u64>,
    start: Option<Timestamp>,
    limits: RequestLimits,
    options: ServerOptions,
    snapshot: Vec<u8>,
    custom_endpoints: Vec<CustomEndpoint>,
    dialer: Option<Arc<dyn Dialer>>,
    components: Components,
    audit: Option<AuditOptions>,
    observer: ObserverOption,
    webhooks: WebhookHandlers,
}

/// Webhooks that handlers in this process answer, by their URL.
#[derive(Default)]
struct WebhookHandlers(HashMap<String, WebhookHandler>);

impl std::fmt::Debug for WebhookHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// An observer of accepted writes, if there is one.
#[derive(Default)]
struct ObserverOption(Option<Observer>);

impl std::fmt::Debug for ObserverOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Observer").field(&self.0.is_some()).finish()
    }
}

impl Builder {
    /// Also serves HTTPS on this address; port 0 selects a free one. Default: no socket.
    #[must_use]
    pub fn listen(self, address: SocketAddr) -> Self {
        Self {
            listen: Some(address),
            ..self
        }
    }

    /// Seeds uids and generated names. Credentials are never seeded: the administrator's token,
    /// certificates and signing keys use the randomness of the operating system.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self {
            seed: Some(seed),
            ..self
        }
    }

    /// Sets the time at the start. Default: that of this machine. The clock advances with
    /// `tokio::time`.
    #[must_use]
    pub fn starting_at(self, start: Timestamp) -> Self {
        Self {
            start: Some(start),
            ..self
        }
    }

    /// Limits the requests that are executed concurrently.
    #[must_use]
    pub fn limits(self, limits: RequestLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the options that are flags of kube-apiserver: certificates, keys, authorization,
    /// admission plugins.
    #[must_use]
    pub fn options(self, options: ServerOptions) -> Self {
        Self { options, ..self }
    }

    /// Starts with the objects of another server: the result of its [`ApiServer::snapshot`].
    #[must_use]
    pub fn restore(self, snapshot: Vec<u8>) -> Self {
        Self { snapshot, ..self }
    }

    /// Connects to kubelets, pods and endpoints of Services through this dialer. Default:
    /// [`LoopbackDialer`], which connects to no other host.
    #[must_use]
    pub fn dialer(self, dialer: impl Dialer) -> Self {
        Self {
            dialer: Some(Arc::new(dialer)),
            ..self
        }
    }

    /// Reports these components as healthy in `componentstatuses`. Default: none, as if they could
    /// not be reached.
    #[must_use]
    pub fn components(self, components: impl IntoIterator<Item = Component>) -> Self {
        Self {
            components: Components(components.into_iter().collect()),
            ..self
        }
    }

    /// Calls a function after each accepted write, of clients and of the server itself, including
    /// the objects of a new cluster. It runs before the response is sent and must not block.
    #[must_use]
    pub fn observe_writes(self, observer: impl Fn(ObservedWrite) + Send + Sync + 'static) -> Self {
        Self {
            observer: ObserverOption(Some(Arc::new(observer))),
            ..self
        }
    }

    /// Handles the webhooks of a URL by a function in this process, without a socket: tests run
    /// under paused time. Webhook configurations and conversions are configured by objects as
    /// usual; their `clientConfig` names the URL, or a Service, whose URL is
    /// `https://NAME.NAMESPACE.svc:PORT/PATH`. The port of a Service is 443 by default.
    ///
    /// The function receives the review that kube-apiserver would send, and may return any
    /// response.
    ///
    /// ```
    /// use bellerophon_apiserver::ApiServer;
    /// use bytes::Bytes;
    /// use serde_json::{Value, json};
    ///
    /// let builder = ApiServer::builder().webhook("https://hook.default.svc:443/check", |request| async move {
    ///     let review: Value = serde_json::from_slice(request.body()).unwrap();
    ///     let response = json!({"uid": review["request"]["uid"], "allowed": true});
    ///     let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    ///     http::Response::new(Bytes::from(review.to_string()))
    /// });
    /// ```
    #[must_use]
    pub fn webhook<F, R>(mut self, url: &str, handler: F) -> Self
    where
        F: Fn(http::Request<Bytes>) -> R + Send + Sync + 'static,
        R: Future<Output = http::Response<Bytes>> + Send + 'static,
    {
        let handler: WebhookHandler = Arc::new(move |request| Box::pin(handler(request)));
        self.webhooks.0.insert(url.to_owned(), handler);
        self
    }

    /// Writes an audit log. Default: none.
    #[must_use]
    pub fn audit(self, options: AuditOptions) -> Self {
        Self {
            audit: Some(options),
            ..self
        }
    }

    /// Adds a non-resource endpoint, for users that may `get` its path. The handler receives the
    /// query of the request, undecoded, and returns a stream of text. Paths of the server cannot be
    /// replaced.
    #[must_use]
    pub fn endpoint<S>(
        mut self,
        path: &'static str,
        endpoint: impl Fn(&str) -> S + Send + Sync + 'static,
    ) -> Self
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        self.custom_endpoints
            .push(CustomEndpoint::new(path, endpoint));
        self
    }

    /// Starts the server. It is ready when this returns.
    ///
    /// # Errors
    /// The address is in use, or keys cannot be created.
    pub async fn start(self) -> Result<ApiServer, StartError> {
        self.start_boxed().await
    }

    /// Boxed: the poll function of an `async fn` is compiled in each crate that awaits it, and this
    /// one contains the whole HTTP server.
    fn start_boxed(self) -> BoxFuture<'static, Result<ApiServer, StartError>> {
        Box::pin(async move {
            let keys = |e: &dyn std::fmt::Display| StartError::Keys(e.to_string());
            let entropy = self.seed.map_or_else(Entropy::from_os, Entropy::seeded);
            let token = tls::admin_token();
            let authenticator = authenticator(&token, &self.options).map_err(|e| keys(&e))?;
            let clock = Clock::starting_at(self.start.unwrap_or_else(wall_clock));
            let is_observed = self.observer.0.is_some();
            let snapshot = Snapshot::read(&self.snapshot)
                .map_err(|e| StartError::Bootstrap(format!("the snapshot is not valid: {e}")))?;
            // An empty etcd has revision 1, so no object of a cluster has a version below 2.
            let store = MemoryStore::starting_at(snapshot.revision.max(1));
            let store = match self.observer.0 {
                Some(observer) => store.observed_by(observe::commit_observer(observer)),
                None => store,
            };
            let mut api = Api::new(
                Arc::new(store),
                clock,
                entropy,
                self.limits,
                self.components,
                controllers::after_write,
            );
            api.authorization = self.options.authorization;
            api.disabled_admission_plugins = self.options.disabled_admission_plugins.clone();
            let mut endpoints = NonResourceEndpoints::with(self.custom_endpoints);
            endpoints.without_aggregated_discovery = !self.options.aggregated_discovery;
            let stop = endpoints.stopping.clone();
            let dialer = self.dialer.unwrap_or_else(|| Arc::new(LoopbackDialer));
            let webhooks = WebhookConnections::new(dialer.clone(), stop.clone(), self.webhooks.0);
            let api = api.shared(Arc::new(webhooks));
            let connector = Connector::new(dialer, stop.clone()).map_err(|e| keys(&e))?;
            let front_proxy = FrontProxy::issue(api.clock.now()).map_err(|e| keys(&e))?;
            let front_proxy_ca = front_proxy.ca_pem().to_owned();
            let audit_stop = CancellationToken::new();
            let audit = match &self.audit {
                None => None,
                Some(options) => {
                    let opened =
                        AuditLog::open(options, api.clock.clone(), audit_stop.clone()).await;
                    Some(opened.map_err(StartError::Audit)?)
                }
            };
            let (audit, audit_task) = audit.unzip();
            let server = Server::new(
                api.clone(),
                authenticator,
                endpoints,
                connector,
                Aggregator::new(front_proxy),
                audit,
            );
            let server = Arc::new(if is_observed {
                server.observed()
            } else {
                server
            });
            let bound = match self.listen {
                None => None,
                Some(address) => {
                    // Pods know the server by the ClusterIP of its Service.
                    let addresses = [address.ip(), bootstrap::SERVER_SERVICE_IP];
                    let certificates =
                        Certificates::issue(&addresses, api.clock.now()).map_err(|e| keys(&e))?;
                    let certificates = certificates
                        .replaced(
                            self.options.serving_certificate.as_ref(),
                            self.options.client_ca_pem.as_deref(),
                        )
                        .map_err(|e| keys(&e))?;
                    let config = certificates.server_config().map_err(|e| keys(&e))?;
                    let refused = |source| StartError::Listen { address, source };
                    let listener = Listener::bind(address, config, Limits::default())
                        .await
                        .map_err(refused)?;
                    let address = listener.local_addr().map_err(refused)?;
                    server.endpoints.reached_at(address);
                    Some((listener, address, certificates))
                }
            };
            let (address, port) = bound
                .as_ref()
                .map_or((Ipv4Addr::LOCALHOST.into(), 443), |(_, a, _)| {
                    (a.ip(), a.port())
                });
            let params = bootstrap::Params {
                client_ca_pem: bound
                    .as_ref()
                    .map_or("", |(_, _, certificates)| &certificates.client_ca_pem),
                front_proxy_ca_pem: &front_proxy_ca,
                address,
                port,
                hostname: "bellerophon",
                now: api.clock.now(),
                entropy: &api.entropy,
            };
            snapshot
                .restore(&api)
                .await
                .map_err(StartError::Bootstrap)?;
            bootstrap::store(&api, bootstrap::objects(&params))
                .await
                .map_err(StartError::Bootstrap)?;
            let socket = bound.map(|(listener, address, certificates)| {
                let task = tokio::spawn(
                    listener.serve(ApiService::new(server.clone(), None), stop.clone()),
                );
                Socket {
                    address,
                    certificates,
                    task,
                }
            });
            let timer = api.flow_control.clone().run_timer(stop.clone());
            let upkeep = controllers::flow_control::run_upkeep(api.clone(), stop.clone());
            let aggregated = server.clone();
            let stopped = stop.clone();
            let aggregation = async move { aggregated.run_aggregation(stopped).await };
            let tasks = vec![
                ("compaction", tokio::spawn(compact(api, stop.clone()))),
                ("flow control timer", tokio::spawn(timer)),
                ("flow control upkeep", tokio::spawn(upkeep)),
                ("aggregation", tokio::spawn(aggregation)),
            ];
            Ok(ApiServer {
                audit: audit_task.map(|task| (audit_stop.drop_guard(), task)),
                server,
                stop,
                socket,
                tasks,
                token,
            })
        })
    }
}

/// The authenticator of requests: the administrator's token, those of the options, and those of
/// service accounts.
fn authenticator(admin_token: &str, options: &ServerOptions) -> Result<Authenticator, KeyError> {
    let ServiceAccountKeys {
        signing_key_pem,
        accepted_keys_pem,
        issuers,
        audiences,
    } = &options.service_accounts;
    let key = match signing_key_pem {
        Some(pem) => SigningKey::from_pem(pem)?,
        None => SigningKey::generate(),
    };
    let mut accepted = Vec::new();
    for pem in accepted_keys_pem {
        accepted.extend(PublicKey::from_pem(pem)?);
    }
    let tokens = Tokens::new(key, accepted, issuers.clone());
    let mut authenticator = Authenticator::new(admin_token, tokens);
    if !audiences.is_empty() {
        authenticator = authenticator.with_audiences(audiences.clone());
    }
    for token in &options.static_tokens {
        let user = User {
            name: token.user.clone(),
            uid: token.uid.clone(),
            groups: token.groups.clone(),
            ..User::default()
        };
        authenticator = authenticator.with_static_token(&token.token, user);
    }
    Ok(match options.anonymous {
        true => authenticator,
        false => authenticator.without_anonymous(),
    })
}

/// The compaction interval: a revision can be read for this long, and at most twice as long.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Compacts history, as the storage of a real cluster does: lists that are read page by page must
/// not pin it forever.
async fn compact(api: Arc<Api>, stop: CancellationToken) {
    let mut seen = api.store.revision();
    while stop
        .run_until_cancelled(tokio::time::sleep(COMPACTION_INTERVAL))
        .await
        .is_some()
    {
        let now = api.store.revision();
        let compacted = std::mem::replace(&mut seen, now);
        api.store.compact(compacted);
        tracing::debug!(revision = compacted, "history compacted");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is set to the wall clock"
)]
fn wall_clock() -> Timestamp {
    Timestamp::now()
}

fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

struct Socket {
    address: SocketAddr,
    certificates: Certificates,
    task: JoinHandle<()>,
}

/// A running Kubernetes API server.
///
/// Many can run in one process; they share nothing. Dropping it stops the sockets;
/// [`ApiServer::shutdown`] also waits for them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let server = bellerophon_apiserver::ApiServer::builder().start().await.unwrap();
/// let service: bellerophon_apiserver::ApiService = server.service();
/// server.shutdown().await;
/// # });
/// ```
pub struct ApiServer {
    server: Arc<Server>,
    stop: CancellationToken,
    socket: Option<Socket>,
    /// Tasks by name that end once `stop` is cancelled; empty after they were joined.
    tasks: Vec<(&'static str, JoinHandle<()>)>,
    /// Ends the audit log after the last request, and the task that writes it.
    audit: Option<(DropGuard, JoinHandle<()>)>,
    token: String,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("url", &self.url())
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    /// The builder of a server.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The server as a tower service, without a socket. Requests without credentials have the user
    /// of the administrator.
    pub fn service(&self) -> ApiService {
        ApiService::new(self.server.clone(), None).as_user(tls::ADMIN, ["system:masters"])
    }

    /// A client of this server as its administrator, without a socket.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let server = bellerophon_apiserver::ApiServer::builder().start().await.unwrap();
    /// let client: kube::Client = server.client();
    /// # });
    /// ```
    #[cfg(feature = "client")]
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.service(), "default")
    }

    /// The URL of HTTPS; loopback for a server that listens on all addresses.
    pub fn url(&self) -> Option<String> {
        self.socket
            .as_ref()
            .map(|s| format!("https://{}", reachable(s.address)))
    }

    /// The CA certificate for clients of the socket, in PEM; `None` without a socket.
    pub fn root_ca(&self) -> Option<&str> {
        self.socket
            .as_ref()
            .map(|socket| socket.certificates.ca_pem.as_str())
    }

    /// A kubeconfig for HTTPS as administrator; `None` without a socket. It contains secrets.
    pub fn kubeconfig(&self) -> Option<String> {
        let socket = self.socket.as_ref()?;
        let url = self.url()?;
        Some(self.config_of(socket, &url).text())
    }

    /// Writes the kubeconfig, readable by its owner only. Does nothing without a socket.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(
        &self,
        path: &Path,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (Some(socket), Some(url)) = (self.socket.as_ref(), self.url()) else {
            return Ok(());
        };
        Ok(self
            .config_of(socket, &url)
            .write(path, &self.server.api.entropy)?)
    }

    fn config_of<'a>(&'a self, socket: &'a Socket, url: &'a str) -> Kubeconfig<'a> {
        Kubeconfig {
            server: url,
            ca_pem: &socket.certificates.ca_pem,
            identity: &socket.certificates.admin,
            token: &self.token,
        }
    }

    /// All objects as bytes, for [`Builder::restore`]. Writes during the call may be missing.
    pub fn snapshot(&self) -> Vec<u8> {
        snapshot::write(&self.server.api)
    }

    /// The objects that are stored, for readers in this process.
    pub fn stored_objects(&self) -> StoredObjects {
        StoredObjects::new(self.server.api.store.clone())
    }

    /// Stops accepting requests, waits for those in flight, and returns when the sockets are
    /// closed.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(socket) = self.socket.take()
            && let Err(error) = socket.task.await
        {
            tracing::error!(%error, "the listener did not stop by itself");
        }
        self.server.connector.closed().await;
        for (name, task) in std::mem::take(&mut self.tasks) {
            if let Err(error) = task.await {
                tracing::error!(name, %error, "a task of the server did not stop by itself");
            }
        }
        if let Some((stop, task)) = self.audit.take() {
            drop(stop);
            if let Err(error) = task.await {
                tracing::error!(%error, "the audit log did not end by itself");
            }
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
