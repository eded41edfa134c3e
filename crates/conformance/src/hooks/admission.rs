//! Answers to AdmissionReviews.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Response, header};
use serde_json::{Map, Value, json};

use super::{json as json_response, respond, text};

/// More than any server reads.
const BIG_BYTES: usize = 100 << 20;

pub(super) fn answer(path: &str, review: &Value) -> Response<Bytes> {
    let request = &review["request"];
    let allowed = |more: Value| json_response(200, &reviewed(review, true, &more));
    let denied = |status: Value| {
        let denied = reviewed(review, false, &json!({ "status": status }));
        json_response(200, &denied)
    };
    let patched = |operations: Value| {
        let patch = STANDARD.encode(operations.to_string());
        allowed(json!({"patch": patch, "patchType": "JSONPatch"}))
    };
    let label = |name: &str| patched(json!([set(request, "labels", name, "set")]));
    match path {
        "/allow" | "/slow" => allowed(json!({})),
        "/annotate" => allowed(json!({"auditAnnotations": {"seen": "yes"}})),
        "/warn" => allowed(json!({"warnings": ["be careful", "be careful", "second"]})),
        "/warn-deny" => {
            let more = json!({"warnings": ["last warning"], "status": {"message": "no"}});
            json_response(200, &reviewed(review, false, &more))
        }
        "/deny" => denied(json!({"message": "not today"})),
        "/deny-code" => {
            denied(json!({"code": 402, "message": "pay first", "reason": "PaymentRequired"}))
        }
        "/deny-details" => denied(json!({
            "code": 422, "reason": "Invalid", "message": "fields are wrong",
            "details": {"name": "n", "group": "g", "kind": "k", "causes": [
                {"reason": "FieldValueInvalid", "message": "too small", "field": "data.size"}]},
        })),
        "/deny-name" => denied(
            json!({"message": format!("no to {}", request["name"].as_str().unwrap_or("nobody"))}),
        ),
        "/deny-nothing" => denied(Value::Null),
        "/deny-reason" => denied(json!({"reason": "Teapot", "code": 418})),
        "/deny-success" => denied(json!({"status": "Success", "code": 200, "message": "fine"})),
        "/echo" => denied(
            json!({ "message": echoed(request, &["kind", "resource", "subResource",
            "requestKind", "requestResource", "requestSubResource", "name", "namespace", "operation", "dryRun"]) }),
        ),
        "/echo-options" => {
            denied(json!({ "message": echoed(request, &["operation", "options", "dryRun"]) }))
        }
        "/echo-user" => denied(json!({ "message": echoed(request, &["userInfo"]) })),
        "/echo-object" => denied(json!({ "message": objects(request) })),
        "/uid" => {
            let mut body = reviewed(review, true, &json!({}));
            body["response"]["uid"] = "wrong".into();
            json_response(200, &body)
        }
        "/no-response" => json_response(
            200,
            &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
        ),
        "/no-kind" => json_response(
            200,
            &json!({"response": {"uid": request["uid"], "allowed": true}}),
        ),
        "/kind" => json_response(
            200,
            &json!({"apiVersion": "v1", "kind": "Pod", "response": {"uid": request["uid"], "allowed": true}}),
        ),
        "/beta" => {
            let mut beta = reviewed(review, true, &json!({}));
            beta["apiVersion"] = "admission.k8s.io/v1beta1".into();
            json_response(200, &beta)
        }
        "/response-type" => json_response(
            200,
            &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": "yes"}),
        ),
        "/garbage" => text(200, "certainly not JSON"),
        "/string" => json_response(200, &json!("a string")),
        "/list" => json_response(200, &json!([])),
        "/empty" => respond(200, "application/json", String::new()),
        "/big" => respond(200, "application/json", " ".repeat(BIG_BYTES)),
        "/redirect" => {
            let mut response = text(302, "elsewhere");
            let location = header::HeaderValue::from_static("/allow");
            response.headers_mut().insert(header::LOCATION, location);
            response
        }
        "/code-400" => text(400, "bad"),
        "/code-404" => text(404, "404 page not found\n"),
        "/code-429" => text(429, "slow down"),
        "/code-500" => text(500, "broken"),
        "/code-503" => text(503, "not now"),
        "/code-json" => json_response(500, &json!({"error": "broken"})),
        "/code-status" => json_response(
            403,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": "nobody may ask", "reason": "Forbidden", "code": 403}),
        ),
        "/label-a" => label("a"),
        "/label-b" => label("b"),
        "/trail-a" => patched(trail(request, "a")),
        "/trail-b" => patched(trail(request, "b")),
        "/trail-c" => patched(trail(request, "c")),
        "/name" => {
            patched(json!([{"op": "replace", "path": "/metadata/name", "value": "renamed"}]))
        }
        "/managed" => patched(
            json!([{"op": "add", "path": "/metadata/managedFields", "value": [{"manager": "x", "operation": "Oops", "fieldsType": "Nope"}]}]),
        ),
        "/numbers" => {
            let patch = json!([set(request, "labels", "numbers", "set")]).to_string();
            let bytes: Vec<u8> = patch.into_bytes();
            allowed(json!({"patch": bytes, "patchType": "JSONPatch"}))
        }
        "/null-patch" => allowed(json!({"patch": null, "patchType": null})),
        "/bad-patch" => allowed(
            json!({"patch": STANDARD.encode("{\"not\": \"a list\"}"), "patchType": "JSONPatch"}),
        ),
        "/patch-no-type" => allowed(json!({"patch": STANDARD.encode("[]")})),
        "/type-no-patch" => allowed(json!({"patchType": "JSONPatch"})),
        "/patch-type" => allowed(
            json!({"patch": STANDARD.encode("[{\"op\":\"add\",\"path\":\"/a\",\"value\":1}]"), "patchType": "MergePatch"}),
        ),
        "/patch-missing" => {
            patched(json!([{"op": "replace", "path": "/data/none/deeper", "value": "x"}]))
        }
        "/patch-root" => patched(json!([{"op": "remove", "path": "/nothing"}])),
        "/patch-test" => {
            patched(json!([{"op": "test", "path": "/metadata/name", "value": "another name"}]))
        }
        "/patch-unknown-field" => {
            patched(json!([{"op": "add", "path": "/unknown", "value": {"a": 1}}]))
        }
        "/patch-wrong-type" => patched(json!([{"op": "add", "path": "/data", "value": "a text"}])),
        _ => text(404, "404 page not found\n"),
    }
}

