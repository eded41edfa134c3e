//! Request bodies through the whole server: decoding, defaulting, admission, validation, managed
//! fields and the response.
//!
//! Input: a path on the first line, and the body behind it.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::{
    Outcome, first_line,
    server::{JSON, PROTOBUF, Response, Server, with_server},
};

const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The largest object that etcd stores, in bytes.
const STORED_MAX_BYTES: usize = 3 << 19;

/// Creation from a protobuf body: the created object is a valid body again.
pub(super) fn protobuf_body(data: &[u8]) -> Outcome {
    let (path, body) = parts(data);
    with_server(|server| {
        let create = |content_type, body: Vec<u8>| {
            server.dry_run(&Method::POST, &path, "", content_type, body)
        };
        let Some(response) = create(PROTOBUF, body.to_vec()) else {
            return Outcome::NONE;
        };
        if response.status == 201 && is_object(&response) && is_storable(&response) {
            let mut object = response.json();
            // A new object must not have these.
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
                metadata.remove("uid");
            }
            let again = create(JSON, object.to_string().into_bytes()).expect("the same path");
            assert_eq!(again.status, 201, "{object} is rejected: {:?}", again.body);
        }
        response.outcome()
    })
}

/// Strategic merge patches: what a patch makes of an object is a valid update of it.
pub(super) fn strategic_merge_patch(data: &[u8]) -> Outcome {
    patch(data, STRATEGIC, "&fieldManager=fuzz")
}

/// Server-side apply: what it makes of an object, with managed fields, is a valid update of it.
pub(super) fn apply(data: &[u8]) -> Outcome {
    patch(data, APPLY, "&fieldManager=fuzz&force=true")
}

fn patch(data: &[u8], content_type: &'static str, options: &str) -> Outcome {
    let (path, body) = parts(data);
    with_server(|server| {
        let patched = server.dry_run(&Method::PATCH, &path, options, content_type, body.to_vec());
        let Some(response) = patched else {
            return Outcome::NONE;
        };
        if response.status == 200 && is_object(&response) && is_storable(&response) {
            let updated = server
                .dry_run(&Method::PUT, &path, "", JSON, response.body.clone())
                .expect("the same path");
            assert_eq!(
                updated.status, 200,
                "{:?} is rejected: {:?}",
                response.body, updated.body
            );
        }
        response.outcome()
    })
}

/// Field sets of managed fields: a stored set is returned in a form that is stored unchanged, and
/// apply and update work with it.
pub(super) fn fields_v1(data: &[u8]) -> Outcome {
    let (path, body) = parts(data);
    if serde_json::from_slice::<Value>(body).is_err() {
        return Outcome::NONE;
    }
    let fields = String::from_utf8_lossy(body);
    with_server(|server| {
        let path = match path.as_str() {
            "deployment" => "/apis/apps/v1/namespaces/default/deployments/a",
            "thing" => "/apis/example.dev/v1/namespaces/default/things/a",
            _ => "/api/v1/namespaces/default/configmaps/a",
        };
        let stored = put(server, path, with_fields(get(server, path), &fields));
        let outcome = stored.outcome();
        if stored.status == 200 {
            let object = stored.json();
            let managed = &object["metadata"]["managedFields"];
            let again = put(server, path, object.to_string());
            assert_eq!(again.status, 200, "{managed} is rejected: {:?}", again.body);
            assert_eq!(&again.json()["metadata"]["managedFields"], managed);
            let configuration = json!({
                "apiVersion": object["apiVersion"], "kind": object["kind"],
                "metadata": {"name": "a", "labels": {"fuzz": "x"}},
            });
            let applied = server.dry_run(
                &Method::PATCH,
                path,
                "&fieldManager=m&force=true",
                APPLY,
                configuration.to_string(),
            );
            let status = applied.expect("a valid path").status;
            assert!(!status.is_server_error(), "apply fails with {status}");
        }
        let restored = put(server, path, with_fields(get(server, path), "{}"));
        assert_eq!(restored.status, 200, "{:?}", restored.body);
        outcome
    })
}

/// An object with one field manager, as text: a tree of the fields would take more memory than the
/// server is measured with.
fn with_fields(mut object: Value, fields: &str) -> String {
    const PLACEHOLDER: &str = "fields of the input";
    object["metadata"]["managedFields"] = json!([{
        "manager": "m", "operation": "Apply", "apiVersion": object["apiVersion"],
        "time": "2024-05-06T07:08:09Z", "fieldsType": "FieldsV1", "fieldsV1": PLACEHOLDER,
    }]);
    object
        .to_string()
        .replace(&format!("\"{PLACEHOLDER}\""), fields)
}

fn get(server: &Server, path: &str) -> Value {
    let response = server.send(&Method::GET, path, &HeaderMap::new(), "");
    response.expect("a valid path").json()
}

/// Replaces the stored object.
fn put(server: &Server, path: &str, object: String) -> Response {
    let response = server.send(&Method::PUT, path, &HeaderMap::new(), object);
    response.expect("a valid path")
}

/// Certificate signing requests: the signer on the first line, the request in PEM behind it.
pub(super) fn signing_request(data: &[u8]) -> Outcome {
    let (signer, request) = parts(data);
    let object = json!({
        "metadata": {"name": "a"},
        "spec": {
            "signerName": signer, "usages": ["client auth", "digital signature"],
            "request": BASE64_STANDARD.encode(request),
        },
    });
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    with_server(|server| {
        let response = server.dry_run(&Method::POST, path, "", JSON, object.to_string());
        response.expect("a valid path").outcome()
    })
}

fn parts(data: &[u8]) -> (String, &[u8]) {
    let (path, body) = first_line(data);
    (String::from_utf8_lossy(path).into_owned(), body)
}

/// Whether an object can be stored in a real cluster; a longer one may exceed other limits.
fn is_storable(response: &Response) -> bool {
    response.body.len() <= STORED_MAX_BYTES
}

/// Whether a response is an object, and not a review, a binding or another result.
fn is_object(response: &Response) -> bool {
    let object: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    !object["metadata"]["uid"].is_null()
}
