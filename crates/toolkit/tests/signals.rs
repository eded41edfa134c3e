//! Signals: the first one stops in order, the second one aborts.
//!
//! Its own program: the signals are real and reach the whole process, and the handlers that tokio
//! installs for them stay, so that Ctrl-C would no longer end the other tests.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::manager::ManagerOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

fn send(signal: &str) {
    let pid = std::process::id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
}

/// What the reconciler reports, and whether it ends when it is cancelled.
struct Context {
    steps: mpsc::Sender<&'static str>,
    ends: bool,
}

impl Context {
    async fn report(&self, step: &'static str) {
        self.steps.send(step).await.expect("the test receives it");
    }
}

async fn reconcile(ctx: Arc<Context>, req: Request<ConfigMap>) -> Result<Action, Error> {
    ctx.report("started").await;
    req.cancellation_token().cancelled().await;
    ctx.report("cancelled").await;
    if !ctx.ends {
        std::future::pending::<()>().await;
    }
    ctx.report("finished").await;
    Ok(Action::await_change())
}

/// A running Manager with one reconcile, and what that reports.
fn start(
    client: &Client,
    ends: bool,
) -> (
    tokio::task::JoinHandle<Result<(), ManagerError>>,
    mpsc::Receiver<&'static str>,
) {
    // The timeout is an hour: a Manager that returns earlier does so for another reason.
    let options = ManagerOptions {
        graceful_shutdown_timeout: Duration::from_secs(3600),
        ..testing::options(1)
    };
    let mut mgr = Manager::new(client.clone(), options);
    let (steps, receiver) = mpsc::channel(8);
    mgr.controller::<ConfigMap>()
        .predicate(Predicate::filter(|map: &ConfigMap| {
            map.metadata.name.as_deref() == Some("icarus")
        }))
        .context(Arc::new(Context { steps, ends }))
        .reconcile(reconcile);
    (tokio::spawn(mgr.run()), receiver)
}

/// One test, because signals reach all tests of a process.
#[tokio::test]
async fn first_signal_stops_in_order_and_the_second_aborts() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let client = server.client();
    let icarus: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "icarus" } })).unwrap();
    let maps = Api::namespaced(client.clone(), "default");
    maps.create(&Default::default(), &icarus).await.unwrap();

    let (running, mut steps) = start(&client, true);
    assert_eq!(steps.recv().await, Some("started"));
    send("-INT");
    assert_eq!(steps.recv().await, Some("cancelled"));
    assert_eq!(steps.recv().await, Some("finished"));
    running.await.unwrap().unwrap();

    let (running, mut steps) = start(&client, false);
    assert_eq!(steps.recv().await, Some("started"));
    send("-TERM");
    assert_eq!(steps.recv().await, Some("cancelled"));
    send("-INT");
    let ended = running.await.unwrap();
    assert!(matches!(ended, Err(ManagerError::Interrupted)), "{ended:?}");
    assert_eq!(steps.recv().await, None);
}
