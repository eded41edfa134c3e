//! ResourceQuotas under concurrent writes.

use bellerophon_apiserver::ApiServer;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{CONFIG_MAPS, config_map, create, send};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

/// Creates a quota whose usage is known.
async fn quota(client: &kube::Client, hard: Value, used: Value) {
    let object = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": hard}});
    create(client, QUOTAS, object).await;
    let path = format!("{QUOTAS}/q/status");
    let status = json!({"status": {"hard": hard, "used": used}});
    assert_eq!(send(client, "PATCH", &path, status).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creations_never_exceed_a_quota() {
    let server = ApiServer::builder().start().await.expect("a server");
    let client = server.client();
    quota(
        &client,
        json!({"count/configmaps": "10"}),
        json!({"count/configmaps": "0"}),
    )
    .await;
    let creations = (0..200).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            send(
                &client,
                "POST",
                CONFIG_MAPS,
                config_map(&format!("c{number}")),
            )
            .await
            .0
        })
    });
    let codes: Vec<u16> = join_all(creations)
        .await
        .into_iter()
        .map(|code| code.expect("no panic"))
        .collect();
    let created = codes.iter().filter(|code| **code == 201).count();
    let refused = codes.iter().filter(|code| **code == 403).count();
    assert_eq!(created, 10);
    assert_eq!(refused, 190);
    let (_, stored) = send(&client, "GET", &format!("{QUOTAS}/q"), Value::Null).await;
    assert_eq!(stored["status"]["used"]["count/configmaps"], "10");
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn quota_of_another_namespace_does_not_count() {
    let server = ApiServer::builder().start().await.expect("a server");
    let client = server.client();
    quota(
        &client,
        json!({"count/configmaps": "0"}),
        json!({"count/configmaps": "0"}),
    )
    .await;
    let (code, _) = send(&client, "POST", CONFIG_MAPS, config_map("a")).await;
    assert_eq!(code, 403);
    create(
        &client,
        "/api/v1/namespaces/kube-system/configmaps",
        config_map("a"),
    )
    .await;
    server.shutdown().await;
}
