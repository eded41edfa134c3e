//! The audit log: stages, levels and objects of requests, as lines of JSON.

use bellerophon_apiserver::{ApiServer, AuditOptions};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, resources: [{group: '', resources: [secrets]}]}
- {level: RequestResponse, verbs: [create], resources: [{group: '', resources: [configmaps]}]}
- {level: Metadata, resources: [{group: ''}]}
";

async fn send(server: &ApiServer, method: &str, path: &str, body: Value) -> u16 {
    let body = match body {
        Value::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("user-agent", "test")
        .body(Full::new(body))
        .expect("a request");
    let response = server.service().oneshot(request).await.expect("infallible");
    let code = response.status().as_u16();
    response.into_body().collect().await.expect("a body");
    code
}

/// The lines of the log after these requests.
async fn events(policy: &str, requests: &[(&str, &str, Value)]) -> Vec<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let log_path = directory.path().join("audit.log");
    let server = ApiServer::builder()
        .audit(AuditOptions {
            log_path: log_path.clone(),
            policy: policy.to_owned(),
        })
        .start()
        .await
        .expect("a server");
    for (method, path, body) in requests {
        send(&server, method, path, body.clone()).await;
    }
    server.shutdown().await;
    let text = std::fs::read_to_string(&log_path).expect("a log");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

#[tokio::test]
async fn recorded_requests_have_user_object_and_status() {
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hidden"}});
    let events = events(
        POLICY,
        &[
            ("POST", maps, map.clone()),
            (
                "GET",
                "/api/v1/namespaces/default/configmaps/a",
                Value::Null,
            ),
            ("POST", "/api/v1/namespaces/default/secrets", secret),
            ("GET", "/version", Value::Null),
            (
                "GET",
                "/api/v1/namespaces/default/configmaps/none",
                Value::Null,
            ),
        ],
    )
    .await;
    assert_eq!(events.len(), 3, "{events:#?}");
    let created = &events[0];
    assert_eq!(created["kind"], "Event");
    assert_eq!(created["apiVersion"], "audit.k8s.io/v1");
    assert_eq!(created["level"], "RequestResponse");
    assert_eq!(created["stage"], "ResponseComplete");
    assert_eq!(created["verb"], "create");
    assert_eq!(created["requestURI"], maps);
    assert_eq!(created["userAgent"], "test");
    assert_eq!(
        created["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "apiVersion": "v1"})
    );
    assert_eq!(created["responseStatus"]["code"], 201);
    assert_eq!(created["requestObject"], map);
    assert_eq!(created["responseObject"]["data"], map["data"]);
    assert_eq!(
        created["responseObject"]["metadata"]["managedFields"],
        Value::Null
    );
    let read = &events[1];
    assert_eq!(read["level"], "Metadata");
    assert_eq!(read["objectRef"]["name"], "a");
    assert_eq!(read.get("responseObject"), None);
    assert_eq!(events[2]["responseStatus"]["code"], 404);
}

#[tokio::test(start_paused = true)]
async fn watch_is_recorded_when_it_starts_and_when_it_ends() {
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}";
    let path = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1";
    let events = events(policy, &[("GET", path, Value::Null)]).await;
    let stages: Vec<&str> = events
        .iter()
        .map(|event| event["stage"].as_str().expect("a stage"))
        .collect();
    assert_eq!(
        stages,
        ["RequestReceived", "ResponseStarted", "ResponseComplete"]
    );
    let ids: std::collections::BTreeSet<String> = events
        .iter()
        .map(|event| event["auditID"].to_string())
        .collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn server_with_an_invalid_policy_does_not_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let started = ApiServer::builder()
        .audit(AuditOptions {
            log_path: directory.path().join("audit.log"),
            policy: "apiVersion: audit.k8s.io/v1\nkind: Policy".to_owned(),
        })
        .start()
        .await;
    let error = started.expect_err("no rules").to_string();
    assert_eq!(
        error,
        "cannot read the audit policy: the policy has no rules"
    );
}
