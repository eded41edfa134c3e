//! One server and two transports: a call in this process, or HTTPS.
//! Guarantees: time moves only through [`Cluster::pass`], even while bytes are sent through
//! a socket.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::mpsc::{SyncSender, sync_channel},
    time::Duration,
};

use bellerophon_apiserver::{ApiServer, Builder};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{task::spawn_blocking, time::Instant};

use super::{answer::Answer, watching::Watching};

/// The transport of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    InProcess,
    Https,
}

/// When a test is blocked for this long on the wall clock, its virtual time is released, so that it
/// fails instead of hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest step of virtual time: timers that depend on each other fire in order.
const STEP: Duration = Duration::from_secs(1);

/// Runs a check against a fresh server in-process, and against another over HTTPS.
pub(crate) fn both_ways(check: impl AsyncFn(&Cluster)) {
    run(Way::InProcess, &check);
    run(Way::Https, &check);
}

/// Runs a check of many requests against a fresh server in-process.
pub(crate) fn in_process(check: impl AsyncFn(&Cluster)) {
    run(Way::InProcess, &check);
}

fn run(way: Way, check: &impl AsyncFn(&Cluster)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let cluster = Cluster::start(way).await;
        check(&cluster).await;
        cluster.server.shutdown().await;
    });
}

/// A running server.
pub(crate) struct Cluster {
    pub(crate) way: Way,
    server: ApiServer,
    client: Client,
    /// Keeps the clock from moving by itself, until it is dropped.
    _held: SyncSender<()>,
}

impl Cluster {
    async fn start(way: Way) -> Self {
        let held = hold_clock();
        let builder = ApiServer::builder().seed(7);
        let builder: Builder = match way {
            Way::InProcess => builder,
            Way::Https => builder.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        };
        let server = builder.start().await.expect("a free port");
        let client = match way {
            Way::InProcess => server.client(),
            Way::Https => https(&server.kubeconfig().expect("it listens")).await,
        };
        Self {
            way,
            server,
            client,
            _held: held,
        }
    }

    /// A new namespace for a row.
    pub(crate) async fn place(&self, namespace: &str) -> Place<'_> {
        let made = self
            .request(
                "POST /api/v1/namespaces",
                &json!({"metadata": {"name": namespace}}),
            )
            .await;
        assert_eq!(made.code, 201, "{}", made.message());
        let place = Place {
            cluster: self,
            namespace: namespace.to_owned(),
        };
        // What a controller would do: pods run as this account.
        place
            .set_up(&[("POST sa", json!({"metadata": {"name": "default"}}))])
            .await;
        place
    }

    /// Sends `METHOD path`. The methods `MERGE`, `JSON` and `STRATEGIC` are patches of that kind,
    /// `TABLE` is a GET of tables.
    pub(crate) async fn request(&self, line: &str, body: &Value) -> Answer {
        let response = self.send(line, body).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("a whole answer").to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer {
            code: head.status.as_u16(),
            headers: head.headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        }
    }

    /// Opens a watch and reads it in the background.
    pub(crate) async fn watch(&self, path: &str) -> Watching {
        Watching::start(self.send(&format!("GET {path}"), &Value::Null).await)
    }

    /// Opens a watch whose events are tables.
    pub(crate) async fn watch_tables(&self, path: &str) -> Watching {
        Watching::start(self.send(&format!("TABLE {path}"), &Value::Null).await)
    }

    async fn send(&self, line: &str, body: &Value) -> Response<Body> {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        let accepted = if method == "TABLE" {
            "application/json;as=Table;v=v1;g=meta.k8s.io"
        } else {
            "application/json"
        };
        let (method, content_type) = match method {
            "TABLE" => ("GET", "application/json"),
            "MERGE" => ("PATCH", "application/merge-patch+json"),
            "JSON" => ("PATCH", "application/json-patch+json"),
            "STRATEGIC" => ("PATCH", "application/strategic-merge-patch+json"),
            method => (method, "application/json"),
        };
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", accepted);
        self.client
            .send(request.body(Body::from(bytes)).expect(line))
            .await
            .expect(line)
    }

    /// Lets virtual time pass, and everything happen that waits for it.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            settle().await;
            let left = end - Instant::now();
            if left.is_zero() {
                return;
            }
            tokio::time::advance(left.min(STEP)).await;
        }
    }

    /// The answer to a request that waits for time to pass, and how much of it passed.
    pub(crate) async fn request_in_time(&self, line: &str, body: &Value) -> (Answer, Duration) {
        let began = Instant::now();
        let mut pending = pin!(self.request(line, body));
        loop {
            tokio::select! {
                biased;
                answer = &mut pending => return (answer, began.elapsed()),
                () = self.pass(Duration::from_millis(100)) => {}
            }
        }
    }
}

