//! Throughput of writes and memory per stored object: `cargo bench -p bellerophon-apiserver --bench
//! writes`.
//!
//! Sends requests to an embedded server in-process, one after another on one thread, so a figure is
//! what one core does with a whole request: decoding, defaulting, managed fields, validation,
//! storage and the response. Times are CPU times. Prints a table; with `-- --write FILE` it also
//! writes it there.

use std::{fmt::Write as _, fs, io::Write as _, time::Duration};

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// How much of a core's time each figure gets.
const SPAN: Duration = Duration::from_millis(1500);

/// Objects that are stored to see what one costs.
const STORED: usize = 20_000;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let rows = runtime.block_on(measure())?;
    let mut page = String::from("| measure | figure |\n|---|---|\n");
    for (name, figure) in rows {
        writeln!(page, "| {name} | {figure} |")?;
    }
    std::io::stdout().write_all(page.as_bytes())?;
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(file) = arguments
        .iter()
        .position(|a| a == "--write")
        .and_then(|i| arguments.get(i + 1))
    {
        fs::write(file, page)?;
    }
    Ok(())
}

type Rows = Vec<(String, String)>;

async fn measure() -> Result<Rows, Box<dyn std::error::Error + Send + Sync>> {
    let server = ApiServer::builder().start().await?;
    let client = Client(server.service());
    let mut rows = Rows::new();
    applies(&client, &mut rows).await;
    patches(&client, &mut rows).await;
    decoding(&client, &mut rows).await;
    memory(&client, &mut rows).await?;
    server.shutdown().await;
    Ok(rows)
}

/// Server-side apply, and how its cost follows the size of the object.
async fn applies(client: &Client, rows: &mut Rows) {
    let path = format!("{DEPLOYMENTS}/applied?fieldManager=bench");
    let same = deployment("applied", 0).to_string();
    client
        .request("PATCH", &path, APPLY, same.clone().into())
        .await;
    rows.push(
        rate(
            "server-side apply of a Deployment, nothing new",
            async |_| {
                client
                    .request("PATCH", &path, APPLY, same.clone().into())
                    .await
            },
        )
        .await,
    );
    let changing = |i: usize| deployment("applied", i).to_string();
    rows.push(
        rate(
            "server-side apply of a Deployment, one field new",
            async |i| {
                client
                    .request("PATCH", &path, APPLY, changing(i).into())
                    .await
            },
        )
        .await,
    );
    for keys in [10, 100, 1000] {
        let path = format!("{CONFIG_MAPS}/keys-{keys}?fieldManager=bench");
        let body = |i: usize| config_map(&format!("keys-{keys}"), keys, i).to_string();
        let name = format!("server-side apply of a ConfigMap with {keys} keys, one new");
        rows.push(
            rate(&name, async |i| {
                client.request("PATCH", &path, APPLY, body(i).into()).await
            })
            .await,
        );
    }
}

async fn patches(client: &Client, rows: &mut Rows) {
    client
        .request(
            "POST",
            DEPLOYMENTS,
            JSON,
            deployment("patched", 0).to_string().into(),
        )
        .await;
    let path = format!("{DEPLOYMENTS}/patched");
    let image = |i: usize| {
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": format!("app:{i}")}]}}}}).to_string()
    };
    rows.push(
        rate("strategic merge patch of an image", async |i| {
            client
                .request("PATCH", &path, STRATEGIC, image(i).into())
                .await
        })
        .await,
    );
    let note = |i: usize| json!({"metadata": {"annotations": {"note": i.to_string()}}}).to_string();
    rows.push(
        rate("merge patch of an annotation", async |i| {
            client.request("PATCH", &path, MERGE, note(i).into()).await
        })
        .await,
    );
}

