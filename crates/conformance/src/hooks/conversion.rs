//! Answers to ConversionReviews: `v1` has `spec.hostPort`, `v2` has `spec.host` and `spec.port`.

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::{json as json_response, respond, text};

pub(super) fn answer(path: &str, review: &Value) -> Response<Bytes> {
    let request = &review["request"];
    let version = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let mut converted: Vec<Value> = objects
        .into_iter()
        .map(|object| convert(object, version))
        .collect();
    let mut response = json!({"uid": request["uid"], "result": {"status": "Success"}});
    match path {
        "/convert-garbage" => return text(200, "certainly not JSON"),
        "/convert-status" => return text(500, "broken"),
        "/convert-empty" => return respond(200, "application/json", String::new()),
        "/convert-fail" => {
            response["result"] = json!({"status": "Failed", "message": "cannot convert"})
        }
        "/convert-uid" => response["uid"] = "wrong".into(),
        "/convert-fewer" => {
            converted.pop();
        }
        "/convert-version" => converted.iter_mut().for_each(|object| {
            object["apiVersion"] = "other.example.com/v9".into();
        }),
        "/convert-kind" => converted
            .iter_mut()
            .for_each(|object| object["kind"] = "Other".into()),
        "/convert-name" => converted.iter_mut().for_each(|object| {
            object["metadata"]["name"] = "renamed".into();
        }),
        "/convert-labels" => converted.iter_mut().for_each(|object| {
            object["metadata"]["labels"] = json!({"converted": "yes"});
        }),
        _ => {}
    }
    response["convertedObjects"] = json!(converted);
    json_response(
        200,
        &json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response}),
    )
}

fn convert(mut object: Value, version: &str) -> Value {
    let is_old = |version: &str| version.ends_with("/v1");
    let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    object["apiVersion"] = version.into();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return object;
    };
    if is_old(&from) && !is_old(version) {
        if let Some(Value::String(both)) = spec.remove("hostPort") {
            let (host, port) = both.split_once(':').unwrap_or((&both, ""));
            spec.insert("host".into(), host.into());
            spec.insert("port".into(), port.into());
        }
    } else if !is_old(&from) && is_old(version) {
        let part = |spec: &mut serde_json::Map<String, Value>, key: &str| {
            let value = spec.remove(key);
            value
                .and_then(|value| value.as_str().map(str::to_owned))
                .unwrap_or_default()
        };
        let host = part(spec, "host");
        let port = part(spec, "port");
        spec.insert("hostPort".into(), format!("{host}:{port}").into());
    }
    object
}
