//! Clients of an API server that dials kubelets, whose containers are local processes.

use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon_apiserver::{ApiServer, InProcessDialer};
use bellerophon_testkit::wait_until;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{AsyncBufReadExt, FutureExt, SinkExt, StreamExt, TryStreamExt, stream};
use http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, LogParams, PostParams, TerminalSize};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;
use crate::Cluster;

/// No test waits longer for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The port of every pod that sends back what it receives.
const ECHO: u16 = 7;

/// The port of every pod on which nothing listens.
const REFUSED: u16 = 8;

/// Containers whose commands are local processes.
struct LocalProcesses {
    /// The next log, and the options of the last request.
    log: Mutex<Option<mpsc::Receiver<&'static str>>>,
    options: Mutex<Option<LogOptions>>,
    /// Closed when the process of the next command is dropped.
    dropped: Mutex<Option<oneshot::Sender<()>>>,
}

impl LocalProcesses {
    fn spawn(&self, command: &[String], streams: StreamOptions) -> Result<Process, StreamError> {
        let pipe = |is_wanted: bool| {
            if is_wanted {
                Stdio::piped()
            } else {
                Stdio::null()
            }
        };
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(pipe(streams.stdin))
            .stdout(pipe(streams.stdout))
            .stderr(pipe(streams.stderr))
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| StreamError::Internal(error.to_string()))?;
        let dropped = self.dropped.lock().unwrap().take();
        Ok(Process {
            stdin: child.stdin.take().map(|stdin| Box::new(stdin) as _),
            stdout: child.stdout.take().map(|stdout| Box::new(stdout) as _),
            stderr: child.stderr.take().map(|stderr| Box::new(stderr) as _),
            resize: None,
            exit: async move {
                let _dropped = dropped;
                let status = child.wait().await?;
                Ok(status.code().unwrap_or(-1))
            }
            .boxed(),
        })
    }

    /// A terminal that displays its sizes. It ends after two.
    fn terminal() -> Process {
        let (sizes, mut resized) = mpsc::channel(8);
        let (mut screen, stdout) = duplex(1024);
        let (ended, end) = oneshot::channel();
        tokio::spawn(async move {
            for _ in 0..2 {
                let size: bellerophon_streaming::remote_command::TerminalSize =
                    resized.recv().await.unwrap();
                let line = format!("{}x{}\n", size.width, size.height);
                screen.write_all(line.as_bytes()).await.unwrap();
            }
            ended.send(0).unwrap();
        });
        Process {
            stdin: None,
            stdout: Some(Box::new(stdout)),
            stderr: None,
            resize: Some(Box::new(move |size| {
                sizes.try_send(size).map_err(io::Error::other)
            })),
            exit: async move { end.await.map_err(io::Error::other) }.boxed(),
        }
    }
}

