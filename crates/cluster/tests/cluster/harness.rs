//! A server, a cluster, and conditions to wait for.
//! Holds: nothing polls; a condition is looked at when a watch tells of a change, and fails the test when an hour of
//! cluster life passes without it.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use bellerophon::{ObjectKey, WallClock};
use bellerophon_apiserver::ApiServer;
use bellerophon_cluster::{Cluster, Level};
use futures_util::{StreamExt as _, pin_mut};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, Patch, PatchParams, WatchEvent, WatchParams},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

/// How much cluster life a condition may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A server and the cluster on it.
pub(crate) struct World {
    /// The time of day in the cluster.
    pub(crate) clock: WallClock,
    server: ApiServer,
    pub(crate) client: Client,
    /// `None` while it is paused.
    cluster: Option<Cluster>,
    level: Level,
    nodes: usize,
}

/// What clients of the server trust, as far as these tests are concerned.
pub(crate) const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";

impl World {
    /// A cluster without workloads and nodes, ready.
    pub(crate) async fn core() -> Self {
        Self::start(Level::Core, 0).await
    }

    /// A whole cluster with so many nodes, ready.
    pub(crate) async fn full(nodes: usize) -> Self {
        Self::start(Level::Full, nodes).await
    }

    async fn start(level: Level, nodes: usize) -> Self {
        let server = ApiServer::builder().seed(7).start().await.expect("the server starts");
        let client = server.client();
        let mut world = Self { clock: WallClock::system(), server, client, cluster: None, level, nodes };
        world.resume().await;
        world
    }

    /// The running cluster.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("it is not paused")
    }

    /// Stops every loop and starts them again, as after a crash of the control plane.
    pub(crate) async fn restart(&mut self) {
        self.pause().await;
        self.resume().await;
    }

    /// Stops every loop; the server goes on.
    pub(crate) async fn pause(&mut self) {
        self.cluster.take().expect("it runs").stop().await.expect("the loops end");
    }

    /// Starts the loops of a paused cluster, and waits until they are ready.
    pub(crate) async fn resume(&mut self) {
        let builder = Cluster::builder(self.client.clone()).level(self.level).nodes(self.nodes).root_ca(ROOT_CA).seed(7).clock(self.clock);
        let cluster = self.cluster.insert(builder.start());
        cluster.ready().await.expect("the cluster gets ready");
    }

    /// Stops everything in order.
    pub(crate) async fn stop(mut self) {
        self.pause().await;
        self.server.shutdown().await;
    }

    /// Applies an object of any kind on the server's side, in `default` unless it says otherwise.
    pub(crate) async fn apply(&self, object: Value) -> DynamicObject {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let api = self.api_of(&object).await;
        let params = PatchParams::apply("test").force();
        api.patch(&name, &params, &Patch::Apply(&object)).await.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"))
    }

    /// Deletes an object that is named as for [`World::apply`].
    pub(crate) async fn delete(&self, object: Value) {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let api = self.api_of(&object).await;
        api.delete(&name, &Default::default()).await.unwrap_or_else(|error| panic!("cannot delete {object}: {error}"));
    }

    async fn api_of(&self, object: &Value) -> Api<DynamicObject> {
        let text = |field: &str| object[field].as_str().unwrap_or_else(|| panic!("{field} of {object}")).to_owned();
        let api_version = text("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, version, &text("kind"));
        let (resource, capabilities) = pinned_kind(&self.client, &kind).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// The objects of a kind in a namespace.
    pub(crate) fn within<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The objects of a kind everywhere.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Lets virtual time pass, and everything happen that waits for it.
    pub(crate) async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Waits until the objects of an API are as wanted, and returns them in the order of their keys.
pub(crate) async fn until<K>(api: &Api<K>, wanted: &str, so: impl Fn(&[K]) -> bool) -> Vec<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut seen: BTreeMap<ObjectKey, K> = BTreeMap::new();
    let waiting = async {
        loop {
            let listed = api.list(&Default::default()).await.expect("a list");
            let version = listed.metadata.resource_version.unwrap_or_default();
            seen = listed.items.into_iter().map(|object| (ObjectKey::of(&object), object)).collect();
            if so(&seen.values().cloned().collect::<Vec<_>>()) {
                return;
            }
            let events = api.watch(&WatchParams::default(), &version).await.expect("a watch");
            pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => seen.insert(ObjectKey::of(&object), object),
                    WatchEvent::Deleted(object) => seen.remove(&ObjectKey::of(&object)),
                    WatchEvent::Bookmark(_) => continue,
                    // Too old: list again.
                    WatchEvent::Error(_) => break,
                };
                if so(&seen.values().cloned().collect::<Vec<_>>()) {
                    return;
                }
            }
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "{wanted}: not within an hour; there is {:#?}", seen.values().collect::<Vec<_>>());
    seen.into_values().collect()
}