/// The same Deployment as the server shows it, sent in both forms. A dry run stores nothing, so
/// what differs is the reading.
async fn decoding(client: &Client, rows: &mut Rows) {
    let path = format!("{DEPLOYMENTS}?dryRun=All");
    let written = Bytes::from(deployment("sent", 0).to_string());
    for (name, content_type) in [("JSON", JSON), ("protobuf", PROTOBUF)] {
        let body = client
            .answer("POST", &path, JSON, content_type, written.clone())
            .await;
        let name = format!(
            "create a Deployment from {name} ({} bytes), dry run",
            body.len()
        );
        rows.push(
            rate(&name, async |_| {
                client
                    .request("POST", &path, content_type, body.clone())
                    .await
            })
            .await,
        );
    }
    let path = format!("{DEPLOYMENTS}/patched");
    for (name, accept) in [("JSON", JSON), ("protobuf", PROTOBUF)] {
        let name = format!("read a Deployment as {name}");
        rows.push(
            rate(&name, async |_| {
                drop(
                    client
                        .answer("GET", &path, JSON, accept, Bytes::new())
                        .await,
                )
            })
            .await,
        );
    }
}

async fn memory(
    client: &Client,
    rows: &mut Rows,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let before = resident_bytes()?;
    let mut bytes = 0;
    for i in 0..STORED {
        let body = Bytes::from(config_map(&format!("stored-{i}"), 10, i).to_string());
        bytes = client
            .answer("POST", CONFIG_MAPS, JSON, JSON, body)
            .await
            .len();
    }
    let each = resident_bytes()?.saturating_sub(before) / STORED;
    rows.push((
        format!(
            "memory of a stored ConfigMap of {bytes} bytes ({STORED} of them, history included)"
        ),
        format!("{each} bytes"),
    ));
    Ok(())
}

fn deployment(name: &str, i: usize) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": {
        "replicas": 3, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{
            "name": "main", "image": format!("app:{i}"), "ports": [{"containerPort": 8080}],
            "env": [{"name": "MODE", "value": "fast"}, {"name": "LEVEL", "value": "7"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "emptyDir": {}}]}}}})
}

fn config_map(name: &str, keys: usize, i: usize) -> Value {
    let mut data: serde_json::Map<String, Value> = (0..keys)
        .map(|key| (format!("key-{key}"), "a value of some length".into()))
        .collect();
    data.insert("changing".into(), i.to_string().into());
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// Does something again and again, and returns how often per CPU second. What else the machine does
/// does not count.
async fn rate(name: &str, mut something: impl AsyncFnMut(usize)) -> (String, String) {
    let started = processor_time();
    let mut count = 0;
    while processor_time() - started < SPAN {
        for _ in 0..10 {
            count += 1;
            something(count).await;
        }
    }
    let seconds = (processor_time() - started).as_secs_f64();
    (
        name.to_owned(),
        format!(
            "{:.0}/s ({:.0} µs)",
            count as f64 / seconds,
            seconds * 1e6 / count as f64
        ),
    )
}

/// What the kernel counts the time of a process in: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// The time that processors spent on this process, for itself and in the kernel: fields 14 and 15
/// of its status.
fn processor_time() -> Duration {
    let status = fs::read_to_string("/proc/self/stat").expect("the kernel reports every process");
    let (_, behind_name) = status.rsplit_once(')').expect("the name is in brackets");
    let ticks: u32 = behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u32>().expect("a number"))
        .sum();
    TICK * ticks
}

struct Client(ApiService);

impl Client {
    async fn request(&self, method: &str, path: &str, content_type: &str, body: Bytes) {
        drop(self.answer(method, path, content_type, JSON, body).await);
    }

    /// The body of the answer, which must be a good one.
    async fn answer(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        accept: &str,
        body: Bytes,
    ) -> Bytes {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", accept);
        let request = request.body(Full::new(body)).expect("a sound request");
        let response = self
            .0
            .clone()
            .oneshot(request)
            .await
            .expect("the server answers everything");
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a whole body")
            .to_bytes();
        assert!(
            matches!(status, StatusCode::OK | StatusCode::CREATED),
            "{method} {path}: {status} {}",
            String::from_utf8_lossy(&body)
        );
        body
    }
}

/// What the process keeps in memory.
fn resident_bytes() -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("the kernel reports no memory")?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
