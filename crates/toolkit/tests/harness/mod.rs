//! What tests share: a client that meddles with its requests on their way, and maps to reconcile.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses its own part"
)]

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::{InformerOptions, Manager, SharedInformer};
use bellerophon_apiserver::ApiServer;
use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower::{ServiceExt, service_fn};

/// What becomes of a request.
pub(crate) enum Fate {
    /// It goes its way.
    Pass,
    /// It goes its way after this time.
    Hold(Duration),
    /// It never arrives, and the client is told so.
    Cut,
}

/// A client whose requests somebody looks at, and may change, before they go.
pub(crate) fn meddled(
    server: &ApiServer,
    meddle: impl Fn(&mut Request<Body>) -> Fate + Send + Sync + 'static,
) -> Client {
    let (service, meddle) = (server.service(), Arc::new(meddle));
    let service = service_fn(move |mut request: Request<Body>| {
        let (service, fate) = (service.clone(), meddle(&mut request));
        async move {
            match fate {
                Fate::Pass => {}
                Fate::Hold(time) => sleep(time).await,
                Fate::Cut => return Err(Box::<dyn Error + Send + Sync>::from("the line is cut")),
            }
            service.oneshot(request).await.map_err(Into::into)
        }
    });
    Client::new(service, "default")
}

/// Whether a request is a watch.
pub(crate) fn is_watch(request: &Request<Body>) -> bool {
    request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"))
}

/// Sets a parameter of a request's query.
pub(crate) fn set_query(request: &mut Request<Body>, name: &str, value: &str) {
    let (path, query) = (
        request.uri().path().to_owned(),
        request.uri().query().unwrap_or_default(),
    );
    let others = query
        .split('&')
        .filter(|pair| pair.split('=').next() != Some(name));
    let query = others
        .chain([format!("{name}={value}").as_str()])
        .collect::<Vec<_>>()
        .join("&");
    *request.uri_mut() = format!("{path}?{query}").parse().unwrap();
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Story(Arc<Mutex<Vec<String>>>);

impl Story {
    pub(crate) fn note(&self, words: impl Into<String>) {
        self.0.lock().unwrap().push(words.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The cache of the maps that tests make; the server has some of its own.
pub(crate) fn maps(client: &Client) -> SharedInformer<ConfigMap> {
    SharedInformer::new(
        client.clone(),
        (),
        InformerOptions {
            labels: Some("test".into()),
            ..InformerOptions::default()
        },
    )
}

pub(crate) fn map(name: &str) -> ConfigMap {
    serde_json::from_value(
        serde_json::json!({ "metadata": { "name": name, "labels": { "test": "" } } }),
    )
    .unwrap()
}

pub(crate) fn api<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), "default")
}

pub(crate) async fn create(client: &Client, name: &str) -> ConfigMap {
    let made = api::<ConfigMap>(client)
        .create(&PostParams::default(), &map(name))
        .await
        .unwrap();
    assert_eq!(made.name_any(), name);
    made
}

/// Lets everything happen that needs no more than this time.
pub(crate) async fn settle() {
    sleep(Duration::from_secs(2)).await;
}

/// Runs a manager while a story is told.
pub(crate) async fn run(manager: Manager, story: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let (ran, ()) = tokio::join!(manager.run(stop.clone()), async {
        story.await;
        stop.cancel();
    });
    ran.unwrap();
}
