//! Handlers in the process of the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CONFIG_MAPS, MUTATING, VALIDATING, config_map, configuration, create, metrics, send};

const URL: &str = "https://hook.default.svc:443/check";

fn service() -> Value {
    json!({"service": {"namespace": "default", "name": "hook", "path": "/check"}})
}

fn review_of(request: &Request<Bytes>) -> Value {
    serde_json::from_slice(request.body()).expect("a review")
}

fn answer(review: &Value, response: Value) -> Response<Bytes> {
    let mut response = response;
    response["uid"] = review["request"]["uid"].clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": response});
    Response::new(Bytes::from(review.to_string()))
}

#[tokio::test(start_paused = true)]
async fn handler_in_the_process_denies_and_is_gone_with_its_configuration() {
    let builder = ApiServer::builder().webhook(URL, |request| async move {
        let review = review_of(&request);
        let name = review["request"]["name"].as_str() == Some("bad");
        answer(
            &review,
            json!({"allowed": !name, "status": {"message": "bad names are refused"}}),
        )
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let configured = configuration("ValidatingWebhookConfiguration", service(), json!({}));
    create(&client, VALIDATING, configured).await;
    let (code, denied) = send(&client, "POST", CONFIG_MAPS, config_map("bad")).await;
    assert_eq!(code, 400);
    assert_eq!(
        denied["message"],
        "admission webhook \"check.example.com\" denied the request: bad names are refused"
    );
    create(&client, CONFIG_MAPS, config_map("good")).await;
    let path = format!("{VALIDATING}/checks");
    assert_eq!(send(&client, "DELETE", &path, Value::Null).await.0, 200);
    create(&client, CONFIG_MAPS, config_map("bad")).await;
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn slow_webhook_fails_after_its_timeout() {
    let builder = ApiServer::builder().webhook(URL, |request| async move {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        answer(&review_of(&request), json!({"allowed": true}))
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let configured = configuration("MutatingWebhookConfiguration", service(), json!({}));
    create(&client, MUTATING, configured).await;
    let started = Instant::now();
    let (code, failed) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    assert_eq!(code, 500, "{failed}");
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!(
        failed["message"],
        "Internal error occurred: failed calling webhook \"check.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/check?timeout=5s\": context deadline exceeded"
    );
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn validating_webhooks_are_called_concurrently() {
    let builder = ApiServer::builder().webhook(URL, |request| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        answer(&review_of(&request), json!({"allowed": true}))
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let mut configured = configuration("ValidatingWebhookConfiguration", service(), json!({}));
    let first = configured["webhooks"][0].clone();
    let many: Vec<Value> = (0..20)
        .map(|number| {
            let mut webhook = first.clone();
            webhook["name"] = format!("check{number}.example.com").into();
            webhook
        })
        .collect();
    configured["webhooks"] = many.into();
    create(&client, VALIDATING, configured).await;
    let started = Instant::now();
    create(&client, CONFIG_MAPS, config_map("a")).await;
    assert_eq!(started.elapsed().as_secs(), 1);
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn webhook_without_an_endpoint_names_the_service() {
    let server = ApiServer::builder().start().await.expect("a server");
    let client = server.client();
    let configured = configuration("ValidatingWebhookConfiguration", service(), json!({}));
    create(&client, VALIDATING, configured).await;
    let (_, failed) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("service \"hook\" not found"), "{message}");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_in_metrics() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let builder = ApiServer::builder().webhook(URL, move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { answer(&review_of(&request), json!({"allowed": false})) }
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let configured = configuration("ValidatingWebhookConfiguration", service(), json!({}));
    create(&client, VALIDATING, configured).await;
    assert_eq!(
        send(&client, "POST", CONFIG_MAPS, config_map("a")).await.0,
        400
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let text = metrics(&client).await;
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"check.example.com\",operation=\"CREATE\",rejection_code=\"400\",type=\"validating\"} 1",
        "apiserver_admission_webhook_request_total{code=\"400\",name=\"check.example.com\",operation=\"CREATE\",rejected=\"true\",type=\"validating\"} 1",
    ] {
        assert!(text.contains(line), "{line}");
    }
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn requests_without_configurations_call_no_webhook() {
    let builder =
        ApiServer::builder().webhook(URL, |_| async { panic!("no webhook is configured") });
    let server = builder.start().await.expect("a server");
    create(&server.client(), CONFIG_MAPS, config_map("a")).await;
    server.shutdown().await;
}

/// Validating webhooks received no version of an update that named none. kube-apiserver sends the
/// one that is replaced to validating webhooks, and what the client sent to mutating ones.
#[tokio::test(start_paused = true)]
async fn validating_webhook_sees_the_replaced_version_of_an_unconditional_update() {
    let (sender, mut versions) = tokio::sync::mpsc::channel(4);
    let builder = ApiServer::builder().webhook(URL, move |request| {
        let review = review_of(&request);
        let version = review["request"]["object"]["metadata"]["resourceVersion"].clone();
        sender.try_send(version).expect("two reviews");
        async move { answer(&review, json!({"allowed": true})) }
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    create(&client, CONFIG_MAPS, config_map("a")).await;
    let path = format!("{CONFIG_MAPS}/a");
    let (_, stored) = send(&client, "GET", &path, Value::Null).await;
    for (path, kind) in [
        (MUTATING, "MutatingWebhookConfiguration"),
        (VALIDATING, "ValidatingWebhookConfiguration"),
    ] {
        create(&client, path, configuration(kind, service(), json!({}))).await;
    }
    let mut changed = config_map("a");
    changed["data"] = json!({"changed": "yes"});
    assert_eq!(send(&client, "PUT", &path, changed).await.0, 200);
    assert_eq!(versions.recv().await, Some(Value::Null), "mutating");
    let version = stored["metadata"]["resourceVersion"].clone();
    assert_eq!(versions.recv().await, Some(version), "validating");
    server.shutdown().await;
}
