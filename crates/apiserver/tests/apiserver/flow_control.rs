//! API Priority and Fairness as clients see it: classification, rejections, conditions, upkeep,
//! metrics, with paused time.

use std::time::Duration;

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::{Request, StatusCode, response::Parts};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::advance};
use tower::ServiceExt as _;

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

/// A list that waits for three seconds, since its version does not exist yet.
const WAITING_LIST: &str = "/api/v1/configmaps?resourceVersion=1000000";

/// A server whose group `team` may do everything.
struct Cluster {
    server: ApiServer,
    service: ApiService,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::builder()
            .start()
            .await
            .expect("a server without a socket starts");
        let service = server.service();
        let cluster = Self { server, service };
        let binding = json!({
            "metadata": {"name": "team"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "team"}],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        cluster.create(path, binding).await;
        cluster
    }

    /// Sends a request as a user; as the administrator if the name is empty.
    async fn send(&self, user: &str, method: &str, path: &str, body: Value) -> (Parts, String) {
        send(self.service.clone(), user, method, path, body).await
    }

    async fn get(&self, path: &str) -> Value {
        let (head, body) = self.send("", "GET", path, Value::Null).await;
        assert_eq!(head.status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    async fn text(&self, path: &str) -> String {
        let (head, body) = self.send("", "GET", path, Value::Null).await;
        assert_eq!(head.status, StatusCode::OK, "{path}: {body}");
        body
    }

    async fn create(&self, path: &str, body: Value) {
        let (head, body) = self.send("", "POST", path, body).await;
        assert_eq!(head.status, StatusCode::CREATED, "{path}: {body}");
    }

    async fn delete(&self, path: &str) {
        let (head, body) = self.send("", "DELETE", path, Value::Null).await;
        assert_eq!(head.status, StatusCode::OK, "{path}: {body}");
    }

    /// A level with exactly three seats and no queues, for users whose name begins with `alice`.
    async fn narrow_level(&self) {
        self.create(LEVELS, narrow_level()).await;
        self.create(SCHEMAS, narrow_schema()).await;
    }

    /// Requests of `alice` that have three seats, once they had the chance to run.
    async fn take_seats(&self) -> Vec<JoinHandle<(Parts, String)>> {
        self.wait_in_lists("alice", 3).await
    }

    /// Lists of a user that wait, once they had the chance to run.
    async fn wait_in_lists(
        &self,
        user: &'static str,
        count: usize,
    ) -> Vec<JoinHandle<(Parts, String)>> {
        let tasks = (0..count)
            .map(|_| {
                let service = self.service.clone();
                tokio::spawn(send(service, user, "GET", WAITING_LIST, Value::Null))
            })
            .collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        tasks
    }
}

/// Drops requests.
async fn stop(requests: Vec<JoinHandle<(Parts, String)>>) {
    for request in requests {
        request.abort();
        drop(request.await);
    }
}

fn narrow_level() -> Value {
    json!({"metadata": {"name": "narrow"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}}})
}

fn narrow_schema() -> Value {
    json!({"metadata": {"name": "narrow"}, "spec": {
        "priorityLevelConfiguration": {"name": "narrow"}, "matchingPrecedence": 50,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "Group", "group": {"name": "narrow"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}],
        }],
    }})
}

async fn send(
    service: ApiService,
    user: &str,
    method: &str,
    path: &str,
    body: Value,
) -> (Parts, String) {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    if !user.is_empty() {
        request = request.header("impersonate-user", user);
    }
    if !user.is_empty() && !user.starts_with("system:serviceaccount:") {
        request = request.header("impersonate-group", "team");
    }
    if user.starts_with("alice") {
        request = request.header("impersonate-group", "narrow");
    }
    let body = match body {
        Value::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    let request = request.body(Full::new(body)).expect("a request");
    let response = service.oneshot(request).await.expect("it is answered");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole answer").to_bytes();
    (head, String::from_utf8_lossy(&body).into_owned())
}

fn header<'a>(head: &'a Parts, name: &str) -> &'a str {
    head.headers
        .get(name)
        .map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test(start_paused = true)]
