//! The Bellerophon operator with real members, on `bellerophon up --runtime process`.
//!
//! Clients write, read and watch all the time; their history is checked for linearizability and
//! for lost writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bellerophon_linearizability::{History, Options, check};
use bellerophon_store_client::{
    ByteStream, Client as StoreClient, ClientOptions, ClientTls, Dial, Endpoint, ListOptions, Token,
};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::process_nodes::{client, is_ready};
use crate::running::RunningServer;
use crate::store_load::Load;

/// Concurrent clients of the store.
const CLIENTS: u64 = 3;

/// Acknowledged writes between two changes of the store.
const WRITES: u64 = 30;

/// How long one change may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// How often the state is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A cluster with the operator, and the custom resources of one namespace.
struct Stores {
    client: Client,
    heroes: Api<DynamicObject>,
    backups: Api<DynamicObject>,
    _server: RunningServer,
}

impl Stores {
    async fn start() -> Self {
        let server = RunningServer::start(&["--runtime", "process", "--operators", "hero"]);
        let client = client(&server).await;
        let resource = |kind: &str, plural: &str| {
            let kind = GroupVersionKind::gvk("stable.bellerophon.io", "v1beta7", kind);
            ApiResource::from_gvk_with_plural(&kind, plural)
        };
        let heroes = resource("Bellerophon", "heroes");
        let backups = resource("Backup", "backups");
        Self {
            heroes: Api::default_namespaced_with(client.clone(), &heroes),
            backups: Api::default_namespaced_with(client.clone(), &backups),
            client,
            _server: server,
        }
    }

    async fn create(&self, name: &str, replicas: i64, bootstrap: Value) {
        let hero = json!({
            "apiVersion": "stable.bellerophon.io/v1beta7",
            "kind": "Bellerophon",
            "metadata": {"name": name},
            "spec": {
                "winged_horse_name": "pegasus",
                "image": "bellerophon:0.1.0",
                "replicas": replicas,
                "storage": {"size": "64Mi"},
                "bootstrap": bootstrap,
            },
        });
        let hero = serde_json::from_value(hero).expect("a custom resource");
        let created = self.heroes.create(&PostParams::default(), &hero).await;
        created.expect("it is created");
    }

    async fn scale(&self, name: &str, replicas: i64) {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let params = PatchParams::default();
        let patched = self.heroes.patch(name, &params, &patch).await;
        patched.expect("it is scaled");
    }

    /// Waits until an object fulfills the condition.
    async fn wait_for(
        &self,
        objects: &Api<DynamicObject>,
        name: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let object = objects.get(name).await.expect("it exists").data;
            if condition(&object) {
                return object;
            }
            if Instant::now() > deadline {
                panic!("{name} stays at {object:#}\n{}", self.logs().await);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The status and the last lines of every Pod.
    async fn logs(&self) -> String {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let list = pods.list(&ListParams::default()).await;
        let params = LogParams {
            tail_lines: Some(20),
            ..LogParams::default()
        };
        let mut text = String::new();
        for pod in list.expect("a list").items {
            let log = pods.logs(&pod.name_any(), &params).await;
            let status = pod.status.clone().unwrap_or_default();
            text.push_str(&format!("{}: {status:?}\n{log:?}\n", pod.name_any()));
        }
        text
    }

    /// Waits until the store has this number of voters and nothing is in progress.
    async fn wait_until_running(&self, name: &str, voters: u64) -> Value {
        self.wait_for(&self.heroes, name, |hero| {
            let status = &hero["status"];
            status["phase"] == "Running"
                && status["replicas"] == voters
                && status["voters"].as_array().map_or(0, Vec::len) as u64 == voters
        })
        .await
    }

    /// How clients reach the store: through a port-forward to one of its ready Pods.
    async fn options(&self, name: &str) -> ClientOptions {
        let secrets: Api<Secret> = Api::default_namespaced(self.client.clone());
        let secret = secrets.get(&format!("{name}-client")).await;
        let data = secret.expect("the Secret of clients").data;
        let data = data.expect("a Secret with data");
        let token = String::from_utf8(data["token"].0.clone()).expect("a token is text");
        let mut options = ClientOptions::new(vec![Endpoint {
            is_https: true,
            host: "localhost".to_owned(),
            port: 7070,
        }]);
        options.tls = Some(ClientTls::with_ca(&data["ca.crt"].0).expect("a certificate"));
        options.token = Some(Token::new(&token));
        options.dialer = Arc::new(PodDialer {
            pods: Api::default_namespaced(self.client.clone()),
            store: name.to_owned(),
            next: AtomicUsize::new(0),
        });
        options
    }
}

/// Dials the ready Pods of a store in turn.
struct PodDialer {
    pods: Api<Pod>,
    store: String,
    next: AtomicUsize,
}

impl Dial for PodDialer {
    fn dial<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            let list = ListParams::default();
            let pods = self.pods.list(&list).await.map_err(io::Error::other)?;
            let prefix = format!("{}-", self.store);
            let is_member = |pod: &&Pod| {
                pod.name_any().starts_with(&prefix) && is_ready(pod) && !is_ending(pod)
            };
            let members: Vec<&Pod> = pods.items.iter().filter(is_member).collect();
            let turn = self.next.fetch_add(1, Relaxed);
            let member = members
                .get(turn % members.len().max(1))
                .ok_or_else(|| io::Error::other("no Pod is ready"))?;
            let name = member.name_any();
            let forward = self.pods.portforward(&name, &[endpoint.port]).await;
            let mut forward = forward.map_err(io::Error::other)?;
            let stream = forward.take_stream(endpoint.port);
            Ok(Box::new(stream.expect("one stream per port")) as Box<dyn ByteStream>)
        })
    }
}

