//! Webhooks and policies that do not do what they should: clear answers in bounded time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellerophon_apiserver::{ApiServer, Builder};
use bytes::Bytes;
use http::{Method, Response};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CONFIG_MAPS, VALIDATING, config_map, configuration, create, metrics, send};

const HOST: &str = "https://hook.default.svc:443";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn redirect(code: u16, location: &str) -> Response<Bytes> {
    let response = Response::builder().status(code);
    let response = response.header("location", location);
    response.body(Bytes::new()).expect("a response")
}

fn allowed(body: &Bytes) -> Response<Bytes> {
    let review: Value = serde_json::from_slice(body).unwrap_or_default();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": true}});
    Response::new(Bytes::from(review.to_string()))
}

/// A server that calls the webhook at `/start` for each ConfigMap.
async fn start(builder: Builder) -> (ApiServer, Client) {
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let service = json!({"service": {"namespace": "default", "name": "hook", "path": "/start"}});
    let configured = configuration("ValidatingWebhookConfiguration", service, json!({}));
    create(&client, VALIDATING, configured).await;
    (server, client)
}

/// Redirects `/start` with a code to `/end`, which allows what it is sent.
async fn redirected(code: u16) -> (u16, Value, Method) {
    let method = Arc::new(Mutex::new(Method::HEAD));
    let seen = method.clone();
    let builder = ApiServer::builder()
        .webhook(&format!("{HOST}/start"), move |_| async move {
            redirect(code, "/end")
        })
        .webhook(&format!("{HOST}/end"), move |request| {
            *seen.lock().expect("no panic") = request.method().clone();
            async move { allowed(request.body()) }
        });
    let (server, client) = start(builder).await;
    let (code, answer) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    server.shutdown().await;
    let method = method.lock().expect("no panic").clone();
    (code, answer, method)
}

#[tokio::test(start_paused = true)]
async fn redirect_that_keeps_the_method_is_followed() {
    for redirecting in [307, 308] {
        let (code, answer, method) = redirected(redirecting).await;
        assert_eq!(code, 201, "{answer}");
        assert_eq!(method, Method::POST);
    }
}

