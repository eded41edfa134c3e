//! Codes, reasons and the shape of a failure.

use serde_json::{Value, json};

use super::{
    cluster::both_ways,
    objects::{cm, deployment},
};

#[test]
fn failures_have_their_code_reason_and_kind() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place
            .set_up(&[
                ("POST cm", cm("a", "1")),
                ("POST deploy", deployment("d", 1)),
            ])
            .await;
        let none = || Value::Null;
        for (line, body, code, reason, kind) in [
            // Objects and names are identified by their resource.
            ("GET cm/x", none(), 404, "NotFound", "configmaps"),
            ("GET deploy/x", none(), 404, "NotFound", "deployments"),
            ("DELETE cm/x", none(), 404, "NotFound", "configmaps"),
            ("POST cm", cm("a", "1"), 409, "AlreadyExists", "configmaps"),
            (
                "PUT cm/a",
                json!({"metadata": {"name": "a", "resourceVersion": "1"}}),
                409,
                "Conflict",
                "configmaps",
            ),
            (
                "POST /api/v1/namespaces/missing/configmaps",
                cm("a", "1"),
                404,
                "NotFound",
                "namespaces",
            ),
            (
                "DELETE ns/kube-system",
                none(),
                403,
                "Forbidden",
                "namespaces",
            ),
            // Invalid objects and broken preconditions by their kind.
            ("POST cm", cm("A B", "1"), 422, "Invalid", "ConfigMap"),
            (
                "POST deploy",
                json!({"metadata": {"name": "e"}, "spec": {}}),
                422,
                "Invalid",
                "Deployment",
            ),
            (
                "DELETE cm/a",
                json!({"preconditions": {"uid": "other"}}),
                409,
                "Conflict",
                "ConfigMap",
            ),
            // What cannot be understood has no details.
            ("POST cm", json!("text"), 400, "BadRequest", ""),
            (
                "POST cm",
                json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}),
                400,
                "BadRequest",
                "",
            ),
            (
                "POST cm",
                json!({"metadata": {"name": 5}}),
                400,
                "BadRequest",
                "",
            ),
            (
                "POST cm",
                json!({"metadata": {"name": "x"}, "data": {"k": 5}}),
                400,
                "BadRequest",
                "",
            ),
            ("PUT cm/a", cm("other", "1"), 400, "BadRequest", ""),
            ("JSON cm/a", json!({"op": "add"}), 400, "BadRequest", ""),
            (
                "JSON cm/a",
                json!([{"op": "remove", "path": "/data/none"}]),
                422,
                "Invalid",
                "",
            ),
            ("GET cm?labelSelector=%21%21", none(), 400, "BadRequest", ""),
            (
                "GET cm?fieldSelector=spec.x%3D1",
                none(),
                400,
                "BadRequest",
                "",
            ),
            // Paths.
            ("GET /api/v1/nothings", none(), 404, "NotFound", ""),
            ("GET /apis/apps/v9/deployments", none(), 404, "NotFound", ""),
            ("GET cm/a/nothing", none(), 404, "NotFound", ""),
            ("PUT cm", cm("a", "1"), 405, "MethodNotAllowed", ""),
            ("POST cm/a", cm("a", "1"), 405, "MethodNotAllowed", ""),
            (
                "POST /api/v1/configmaps",
                cm("a", "1"),
                405,
                "MethodNotAllowed",
                "",
            ),
        ] {
            // The server waits a moment for a namespace that may be created concurrently.
            let answer = place.request_in_time(line, &body).await;
            assert_eq!(
                answer.code,
                code,
                "{line} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.reason(),
                reason,
                "{line} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            let status = &answer.body;
            assert_eq!(status["kind"].as_str(), Some("Status"), "{line}");
            assert_eq!(status["apiVersion"].as_str(), Some("v1"), "{line}");
            assert_eq!(status["status"].as_str(), Some("Failure"), "{line}");
            assert_eq!(status["code"].as_u64(), Some(code.into()), "{line}");
            assert_eq!(&status["metadata"], &json!({}), "{line}");
            assert_eq!(
                status["details"]["kind"].as_str().unwrap_or_default(),
                kind,
                "{line} ({:?}): {status}",
                cluster.way
            );
        }
    });
}

#[test]
fn unknown_groups_are_plain_text() {
    both_ways(async |cluster| {
        for path in ["/apis/no.such.group/v1/things", "/nowhere"] {
            let answer = cluster.request(&format!("GET {path}"), &Value::Null).await;
            assert_eq!(answer.code, 404, "{path} ({:?})", cluster.way);
            assert_eq!(
                answer.text.trim_end(),
                "404 page not found",
                "{path} ({:?})",
                cluster.way
            );
        }
    });
}

#[test]
fn causes_name_field_and_reason() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        for (line, body, causes) in [
            (
                "POST cm",
                json!({"metadata": {}}),
                vec![("FieldValueRequired", "metadata.name")],
            ),
            (
                "POST cm",
                json!({"metadata": {"name": "x", "labels": {"a b": "c"}}}),
                vec![("FieldValueInvalid", "metadata.labels")],
            ),
            (
                "POST svc",
                json!({"metadata": {"name": "s"}, "spec": {"type": "Odd", "ports": [{"port": 80}]}}),
                vec![("FieldValueNotSupported", "spec.type")],
            ),
            (
                "POST svc",
                json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 0}]}}),
                vec![
                    ("FieldValueInvalid", "spec.ports[0].port"),
                    ("FieldValueInvalid", "spec.ports[0].targetPort"),
                ],
            ),
            (
                "POST svc",
                json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}}),
                vec![("FieldValueDuplicate", "spec.ports[1].name")],
            ),
        ] {
            let answer = place.request(line, &body).await;
            assert_eq!(answer.code, 422, "{body}: {}", answer.message());
            let found: Vec<(&str, &str)> = answer.body["details"]["causes"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|cause| {
                    (
                        cause["reason"].as_str().unwrap_or_default(),
                        cause["field"].as_str().unwrap_or_default(),
                    )
                })
                .collect();
            assert_eq!(found, causes, "{body} ({:?})", cluster.way);
        }
    });
}

#[test]
fn every_response_is_distinct() {
    both_ways(async |cluster| {
        let one = cluster
            .request("GET /api/v1/namespaces", &Value::Null)
            .await;
        let two = cluster.request("GET /api/v1/nothings", &Value::Null).await;
        let id = |answer: &super::answer::Answer| answer.headers.get("audit-id").cloned();
        assert!(id(&one).is_some() && id(&one) != id(&two));
        assert_eq!(
            one.headers
                .get("cache-control")
                .and_then(|value| value.to_str().ok()),
            Some("no-cache, private")
        );
    });
}
