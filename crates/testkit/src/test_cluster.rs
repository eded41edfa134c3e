//! An API server, the built-in controllers, simulated nodes and a clock.
//!
//! Guarantee: all randomness comes from one seed, and every test cluster starts at the same wall
//! clock time, so that a failing test is repeatable.
//!
//! Futures are boxed: the poll function of an `async fn` is compiled in each crate that awaits it,
//! and these have a client, a server and controllers in them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellerophon::{client::ReconcileClient, clock::Clock};
use bellerophon_apiserver::{ApiServer, ApiService, Builder, InProcessDialer};
use bellerophon_cluster::{Cluster, Identity, Kubelets, Level, rbac_objects};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, Patch, PatchParams},
    client::Body,
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde_json::Value;
use tower::{BoxError, service_fn};

use crate::external::{External, advanced_time};

/// The seed of every test cluster.
const SEED: u64 = 7;

/// The wall clock time at which every test cluster starts, in seconds since the Unix epoch:
/// 2026-01-01T12:00:00Z.
const START_TIME: i64 = 1_767_268_800;

/// A placeholder for the CA certificate of the API server. Every namespace of a test cluster has it
/// in the ConfigMap `kube-root-ca.crt`.
pub const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";

/// An embedded API server, optionally with the built-in controllers and simulated nodes.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use bellerophon_testkit::{TestCluster, wait_until};
/// use k8s_openapi::api::core::v1::Pod;
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::with_nodes(2).await;
/// let pod = json!({
///     "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
///     "spec": {"containers": [{"name": "web", "image": "nginx"}]},
/// });
/// cluster.apply(pod.clone()).await;
/// let pods = cluster.namespaced::<Pod>("default");
/// wait_until(&pods, "the pod runs", |pods| {
///     let status = pods.first().and_then(|pod| pod.status.as_ref());
///     status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
/// })
/// .await;
/// cluster.advance(Duration::from_secs(3600)).await;
/// cluster.delete(pod).await;
/// cluster.stop().await;
/// # }
/// ```
pub struct TestCluster {
    /// The administrator's client.
    pub client: Client,
    /// The wall clock of the cluster.
    pub clock: Clock,
    server: Server,
    /// Requests of built-in controllers that the server refused for lack of permissions.
    forbidden: Arc<Mutex<Vec<String>>>,
    /// Which controllers run and the number of nodes; `None` for an API server without controllers.
    size: Option<(Level, usize)>,
    /// `None` while no controllers run.
    cluster: Option<Cluster>,
}

/// Where the API server runs.
enum Server {
    Embedded {
        server: Box<ApiServer>,
        /// How the server reaches the kubelets of the nodes.
        kubelets: Kubelets,
    },
    /// In another process, with its own controllers and scheduler.
    External(External),
}

