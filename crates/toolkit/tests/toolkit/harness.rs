//! Shared by the tests: servers, clients with injected faults, Managers, and a log of what
//! happened.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::controller::{Action, Error as ReconcileError, Request};
use bellerophon::informer::{InformerOptions, SharedInformer};
use bellerophon::manager::Manager;
use bellerophon::testing;
use bellerophon_apiserver::ApiServer;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use crate::external;

/// Virtual time after which a condition counts as never fulfilled.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// How long a control plane may take until it serves a new resource.
const SERVED_MAX: Duration = Duration::from_secs(60);

/// The API server of a test.
pub(crate) enum TestServer {
    Embedded(Box<ApiServer>),
    /// Another process, in real time; see [`external`](crate::external).
    External(Client),
}

impl TestServer {
    pub(crate) fn client(&self) -> Client {
        match self {
            Self::Embedded(server) => server.client(),
            Self::External(client) => client.clone(),
        }
    }

    /// Whether an hour takes milliseconds, and a run can be repeated.
    pub(crate) fn has_virtual_time(&self) -> bool {
        matches!(self, Self::Embedded(_))
    }

    /// How long work without a timer may take: no virtual time, but some real time.
    pub(crate) fn time_without_timers(&self) -> Duration {
        match self {
            Self::Embedded(_) => Duration::ZERO,
            Self::External(_) => Duration::from_secs(2),
        }
    }

    /// Asserts that this many seconds have passed; a control plane takes some time besides timers.
    #[track_caller]
    pub(crate) fn assert_elapsed(&self, start: Instant, seconds: u64) {
        let elapsed = Duration::from_secs(start.elapsed().as_secs());
        let expected = Duration::from_secs(seconds);
        let limit = expected + self.time_without_timers();
        assert!((expected..=limit).contains(&elapsed), "{elapsed:?}");
    }

    /// Waits until a collection of a new resource is served. The embedded server serves it with the
    /// response to the creation of its definition.
    pub(crate) async fn wait_until_served(&self, collection: &str) {
        let Self::External(client) = self else {
            return;
        };
        let is_served = async || {
            let request = http::Request::get(collection).body(Vec::new()).unwrap();
            client.request::<serde_json::Value>(request).await.is_ok()
        };
        let served = async {
            while !is_served().await {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let served = timeout(SERVED_MAX, served).await;
        assert!(served.is_ok(), "{collection} is not served");
    }
}

/// An embedded API server, or that of `cargo xtask real`.
pub(crate) async fn server() -> TestServer {
    match external::connect().await {
        Some(client) => TestServer::External(client),
        None => {
            let server = ApiServer::builder().seed(1).start().await.unwrap();
            TestServer::Embedded(Box::new(server))
        }
    }
}

/// A Manager whose run can be repeated.
pub(crate) fn manager(client: &Client) -> Manager {
    Manager::new(client.clone(), testing::options(1))
}

/// A server, its client, the log of a reconciler, a Manager, and its informer of ConfigMaps.
pub(crate) async fn fixture() -> (TestServer, Client, Log, Manager, SharedInformer<ConfigMap>) {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    (server, client, Log::default(), mgr, maps)
}

/// What happens to a request.
pub(crate) enum Fault {
    /// It is sent.
    None,
    /// It is sent after this time.
    Delay(Duration),
    /// It is sent after the write of another client.
    After(BoxFuture<'static, ()>),
    /// It is not sent, and fails.
    Disconnect,
}

/// A client into whose requests faults are injected. The function may also change them.
pub(crate) fn faulty_client(
    server: &TestServer,
    inject: impl Fn(&mut http::Request<Body>) -> Fault + Send + Sync + 'static,
) -> Client {
    let client = server.client();
    let inject = Arc::new(inject);
    let service = service_fn(move |mut request: http::Request<Body>| {
        let client = client.clone();
        let fault = inject(&mut request);
        async move {
            match fault {
                Fault::None => {}
                Fault::Delay(time) => sleep(time).await,
                Fault::After(write) => write.await,
                Fault::Disconnect => {
                    return Err(Box::<dyn Error + Send + Sync>::from("disconnected"));
                }
            }
            Ok(client.send(request).await?)
        }
    });
    Client::new(service, "default")
}

/// Whether a request is a watch.
pub(crate) fn is_watch(request: &http::Request<Body>) -> bool {
    request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"))
}

/// Sets a parameter of a request's query.
pub(crate) fn set_query(request: &mut http::Request<Body>, name: &str, value: &str) {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let others = query
        .split('&')
        .filter(|pair| pair.split('=').next() != Some(name));
    let query = others
        .chain([format!("{name}={value}").as_str()])
        .collect::<Vec<_>>()
        .join("&");
    *request.uri_mut() = format!("{path}?{query}").parse().unwrap();
}

/// What happened, in order. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    changes: watch::Sender<usize>,
}

impl Log {
    pub(crate) fn push(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    /// Waits until a condition of the lines holds.
    pub(crate) async fn wait_for(&self, condition: impl Fn(&[String]) -> bool) {
        let mut changes = self.changes.subscribe();
        let fulfilled = changes.wait_for(|_| condition(&self.lines.lock().unwrap()));
        let fulfilled = timeout(WAIT_MAX, fulfilled).await;
        assert!(fulfilled.is_ok(), "never fulfilled: {:?}", self.all());
    }

    /// Waits until the log has this line.
    pub(crate) async fn line(&self, line: &str) {
        self.wait_for(|lines| lines.iter().any(|found| found == line))
            .await;
    }
}

/// The informer of the ConfigMaps that tests create; the server creates some itself.
pub(crate) fn maps(mgr: &mut Manager) -> SharedInformer<ConfigMap> {
    mgr.informer(InformerOptions::labels("test"))
}

/// A reconciler that logs which objects exist.
pub(crate) async fn log_state(
    log: Arc<Log>,
    req: Request<ConfigMap>,
) -> Result<Action, ReconcileError> {
    log.push(state(&req));
    Ok(Action::await_change())
}

pub(crate) fn config_map(name: &str) -> ConfigMap {
    let map = json!({ "metadata": { "name": name, "labels": { "test": "" } } });
    serde_json::from_value(map).unwrap()
}

/// A Secret in the namespace `default`.
pub(crate) fn secret(name: &str) -> Secret {
    let secret = json!({ "metadata": { "name": name, "namespace": "default" } });
    serde_json::from_value(secret).unwrap()
}

pub(crate) fn api<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), "default")
}

