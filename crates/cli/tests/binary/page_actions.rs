//! Actions of the live page with `--page-may-act`, its filters, and the page of `run`.

use futures_util::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use serde_json::{Value, json};

use crate::page::{PageClient, send};
use crate::running::{Lines, RunningServer, TIMEOUT, command};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/stable";

async fn get(client: &Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new());
    let text = client.request_text(request.expect("a request")).await;
    serde_json::from_str(&text.expect("a response")).expect("JSON")
}

/// The first Pod of the sample.
async fn first_pod(client: &Client) -> String {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let selected = WatchParams::default().labels("app=stable");
    let mut events = pods.watch(&selected, "0").await.expect("a watch").boxed();
    let found = async {
        loop {
            let event = events.try_next().await.expect("an event");
            if let Some(WatchEvent::Added(pod)) = event {
                return pod.metadata.name.expect("a name");
            }
        }
    };
    let found = tokio::time::timeout(TIMEOUT, found).await;
    found.expect("the Deployment has pods")
}

/// Waits until the caches of Pods were watched more than `count` times.
async fn watched_again(client: &Client, count: u64) -> u64 {
    let request = http::Request::get("/debug/trace?format=json&follow=true").body(Vec::new());
    let stream = client.request_stream(request.expect("a request")).await;
    let mut lines = stream.expect("the trace").lines();
    let found = async {
        while let Some(line) = lines.try_next().await.expect("a line") {
            let record: Value = serde_json::from_str(&line).expect("JSON");
            let caches = record["caches"].as_array().into_iter().flatten();
            let pods = caches.filter(|cache| cache["kind"] == "Pod");
            let watches = pods.filter_map(|cache| cache["watches"].as_u64()).max();
            if let Some(watches) = watches.filter(|watches| *watches > count) {
                return watches;
            }
        }
        panic!("the trace ended")
    };
    let found = tokio::time::timeout(TIMEOUT, found).await;
    found.expect("a cache is watched again")
}

#[tokio::test]
async fn page_with_permission_acts() {
    let server = RunningServer::start(&["--operators", "none", "--page-may-act"]);
    let page = PageClient::new(&server.ready);
    let client = server.client().await;
    let act = |body: Value| {
        let response = page.post("/api/act", &body.to_string());
        let answer: Value = serde_json::from_str(&response.body).unwrap_or_default();
        (response.status, answer)
    };
    let done = |text: &str| (200, json!({ "done": text }));
    assert_eq!(
        act(json!({ "action": "apply-sample", "sample": "samples/deployment.yaml" })),
        done("applied samples/deployment.yaml")
    );
    let deployment =
        json!({ "action": "scale", "namespace": "default", "name": "stable", "replicas": 3 });
    assert_eq!(
        act(deployment),
        done("scaled Deployment default/stable to 3")
    );
    assert_eq!(get(&client, DEPLOYMENT).await["spec"]["replicas"], 3);
    let pod = first_pod(&client).await;
    assert_eq!(
        act(json!({ "action": "delete-pod", "namespace": "default", "name": pod })),
        done(&format!("deleted Pod default/{pod}"))
    );
    let info: Value = serde_json::from_str(&page.get("/api/info").body).expect("JSON");
    let node = info["act"]["nodes"][0].as_str().expect("a node").to_owned();
    assert_eq!(
        act(json!({ "action": "power-off", "node": node })),
        done(&format!("switched Node {node} off"))
    );
    let watched = info["act"]["watched"].as_array().expect("a list");
    assert!(watched.contains(&json!("pods")), "{watched:?}");
    let before = watched_again(&client, 0).await;
    let (status, answer) = act(json!({ "action": "cut-watch", "resource": "pods" }));
    let text = answer["done"].as_str().unwrap_or_default().to_owned();
    assert_eq!(status, 200);
    assert!(
        text.starts_with("cut ") && text.ends_with(" of pods"),
        "{answer}"
    );
    assert!(watched_again(&client, before).await > before);
    for (body, status, part) in [
        (
            json!({ "action": "apply-sample", "sample": "/etc/passwd" }),
            200,
            "there is no sample",
        ),
        (
            json!({ "action": "power-off", "node": "absent" }),
            200,
            "absent",
        ),
        (
            json!({ "action": "cut-watch", "resource": "absent" }),
            200,
            "no controller watches absent",
        ),
        (
            json!({ "action": "scale", "namespace": "..", "name": "x", "replicas": 1 }),
            200,
            "is not a name",
        ),
        (json!({ "action": "delete-everything" }), 400, ""),
        (
            json!({ "action": "power-off", "node": "a", "more": 1 }),
            400,
            "",
        ),
    ] {
        let (found, answer) = act(body.clone());
        assert_eq!(found, status, "{body}");
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains(part), "{body}: {answer}");
    }
}