impl TestCluster {
    /// An API server without controllers: objects change only by the requests of clients.
    ///
    /// # Panics
    /// The server does not start.
    pub fn api_server_only() -> BoxFuture<'static, Self> {
        Self::with_server(ApiServer::builder())
    }

    /// As [`api_server_only`](Self::api_server_only), with settings of the server.
    pub(crate) fn with_server(builder: Builder) -> BoxFuture<'static, Self> {
        Box::pin(async move {
            if let Some(external) = External::connect().await {
                return Self {
                    client: external.client.clone(),
                    clock: Clock::system(),
                    server: Server::External(external),
                    forbidden: Arc::default(),
                    size: None,
                    cluster: None,
                };
            }
            let start = Timestamp::from_second(START_TIME).expect("the start time is in range");
            // Server and controllers share the start time, so that timestamps of both are comparable.
            let clock = Clock::starting_at(start);
            let kubelets = Kubelets::default();
            let dialed = kubelets.clone();
            let server = builder
                .seed(SEED)
                .starting_at(start)
                .dialer(InProcessDialer::new(move |address| dialed.connect(address)))
                .start()
                .await
                .expect("the server starts");
            Self {
                client: server.client(),
                clock,
                server: Server::Embedded {
                    server: Box::new(server),
                    kubelets,
                },
                forbidden: Arc::default(),
                size: None,
                cluster: None,
            }
        })
    }

    /// A whole cluster, ready: API server, all built-in controllers, and one simulated node.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start() -> Self {
        Self::with_nodes(1).await
    }

    /// A cluster with all built-in controllers and simulated nodes, ready.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn with_nodes(nodes: usize) -> Self {
        Self::with_controllers(Level::Full, nodes).await
    }

    /// A cluster with the core controllers, without workloads and nodes, ready.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn with_core_controllers() -> Self {
        Self::with_controllers(Level::Core, 0).await
    }

    fn with_controllers(level: Level, nodes: usize) -> BoxFuture<'static, Self> {
        Box::pin(async move {
            let mut cluster = Self::api_server_only().await;
            cluster.size = Some((level, nodes));
            cluster.start_controllers().await;
            cluster
        })
    }

    /// Whether an hour takes milliseconds: the API server is embedded. On a control plane of
    /// `BELLEROPHON_TEST_KUBECONFIG`, time is real, and [`advance`](Self::advance) is limited.
    pub fn has_virtual_time(&self) -> bool {
        matches!(self.server, Server::Embedded { .. })
    }

    /// The running controllers and nodes.
    ///
    /// # Panics
    /// No controllers run.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("the controllers run")
    }

    /// Stops the controllers gracefully and starts them again, as an upgrade of the control plane
    /// does.
    ///
    /// # Panics
    /// As [`stop_controllers`](Self::stop_controllers) and
    /// [`start_controllers`](Self::start_controllers).
    pub async fn restart_controllers(&mut self) {
        self.stop_controllers().await;
        self.start_controllers().await;
    }

    /// Stops the controllers and nodes gracefully; the API server keeps running.
    ///
    /// # Panics
    /// No controllers run, or one of them failed.
    pub async fn stop_controllers(&mut self) {
        let cluster = self.cluster.take().expect("the controllers run");
        cluster.stop().await.expect("the controllers stop");
    }

    /// Aborts the controllers and nodes wherever they are, as a power failure does; the API server
    /// keeps running.
    ///
    /// # Panics
    /// No controllers run.
    pub fn crash_controllers(&mut self) {
        drop(self.cluster.take().expect("the controllers run"));
    }

    /// Starts the controllers and nodes after they were stopped or crashed, and waits until they
    /// are ready.
    ///
    /// # Panics
    /// The test cluster is an API server only, or the controllers do not become ready.
    pub fn start_controllers(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (level, nodes) = self.size.expect("the test cluster has controllers");
            let builder = Cluster::builder(self.client.clone())
                .nodes(nodes)
                .root_ca(ROOT_CA)
                .seed(SEED)
                .clock(self.clock);
            let builder = match &self.server {
                // Its controllers run already, but no provisioner of volumes.
                Server::External(external) => {
                    if level == Level::Full {
                        external.create_volumes().await;
                    }
                    builder.level(Level::Nodes)
                }
                Server::Embedded { server, kubelets } => {
                    for object in rbac_objects() {
                        self.apply(object).await;
                    }
                    let service = server.service();
                    let forbidden = self.forbidden.clone();
                    builder
                        .client_for(move |identity| client_of(&service, identity, &forbidden))
                        .level(level)
                        .kubelets(kubelets.clone())
                }
            };
            self.cluster
                .insert(builder.start())
                .ready()
                .await
                .expect("the controllers become ready");
        })
    }

    /// Stops controllers, nodes and API server gracefully.
    ///
    /// # Panics
    /// A controller failed, or sent a request that its permissions do not allow.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(cluster) = self.cluster {
                cluster.stop().await.expect("the controllers stop");
            }
            if let Server::Embedded { server, .. } = self.server {
                server.shutdown().await;
            }
            let forbidden = self
                .forbidden
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            assert_eq!(
                *forbidden, [""; 0],
                "controllers act within their permissions"
            );
        })
    }

    /// Creates CustomResourceDefinitions.
    ///
    /// # Panics
    /// The server refuses one.
    pub fn install_crds(
        &self,
        crds: impl IntoIterator<Item = CustomResourceDefinition>,
    ) -> BoxFuture<'_, ()> {
        self.create_crds(crds.into_iter().collect())
    }

    fn create_crds(&self, crds: Vec<CustomResourceDefinition>) -> BoxFuture<'_, ()> {
        let client = ReconcileClient::new(self.client.clone(), "test");
        Box::pin(async move {
            for crd in crds {
                match &self.server {
                    Server::Embedded { .. } => {
                        client.create(&crd).await.expect("the server accepts it");
                    }
                    // It may have the CRD from an earlier test, and serves a new one later.
                    Server::External(external) => {
                        client.apply(&crd).await.expect("the server accepts it");
                        for version in crd.spec.versions.iter().filter(|version| version.served) {
                            let group = &crd.spec.group;
                            let plural = &crd.spec.names.plural;
                            let path = format!("/apis/{group}/{}/{plural}", version.name);
                            external.wait_until_served(&path).await;
                        }
                    }
                }
            }
        })
    }

    /// Applies an object of any kind by server-side apply. Default namespace: `default`.
    ///
    /// # Panics
    /// The server refuses it.
    pub fn apply(&self, object: Value) -> BoxFuture<'_, DynamicObject> {
        Box::pin(async move {
            let name = name_of(&object);
            // A test is the authority on what it applies, also over fields that an operator has set.
            let params = PatchParams::apply("test").force();
            self.api_of(&object)
                .await
                .patch(name, &params, &Patch::Apply(&object))
                .await
                .unwrap_or_else(|error| panic!("cannot apply {object}: {error}"))
        })
    }

    /// Deletes the object with the kind, namespace and name of this one. Default namespace:
    /// `default`.
    ///
    /// # Panics
    /// The server refuses.
    pub fn delete(&self, object: Value) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.api_of(&object)
                .await
                .delete(name_of(&object), &Default::default())
                .await
                .unwrap_or_else(|error| panic!("cannot delete {object}: {error}"));
        })
    }

    /// The API of an object's kind, in the namespace of the object.
    async fn api_of(&self, object: &Value) -> Api<DynamicObject> {
        let field = |name: &str| {
            object[name]
                .as_str()
                .unwrap_or_else(|| panic!("no {name} in {object}"))
        };
        let api_version = field("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = GroupVersionKind::gvk(group, version, field("kind"));
        let (resource, capabilities) = pinned_kind(&self.client, &kind)
            .await
            .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let namespace = object["metadata"]["namespace"]
            .as_str()
            .unwrap_or("default");
        match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// The administrator's API of a kind in one namespace.
    pub fn namespaced<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The administrator's API of a kind in all namespaces, or of a cluster-scoped kind.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Advances virtual time. Everything that is due in this time happens. In real time it waits 3
    /// seconds at most.
    pub async fn advance(&self, time: Duration) {
        // With paused time a sleep advances the clock timer by timer, so everything due in between
        // runs in its order. `tokio::time::advance` would jump over them.
        tokio::time::sleep(advanced_time(time)).await;
    }

    /// A client without credentials: requests have those of their own headers.
    pub(crate) fn client_without_credentials(&self) -> Client {
        match &self.server {
            // It has no certificate of a client to prefer.
            Server::Embedded { .. } => self.client.clone(),
            Server::External(external) => external.anonymous.clone(),
        }
    }
}

/// The client of a built-in controller. Requests that are forbidden by RBAC are recorded; those that
/// admission forbids are part of a controller's life.
fn client_of(
    service: &ApiService,
    identity: &Identity,
    forbidden: &Arc<Mutex<Vec<String>>>,
) -> Client {
    let groups = identity.groups.iter().map(String::as_str);
    let client = Client::new(service.as_user(&identity.user, groups), "default");
    let user = identity.user.clone();
    let forbidden = forbidden.clone();
    let handler = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let what = format!("{user}: {} {}", request.method(), request.uri());
        let forbidden = forbidden.clone();
        async move {
            let response = client.send(request).await?;
            if response.status() != StatusCode::FORBIDDEN {
                return Ok::<_, BoxError>(response);
            }
            let (head, body) = response.into_parts();
            let body = body.collect_bytes().await?;
            let message = String::from_utf8_lossy(&body);
            if message.contains(" cannot ") {
                let mut forbidden = forbidden.lock().unwrap_or_else(PoisonError::into_inner);
                forbidden.push(format!("{what}: {message}"));
            }
            Ok(Response::from_parts(head, Body::from(body.to_vec())))
        }
    });
    Client::new(handler, "default")
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_else(|| panic!("no metadata.name in {object}"))
}
