//! `bellerophon up --runtime process`: pods as local processes.

use std::path::Path;
use std::process::Child;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kube_client::config_of;
use crate::running::{Lines, RunningServer, TIMEOUT, command};

async fn create(client: &Client, path: &str, object: Value) {
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a request");
    let created: Value = client.request(request).await.expect("it is created");
    assert!(created["metadata"]["uid"].is_string(), "{created}");
}

/// Waits until a pod of the namespace fulfills the condition.
pub(crate) async fn wait_for_pod(client: &Client, condition: impl Fn(&Pod) -> bool) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let list = pods.list(&Default::default()).await.expect("a list");
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        if let Some(pod) = list.items.iter().find(|pod| condition(pod)) {
            return pod.clone();
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "no such pod: {:?}",
            list.items
        );
        // The next event may be what is waited for; an error is the timeout of the watch.
        let params = kube::api::WatchParams::default().timeout(5);
        let events = pods.watch(&params, &version).await.expect("a watch");
        let mut events = std::pin::pin!(events);
        let _ = futures_util::StreamExt::next(&mut events).await;
    }
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Starts a Deployment of an HTTP server and requests its page through the API server.
async fn serve_in_a_pod(server: &RunningServer) -> Node {
    let client = server.client().await;
    create(
        &client,
        "/api/v1/namespaces/default/configmaps",
        json!({"metadata": {"name": "settings"}, "data": {"color": "red"}}),
    )
    .await;
    // Without namespaces, the volume is not at its mount path.
    let script = "settings=${KUBERNETES_MOUNT_SETTINGS:-/etc/settings}; \
                  exec $0 hello --message \"$GREETING $(cat $settings/color)\"";
    let container = json!({
        "name": "web",
        "image": "helper/web:1",
        "args": ["-c", script, env!("CARGO_BIN_EXE_bellerophon")],
        "env": [{"name": "GREETING", "value": "hello"}],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}],
    });
    create(
        &client,
        "/apis/apps/v1/namespaces/default/deployments",
        json!({
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {
                        "containers": [container],
                        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
                    },
                },
            },
        }),
    )
    .await;
    let pod = wait_for_pod(&client, is_ready).await;
    let name = pod.metadata.name.as_deref().expect("a name");
    let path = format!("/api/v1/namespaces/default/pods/{name}:8080/proxy/");
    let request = http::Request::get(path)
        .body(Vec::new())
        .expect("a request");
    let page = client.request_text(request).await.expect("a page");
    assert!(page.starts_with("hello red\n"), "{page}");
    let node = pod.spec.and_then(|spec| spec.node_name).expect("a node");
    let nodes: Api<Node> = Api::all(client);
    nodes.get(&node).await.expect("a node")
}

fn isolation(node: &Node) -> (String, String) {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition.type_ == "PodIsolation");
    let found = found.expect("a condition");
    let reason = found.reason.clone().unwrap_or_default();
    (found.status.clone(), reason)
}

/// One node; the images `helper/…` are the shell.
pub(crate) const OPTIONS: [&str; 8] = [
    "--runtime",
    "process",
    "--image",
    "helper/*=/bin/sh",
    "--nodes",
    "1",
    "--operators",
    "none",
];

/// Starts `up` with variables of the environment.
fn start(env: &[(&str, &str)]) -> RunningServer {
    RunningServer::start_with(&OPTIONS, env)
}

#[tokio::test]
async fn deployment_serves_http_from_a_local_process() {
    let server = start(&[]);
    let node = serve_in_a_pod(&server).await;
    let (_, reason) = isolation(&node);
    assert!(["TierA", "TierB"].contains(&reason.as_str()), "{reason}");
}

#[tokio::test]
async fn deployment_serves_http_without_namespaces() {
    let server = start(&[("BELLEROPHON_TIER", "B")]);
    let node = serve_in_a_pod(&server).await;
    assert_eq!(isolation(&node), ("False".to_owned(), "TierB".to_owned()));
}

