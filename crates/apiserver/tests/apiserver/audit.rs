//! The audit log: stages, levels and objects of requests, as lines of JSON.

use bellerophon_apiserver::{ApiServer, AuditOptions, AuditRotation};
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

async fn send_with(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> u16 {
    let body = match body {
        Value::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    let mut builder = Request::builder();
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let request = builder
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

/// A server that records everything without objects.
const METADATA: &str = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}";

/// The lines of the log after these requests.
async fn events(policy: &str, requests: &[(&str, &str, Value)]) -> Vec<Value> {
    let requests: Vec<SentRequest<'_>> = requests
        .iter()
        .map(|(method, path, body)| (*method, *path, &[][..], body.clone()))
        .collect();
    events_of(policy, &requests).await
}

/// Method, path, headers and body.
type SentRequest<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Value);

async fn events_of(policy: &str, requests: &[SentRequest<'_>]) -> Vec<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let log_path = directory.path().join("audit.log");
    let server = ApiServer::builder()
        .audit(AuditOptions {
            log_path: log_path.clone(),
            policy: policy.to_owned(),
            rotation: AuditRotation::default(),
        })
        .start()
        .await
        .expect("a server");
    for (method, path, headers, body) in requests {
        send_with(&server, method, path, headers, body.clone()).await;
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
        json!({"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"})
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
    let policy = METADATA;
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

/// The events of complete responses.
fn complete(events: &[Value]) -> Vec<&Value> {
    let complete = events.iter();
    complete
        .filter(|event| event["stage"] == "ResponseComplete")
        .collect()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

// The events of this and the following tests are those of kube-apiserver 1.36.4.
#[tokio::test]
async fn decision_and_reason_of_the_authorizer_are_annotations() {
    let as_joe = [("impersonate-user", "joe")];
    let events = events_of(
        METADATA,
        &[
            ("GET", MAPS, &[], Value::Null),
            ("GET", MAPS, &as_joe, Value::Null),
            ("GET", "/version", &as_joe, Value::Null),
        ],
    )
    .await;
    let annotations: Vec<&Value> = complete(&events)
        .iter()
        .map(|event| &event["annotations"])
        .collect();
    let decided = |decision: &str, reason: &str| {
        json!({
            "authorization.k8s.io/decision": decision,
            "authorization.k8s.io/reason": reason,
        })
    };
    let binding = r#"RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" to Group "system:authenticated""#;
    assert_eq!(
        annotations,
        [
            &decided("allow", ""),
            &decided("forbid", ""),
            &decided("allow", binding)
        ]
    );
    let received = &events[0];
    assert_eq!(received["stage"], "RequestReceived");
    assert_eq!(received.get("annotations"), None);
}

#[tokio::test]
async fn failed_request_has_the_bounded_part_of_its_status() {
    let as_joe = [("impersonate-user", "joe")];
    let none = format!("{MAPS}/none");
    let events = events_of(
        METADATA,
        &[
            ("GET", MAPS, &as_joe, Value::Null),
            ("GET", &none, &[], Value::Null),
        ],
    )
    .await;
    let complete = complete(&events);
    assert_eq!(complete[0]["user"]["groups"][0], "system:masters");
    assert_eq!(
        complete[0]["impersonatedUser"],
        json!({"username": "joe", "groups": ["system:authenticated"]})
    );
    assert_eq!(
        complete[0]["responseStatus"],
        json!({
            "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": r#"configmaps is forbidden: User "joe" cannot list resource "configmaps" in API group "" in the namespace "default""#,
            "details": {"kind": "configmaps"},
        })
    );
    assert_eq!(
        complete[1]["responseStatus"],
        json!({
            "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
            "message": r#"configmaps "none" not found"#,
            "details": {"kind": "configmaps", "name": "none"},
        })
    );
}

#[tokio::test]
async fn failed_authentication_is_one_event_without_a_user() {
    let wrong = [("authorization", "Bearer wrong")];
    let events = events_of(METADATA, &[("GET", MAPS, &wrong, Value::Null)]).await;
    assert_eq!(events.len(), 1, "{events:#?}");
    let event = &events[0];
    assert_eq!(event["stage"], "ResponseStarted");
    assert_eq!(event["user"], json!({}));
    assert_eq!(event["verb"], "list");
    assert_eq!(
        event["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "apiVersion": "v1"})
    );
    assert_eq!(
        event["responseStatus"],
        json!({
            "metadata": {}, "status": "Failure", "message": "Unauthorized",
            "reason": "Unauthorized", "code": 401,
        })
    );
    assert_eq!(event.get("annotations"), None);
}

#[tokio::test]
async fn policy_sees_the_authenticated_user_and_not_the_impersonated_one() {
    let policy = "
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: Metadata, users: [joe]}
- {level: None}
";
    let as_joe = [("impersonate-user", "joe")];
    assert_eq!(
        events_of(policy, &[("GET", MAPS, &as_joe, Value::Null)]).await,
        [Value::Null; 0]
    );
}

#[tokio::test]
async fn times_have_microseconds() {
    let events = events(METADATA, &[("GET", "/version", Value::Null)]).await;
    for field in ["requestReceivedTimestamp", "stageTimestamp"] {
        let time = events[0][field].as_str().expect("a time");
        assert_eq!(time.len(), "2026-01-02T03:04:05.678901Z".len(), "{time}");
    }
}

#[tokio::test]
async fn server_with_an_invalid_policy_does_not_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let started = ApiServer::builder()
        .audit(AuditOptions {
            log_path: directory.path().join("audit.log"),
            policy: "apiVersion: audit.k8s.io/v1\nkind: Policy".to_owned(),
            rotation: AuditRotation::default(),
        })
        .start()
        .await;
    let error = started.expect_err("no rules").to_string();
    assert_eq!(
        error,
        "cannot read the audit policy: the policy has no rules"
    );
}
