//! Starting, reaching and stopping a server.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, future::BoxFuture};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    aggregation::{Aggregator, FrontProxy},
    api::Api,
    audit::{AuditLog, AuditOptions},
    auth::{Authenticator, Tokens},
    bootstrap,
    connect::{Connector, Dialer, LoopbackDialer},
    controllers,
    entropy::Entropy,
    kinds::{Component, Components},
    kubeconfig::Kubeconfig,
    limits::RequestLimits,
    listen::{Limits, Listener},
    non_resource::{NonResourceEndpoints, custom::CustomEndpoint},
    object::Clock,
    observe::{ObservedStore, ObservedWrite, Observer},
    service::{ApiService, Server},
    store::{MemoryStore, Store},
    tls::{self, Certificates},
};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or port")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Certificates or keys could not be made.
    #[error("cannot make the server's keys: {0}")]
    Keys(String),
    /// The audit log cannot be written.
    #[error("{0}")]
    Audit(String),
    /// The objects of a fresh cluster could not be stored.
    #[error("cannot store the first objects of the cluster: {0}")]
    Bootstrap(String),
}

/// Builds an [`ApiServer`]: what to listen on, and where randomness and the time of day come from.
#[derive(Debug, Default)]
pub struct Builder {
    listen: Option<SocketAddr>,
    seed: Option<u64>,
    start: Option<Timestamp>,
    limits: RequestLimits,
    custom_endpoints: Vec<CustomEndpoint>,
    dialer: Option<Arc<dyn Dialer>>,
    components: Components,
    audit: Option<AuditOptions>,
    observer: ObserverOption,
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
    /// Also serves HTTPS on this address; port 0 takes a free one. Without it no socket is opened.
    #[must_use]
    pub fn listen(self, address: SocketAddr) -> Self {
        Self {
            listen: Some(address),
            ..self
        }
    }

    /// Makes uids and generated names repeatable. Credentials are not: the administrator's token,
    /// certificates and signing keys always come from the operating system's randomness.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self {
            seed: Some(seed),
            ..self
        }
    }

    /// Lets it be that time of day at the start, and not the one of this machine. The clock goes
    /// with tokio's.
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

    /// Reaches kubelets, pods and endpoints of Services through this dialer. Default:
    /// [`LoopbackDialer`], which connects to no other host.
    #[must_use]
    pub fn dialer(self, dialer: impl Dialer) -> Self {
        Self {
            dialer: Some(Arc::new(dialer)),
            ..self
        }
    }

    /// Shows these components as healthy in `componentstatuses`. Default: none, as if they could
    /// not be reached.
    #[must_use]
    pub fn components(self, components: impl IntoIterator<Item = Component>) -> Self {
        Self {
            components: Components(components.into_iter().collect()),
            ..self
        }
    }

    /// Calls a function after each accepted write, of clients and of the server itself, the objects
    /// of a new cluster included. It runs before the request is answered and must not block.
    #[must_use]
    pub fn observe_writes(self, observer: impl Fn(ObservedWrite) + Send + Sync + 'static) -> Self {
        Self {
            observer: ObserverOption(Some(Arc::new(observer))),
            ..self
        }
    }

    /// Writes an audit log. Default: none.
    #[must_use]
    pub fn audit(self, options: AuditOptions) -> Self {
        Self {
            audit: Some(options),
            ..self
        }
    }

    /// Serves a page of one's own at a path that is no resource, to those who may `get` it. The
    /// page is given the query of the request, as it was sent, and answers with pieces of text. A
    /// path that the server has already stays its own.
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

    /// Starts the server. It answers from the moment this returns.
    ///
    /// # Errors
    /// The address is taken, or keys cannot be made.
    pub async fn start(self) -> Result<ApiServer, StartError> {
        self.start_boxed().await
    }

    /// Boxed: the poll function of an `async fn` is compiled in each crate that awaits it, and that
    /// of this one has the whole HTTP server in it.
    fn start_boxed(self) -> BoxFuture<'static, Result<ApiServer, StartError>> {
        Box::pin(async move {
            let keys = |e: &dyn std::fmt::Display| StartError::Keys(e.to_string());
            let entropy = self.seed.map_or_else(Entropy::from_os, Entropy::seeded);
            let token = tls::admin_token();
            let tokens = Tokens::with_key(&Tokens::generate_key()).map_err(|e| keys(&e))?;
            let clock = Clock::starting_at(self.start.unwrap_or_else(wall_clock));
            let is_observed = self.observer.0.is_some();
            let store: Arc<dyn Store> = match self.observer.0 {
                Some(observer) => {
                    Arc::new(ObservedStore::new(Arc::new(MemoryStore::new()), observer))
                }
                None => Arc::new(MemoryStore::new()),
            };
            let api = Arc::new(Api::new(
                store,
                clock,
                entropy,
                self.limits,
                self.components,
                controllers::after_write,
            ));
            let endpoints = NonResourceEndpoints::with(self.custom_endpoints);
            let stop = endpoints.stopping.clone();
            let dialer = self.dialer.unwrap_or_else(|| Arc::new(LoopbackDialer));
            let connector = Connector::new(dialer, stop.clone()).map_err(|e| keys(&e))?;
            let front_proxy = FrontProxy::issue(api.clock.now()).map_err(|e| keys(&e))?;
            let front_proxy_ca = front_proxy.ca_pem().to_owned();
            let audit_stop = CancellationToken::new();
            let audit = match &self.audit {
                None => None,
                Some(options) => {
                    let opened = AuditLog::open(options, audit_stop.clone()).await;
                    Some(opened.map_err(StartError::Audit)?)
                }
            };
            let (audit, audit_task) = audit.unzip();
            let server = Server::new(
                api.clone(),
                Authenticator::new(&token, tokens),
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
                ca_pem: bound
                    .as_ref()
                    .map_or("", |(_, _, certificates)| &certificates.ca_pem),
                front_proxy_ca_pem: &front_proxy_ca,
                address,
                port,
                hostname: "bellerophon",
                now: api.clock.now(),
                entropy: &api.entropy,
            };
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

/// How often history is forgotten up to where it stood the time before: a revision can be read for
/// this long, and at most twice as long.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Forgets history, as the storage of a real cluster does: lists that are read page by page must
/// not pin it for ever.
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
    /// Tasks by name that end once `stop` is cancelled; none when they were waited for.
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
    /// How to start one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The server as a tower service, without a socket. Requests without credentials come from the
    /// administrator.
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

    /// Where HTTPS is served; a server on every address of this machine is reached on loopback.
    pub fn url(&self) -> Option<String> {
        self.socket
            .as_ref()
            .map(|s| format!("https://{}", reachable(s.address)))
    }

    /// The certificate authority that clients of the socket trust, in PEM; `None` without a socket.
    pub fn root_ca(&self) -> Option<&str> {
        self.socket
            .as_ref()
            .map(|socket| socket.certificates.ca_pem.as_str())
    }

    /// A kubeconfig for HTTPS as administrator; `None` without a socket. It holds secrets: keep it
    /// private.
    pub fn kubeconfig(&self) -> Option<String> {
        let socket = self.socket.as_ref()?;
        let url = self.url()?;
        Some(self.config_of(socket, &url).text())
    }

    /// Writes the kubeconfig, readable by its owner only. Does nothing without a socket.
    ///
    /// # Errors
    /// The file cannot be written there.
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

    /// Stops taking requests, lets those under way end, and returns when the sockets are closed.
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
