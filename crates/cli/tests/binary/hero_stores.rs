//! Stores of the Bellerophon operator with real members, on `bellerophon up --runtime process`.

use std::io;
use std::pin::pin;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bellerophon_store_client::{ByteStream, ClientOptions, ClientTls, Dial, Endpoint, Token};
use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::process_nodes::is_ready;
use crate::running::{RunningServer, command};
use crate::store_load::Load;

/// Acknowledged writes between two changes of the store.
const WRITES: u64 = 30;

/// How long one change may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// How often the state is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A cluster with the operator, and the custom resources of one namespace.
pub(crate) struct Stores {
    pub(crate) client: Client,
    pub(crate) heroes: Api<DynamicObject>,
    pub(crate) backups: Api<DynamicObject>,
    pub(crate) server: RunningServer,
}

impl Stores {
    /// Starts a cluster with the operator.
    pub(crate) async fn start() -> Self {
        Self::start_with(&["--operators", "hero"]).await
    }

    /// Starts a cluster with the kinds of the operator, and without the operator.
    pub(crate) async fn start_without_operator(options: &[&str]) -> Self {
        let mut all = vec!["--operators", "none"];
        all.extend(options);
        let stores = Self::start_with(&all).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(stores.client.clone());
        for definition in definitions_of_the_operator(&stores.server) {
            let created = definitions
                .create(&PostParams::default(), &definition)
                .await;
            created.expect("it is created");
        }
        stores
    }

    async fn start_with(options: &[&str]) -> Self {
        let mut all = vec!["--runtime", "process"];
        all.extend(options);
        let server = RunningServer::start(&all);
        let client = server.client().await;
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
            server,
        }
    }

    pub(crate) async fn create(&self, name: &str, replicas: i64, bootstrap: Value) {
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

    pub(crate) async fn scale(&self, name: &str, replicas: i64) {
        self.patch(name, json!({"replicas": replicas})).await;
    }

    /// Changes the spec of a store.
    pub(crate) async fn patch(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        let patched = self.heroes.patch(name, &params, &patch).await;
        patched.expect("it is changed");
    }

    /// Waits until an object fulfills the condition.
    pub(crate) async fn wait_for(
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
    pub(crate) async fn wait_until_running(&self, name: &str, voters: u64) -> Value {
        self.wait_for(&self.heroes, name, |hero| {
            let status = &hero["status"];
            status["phase"] == "Running"
                && status["replicas"] == voters
                && status["voters"].as_array().map_or(0, Vec::len) as u64 == voters
        })
        .await
    }

    /// How clients reach the store: through a port-forward to one of its ready Pods.
    pub(crate) async fn options(&self, name: &str) -> ClientOptions {
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
pub(crate) async fn wait_for_writes(load: &Load) {
    let expected = load.acknowledged() + WRITES;
    let deadline = Instant::now() + TIMEOUT;
    while load.acknowledged() < expected {
        assert!(Instant::now() < deadline, "no write is acknowledged");
        sleep(POLL_INTERVAL).await;
    }
}

fn definitions_of_the_operator(server: &RunningServer) -> Vec<CustomResourceDefinition> {
    let output = command(&server.directory)
        .args(["manifests", "hero", "--crds-only"])
        .output()
        .expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("text");
    serde_saphyr::from_multiple(&text).expect("definitions")
}

/// Changes of a store after which its operator is killed, in turn: after one, and in the middle of
/// several.
const KILLED_AFTER_CHANGES: [usize; 3] = [1, 3, 2];

/// The longest watch that kube-rs requests.
const WATCH_SECONDS: u32 = 294;

/// An operator that is killed with SIGKILL when stores have changed, and started again, until this
/// is stopped.
pub(crate) struct KilledOperator {
    kills: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl KilledOperator {
    pub(crate) fn start(stores: &Stores) -> Self {
        let mut run = command(&stores.server.directory);
        run.args(["run", "hero", "--kubeconfig", stores.server.kubeconfig()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let kills = Arc::new(AtomicUsize::new(0));
        let counted = kills.clone();
        let heroes = stores.heroes.clone();
        let task = tokio::spawn(async move {
            let params = WatchParams::default().timeout(WATCH_SECONDS);
            let changes = heroes.watch(&params, "0").await.expect("a watch");
            let mut changes = pin!(changes.try_filter(|event| {
                std::future::ready(matches!(event, WatchEvent::Modified(_)))
            }));
            for count in KILLED_AFTER_CHANGES.into_iter().cycle() {
                let operator = Killed(run.spawn().expect("the binary starts"));
                for _ in 0..count {
                    let change = changes.try_next().await.expect("a watch");
                    change.expect("the watch lasts longer than the test");
                }
                drop(operator);
                counted.fetch_add(1, Relaxed);
            }
        });
        Self { kills, task }
    }

    /// Kills the operator for the last time. Returns how often it was killed before.
    pub(crate) async fn stop(self) -> usize {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
        self.kills.load(Relaxed)
    }
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
