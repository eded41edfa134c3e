//! Webhooks of a Manager on the embedded API server.

mod certificates; // the authority in its Secret, and TLS
mod conversion; // versions of a kind
mod declaration; // what is registered
mod end_to_end; // what clients see
mod recorded; // answers of controller-runtime
mod reviews; // answers to AdmissionReviews

use bellerophon::prelude::*;
use bellerophon::webhook::WebhookService;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A Manager whose client has no server.
pub(crate) fn unconnected_manager() -> Manager {
    let silent = tower::service_fn(|_: Request<kube::client::Body>| {
        std::future::pending::<Result<Response<String>, std::convert::Infallible>>()
    });
    crate::harness::manager(&Client::new(silent, "default"))
}

/// Posts a body to a webhook; the HTTP status and the body of the answer.
pub(crate) async fn post(service: &WebhookService, path: &str, body: String) -> (u16, Value) {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

/// An AdmissionReview of a ConfigMap with these fields in its request.
pub(crate) fn review(fields: Value) -> Value {
    let mut request = json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": "settings", "namespace": "team-a", "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}},
        "oldObject": null, "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    });
    for (name, value) in fields.as_object().unwrap() {
        request[name] = value.clone();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}