/// A runtime with a paused clock moves it whenever nothing but a socket is waited for. It does not
/// while a blocking task runs.
fn hold_clock() -> SyncSender<()> {
    let (held, dropped) = sync_channel::<()>(1);
    // Nothing is ever sent: it ends when the other end is dropped, or at its timeout.
    spawn_blocking(move || dropped.recv_timeout(TIMEOUT).is_ok());
    held
}

/// Lets all tasks run until they wait. Every yield is a look at the sockets, and a message over TLS
/// takes a few.
async fn settle() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

async fn https(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    // Virtual hours pass without a byte.
    (
        config.connect_timeout,
        config.read_timeout,
        config.write_timeout,
    ) = (None, None, None);
    Client::try_from(config).expect("a client")
}

/// A namespace of a server. Paths begin with a short name: `cm/a?limit=1`; those that begin with a
/// slash are taken as they are.
pub(crate) struct Place<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: String,
}

/// Short names of collections.
const COLLECTIONS: &[(&str, &str)] = &[
    ("cm", "/api/v1/namespaces/{ns}/configmaps"),
    ("secret", "/api/v1/namespaces/{ns}/secrets"),
    ("pod", "/api/v1/namespaces/{ns}/pods"),
    ("sa", "/api/v1/namespaces/{ns}/serviceaccounts"),
    ("svc", "/api/v1/namespaces/{ns}/services"),
    ("event", "/api/v1/namespaces/{ns}/events"),
    ("deploy", "/apis/apps/v1/namespaces/{ns}/deployments"),
    ("rs", "/apis/apps/v1/namespaces/{ns}/replicasets"),
    ("job", "/apis/batch/v1/namespaces/{ns}/jobs"),
    (
        "pdb",
        "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
    ),
    (
        "lease",
        "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
    ),
    (
        "role",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    ),
    ("node", "/api/v1/nodes"),
    ("ns", "/api/v1/namespaces"),
    (
        "crd",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ),
    ("widget", "/apis/example.dev/v1/namespaces/{ns}/widgets"),
    ("widget2", "/apis/example.dev/v2/namespaces/{ns}/widgets"),
];

impl Place<'_> {
    /// The path behind a short one.
    pub(crate) fn path(&self, short: &str) -> String {
        let end = short.find(['/', '?']).unwrap_or(short.len());
        let long = COLLECTIONS.iter().find(|(name, _)| *name == &short[..end]);
        let path = long.map_or_else(
            || short.to_owned(),
            |(_, path)| format!("{path}{}", &short[end..]),
        );
        path.replace("{ns}", &self.namespace)
    }

    fn line(&self, line: &str) -> String {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        format!("{method} {}", self.path(path))
    }

    /// Sends a request.
    pub(crate) async fn request(&self, line: &str, body: &Value) -> Answer {
        self.cluster.request(&self.line(line), body).await
    }

    /// Sends a request whose answer may take virtual time.
    pub(crate) async fn request_in_time(&self, line: &str, body: &Value) -> Answer {
        self.cluster.request_in_time(&self.line(line), body).await.0
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &Value::Null).await
    }

    /// Sends requests that must succeed, and gives the resourceVersion after each.
    pub(crate) async fn set_up(&self, steps: &[(&str, Value)]) -> Vec<u64> {
        let mut versions = Vec::new();
        for (line, body) in steps {
            let answer = self.request(line, body).await;
            assert!(
                (200..300).contains(&answer.code),
                "{line}: {}",
                answer.message()
            );
            versions.push(self.now().await);
        }
        versions
    }

    /// The newest revision of the whole server.
    pub(crate) async fn now(&self) -> u64 {
        self.get("ns?limit=1").await.version()
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Watching {
        self.cluster.watch(&self.path(path)).await
    }

    /// Opens a watch whose events are tables.
    pub(crate) async fn watch_tables(&self, path: &str) -> Watching {
        self.cluster.watch_tables(&self.path(path)).await
    }

    /// What happened to a collection after a revision: a watch of one second, to its end.
    pub(crate) async fn events_since(&self, collection: &str, version: u64) -> Vec<Value> {
        let separator = if collection.contains('?') { '&' } else { '?' };
        let watching = self
            .watch(&format!(
                "{collection}{separator}watch=1&resourceVersion={version}&timeoutSeconds=1"
            ))
            .await;
        self.cluster.pass(Duration::from_secs(1)).await;
        watching.all().await
    }
}
