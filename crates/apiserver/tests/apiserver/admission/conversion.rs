//! Custom resources that a webhook converts: what other webhooks, policies and field managers see
//! of them.

use std::sync::{Arc, Mutex};

use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::{MUTATING, create, send};

const HOST: &str = "https://hook.default.svc:443";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "/apis/example.com/v1/namespaces/default/things";
const V2: &str = "/apis/example.com/v2/namespaces/default/things";

fn client_config(path: &str) -> Value {
    json!({"service": {"namespace": "default", "name": "hook", "path": path}})
}

/// Things: `v1`, which is stored, has `spec.hostPort`, and `v2` has `spec.host` and `spec.port`.
fn definition() -> Value {
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let text = json!({"type": "string"});
        let fields = fields
            .iter()
            .map(|field| ((*field).to_owned(), text.clone()));
        let fields: serde_json::Map<String, Value> = fields.collect();
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"], "clientConfig": client_config("/convert")}}}})
}

fn convert(request: &Request<Bytes>) -> Response<Bytes> {
    let review: Value = serde_json::from_slice(request.body()).expect("a review");
    let request = &review["request"];
    let version = &request["desiredAPIVersion"];
    let objects = request["objects"].as_array().expect("objects");
    let converted: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = version.clone();
            let spec = object["spec"].clone();
            let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
            object["spec"] = match spec.get("hostPort") {
                Some(both) => {
                    let both = both.as_str().unwrap_or_default();
                    let (host, port) = both.split_once(':').unwrap_or((both, ""));
                    json!({"host": host, "port": port})
                }
                None => json!({"hostPort": format!("{}:{}", text("host"), text("port"))}),
            };
            object
        })
        .collect();
    let response = json!({"uid": request["uid"], "convertedObjects": converted,
        "result": {"status": "Success"}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": response});
    Response::new(Bytes::from(review.to_string()))
}

fn thing(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Thing",
        "metadata": {"name": "a"}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn equivalent_webhook_sees_and_patches_the_version_of_its_rule() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reviews = seen.clone();
    let builder = ApiServer::builder()
        .webhook(&format!("{HOST}/convert"), |request| async move {
            convert(&request)
        })
        .webhook(&format!("{HOST}/mutate"), move |request| {
            let review: Value = serde_json::from_slice(request.body()).expect("a review");
            reviews
                .lock()
                .expect("no panic")
                .push(review["request"].clone());
            // [{"op":"replace","path":"/spec/port","value":"9"}]
            let patch = "W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9zcGVjL3BvcnQiLCJ2YWx1ZSI6IjkifV0=";
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "response": {"uid": review["request"]["uid"], "allowed": true,
                    "patchType": "JSONPatch", "patch": patch}});
            async move { Response::new(Bytes::from(review.to_string())) }
        });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    create(&client, DEFINITIONS, definition()).await;
    let webhook = json!({"name": "check.example.com", "clientConfig": client_config("/mutate"),
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent",
        "matchConditions": [{"name": "host", "expression": "object.spec.host == 'h'"}],
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v2"], "operations": ["CREATE"],
            "resources": ["things"]}]});
    let configured = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration", "metadata": {"name": "m"}, "webhooks": [webhook]});
    create(&client, MUTATING, configured).await;
    let created = create(&client, V1, thing("v1", json!({"hostPort": "h:1"}))).await;
    assert_eq!(created["apiVersion"], "example.com/v1");
    assert_eq!(created["spec"], json!({"hostPort": "h:9"}));
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["object"]["apiVersion"], "example.com/v2");
    assert_eq!(seen[0]["object"]["spec"], json!({"host": "h", "port": "1"}));
    assert_eq!(seen[0]["kind"]["version"], "v2");
    assert_eq!(seen[0]["requestKind"]["version"], "v1");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn equivalent_policy_sees_the_version_of_its_rule() {
    let builder = ApiServer::builder().webhook(&format!("{HOST}/convert"), |request| async move {
        convert(&request)
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    create(&client, DEFINITIONS, definition()).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"},
        "spec": {"validations": [{"expression": "object.spec.port != '7'"}],
            "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"],
                "apiVersions": ["v2"], "operations": ["*"], "resources": ["things"]}]}}});
    create(
        &client,
        &format!("{group}/validatingadmissionpolicies"),
        policy,
    )
    .await;
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "p"},
        "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    create(
        &client,
        &format!("{group}/validatingadmissionpolicybindings"),
        binding,
    )
    .await;
    let (code, denied) = send(&client, "POST", V1, thing("v1", json!({"hostPort": "h:7"}))).await;
    assert_eq!(code, 422, "{denied}");
    create(&client, V1, thing("v1", json!({"hostPort": "h:8"}))).await;
    server.shutdown().await;
}

async fn apply(
    client: &Client,
    path: &str,
    manager: &str,
    more: &str,
    spec: Value,
) -> (u16, Value) {
    let version = if path == V1 { "v1" } else { "v2" };
    let request = http::Request::builder()
        .method("PATCH")
        .uri(format!("{path}/a?fieldManager={manager}{more}"))
        .header("content-type", "application/apply-patch+yaml")
        .body(Body::from(thing(version, spec).to_string().into_bytes()))
        .expect("a request");
    let response = client.send(request).await.expect("a response");
    let code = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    let body = body.expect("a whole body").to_bytes();
    (code, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn apply_conflicts_with_managers_of_other_versions() {
    let builder = ApiServer::builder().webhook(&format!("{HOST}/convert"), |request| async move {
        convert(&request)
    });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    create(&client, DEFINITIONS, definition()).await;
    let (code, applied) = apply(&client, V1, "first", "", json!({"hostPort": "h:1"})).await;
    assert_eq!(code, 201, "{applied}");
    let same = json!({"host": "h", "port": "1"});
    let (code, applied) = apply(&client, V2, "second", "", same).await;
    assert_eq!(code, 200, "the same value is no conflict: {applied}");
    let other = json!({"host": "h", "port": "2"});
    let (code, refused) = apply(&client, V2, "second", "", other.clone()).await;
    assert_eq!(code, 409, "{refused}");
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"first\": .spec.hostPort"
    );
    let (code, applied) = apply(&client, V2, "second", "&force=true", other.clone()).await;
    assert_eq!(code, 200, "{applied}");
    assert_eq!(applied["spec"], other);
    server.shutdown().await;
}
