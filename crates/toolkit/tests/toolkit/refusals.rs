//! Lists and watches that the server refuses: forbidden resources, compacted versions, no
//! streaming.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::informer::{FactoryOptions, InformerOptions, SharedInformerFactory, SyncError};
use bellerophon::prelude::*;
use http::{HeaderValue, Request as HttpRequest, Response, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::service_fn;

use crate::harness::{Fault, api, faulty_client, secret, server};

#[tokio::test(start_paused = true)]
async fn forbidden_resource_is_named_and_synced_once_permitted() {
    let server = server().await;
    let created = api::<Secret>(&server.client())
        .create(&PostParams::default(), &secret("a"))
        .await;
    created.unwrap();
    let jane = faulty_client(&server, |request| {
        let user = HeaderValue::from_static("jane");
        request.headers_mut().insert("impersonate-user", user);
        Fault::None
    });
    let informers = SharedInformerFactory::start(jane, FactoryOptions::default());
    let informer = informers.informer::<Secret>(InformerOptions::default());
    let start = Instant::now();
    let error = informer.wait_for_cache_sync().await.unwrap_err();
    assert!(
        matches!(&error, SyncError::Forbidden { resource, .. } if resource == "secrets"),
        "{error}"
    );
    let limit = server.time_without_timers();
    assert!(start.elapsed() <= limit, "it fails immediately");
    let group = "rbac.authorization.k8s.io";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "jane" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "jane" }],
    }))
    .unwrap();
    let bindings = Api::all(server.client());
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    let key = ObjectKey::namespaced("default", "a");
    let cached = informer
        .lister()
        .await_condition(&key, |secret| secret.is_some())
        .await;
    assert!(cached.is_some());
    assert!(informer.has_synced());
    informers.stop().await;
}

/// A server of one Secret that does not stream lists and has compacted every requested version.
/// Each list is one version newer.
#[derive(Clone, Default)]
struct Compacting(Arc<Mutex<Vec<String>>>);

impl Compacting {
    fn respond(&self, request: &HttpRequest<Body>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let mut requests = self.0.lock().unwrap();
        let lists = requests.iter().filter(|request| *request == "list").count();
        let version = (lists + 1).to_string();
        let status = |code: StatusCode, reason: &str| {
            let status = json!({
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": reason,
                "reason": reason,
                "code": code.as_u16(),
            });
            (code, status)
        };
        let (name, (code, body)) = if query.contains("sendInitialEvents=true") {
            let refused = status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
            ("stream", refused)
        } else if query.contains("watch=true") {
            ("watch", status(StatusCode::GONE, "Expired"))
        } else {
            let item = json!({ "namespace": "n", "name": "a", "resourceVersion": version });
            let list = json!({
                "kind": "SecretList",
                "apiVersion": "v1",
                "metadata": { "resourceVersion": version },
                "items": [{ "metadata": item }],
            });
            ("list", (StatusCode::OK, list))
        };
        requests.push(name.to_owned());
        let body = Body::from(body.to_string().into_bytes());
        Response::builder().status(code).body(body).unwrap()
    }
}

/// HTTP 410 at the start of a watch used to be followed by the same watch forever in other
/// libraries.
#[tokio::test(start_paused = true)]
async fn http_410_on_watch_start_relists_with_back_off() {
    let server = Compacting::default();
    let responding = server.clone();
    let service = service_fn(move |request: HttpRequest<Body>| {
        let response = responding.respond(&request);
        std::future::ready(Ok::<_, std::convert::Infallible>(response))
    });
    let client = Client::new(service, "default");
    let informers = SharedInformerFactory::start(client, FactoryOptions::default());
    let informer = informers.informer::<Secret>(InformerOptions::default());
    informer.wait_for_cache_sync().await.unwrap();
    let key = ObjectKey::namespaced("n", "a");
    let is_fourth = |secret: Option<&Secret>| {
        let version = secret.and_then(ResourceExt::resource_version);
        version.as_deref() == Some("4")
    };
    let cached = informer.lister().await_condition(&key, is_fourth).await;
    assert!(cached.is_some());
    let requests = server.0.lock().unwrap().clone();
    assert_eq!(
        requests[..7],
        ["stream", "list", "watch", "list", "watch", "list", "watch"]
    );
    let before = informer.stats().relists;
    sleep(Duration::from_secs(600)).await;
    let lists = informer.stats().relists - before;
    assert!(lists <= 25, "{lists} lists in ten minutes");
    informers.stop().await;
}
