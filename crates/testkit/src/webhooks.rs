//! The webhooks of an operator, called by the API server of a test cluster in the same process.
//!
//! Input: an operator that declares webhooks. Output: an API server, and the running operator.
//!
//! Guarantees: nothing is called over a socket, so that time may be paused; the configurations and
//! the permissions are those of the operator's manifests.

use std::sync::{Arc, OnceLock};

use bellerophon::{
    manager::{ManagerOptions, RunningManager},
    webhook::WebhookService,
};
use bellerophon_apiserver::{ApiServer, Builder};
use bellerophon_operator::{declared_webhooks, webhook_options, webhook_permissions};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::{fixture::OperatorFixture, test_cluster::TestCluster};

/// The webhooks of a Manager that is created after the server.
type SharedService = Arc<OnceLock<WebhookService>>;

impl OperatorFixture {
    /// Starts an API server with the operator's CRDs and webhook configurations, and the operator,
    /// whose webhooks the server calls in this process.
    ///
    /// # Panics
    /// The server refuses an object, or the operator does not become ready.
    pub fn start_with_webhooks(&self) -> BoxFuture<'_, (TestCluster, RunningManager)> {
        Box::pin(async move {
            let name = self.operator.name;
            let namespace = format!("{name}-system");
            let declared = declared_webhooks(&self.operator, &namespace);
            let service = SharedService::default();
            let mut builder = ApiServer::builder();
            for url in declared.iter().flat_map(urls) {
                builder = route(builder, &url, &service);
            }
            let cluster = TestCluster::with_server(builder).await;
            let metadata = json!({"name": namespace});
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            cluster.apply(object).await;
            let mut rules = self.permissions();
            rules.extend(webhook_permissions(&self.operator, &namespace));
            let account = self.install_with(&cluster, &rules).await;
            for object in declared {
                // The operator itself sets the conversion of a definition.
                if object["kind"] != "CustomResourceDefinition" {
                    cluster.apply(object).await;
                }
            }
            let location = format!("{namespace}/{name}-webhooks");
            let mut webhooks = webhook_options(name, &location).expect("a Service");
            // Nothing connects to it.
            webhooks.bind_address = ([127, 0, 0, 1], 0).into();
            let options = ManagerOptions {
                webhooks,
                ..account.manager_options()
            };
            let mgr = self.manager_with_webhooks(account.client.clone(), options);
            let is_first = service.set(mgr.webhook_service()).is_ok();
            assert!(is_first, "there is one Manager");
            let mut running = mgr.start();
            running.ready().await.expect("the webhooks are registered");
            (cluster, running)
        })
    }
}

/// The URLs of the webhooks of an object: those of a Service, as the API server resolves it.
fn urls(object: &Value) -> Vec<String> {
    let webhooks = object["webhooks"].as_array();
    let conversion = object.pointer("/spec/conversion/webhook");
    let all = webhooks.into_iter().flatten().chain(conversion);
    all.map(|webhook| {
        let service = &webhook["clientConfig"]["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default();
        let name = text("name");
        let namespace = text("namespace");
        let path = text("path");
        format!("https://{name}.{namespace}.svc:{}{path}", service["port"])
    })
    .collect()
}

/// Answers the reviews of a URL by the webhooks of a Manager.
fn route(builder: Builder, url: &str, service: &SharedService) -> Builder {
    let service = service.clone();
    builder.webhook(url, move |mut request: Request<Bytes>| {
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        let service = service.get().expect("the Manager exists").clone();
        async move {
            let answered = service.oneshot(request.map(Full::new)).await;
            let (head, body) = answered.expect("it cannot fail").into_parts();
            let body = body.collect().await.expect("it is in memory");
            Response::from_parts(head, body.to_bytes())
        }
    })
}