#[tokio::test]
async fn records_are_filtered_by_namespace_and_kind() {
    let server = RunningServer::start(&["--operators", "none"]);
    let page = PageClient::new(&server.ready);
    let client = server.client().await;
    let namespace = json!({ "metadata": { "name": "team-a" } });
    send(&client, Method::POST, "/api/v1/namespaces", &namespace).await;
    for namespace in ["default", "team-a"] {
        for (path, kind) in [
            (
                format!("/api/v1/namespaces/{namespace}/configmaps"),
                "ConfigMap",
            ),
            (
                format!("/api/v1/namespaces/{namespace}/services"),
                "Service",
            ),
        ] {
            let object = json!({ "metadata": { "name": format!("one-{namespace}") },
                "spec": { "ports": [{ "port": 80 }] } });
            let object = match kind {
                "Service" => object,
                _ => json!({ "metadata": object["metadata"] }),
            };
            send(&client, Method::POST, &path, &object).await;
        }
    }
    let written = |query: &str| {
        let mut found = Vec::new();
        for line in page
            .get(&format!("/api/trace?tail=60000&{query}"))
            .body
            .lines()
        {
            let record: Value = serde_json::from_str(line).unwrap_or_default();
            let name = record["object"]["name"].as_str().unwrap_or_default();
            if record["type"] == "accepted"
                && name.starts_with("one-")
                && record["deletion"].is_null()
            {
                let kind = record["kind"].as_str().unwrap_or_default();
                found.push(format!("{kind} {name}"));
            }
        }
        found.retain(|one| one.starts_with("ConfigMap ") || one.starts_with("Service "));
        found.dedup();
        found
    };
    let all = [
        "ConfigMap one-default",
        "Service one-default",
        "ConfigMap one-team-a",
        "Service one-team-a",
    ];
    for (query, expected) in [
        ("", vec![0, 1, 2, 3]),
        ("namespace=team-a", vec![2, 3]),
        ("namespace=team-a&namespace=default", vec![0, 1, 2, 3]),
        ("kind=Service", vec![1, 3]),
        ("namespace=default&kind=ConfigMap", vec![0]),
        ("namespace=absent", vec![]),
    ] {
        let expected: Vec<&str> = expected.into_iter().map(|i| all[i]).collect();
        assert_eq!(written(query), expected, "{query}");
    }
    let existing = page
        .get("/api/objects?namespace=team-a&kind=ConfigMap")
        .body;
    assert!(existing.contains("one-team-a"), "{existing}");
    assert!(!existing.contains("one-default"), "{existing}");
    assert!(!existing.contains("\"Service\""), "{existing}");
}

#[tokio::test]
async fn operators_on_another_cluster_have_page_trace_and_top() {
    let server = RunningServer::start(&["--operators", "icecream"]);
    let client = server.client().await;
    let path = "/apis/controller.nicoleh.io/v1alpha1/namespaces/default/icecreams";
    let icecream = json!({ "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream",
        "metadata": { "name": "gelato" }, "spec": { "deploymentName": "gelato", "replicas": 1 } });
    send(&client, Method::POST, path, &icecream).await;
    let mut process = command(&server.directory)
        .args(["run", "icecream", "--page", "127.0.0.1:0", "--kubeconfig"])
        .arg(server.kubeconfig())
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    let line = lines.next_matching(|line| line.starts_with("live page "));
    let url = line.strip_prefix("live page ").expect("a URL");
    let page = PageClient::new(&json!({ "dashboard": url }));
    let text = page.stream_until(
        "/api/stream?since=0",
        r#""type":"finished","controller":"icecream""#,
    );
    let info: Value = serde_json::from_str(&page.get("/api/info").body).expect("JSON");
    let printed = |arguments: &[&str]| {
        let mut command = command(&server.directory);
        let output = command.args(arguments).args(["--page", url]).output();
        let output = output.expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let timeline = printed(&["trace", "icecream/gelato"]);
    let table = printed(&["top", "--once"]);
    let without_token = page.status_without_token("/debug/trace");
    process.kill().expect("the process runs");
    process.wait().expect("the process exits");
    assert!(text.contains(r#""name":"gelato""#), "{text}");
    assert_eq!(info["mode"], "live");
    assert_eq!(info["diffs"], false);
    assert!(info["act"].is_null(), "{info}");
    assert!(timeline.contains("gelato"), "{timeline}");
    assert!(table.contains("icecream"), "{table}");
    assert_eq!(without_token, 401);
}

#[test]
fn page_is_served_where_it_is_requested_or_not() {
    let none = RunningServer::start(&["--operators", "none", "--page", "none"]);
    assert!(none.ready["dashboard"].is_null(), "{}", none.ready);
    let refused = command(&tempfile::tempdir().expect("a directory"))
        .args(["up", "--page", "0.0.0.0:0"])
        .output()
        .expect("the binary starts");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("is not a loopback address"), "{message}");
}