impl ContainerStreams for LocalProcesses {
    fn logs(
        &self,
        _: &PodRef,
        _: &str,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<LogStream, StreamError>> {
        *self.options.lock().unwrap() = Some(options);
        let lines = self.log.lock().unwrap().take().expect("a log");
        let lines = stream::unfold(lines, |mut lines| async {
            let line = lines.recv().await?;
            Some((Ok(Bytes::from_static(line.as_bytes())), lines))
        });
        ready(Ok(lines.boxed())).boxed()
    }

    fn exec(
        &self,
        _: &PodRef,
        _: &str,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        let process = if streams.tty {
            Ok(Self::terminal())
        } else {
            self.spawn(&command, streams)
        };
        ready(process).boxed()
    }

    fn attach(
        &self,
        pod: &PodRef,
        container: &str,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        let script = format!("echo {} {container}; cat; exit 3", pod.name);
        let command = ["sh", "-c", &script].map(str::to_owned);
        ready(self.spawn(&command, streams)).boxed()
    }

    fn dial(&self, _: &PodRef, port: u16) -> BoxFuture<'_, Result<BoxedIo, StreamError>> {
        if port == REFUSED {
            let refused = StreamError::Internal("connection refused".to_owned());
            return ready(Err(refused)).boxed();
        }
        let (client, server) = duplex(16 << 10);
        tokio::spawn(async move {
            let (mut reader, mut writer) = split(server);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        ready(Ok(Box::new(client) as BoxedIo)).boxed()
    }
}

/// A cluster of two nodes, with a running pod `web` of one container on the first.
struct Fixture {
    server: ApiServer,
    cluster: Cluster,
    kubelets: Kubelets,
    runtime: Arc<LocalProcesses>,
    /// A client in this process, and one over HTTPS.
    clients: [Client; 2],
    _registration: Registration,
}

impl Fixture {
    async fn start() -> Self {
        let kubelets = Kubelets::default();
        let dialed = kubelets.clone();
        let server = ApiServer::builder()
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .dialer(InProcessDialer::new(move |address| dialed.connect(address)))
            .start()
            .await
            .unwrap();
        let client = server.client();
        let mut cluster = Cluster::builder(client.clone())
            .nodes(2)
            .kubelets(kubelets.clone())
            .start();
        cluster.ready().await.unwrap();
        let simulated = kubelets.server().expect("the cluster runs");
        let runtime = Arc::new(LocalProcesses {
            log: Mutex::default(),
            options: Mutex::default(),
            dropped: Mutex::default(),
        });
        let registration = kubelets.clone().register(KubeletServer {
            streams: runtime.clone(),
            ..(*simulated).clone()
        });
        let https = https(&server).await;
        let fixture = Self {
            server,
            cluster,
            kubelets,
            runtime,
            clients: [client, https],
            _registration: registration,
        };
        fixture.create_pod().await;
        fixture
    }

    /// Creates the pod and waits until it runs.
    async fn create_pod(&self) {
        let annotations = json!({"sim.bellerophon.io/start-delay": "0s"});
        let pod = json!({
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {
                "nodeName": "node-1",
                "containers": [{"name": "app", "image": "i"}],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let [pods, _] = self.pods();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        wait_until(&pods, "the pod runs", |pods| {
            let status = pods.first().and_then(|pod| pod.status.as_ref());
            status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
        })
        .await;
    }

    fn pods(&self) -> [Api<Pod>; 2] {
        self.clients.clone().map(Api::default_namespaced)
    }

    /// The response of a kubelet through `nodes/proxy`.
    async fn get(&self, node: &str, path: &str) -> String {
        let path = format!("/api/v1/nodes/{node}/proxy/{path}");
        let request = Request::get(path).body(Vec::new()).unwrap();
        self.clients[0].request_text(request).await.unwrap()
    }

    async fn stop(self) {
        self.cluster.stop().await.unwrap();
        self.server.shutdown().await;
    }
}

async fn https(server: &ApiServer) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig().unwrap()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

async fn read_all(mut from: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(TIMEOUT, from.read_to_end(&mut bytes))
        .await
        .expect("an end")
        .unwrap();
    bytes
}

fn outputs() -> AttachParams {
    AttachParams::default().stdout(true).stderr(true)
}

/// The message of the status of a command.
async fn status_message(process: &mut AttachedProcess) -> Option<String> {
    process.take_status().unwrap().await.unwrap().message
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let command = ["sh", "-c", "echo out; echo err >&2; exit 7"];
        let mut process = pods.exec("web", command, &outputs()).await.unwrap();
        let stdout = process.stdout().unwrap();
        let stderr = process.stderr().unwrap();
        let status = process.take_status().unwrap();
        assert_eq!(read_all(stdout).await, b"out\n");
        assert_eq!(read_all(stderr).await, b"err\n");
        let status = status.await.unwrap();
        let causes = status.details.unwrap().causes.unwrap();
        assert_eq!(causes[0].message.as_deref(), Some("7"));
        let mut process = pods.exec("web", ["true"], &outputs()).await.unwrap();
        assert_eq!(status_message(&mut process).await, None);
    }
    fixture.stop().await;
}

#[tokio::test]
async fn failure_of_the_runtime_is_the_status() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let command = ["no-such-program"];
        let mut process = pods.exec("web", command, &outputs()).await.unwrap();
        let message = status_message(&mut process).await.unwrap();
        let expected = "error executing command in container: No such file or directory";
        assert!(message.contains(expected), "{message}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn ten_megabytes_of_stdin_come_back() {
    let fixture = Fixture::start().await;
    let sent: Vec<u8> = (0..10_u32 << 20)
        .map(|number| (number % 251) as u8)
        .collect();
    for pods in fixture.pods() {
        let params = AttachParams::default().stdin(true).stderr(false);
        let mut process = pods.exec("web", ["cat"], &params).await.unwrap();
        let mut stdin = process.stdin().unwrap();
        let stdout = process.stdout().unwrap();
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            stdin.shutdown().await.unwrap();
        };
        let (received, ()) = tokio::join!(read_all(stdout), write);
        assert!(received == sent, "received {} bytes", received.len());
    }
    fixture.stop().await;
}

#[tokio::test]
async fn terminal_is_resized() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let params = AttachParams::interactive_tty();
        let mut process = pods.exec("web", ["sh"], &params).await.unwrap();
        let mut sizes = process.terminal_size().unwrap();
        for (width, height) in [(80, 24), (120, 40)] {
            sizes.send(TerminalSize { width, height }).await.unwrap();
        }
        let stdout = process.stdout().unwrap();
        assert_eq!(read_all(stdout).await, b"80x24\n120x40\n");
    }
    fixture.stop().await;
}

/// The container's exit code is its own status, and not that of the attach request.
#[tokio::test]
async fn attach_reaches_the_main_process() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let params = AttachParams::default().stdin(true).stderr(false);
        let mut process = pods.attach("web", &params).await.unwrap();
        let mut stdin = process.stdin().unwrap();
        stdin.write_all(b"hello\n").await.unwrap();
        stdin.shutdown().await.unwrap();
        let stdout = process.stdout().unwrap();
        assert_eq!(read_all(stdout).await, b"web app\nhello\n");
        assert_eq!(status_message(&mut process).await, None);
    }
    fixture.stop().await;
}