/// A review that answers another.
fn reviewed(review: &Value, allowed: bool, more: &Value) -> Value {
    let mut response = json!({"uid": review["request"]["uid"], "allowed": allowed});
    for (key, value) in more.as_object().into_iter().flatten() {
        if !value.is_null() {
            response[key] = value.clone();
        }
    }
    json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response})
}

/// Sets a label or annotation, in a map that is made if there is none.
fn set(request: &Value, map: &str, key: &str, value: &str) -> Value {
    let has_map = request["object"]["metadata"][map].is_object();
    if has_map {
        json!({"op": "add", "path": format!("/metadata/{map}/{key}"), "value": value})
    } else {
        json!({"op": "add", "path": format!("/metadata/{map}"), "value": {key: value}})
    }
}

/// Records which webhooks have seen an object, in their order.
fn trail(request: &Value, name: &str) -> Value {
    let before = request["object"]["metadata"]["annotations"]["trail"].as_str();
    let after = format!("{}{name}", before.unwrap_or_default());
    json!([set(request, "annotations", "trail", &after)])
}

/// Fields of a request as JSON with sorted keys.
fn echoed(request: &Value, fields: &[&str]) -> String {
    let kept: Map<String, Value> = fields
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), request.get(field)?.clone())))
        .collect();
    Value::Object(kept).to_string()
}

/// The objects of a request, without what differs between runs.
fn objects(request: &Value) -> String {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|key, _| {
                ![
                    "uid",
                    "resourceVersion",
                    "creationTimestamp",
                    "managedFields",
                ]
                .contains(&key.as_str())
            });
        }
        object
    };
    json!({"object": bare(&request["object"]), "oldObject": bare(&request["oldObject"])})
        .to_string()
}
