//! A server and a cluster.
//! Holds: everything random comes from one seed, and every world begins at the same time of day, so a failing test fails again.

use std::time::Duration;

use bellerophon::WallClock;
use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::{Cluster, Level};
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde_json::Value;

/// The seed of every world.
const SEED: u64 = 7;

/// The time of day at which every world begins: noon of the first day of 2026, as seconds since 1970.
const BEGINNING: i64 = 1_767_268_800;

/// What clients of a world's server trust, as far as tests are concerned: every namespace has it in `kube-root-ca.crt`.
pub const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";

/// An embedded API server, and the cluster on it.
pub struct World {
    /// The administrator's client.
    pub client: Client,
    /// The time of day in the cluster.
    pub clock: WallClock,
    server: ApiServer,
    /// How much of a cluster there is; `None` in a bare world.
    extent: Option<(Level, usize)>,
    /// `None` in a bare world, and while the loops are paused.
    cluster: Option<Cluster>,
}

impl World {
    /// The bare API server: nothing happens that no client asked for.
    ///
    /// # Panics
    /// The server does not start.
    pub async fn bare() -> Self {
        let beginning = Timestamp::from_second(BEGINNING).expect("a time in range");
        let clock = WallClock::starting_at(beginning);
        let server = ApiServer::builder()
            .seed(SEED)
            .starting_at(beginning)
            .start()
            .await
            .expect("the server starts");
        Self {
            client: server.client(),
            clock,
            server,
            extent: None,
            cluster: None,
        }
    }

    /// A cluster with so many nodes, ready.
    ///
    /// # Panics
    /// It does not get ready.
    pub async fn with_nodes(nodes: usize) -> Self {
        Self::bare().await.with_cluster(Level::Full, nodes).await
    }

    /// A cluster without workloads and nodes, ready.
    ///
    /// # Panics
    /// It does not get ready.
    pub async fn core() -> Self {
        Self::bare().await.with_cluster(Level::Core, 0).await
    }

    async fn with_cluster(mut self, level: Level, nodes: usize) -> Self {
        self.extent = Some((level, nodes));
        self.resume().await;
        self
    }

    /// The running cluster.
    ///
    /// # Panics
    /// There is none, or it is paused.
    pub fn cluster(&self) -> &Cluster {
        self.cluster
            .as_ref()
            .expect("this world has a cluster that runs")
    }

    /// Stops every loop of the cluster in order and starts them again, as an upgrade of the control plane does.
    ///
    /// # Panics
    /// As [`pause`](Self::pause) and [`resume`](Self::resume).
    pub async fn restart(&mut self) {
        self.pause().await;
        self.resume().await;
    }

    /// Stops every loop of the cluster; the server goes on.
    ///
    /// # Panics
    /// No cluster runs, or a loop failed.
    pub async fn pause(&mut self) {
        self.cluster
            .take()
            .expect("this world has a cluster that runs")
            .stop()
            .await
            .expect("the loops end");
    }

    /// Ends every loop of the cluster at once, wherever it is, as a power cut does; the server goes on.
    ///
    /// # Panics
    /// No cluster runs.
    pub fn crash(&mut self) {
        drop(
            self.cluster
                .take()
                .expect("this world has a cluster that runs"),
        );
    }

    /// Starts the loops of a cluster that was paused or crashed, and waits until they are ready.
    ///
    /// # Panics
    /// The world is a bare one, or the cluster does not get ready.
    pub async fn resume(&mut self) {
        let (level, nodes) = self.extent.expect("this world has a cluster");
        let builder = Cluster::builder(self.client.clone())
            .level(level)
            .nodes(nodes)
            .root_ca(ROOT_CA)
            .seed(SEED)
            .clock(self.clock);
        self.cluster
            .insert(builder.start())
            .ready()
            .await
            .expect("the cluster gets ready");
    }

    /// Stops everything in order.
    ///
    /// # Panics
    /// A loop of the cluster failed.
    pub async fn stop(self) {
        if let Some(cluster) = self.cluster {
            cluster.stop().await.expect("the loops end");
        }
        self.server.shutdown().await;
    }

    /// Makes kinds known.
    ///
    /// # Panics
    /// The server refuses.
    pub async fn define(&self, definitions: impl IntoIterator<Item = CustomResourceDefinition>) {
        for definition in definitions {
            let made = self
                .all::<CustomResourceDefinition>()
                .create(&Default::default(), &definition)
                .await;
            made.unwrap_or_else(|error| panic!("cannot define {}: {error}", definition.name_any()));
        }
    }

    /// Applies an object of any kind on the server's side, in `default` unless it says otherwise.
    ///
    /// # Panics
    /// The server refuses.
    pub async fn apply(&self, object: Value) -> DynamicObject {
        let name = object["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        let params = PatchParams::apply("test").force();
        let applied = self
            .api_of(&object)
            .await
            .patch(&name, &params, &Patch::Apply(&object))
            .await;
        applied.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"))
    }

    /// Deletes an object that is named as for [`World::apply`].
    ///
    /// # Panics
    /// The server refuses.
    pub async fn delete(&self, object: Value) {
        let name = object["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        let deleted = self
            .api_of(&object)
            .await
            .delete(&name, &Default::default())
            .await;
        deleted.unwrap_or_else(|error| panic!("cannot delete {object}: {error}"));
    }

    async fn api_of(&self, object: &Value) -> Api<DynamicObject> {
        let text = |field: &str| {
            object[field]
                .as_str()
                .unwrap_or_else(|| panic!("{field} of {object}"))
                .to_owned()
        };
        let api_version = text("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, version, &text("kind"));
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

    /// The objects of a kind in a namespace.
    pub fn within<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The objects of a kind everywhere.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Lets virtual time pass, and everything happen that waits for it.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