#[tokio::test]
async fn command_is_killed_when_its_client_is_gone() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let (sender, dropped) = oneshot::channel();
        *fixture.runtime.dropped.lock().unwrap() = Some(sender);
        let command = ["sh", "-c", "echo started; exec sleep 1000"];
        let mut process = pods.exec("web", command, &outputs()).await.unwrap();
        let mut started = [0; 8];
        let mut stdout = process.stdout().unwrap();
        stdout.read_exact(&mut started).await.unwrap();
        drop(stdout);
        process.abort();
        drop(process);
        let dropped = timeout(TIMEOUT, dropped).await.expect("the command ends");
        assert!(dropped.is_err());
    }
    fixture.stop().await;
}

#[tokio::test]
async fn port_forward_carries_bytes() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let mut forwarder = pods.portforward("web", &[ECHO, REFUSED]).await.unwrap();
        let mut stream = forwarder.take_stream(ECHO).unwrap();
        let error = forwarder.take_error(REFUSED).unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut received = [0; 5];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
        let error = error.await.unwrap();
        let begin = "error forwarding port 8 to pod web, uid ";
        assert!(error.starts_with(begin), "{error}");
        assert!(error.ends_with(": connection refused"), "{error}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn followed_log_arrives_as_it_is_written() {
    let fixture = Fixture::start().await;
    for pods in fixture.pods() {
        let (log, lines) = mpsc::channel(1);
        *fixture.runtime.log.lock().unwrap() = Some(lines);
        let params = LogParams {
            follow: true,
            tail_lines: Some(5),
            limit_bytes: Some(1000),
            since_seconds: Some(60),
            timestamps: true,
            ..LogParams::default()
        };
        let mut followed = pods.log_stream("web", &params).await.unwrap().lines();
        for line in ["one", "two"] {
            let written = if line == "one" { "one\n" } else { "two\n" };
            log.send(written).await.unwrap();
            let received = timeout(TIMEOUT, followed.try_next()).await;
            assert_eq!(received.expect("a line").unwrap().as_deref(), Some(line));
        }
        drop(log);
        assert_eq!(followed.try_next().await.unwrap(), None);
        let expected = LogOptions {
            follow: true,
            since_seconds: Some(60),
            timestamps: true,
            tail_lines: Some(5),
            limit_bytes: Some(1000),
            ..LogOptions::default()
        };
        let options = fixture.runtime.options.lock().unwrap().take();
        assert_eq!(options, Some(expected));
    }
    fixture.stop().await;
}

