//! `ReconcileClient`: the reads and writes of a reconcile.

mod apply; // server-side apply
mod create_or_update; // merge patches of what changed
mod deletion; // delete and finalizers
mod reads; // get and list
mod retries; // refusals over the network
mod subresources; // binding and scale

use std::sync::Arc;
use std::time::Duration;

use bellerophon::metrics::Metrics;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use tokio::time::sleep;

use crate::harness::{Log, TestServer, create, manager, maps, run, sample, server};

/// What a reconciler of these tests uses.
#[derive(Clone)]
struct Context {
    log: Log,
    metrics: Metrics,
}

impl Context {
    /// The number of requests so far with this method.
    fn requests(&self, method: &str) -> f64 {
        let text = self.metrics.encode();
        let label = format!(r#"method="{method}""#);
        sample(&text, "rest_client_requests_total", &label)
    }
}

/// Runs a controller of the ConfigMap `one` while the test continues, and returns what it logged.
async fn reconcile<F, T>(
    reconcile: impl Fn(Arc<Context>, Request<ConfigMap>) -> F + Send + Sync + 'static,
    test: impl FnOnce(Client) -> T,
) -> Vec<String>
where
    F: Future<Output = Result<Action, Error>> + Send + 'static,
    T: Future<Output = ()>,
{
    let server = server().await;
    let client = server.client();
    reconcile_as(&server, client, reconcile, test).await
}

/// As [`reconcile`], with this client of the Manager.
async fn reconcile_as<F, T>(
    server: &TestServer,
    client: Client,
    reconcile: impl Fn(Arc<Context>, Request<ConfigMap>) -> F + Send + Sync + 'static,
    test: impl FnOnce(Client) -> T,
) -> Vec<String>
where
    F: Future<Output = Result<Action, Error>> + Send + 'static,
    T: Future<Output = ()>,
{
    let log = Log::default();
    let mut mgr = manager(&client);
    let context = Context {
        log: log.clone(),
        metrics: mgr.metrics().clone(),
    };
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(context))
        .reconcile(reconcile);
    let client = server.client();
    run(mgr, async {
        create(&client, "one").await;
        sleep(Duration::from_secs(5)).await;
        test(client).await;
        sleep(Duration::from_secs(5)).await;
    })
    .await;
    let mut log = log.all();
    if !server.has_virtual_time() {
        // Events of several writes arrive one by one: each may cause a reconcile of the deletion.
        log.dedup_by(|line, former| line == "deleted" && line == former);
    }
    log
}

/// A ConfigMap of the namespace `default`.
fn named(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.namespace = Some("default".into());
    map
}

/// Sets one entry of the data.
fn set(key: &str, value: &str) -> impl FnOnce(&mut ConfigMap) {
    move |map| {
        let data = map.data.get_or_insert_default();
        data.insert(key.into(), value.into());
    }
}
