//! Refusals over the network.

use std::time::Duration;

use bellerophon::client::connect;
use bellerophon_apiserver::ApiServer;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::time::timeout;

/// kube's client used to repeat the request for minutes, so that a drain did not report the
/// PodDisruptionBudget that blocks it.
#[tokio::test]
async fn refused_eviction_is_returned_to_the_caller() {
    let address = ([127, 0, 0, 1], 0).into();
    let server = ApiServer::builder().listen(address).start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    server.write_kubeconfig(&path).unwrap();
    let kubeconfig = Kubeconfig::read_from(&path).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = connect(config.unwrap()).unwrap();
    let post = async |path: &str, body: Value| {
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await
    };
    let account = json!({ "metadata": { "name": "default" } });
    post("/api/v1/namespaces/default/serviceaccounts", account)
        .await
        .unwrap();
    let pod = json!({
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "web", "image": "nginx" }], "nodeName": "node-1" },
    });
    post("/api/v1/namespaces/default/pods", pod).await.unwrap();
    let status = json!({ "status": {
        "phase": "Running",
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let request = http::Request::patch("/api/v1/namespaces/default/pods/web/status")
        .header("content-type", "application/merge-patch+json")
        .body(status.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
    // No controller computes its status, so the server refuses evictions.
    let budget = json!({
        "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    post(
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        budget,
    )
    .await
    .unwrap();
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "web" },
    });
    let evicted = post("/api/v1/namespaces/default/pods/web/eviction", eviction);
    let evicted = timeout(Duration::from_secs(5), evicted).await;
    let Err(kube::Error::Api(status)) = evicted.expect("an answer in time") else {
        panic!("the pod was evicted")
    };
    assert_eq!(status.code, 429, "{}", status.message);
    server.shutdown().await;
}