fn is_ending(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Waits until clients have written again.
async fn wait_for_writes(load: &Load) {
    let expected = load.acknowledged() + WRITES;
    let deadline = Instant::now() + TIMEOUT;
    while load.acknowledged() < expected {
        assert!(Instant::now() < deadline, "no write is acknowledged");
        sleep(POLL_INTERVAL).await;
    }
}

fn assert_linearizable(history: &History) {
    let report = check(history, &Options::default());
    let report = report.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.operations > 0, "{report:?}");
    assert_eq!(report.unchecked_reads, 0, "{report:?}");
}

/// All keys and values.
async fn contents(options: ClientOptions) -> Vec<(String, Vec<u8>)> {
    let client = StoreClient::new(options);
    let mut list = ListOptions::default();
    let mut contents = Vec::new();
    loop {
        let page = client.list(&list).await.expect("the store serves");
        let items = page.items.into_iter();
        contents.extend(items.map(|item| (item.key.as_str().to_owned(), item.value)));
        match page.continue_from {
            Some(start) => list.start = Some(start),
            None => return contents,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_is_scaled_healed_and_restored_under_load() {
    let stores = Stores::start().await;
    stores.create("icarus", 1, Value::Null).await;
    stores.wait_until_running("icarus", 1).await;
    let options = stores.options("icarus").await;
    let load = Load::start(options.clone(), CLIENTS, 1);
    for voters in [3, 5, 3] {
        stores.scale("icarus", voters).await;
        stores.wait_until_running("icarus", voters as u64).await;
        wait_for_writes(&load).await;
    }

    // As a kill -9 of the leader: its Pod is deleted without a grace period.
    let hero = stores.heroes.get("icarus").await.expect("it exists").data;
    let leader = hero["status"]["leader"].as_str().expect("a leader");
    let pods: Api<Pod> = Api::default_namespaced(stores.client.clone());
    let without_grace = DeleteParams::default().grace_period(0);
    let killed = pods.delete(leader, &without_grace).await;
    killed.expect("the Pod is deleted");
    wait_for_writes(&load).await;
    stores.wait_until_running("icarus", 3).await;

    stores.scale("icarus", 1).await;
    stores.wait_until_running("icarus", 1).await;
    wait_for_writes(&load).await;
    assert_linearizable(&load.stop().await);

    let backup = json!({
        "apiVersion": "stable.bellerophon.io/v1beta7",
        "kind": "Backup",
        "metadata": {"name": "first"},
        "spec": {"hero": "icarus"},
    });
    let backup = serde_json::from_value(backup).expect("a custom resource");
    let created = stores.backups.create(&PostParams::default(), &backup).await;
    created.expect("it is created");
    let backup = stores.wait_for(&stores.backups, "first", |backup| {
        let phase = &backup["status"]["phase"];
        assert_ne!(phase, "Failed", "{backup:#}");
        phase == "Completed"
    });
    let backup = backup.await;
    assert_eq!(
        backup["status"]["checksum"].as_str().map(str::len),
        Some(64)
    );

    let restore = json!({"restore": {"backup": "first"}});
    stores.create("daedalus", 3, restore).await;
    let restored = stores.wait_until_running("daedalus", 3).await;
    let original = stores.heroes.get("icarus").await.expect("it exists").data;
    let cluster = |hero: &Value| hero["status"]["clusterId"].as_str().map(str::to_owned);
    assert_ne!(cluster(&restored), cluster(&original));
    let expected = contents(options).await;
    assert!(!expected.is_empty());
    assert_eq!(contents(stores.options("daedalus").await).await, expected);
}