async fn answers_name_the_schema_and_the_level_by_uid() {
    let cluster = Cluster::start().await;
    let uid = async |path: String| cluster.get(&path).await["metadata"]["uid"].clone();
    for (user, path, schema, level) in [
        ("", "/api/v1/pods", "exempt", "exempt"),
        ("bob", "/api/v1/pods", "global-default", "global-default"),
        ("bob", "/api/v1/nosuch", "global-default", "global-default"),
        ("bob", "/version", "global-default", "global-default"),
        ("bob", "/healthz", "probes", "exempt"),
        (
            "system:serviceaccount:a:b",
            "/api",
            "service-accounts",
            "workload-low",
        ),
    ] {
        let (head, _) = cluster.send(user, "GET", path, Value::Null).await;
        let schema = uid(format!("{SCHEMAS}/{schema}")).await;
        let level = uid(format!("{LEVELS}/{level}")).await;
        assert_eq!(
            schema,
            header(&head, "x-kubernetes-pf-flowschema-uid"),
            "{user} {path}"
        );
        assert_eq!(
            level,
            header(&head, "x-kubernetes-pf-prioritylevel-uid"),
            "{user} {path}"
        );
    }
    let log = "/api/v1/namespaces/default/pods/a/log";
    let (head, _) = cluster.send("bob", "GET", log, Value::Null).await;
    assert_eq!(
        header(&head, "x-kubernetes-pf-flowschema-uid"),
        "",
        "it is long-running"
    );
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_request_is_answered_429_in_plain_text() {
    let cluster = Cluster::start().await;
    cluster.narrow_level().await;
    let waiting = cluster.take_seats().await;
    let (head, body) = cluster
        .send("alice", "GET", "/api/v1/pods", Value::Null)
        .await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body, "Too many requests, please try again later.\n");
    assert_eq!(header(&head, "retry-after"), "1");
    assert_eq!(header(&head, "content-type"), "text/plain; charset=utf-8");
    assert_eq!(header(&head, "x-content-type-options"), "nosniff");
    assert_ne!(header(&head, "x-kubernetes-pf-flowschema-uid"), "");
    for user in ["bob", ""] {
        let (head, _) = cluster.send(user, "GET", "/api/v1/pods", Value::Null).await;
        assert_eq!(head.status, StatusCode::OK, "{user:?} has its own seats");
    }
    for task in waiting {
        let (head, _) = task.await.expect("it does not panic");
        assert_eq!(head.status, StatusCode::GATEWAY_TIMEOUT);
    }
    let (head, _) = cluster
        .send("alice", "GET", "/api/v1/pods", Value::Null)
        .await;
    assert_eq!(head.status, StatusCode::OK, "the seats are free");
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_grows_with_rejections_and_falls_back() {
    let cluster = Cluster::start().await;
    cluster.narrow_level().await;
    let mut seen = Vec::new();
    let mut record = |head: &Parts| {
        let seconds: u32 = header(head, "retry-after").parse().expect("seconds");
        if seen.last() != Some(&seconds) {
            seen.push(seconds);
        }
    };
    for second in 0..70 {
        let waiting = cluster.take_seats().await;
        for n in 0..5 {
            // Another user each time: none comes back too early.
            let user = format!("alice-{second}-{n}");
            let (head, _) = cluster
                .send(&user, "GET", "/api/v1/pods", Value::Null)
                .await;
            assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
            record(&head);
        }
        stop(waiting).await;
        advance(Duration::from_secs(1)).await;
    }
    for _ in 0..3 {
        advance(Duration::from_secs(60)).await;
        let waiting = cluster.take_seats().await;
        let (head, _) = cluster
            .send("alice", "GET", "/api/v1/pods", Value::Null)
            .await;
        record(&head);
        stop(waiting).await;
    }
    assert_eq!(seen, [1, 2, 4, 8, 16, 32, 31, 30, 29]);
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dangling_condition_follows_the_level() {
    let cluster = Cluster::start().await;
    let condition = async || {
        let schema = cluster.get(&format!("{SCHEMAS}/narrow")).await;
        let condition = &schema["status"]["conditions"][0];
        assert_eq!(condition["type"], "Dangling");
        (condition["status"].clone(), condition["reason"].clone())
    };
    cluster.create(SCHEMAS, narrow_schema()).await;
    assert_eq!(condition().await, (json!("True"), json!("NotFound")));
    cluster.create(LEVELS, narrow_level()).await;
    assert_eq!(condition().await, (json!("False"), json!("Found")));
    let (head, _) = cluster
        .send("alice", "GET", "/api/v1/pods", Value::Null)
        .await;
    let schema = cluster.get(&format!("{SCHEMAS}/narrow")).await;
    assert_eq!(
        schema["metadata"]["uid"],
        header(&head, "x-kubernetes-pf-flowschema-uid")
    );
    cluster.delete(&format!("{LEVELS}/narrow")).await;
    assert_eq!(condition().await, (json!("True"), json!("NotFound")));
    let (head, _) = cluster
        .send("alice", "GET", "/api/v1/pods", Value::Null)
        .await;
    assert_ne!(
        schema["metadata"]["uid"],
        header(&head, "x-kubernetes-pf-flowschema-uid")
    );
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_new_cluster_are_restored_each_minute() {
    let cluster = Cluster::start().await;
    let shares = async |level: &str| {
        let level = cluster.get(&format!("{LEVELS}/{level}")).await;
        level["spec"]["limited"]["nominalConcurrencyShares"].clone()
    };
    let patch = async |level: &str, body: Value| {
        let path = format!("{LEVELS}/{level}");
        let (head, body) = cluster.send("", "PATCH", &path, body).await;
        assert_eq!(head.status, StatusCode::OK, "{body}");
    };
    advance(Duration::from_secs(30)).await;
    cluster.delete(&format!("{SCHEMAS}/probes")).await;
    cluster.delete(&format!("{LEVELS}/exempt")).await;
    cluster.delete(&format!("{LEVELS}/workload-high")).await;
    let edited = json!({"spec": {"limited": {"nominalConcurrencyShares": 7}}});
    patch("system", edited.clone()).await;
    let kept = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}});
    patch("node-high", kept).await;
    patch("node-high", edited).await;
    let unknown = json!({"metadata": {"name": "unknown", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}},
        "spec": narrow_level()["spec"]});
    cluster.create(LEVELS, unknown).await;
    let (head, _) = cluster.send("", "GET", "/api/v1/pods", Value::Null).await;
    assert_eq!(
        head.status,
        StatusCode::OK,
        "the mandatory level is in use without its object"
    );
    assert_eq!(header(&head, "x-kubernetes-pf-prioritylevel-uid"), "");

    advance(Duration::from_secs(29)).await;
    let missing = cluster
        .send("", "GET", &format!("{SCHEMAS}/probes"), Value::Null)
        .await;
    assert_eq!(missing.0.status, StatusCode::NOT_FOUND);
    advance(Duration::from_secs(1)).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    cluster.get(&format!("{SCHEMAS}/probes")).await;
    cluster.get(&format!("{LEVELS}/exempt")).await;
    assert_eq!(shares("workload-high").await, 40);
    assert_eq!(shares("system").await, 30);
    assert_eq!(shares("node-high").await, 7);
    let unknown = cluster
        .send("", "GET", &format!("{LEVELS}/unknown"), Value::Null)
        .await;
    assert_eq!(unknown.0.status, StatusCode::NOT_FOUND);
    let schema = cluster.get(&format!("{SCHEMAS}/kube-scheduler")).await;
    assert_eq!(
        schema["status"]["conditions"][0]["status"], "False",
        "its level is back"
    );
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_and_dumps_show_requests_and_seats() {
    let cluster = Cluster::start().await;
    cluster.narrow_level().await;
    let waiting = cluster.take_seats().await;
    cluster
        .send("alice", "GET", "/api/v1/pods", Value::Null)
        .await;
    let labels = r#"priority_level="narrow",flow_schema="narrow""#;
    let text = cluster.text("/metrics").await;
    for line in [
        format!("apiserver_flowcontrol_current_executing_requests{{{labels}}} 3"),
        format!("apiserver_flowcontrol_current_executing_seats{{{labels}}} 3"),
        format!("apiserver_flowcontrol_current_inqueue_requests{{{labels}}} 0"),
        format!("apiserver_flowcontrol_dispatched_requests_total{{{labels}}} 3"),
        format!(
            "apiserver_flowcontrol_rejected_requests_total{{{labels},reason=\"concurrency-limit\"}} 1"
        ),
        format!(
            "apiserver_flowcontrol_request_wait_duration_seconds_count{{{labels},execute=\"false\"}} 1"
        ),
        r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"} 244.0"#
            .to_owned(),
        r#"apiserver_flowcontrol_current_limit_seats{priority_level="narrow"} 3.0"#.to_owned(),
        r#"apiserver_current_inflight_requests{request_kind="readOnly"} 3"#.to_owned(),
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} not in\n{text}"
        );
    }
    let debug = "/debug/api_priority_and_fairness";
    let levels = cluster.text(&format!("{debug}/dump_priority_levels")).await;
    let cells = |line: &str| {
        line.split(',')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let narrow = levels
        .lines()
        .map(cells)
        .find(|cells| cells[0] == "narrow")
        .expect("a row");
    assert_eq!(narrow[2..9], ["false", "false", "0", "3", "3", "1", "0"]);
    let queues = cluster.text(&format!("{debug}/dump_queues")).await;
    assert_eq!(queues.lines().count(), 1 + 64 + 64 + 16 + 128 + 128 + 128);
    let requests = cluster
        .text(&format!("{debug}/dump_requests?includeRequestDetails=1"))
        .await;
    let rows: Vec<Vec<String>> = requests.lines().map(cells).collect();
    assert_eq!(rows[0].len(), 18);
    let narrow: Vec<_> = rows.iter().filter(|row| row[0] == "narrow").collect();
    assert_eq!(narrow.len(), 3, "{requests}");
    assert_eq!(narrow[0][10..13], ["alice", "list", "/api/v1/configmaps"]);
    let (head, _) = cluster
        .send("", "GET", &format!("{debug}/other"), Value::Null)
        .await;
    assert_eq!(head.status, StatusCode::NOT_FOUND);

    stop(waiting).await;
    advance(Duration::from_secs(1)).await;
    let text = cluster.text("/metrics").await;
    let is_gauge = |line: &&str| line.starts_with("apiserver_flowcontrol_current_executing");
    for line in text
        .lines()
        .filter(is_gauge)
        .filter(|line| !line.contains("exempt"))
    {
        assert!(line.ends_with(" 0"), "{line}");
    }
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lists_that_wait_do_not_keep_others_from_the_processor() {
    let cluster = Cluster::start().await;
    let waiting = cluster.wait_in_lists("flood", 40).await;
    let start = tokio::time::Instant::now();
    let (head, _) = cluster
        .send("bob", "GET", "/api/v1/pods", Value::Null)
        .await;
    assert_eq!(head.status, StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);
    stop(waiting).await;
    cluster.server.shutdown().await;
}

/// The timer slept until the next adjustment of the limits, up to 10 s, although no request
/// waited any more.
#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_adjustments() {
    let cluster = Cluster::start().await;
    let mut level = narrow_level();
    level["spec"]["limited"]["limitResponse"] = json!({"type": "Queue", "queuing": {}});
    cluster.create(LEVELS, level).await;
    cluster.create(SCHEMAS, narrow_schema()).await;
    let waiting = cluster.wait_in_lists("alice", 6).await;
    for request in waiting {
        request.await.expect("it does not panic");
    }
    let stopping = tokio::time::Instant::now();
    cluster.server.shutdown().await;
    assert_eq!(stopping.elapsed(), Duration::ZERO);
}