#[tokio::test]
async fn failing_containers_report_their_reasons() {
    let server = start(&[]);
    let client = server.client().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let cases = [
        ("unknown", json!({"image": "nginx:1"}), "ErrImagePull"),
        (
            "config",
            json!({"image": "helper/a", "envFrom": [{"secretRef": {"name": "none"}}]}),
            "CreateContainerConfigError",
        ),
        (
            "program",
            json!({"image": "helper/a", "command": ["/no/such/program"]}),
            "StartError",
        ),
        (
            "exits",
            json!({
                "image": "helper/a",
                "command": ["sh", "-c", "echo out of cheese; exit 7"],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }),
            "Error",
        ),
    ];
    for (name, mut container, reason) in cases {
        container["name"] = json!("app");
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        pods.create(&PostParams::default(), &pod)
            .await
            .expect("it is created");
        let found = wait_for_pod(&client, |pod| {
            pod.metadata.name.as_deref() == Some(name)
                && state_reason(pod).is_some_and(|found| {
                    found == reason || (reason == "ErrImagePull" && found == "ImagePullBackOff")
                })
        })
        .await;
        if name == "exits" {
            let status = found.status.and_then(|it| it.container_statuses);
            let status = status.and_then(|mut it| it.pop()).expect("a status");
            let terminated = status
                .state
                .and_then(|it| it.terminated)
                .expect("terminated");
            assert_eq!(terminated.exit_code, 7);
            assert_eq!(terminated.message.as_deref(), Some("out of cheese\n"));
        }
    }
}

/// The reason of the state of the only container.
fn state_reason(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let state = statuses.first()?.state.clone()?;
    let waiting = state.waiting.and_then(|waiting| waiting.reason);
    let terminated = state.terminated.and_then(|terminated| terminated.reason);
    waiting.or(terminated)
}

/// A server in a directory that others use before and after it. Killed on drop.
struct Up {
    process: Child,
    kubeconfig: String,
}

impl Up {
    fn start(directory: &TempDir, env: &[(&str, &str)]) -> Self {
        let mut process = command(directory)
            .args(["up", "--output", "json"])
            .args(OPTIONS)
            .envs(env.iter().copied())
            .spawn()
            .expect("the binary starts");
        let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
        let line = lines.next_matching(|line| line.contains(r#""ready""#));
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let kubeconfig = ready["kubeconfig"].as_str().expect("a path").to_owned();
        Self {
            process,
            kubeconfig,
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // SIGKILL; the process may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The processes whose environment has the marker of a data directory.
fn marked_processes(data_dir: &Path) -> usize {
    let marker = format!("BELLEROPHON_NODE={}", data_dir.display());
    let entries = std::fs::read_dir("/proc").expect("a list of processes");
    let environments =
        entries.filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok());
    let is_marked = |environ: &Vec<u8>| {
        let mut variables = environ.split(|byte| *byte == 0);
        variables.any(|variable| variable == marker.as_bytes())
    };
    environments.filter(is_marked).count()
}

/// When the server is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Ready,
    PodCreated,
    PodRunning,
    PodTerminating,
}

/// Kills `up` at several moments. No process is left, and the next `up` starts.
async fn kill_and_start_again(env: &[(&str, &str)]) {
    let directory = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM HUP INT
                  (setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &); sleep 1000' &)
                  while :; do sleep 1; done";
    let pod = json!({
        "metadata": {"name": "stubborn"},
        "spec": {"containers": [
            {"name": "app", "image": "helper/a", "command": ["sh", "-c", script]},
        ]},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let moments = [
        Moment::Ready,
        Moment::PodCreated,
        Moment::PodRunning,
        Moment::PodTerminating,
    ];
    for moment in moments {
        let up = Up::start(&directory, env);
        let data_dir = format!("{}.nodes", up.kubeconfig);
        let data_dir = Path::new(&data_dir).canonicalize().expect("a directory");
        let client = Client::try_from(config_of(&up.kubeconfig).await).expect("a client");
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        if !matches!(moment, Moment::Ready) {
            let created = pods.create(&PostParams::default(), &pod).await;
            created.expect("it is created");
        }
        if matches!(moment, Moment::PodRunning | Moment::PodTerminating) {
            wait_for_pod(&client, is_ready).await;
            assert!(marked_processes(&data_dir) > 0);
        }
        if matches!(moment, Moment::PodTerminating) {
            let deleted = pods.delete("stubborn", &DeleteParams::default()).await;
            deleted.expect("it is deleted");
        }
        drop(up);
        let killed = tokio::time::Instant::now();
        while marked_processes(&data_dir) > 0 {
            assert!(killed.elapsed() < TIMEOUT, "{moment:?}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn killed_server_leaves_no_process_and_starts_again() {
    kill_and_start_again(&[]).await;
}

#[tokio::test]
async fn killed_server_without_namespaces_leaves_no_process_and_starts_again() {
    kill_and_start_again(&[("BELLEROPHON_TIER", "B")]).await;
}
