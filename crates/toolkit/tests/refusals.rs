//! What an API refuses, as HTTP statuses that a client really sees: forbidden kinds, forgotten versions, no streaming.

use std::sync::{Arc, Mutex, PoisonError};

use bellerophon::{InformerOptions, ObjectKey, SharedInformer, SyncError};
use bellerophon_apiserver::ApiServer;
use http::{HeaderValue, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams, client::Body};
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::{ServiceExt, service_fn};

/// Lets virtual time pass until it is so.
async fn until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(3600);
    while !so() {
        assert!(Instant::now() < end, "it never came to be");
        sleep(Duration::from_millis(100)).await;
    }
}

fn run(informer: &SharedInformer<Secret>) -> CancellationToken {
    let (informer, stop) = (informer.clone(), CancellationToken::new());
    let stopped = stop.clone();
    tokio::spawn(async move { informer.run(stopped).await });
    stop
}

#[tokio::test(start_paused = true)]
async fn forbidden_kind_is_named_and_synced_once_permitted() {
    let server = ApiServer::builder()
        .seed(1)
        .start()
        .await
        .expect("the server starts");
    let service = server.service();
    let as_jane = service_fn(move |mut request: Request<Body>| {
        request
            .headers_mut()
            .insert("impersonate-user", HeaderValue::from_static("jane"));
        service.clone().oneshot(request)
    });
    let informer = SharedInformer::<Secret>::new(
        Client::new(as_jane, "default"),
        (),
        InformerOptions::default(),
    );
    let stop = run(&informer);
    let start = Instant::now();
    let error = informer
        .wait_for_sync()
        .await
        .expect_err("jane may do nothing");
    assert!(
        matches!(&error, SyncError::Forbidden { what, .. } if what == "secrets"),
        "{error}"
    );
    assert_eq!(start.elapsed(), Duration::ZERO, "it failed at once");
    let binding = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "jane" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane" }],
    }))
    .expect("a binding");
    let api: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(server.client());
    api.create(&PostParams::default(), &binding)
        .await
        .expect("it is created");
    until(|| informer.has_synced()).await;
    stop.cancel();
}

/// A server of one secret that cannot stream lists and forgets every version; each list is one version newer.
#[derive(Clone, Default)]
struct Forgetful(Arc<Mutex<Vec<String>>>);

impl Forgetful {
    fn answer(&self, request: &Request<Body>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lists = 1 + asked.iter().filter(|request| *request == "list").count();
        let refused = |code: StatusCode, reason: &str| {
            let status = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
                "reason": reason, "code": code.as_u16() });
            (code, status)
        };
        let (name, (code, body)) = if query.contains("sendInitialEvents=true") {
            (
                "stream",
                refused(StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            )
        } else if query.contains("watch=true") {
            ("watch", refused(StatusCode::GONE, "Expired"))
        } else {
            let metadata = serde_json::json!({ "namespace": "n", "name": "a", "resourceVersion": lists.to_string() });
            let list = serde_json::json!({ "kind": "SecretList", "apiVersion": "v1", "metadata": { "resourceVersion": lists.to_string() },
                "items": [{ "metadata": metadata }] });
            ("list", (StatusCode::OK, list))
        };
        asked.push(name.to_owned());
        let body = Body::from(body.to_string().into_bytes());
        Response::builder()
            .status(code)
            .body(body)
            .expect("a response")
    }
}

/// HTTP 410 at the start of a watch used to be answered by the same watch for ever in other libraries.
#[tokio::test(start_paused = true)]
async fn http_410_on_watch_start_relists_ever_more_rarely() {
    let server = Forgetful::default();
    let answering = server.clone();
    let service = service_fn(move |request: Request<Body>| {
        std::future::ready(Ok::<_, std::convert::Infallible>(
            answering.answer(&request),
        ))
    });
    let informer = SharedInformer::<Secret>::new(
        Client::new(service, "default"),
        (),
        InformerOptions::default(),
    );
    let stop = run(&informer);
    informer.wait_for_sync().await.expect("lists work");
    let version = || {
        informer
            .lister()
            .resource_version_of(&ObjectKey::namespaced("n", "a"))
    };
    until(|| version().as_deref() == Some("4")).await;
    let asked = server
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    assert_eq!(
        asked[..7],
        ["stream", "list", "watch", "list", "watch", "list", "watch"]
    );
    let before = informer.stats().relists;
    sleep(Duration::from_secs(600)).await;
    assert!(
        informer.stats().relists - before <= 25,
        "{} lists in ten minutes",
        informer.stats().relists - before
    );
    stop.cancel();
}
