//! Time and memory of 5,000 copies of one Secret, with 10,000 unrelated Secrets in the cluster:
//! `cargo bench -p bellerophon-secsynch --bench fan_out`
//!
//! The API server runs in this process. The operator runs in another one and connects over TLS, so
//! that its memory is measured alone. Prints a Markdown table.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use bellerophon::manager::ManagerOptions;
use bellerophon_apiserver::ApiServer;
use bellerophon_operator::{Switches, define, manager};
use bellerophon_secsynch::{ACCEPT_FROM, OPERATOR, OWNER_UID, SecSynch};
use futures_util::{StreamExt as _, TryStreamExt as _, pin_mut, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

type BenchError = Box<dyn std::error::Error + Send + Sync>;

const NAMESPACES: usize = 5_000;
const FOREIGN: usize = 10_000;
const FOREIGN_BYTES: usize = 32 * 1024;

/// A run is complete when no copy is written for this time.
const QUIET_TIME: Duration = Duration::from_secs(2);

fn main() -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, kubeconfig] if role == "operator" => {
            runtime.block_on(run_operator(Path::new(kubeconfig)))
        }
        _ => runtime.block_on(measure()),
    }
}

/// Runs the operator until it is killed.
async fn run_operator(kubeconfig: &Path) -> Result<(), BenchError> {
    let config = Config::from_custom_kubeconfig(
        Kubeconfig::read_from(kubeconfig)?,
        &KubeConfigOptions::default(),
    )
    .await?;
    let client = Client::try_from(config)?;
    let options = ManagerOptions::default();
    let mgr = manager(client, &[OPERATOR], &Switches::default(), options);
    Ok(mgr.run().await?)
}

async fn measure() -> Result<(), BenchError> {
    let server = ApiServer::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .start()
        .await?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let client = server.client();
    define(&client, &[OPERATOR]).await?;
    let operator = OperatorProcess(
        Command::new(std::env::current_exe()?)
            .arg("operator")
            .arg(&kubeconfig)
            .spawn()?,
    );
    let names = (0..NAMESPACES).map(|i| {
        let annotations = json!({ACCEPT_FROM: "default"});
        json!({"metadata": {"name": format!("team-{i:04}"), "annotations": annotations}})
    });
    create(&Api::<Namespace>::all(client.clone()), names).await?;
    apply_secret(&client, "one").await?;

    let writes = watch_copies(&client).await?;
    let start = Instant::now();
    let spec = json!({
        "secretName": "s",
        "sourceNamespace": "default",
        "destinationNamespaces": ["team-*"],
    });
    let synch = json!({"metadata": {"name": "all"}, "spec": spec});
    create(
        &Api::<SecSynch>::namespaced(client.clone(), "default"),
        [synch],
    )
    .await?;
    let (first, first_writes) = writes.wait_for_all(start).await?;

    let writes = watch_copies(&client).await?;
    let start = Instant::now();
    apply_secret(&client, "two").await?;
    let (change, change_writes) = writes.wait_for_all(start).await?;

    let memory_before = operator.memory()?;
    let value = "x".repeat(FOREIGN_BYTES);
    let foreign = (0..FOREIGN).map(|i| {
        json!({
            "metadata": {"name": format!("foreign-{i}"), "namespace": "default"},
            "stringData": {"a": value},
        })
    });
    create(
        &Api::<Secret>::namespaced(client.clone(), "default"),
        foreign,
    )
    .await?;
    tokio::time::sleep(QUIET_TIME).await;
    let memory_after = operator.memory()?;

    println!("| measure | figure |\n|---|---|");
    println!(
        "| create {NAMESPACES} copies | {:.2} s, {first_writes} writes |",
        first.as_secs_f64()
    );
    println!(
        "| update {NAMESPACES} copies | {:.2} s, {change_writes} writes |",
        change.as_secs_f64()
    );
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "| memory of the operator (RSS) with {NAMESPACES} copies | {:.1} MiB |",
        mib(memory_before)
    );
    println!(
        "| … with {FOREIGN} unrelated Secrets of {} KiB each | {:+.1} MiB |",
        FOREIGN_BYTES / 1024,
        mib(memory_after) - mib(memory_before)
    );
    drop(operator);
    server.shutdown().await;
    Ok(())
}

/// The operator's process, killed on drop.
struct OperatorProcess(Child);

impl OperatorProcess {
    /// Its resident set size in KiB.
    fn memory(&self) -> Result<u64, BenchError> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("VmRSS is missing")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("cannot kill the operator: {error}");
        }
    }
}

async fn create<K>(api: &Api<K>, objects: impl IntoIterator<Item = Value>) -> Result<(), BenchError>
where
    K: kube::Resource + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let params = PostParams::default();
    stream::iter(objects)
        .map(|object| async {
            api.create(&params, &serde_json::from_value(object)?)
                .await?;
            Ok::<_, BenchError>(())
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

async fn apply_secret(client: &Client, value: &str) -> Result<(), BenchError> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"password": value},
    });
    Api::<Secret>::namespaced(client.clone(), "default")
        .patch("s", &PatchParams::apply("bench"), &Patch::Apply(&secret))
        .await?;
    Ok(())
}

/// The watch events of copies.
struct CopyWrites(futures_util::stream::BoxStream<'static, kube::Result<WatchEvent<Secret>>>);

async fn watch_copies(client: &Client) -> Result<CopyWrites, BenchError> {
    let api = Api::<Secret>::all(client.clone());
    let version = api
        .list(&kube::api::ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let events = api
        .watch(
            &WatchParams::default().labels(OWNER_UID).timeout(290),
            &version,
        )
        .await?;
    Ok(CopyWrites(events.boxed()))
}

impl CopyWrites {
    /// The time until every copy was written, and the number of writes until none followed.
    async fn wait_for_all(self, start: Instant) -> Result<(Duration, usize), BenchError> {
        let events = self.0;
        let mut writes = 0;
        let mut elapsed = Duration::ZERO;
        pin_mut!(events);
        loop {
            let limit = if writes < NAMESPACES {
                Duration::from_secs(120)
            } else {
                QUIET_TIME
            };
            match timeout(limit, events.next()).await {
                Ok(Some(event)) => {
                    event?;
                    writes += 1;
                    if writes == NAMESPACES {
                        elapsed = start.elapsed();
                    }
                }
                Err(_) if writes >= NAMESPACES => return Ok((elapsed, writes)),
                _ => return Err(format!("only {writes} copies were written").into()),
            }
        }
    }
}