#[tokio::test(start_paused = true)]
async fn redirect_to_another_method_loses_the_review() {
    for redirecting in [301, 302, 303] {
        let (code, answer, method) = redirected(redirecting).await;
        assert_eq!(code, 500, "{answer}");
        assert_eq!(method, Method::GET);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains("expected response.uid="), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn redirects_in_a_loop_end_after_ten_requests() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let builder = ApiServer::builder().webhook(&format!("{HOST}/start"), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { redirect(307, "/start") }
    });
    let (server, client) = start(builder).await;
    let (code, answer) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    assert_eq!(code, 500);
    assert_eq!(
        answer["message"],
        "Internal error occurred: failed calling webhook \"check.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/start\": stopped after 10 redirects"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 10);
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handler_response_of_100_megabytes_is_refused() {
    let body = Bytes::from(vec![b' '; 100 << 20]);
    let builder = ApiServer::builder().webhook(&format!("{HOST}/start"), move |_| {
        let body = body.clone();
        async { Response::new(body) }
    });
    let (server, client) = start(builder).await;
    let (code, answer) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    assert_eq!(code, 500);
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("exceeds 8388608 bytes"), "{message}");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn timeout_of_the_request_limits_the_webhook() {
    let query = Arc::new(Mutex::new(String::new()));
    let seen = query.clone();
    let builder = ApiServer::builder().webhook(&format!("{HOST}/start"), move |request| {
        let query = request.uri().query().unwrap_or_default();
        query.clone_into(&mut seen.lock().expect("no panic"));
        std::future::pending()
    });
    let (server, client) = start(builder).await;
    let started = Instant::now();
    let path = format!("{CONFIG_MAPS}?timeout=2s");
    let (code, answer) = send(&client, "POST", &path, config_map("a")).await;
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    assert_eq!(code, 504, "{answer}");
    assert_eq!(
        answer["message"],
        "Timeout: request did not complete within the allotted timeout"
    );
    assert_eq!(*query.lock().expect("no panic"), "timeout=2s");
    let path = format!("{CONFIG_MAPS}?timeout=2");
    let (code, answer) = send(&client, "POST", &path, config_map("a")).await;
    assert_eq!(code, 400);
    assert_eq!(
        answer["message"],
        "invalid timeout specified in the request URL - time: missing unit in duration \"2\""
    );
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn conversion_webhook_that_hangs_fails_after_30_seconds() {
    let builder =
        ApiServer::builder().webhook(&format!("{HOST}/convert"), |_| std::future::pending());
    let server = builder.start().await.expect("a server");
    let client = server.client();
    create(&client, DEFINITIONS, things()).await;
    let v1 = "/apis/example.com/v1/namespaces/default/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}});
    create(&client, v1, thing).await;
    let started = Instant::now();
    let v2 = "/apis/example.com/v2/namespaces/default/things";
    let (list, get, other) = tokio::join!(
        send(&client, "GET", v2, Value::Null),
        async {
            let path = format!("{v2}/a");
            send(&client, "GET", &path, Value::Null).await
        },
        async {
            // Requests that need no conversion are not held up.
            let path = format!("{v1}/a");
            let answer = send(&client, "GET", &path, Value::Null).await;
            (answer.0, started.elapsed())
        },
    );
    assert_eq!(other, (200, Duration::ZERO));
    assert_eq!(started.elapsed(), Duration::from_secs(30));
    for (code, answer) in [list, get] {
        assert_eq!(code, 500);
        assert_eq!(
            answer["message"],
            "conversion webhook for example.com/v1, Kind=Thing failed: Post \"https://hook.default.svc:443/convert\": context deadline exceeded"
        );
    }
    server.shutdown().await;
}

/// A definition of Things in two versions, which a webhook converts.
fn things() -> Value {
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/convert"}}}}}})
}

/// Creates a policy of ConfigMaps with one validation, and returns the response to a ConfigMap with
/// this many entries.
async fn policy_answer(client: &Client, name: &str, expression: &str, entries: usize) -> Value {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"validations": [{"expression": expression}],
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["configmaps"]}]}}});
    create(client, POLICIES, policy).await;
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]}});
    create(client, BINDINGS, binding).await;
    let mut object = config_map(name);
    for entry in 0..entries {
        object["data"][format!("k{entry}")] = "v".into();
    }
    let (_, answer) = send(client, "POST", CONFIG_MAPS, object).await;
    for path in [POLICIES, BINDINGS] {
        let path = format!("{path}/{name}");
        assert_eq!(send(client, "DELETE", &path, Value::Null).await.0, 200);
    }
    answer
}

#[tokio::test(start_paused = true)]
async fn policy_is_stopped_at_the_edge_of_its_cost() {
    let server = ApiServer::builder().start().await.expect("a server");
    let client = server.client();
    // Each step of the inner loop costs 6 units: 400 by 400 entries are below the limit of an
    // expression of 1,000,000, and 500 by 500 are above.
    let expression = "object.data.all(a, object.data.all(b, a != b || true))";
    let within = policy_answer(&client, "within", expression, 300).await;
    assert_eq!(within["kind"], "ConfigMap", "{within}");
    let beyond = policy_answer(&client, "beyond", expression, 1000).await;
    let message = beyond["message"].as_str().unwrap_or_default();
    assert!(
        message.ends_with("operation cancelled: actual cost limit exceeded"),
        "{message}"
    );
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_policy_checks_are_counted_in_metrics() {
    let server = ApiServer::builder().start().await.expect("a server");
    let client = server.client();
    policy_answer(&client, "denied", "false", 0).await;
    let text = metrics(&client).await;
    // As in kube-apiserver, a denial is an `invalid_error`.
    let labels = "enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"denied\",\
                  policy_binding=\"denied\"";
    for name in ["check_total", "check_duration_seconds_count"] {
        let line = format!("apiserver_validating_admission_policy_{name}{{{labels}}} 1");
        assert!(text.contains(&line), "{line}");
    }
    server.shutdown().await;
}