pub(crate) async fn create(client: &Client, name: &str) -> ConfigMap {
    let created = api::<ConfigMap>(client)
        .create(&PostParams::default(), &config_map(name))
        .await
        .unwrap();
    assert_eq!(created.name_any(), name);
    created
}

pub(crate) async fn set_data(client: &Client, name: &str, key: &str, value: &str) -> ConfigMap {
    let patch = Patch::Merge(json!({ "data": { key: value } }));
    let maps = api::<ConfigMap>(client);
    let patched = maps.patch(name, &PatchParams::default(), &patch).await;
    patched.unwrap()
}

pub(crate) async fn delete(client: &Client, name: &str) {
    let maps = api::<ConfigMap>(client);
    maps.delete(name, &Default::default()).await.unwrap();
}

pub(crate) async fn create_namespace(client: &Client, name: &str, labels: serde_json::Value) {
    let namespace = json!({ "metadata": { "name": name, "labels": labels } });
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
}

/// Creates the namespaces `m` (red), `n` (blue) and `o` (red), each with a ConfigMap.
pub(crate) async fn three_namespaces(client: &Client) {
    for (namespace, team) in [("m", "red"), ("n", "blue"), ("o", "red")] {
        create_namespace(client, namespace, json!({ "team": team })).await;
        let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let created = maps.create(&PostParams::default(), &config_map("a")).await;
        created.unwrap();
    }
}

pub(crate) async fn set_team(client: &Client, namespace: &str, team: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "team": team } } }));
    let namespaces = Api::<Namespace>::all(client.clone());
    let patched = namespaces
        .patch(namespace, &PatchParams::default(), &patch)
        .await;
    patched.unwrap();
}

/// Waits until the cache has the ConfigMaps of exactly these namespaces.
pub(crate) async fn found_in(maps: &SharedInformer<ConfigMap>, expected: &[&str]) {
    let lister = maps.lister();
    for namespace in ["m", "n", "o"] {
        let key = ObjectKey::namespaced(namespace, "a");
        let exists = expected.contains(&namespace);
        lister
            .await_condition(&key, |map| map.is_some() == exists)
            .await;
    }
    let objects = lister.list();
    let found: Vec<_> = objects.iter().filter_map(|map| map.namespace()).collect();
    assert_eq!(found, expected);
}

/// The name of the object, and whether it exists: `icarus exists`, `icarus deleted`.
pub(crate) fn state<K>(req: &Request<K>) -> String {
    let state = match req.object() {
        Some(_) => "exists",
        None => "deleted",
    };
    format!("{} {state}", req.key().name())
}

/// Lets everything happen that needs at most two seconds of virtual time.
pub(crate) async fn settle() {
    sleep(Duration::from_secs(2)).await;
}

/// Runs a Manager; the test begins once it is ready.
pub(crate) async fn run(mgr: Manager, test: impl Future<Output = ()>) {
    let mut running = mgr.start();
    running.ready().await.unwrap();
    test.await;
    running.stop().await.unwrap();
}

/// Whether the metrics have this line.
#[track_caller]
pub(crate) fn assert_line(text: &str, line: &str) {
    assert!(
        text.lines().any(|found| found == line),
        "no line {line} in\n{text}"
    );
}

/// The sum of all samples of a metric whose labels contain this text.
pub(crate) fn sample(text: &str, metric: &str, labels: &str) -> f64 {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let (name, found) = name.split_once('{')?;
            (name == metric && found.contains(labels)).then(|| value.parse::<f64>().unwrap())
        })
        .sum()
}
