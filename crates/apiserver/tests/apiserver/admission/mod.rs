//! Webhooks, policies and quotas, from configuration to denial.

mod audit; // what webhooks and policies add to audit events
mod bounds; // webhooks and policies that misbehave
mod conversion; // custom resources that a webhook converts
mod kube_rs; // a webhook of kube-rs
mod label_webhook; // its handler
mod quota; // ResourceQuotas under concurrent writes
mod tls; // webhooks behind a Service, over TLS
mod webhooks; // handlers in this process

use kube::{Client, client::Body};
use serde_json::{Value, json};

/// Sends a request as the administrator, and returns the code and the document of the response.
async fn send(client: &Client, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() {
        Body::empty()
    } else {
        Body::from(body.to_string().into_bytes())
    };
    let media_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .body(body)
        .expect("a request");
    let response = client.send(request).await.expect("a response");
    let code = response.status().as_u16();
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await;
    let bytes = bytes.expect("a whole body").to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Creates an object that must be accepted.
async fn create(client: &Client, path: &str, object: Value) -> Value {
    let (code, created) = send(client, "POST", path, object).await;
    assert_eq!(code, 201, "{path}: {created}");
    created
}

/// The metrics of the server, as text.
async fn metrics(client: &Client) -> String {
    let request = http::Request::get("/metrics").body(Vec::new());
    let text = client.request_text(request.expect("a request")).await;
    text.expect("metrics")
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A configuration with one webhook of ConfigMaps.
fn configuration(kind: &str, client: Value, more: Value) -> Value {
    let mut webhook = json!({
        "name": "check.example.com", "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": "checks"}, "webhooks": [webhook]})
}

const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