/// Requests to the kubelet end when the cluster stops; they would keep the API server otherwise.
#[tokio::test]
async fn followed_log_ends_with_the_cluster() {
    let fixture = Fixture::start().await;
    let (log, lines) = mpsc::channel(1);
    *fixture.runtime.log.lock().unwrap() = Some(lines);
    let params = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let [pods, _] = fixture.pods();
    let mut followed = pods.log_stream("web", &params).await.unwrap().lines();
    log.send("one\n").await.unwrap();
    assert_eq!(followed.try_next().await.unwrap().as_deref(), Some("one"));
    timeout(TIMEOUT, fixture.stop()).await.expect("it stops");
}

#[tokio::test]
async fn user_without_create_on_exec_is_refused() {
    let fixture = Fixture::start().await;
    let service = fixture.server.service().as_user("ann", []);
    let client = Client::new(service, "default");
    let pods: Api<Pod> = Api::default_namespaced(client);
    let rules = json!([{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}]);
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reader"}, "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": group}],
        "roleRef": {"kind": "Role", "name": "reader", "apiGroup": group},
    });
    for (resource, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/{group}/v1/namespaces/default/{resource}");
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes());
        let created = fixture.clients[0].request_text(request.unwrap()).await;
        created.unwrap();
    }
    let refused = pods.exec("web", ["true"], &outputs()).await.err();
    let refused = format!("{:?}", refused.expect("no permission"));
    assert!(refused.contains("403"), "{refused}");
    fixture.stop().await;
}

#[tokio::test]
async fn kubelet_serves_the_pods_of_its_node() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.get("node-1", "healthz").await, "ok");
    for (node, expected) in [("node-1", 1), ("node-2", 0)] {
        let pods: Value = serde_json::from_str(&fixture.get(node, "pods").await).unwrap();
        assert_eq!(pods["kind"], "PodList");
        assert_eq!(pods["items"].as_array().unwrap().len(), expected, "{node}");
        let summary = fixture.get(node, "stats/summary").await;
        let summary: Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["node"]["nodeName"], node);
        let stats = summary["pods"].as_array().unwrap();
        assert_eq!(stats.len(), expected, "{node}");
        for pod in stats {
            assert_eq!(pod["podRef"]["name"], "web");
            assert_eq!(pod["containers"][0]["name"], "app");
        }
    }
    let client = &fixture.clients[0];
    for (path, expected) in [
        (
            "node-2/proxy/containerLogs/default/web/app",
            r#"pod "web" does not exist"#,
        ),
        (
            "node-1/proxy/containerLogs/default/web/other",
            r#"container "other" not found in pod "web""#,
        ),
        ("node-1/proxy/metrics", "404: Page Not Found"),
    ] {
        let request = Request::get(format!("/api/v1/nodes/{path}"));
        let request = request.body(kube::client::Body::empty()).unwrap();
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        let body = response.into_body().collect_bytes().await.unwrap();
        assert_eq!(body, expected.as_bytes(), "{path}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn first_instance_has_no_previous_log() {
    let fixture = Fixture::start().await;
    let [pods, _] = fixture.pods();
    let previous = LogParams {
        previous: true,
        ..LogParams::default()
    };
    let error = pods.logs("web", &previous).await.unwrap_err();
    let expected = r#"previous terminated container "app" in pod "web" not found"#;
    assert!(error.to_string().contains(expected), "{error}");
    fixture.stop().await;
}

#[tokio::test]
async fn only_reachable_kubelets_are_connected_to() {
    let fixture = Fixture::start().await;
    let connect = |address: &str| fixture.kubelets.connect(address.parse().unwrap());
    assert!(connect("172.16.0.1:10250").unwrap().is_ok());
    assert!(connect("172.16.0.3:10250").is_none());
    let refused = connect("172.16.0.1:80").unwrap().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let nodes = fixture.cluster.nodes().unwrap();
    nodes.power_off("node-1").unwrap();
    let unreachable = connect("172.16.0.1:10250").unwrap().unwrap_err();
    assert_eq!(unreachable.kind(), io::ErrorKind::HostUnreachable);
    let kubelets = fixture.kubelets.clone();
    fixture.stop().await;
    let address = "172.16.0.2:10250".parse().unwrap();
    assert!(kubelets.connect(address).is_none());
}
