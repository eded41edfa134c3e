//! `cargo bench -p bellerophon-secsynch --bench fan_out`: one secret into 5,000 namespaces, and 10,000 secrets of others beside it.
//!
//! The server is in this process, the operator in another one, over TLS, so that its memory is its own. Prints a Markdown table.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use bellerophon_apiserver::ApiServer;
use bellerophon_operator::{RunOptions, define, manager};
use bellerophon_secsynch::{OPERATOR, OWNER_UID, SecSynch};
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

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAMESPACES: usize = 5_000;
const FOREIGN: usize = 10_000;
const FOREIGN_BYTES: usize = 32 * 1024;

/// How long nothing must happen before everything has happened.
const QUIET: Duration = Duration::from_secs(2);

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, kubeconfig] if role == "operator" => {
            runtime.block_on(operate(Path::new(kubeconfig)))
        }
        _ => runtime.block_on(measure()),
    }
}

/// The operator, until it is killed.
async fn operate(kubeconfig: &Path) -> Result<(), Failure> {
    let config = Config::from_custom_kubeconfig(
        Kubeconfig::read_from(kubeconfig)?,
        &KubeConfigOptions::default(),
    )
    .await?;
    let manager = manager(
        Client::try_from(config)?,
        &[OPERATOR],
        RunOptions::default(),
    )?;
    Ok(manager.run_until_signal().await?)
}

async fn measure() -> Result<(), Failure> {
    let server = ApiServer::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .start()
        .await?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let client = server.client();
    define(&client, &[OPERATOR]).await?;
    let operator = Operator(
        Command::new(std::env::current_exe()?)
            .arg("operator")
            .arg(&kubeconfig)
            .spawn()?,
    );
    let names = (0..NAMESPACES).map(|i| json!({"metadata": {"name": format!("team-{i:04}")}}));
    create(&Api::<Namespace>::all(client.clone()), names).await?;
    apply_secret(&client, "one").await?;

    let (seen, start) = (copies_seen(&client).await?, Instant::now());
    let spec = json!({"secretName": "s", "sourceNamespace": "default", "destinationNamespaces": ["team-*"]});
    let synch = json!({"metadata": {"name": "all"}, "spec": spec});
    create(
        &Api::<SecSynch>::namespaced(client.clone(), "default"),
        [synch],
    )
    .await?;
    let (first, first_writes) = seen.all(start).await?;

    let (seen, start) = (copies_seen(&client).await?, Instant::now());
    apply_secret(&client, "two").await?;
    let (change, change_writes) = seen.all(start).await?;

    let before = operator.memory()?;
    let filling = "x".repeat(FOREIGN_BYTES);
    let foreign =
        (0..FOREIGN).map(|i| json!({"metadata": {"name": format!("foreign-{i}"), "namespace": "default"}, "stringData": {"a": filling}}));
    create(
        &Api::<Secret>::namespaced(client.clone(), "default"),
        foreign,
    )
    .await?;
    tokio::time::sleep(QUIET).await;
    let after = operator.memory()?;

    println!("| measure | figure |\n|---|---|");
    println!(
        "| a secret into {NAMESPACES} namespaces, from its SecSynch to the last copy | {:.2} s, {first_writes} writes |",
        first.as_secs_f64()
    );
    println!(
        "| a change of the secret, to the last copy | {:.2} s, {change_writes} writes |",
        change.as_secs_f64()
    );
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "| memory of the operator with {NAMESPACES} copies (RSS) | {:.1} MiB |",
        mib(before)
    );
    println!(
        "| … and {FOREIGN} secrets of others of {} KiB | {:+.1} MiB |",
        FOREIGN_BYTES / 1024,
        mib(after) - mib(before)
    );
    drop(operator);
    server.shutdown().await;
    Ok(())
}

/// The operator's process, ended with this value.
struct Operator(Child);

impl Operator {
    /// KiB that it has in memory.
    fn memory(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("no memory is told")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("the operator did not end well: {error}");
        }
    }
}

async fn create<K>(api: &Api<K>, objects: impl IntoIterator<Item = Value>) -> Result<(), Failure>
where
    K: kube::Resource + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let params = PostParams::default();
    stream::iter(objects)
        .map(|object| async {
            api.create(&params, &serde_json::from_value(object)?)
                .await?;
            Ok::<_, Failure>(())
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

async fn apply_secret(client: &Client, value: &str) -> Result<(), Failure> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": value}});
    Api::<Secret>::namespaced(client.clone(), "default")
        .patch("s", &PatchParams::apply("bench"), &Patch::Apply(&secret))
        .await?;
    Ok(())
}

/// Writes of copies from now on.
struct Copies(futures_util::stream::BoxStream<'static, kube::Result<WatchEvent<Secret>>>);

async fn copies_seen(client: &Client) -> Result<Copies, Failure> {
    let api = Api::<Secret>::all(client.clone());
    let now = api
        .list(&kube::api::ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let events = api
        .watch(&WatchParams::default().labels(OWNER_UID).timeout(290), &now)
        .await?;
    Ok(Copies(events.boxed()))
}

impl Copies {
    /// How long it took to write every copy, and how many writes there were until nothing more came.
    async fn all(self, start: Instant) -> Result<(Duration, usize), Failure> {
        let (events, mut writes, mut took) = (self.0, 0, Duration::ZERO);
        pin_mut!(events);
        loop {
            let patience = if writes < NAMESPACES {
                Duration::from_secs(120)
            } else {
                QUIET
            };
            match timeout(patience, events.next()).await {
                Ok(Some(event)) => {
                    event?;
                    writes += 1;
                    if writes == NAMESPACES {
                        took = start.elapsed();
                    }
                }
                Err(_) if writes >= NAMESPACES => return Ok((took, writes)),
                _ => return Err(format!("only {writes} copies were written").into()),
            }
        }
    }
}
