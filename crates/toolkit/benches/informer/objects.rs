//! Cached objects: pods of realistic size, and small config maps.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::BoxError;

pub(crate) const PODS: usize = 50_000;
pub(crate) const CONFIG_MAPS: usize = 10_000;
const POD_NAMESPACES: usize = 50;
const CONFIG_MAP_NAMESPACES: usize = 10;
/// Concurrent writers.
const WRITERS: usize = 16;

/// Two containers with three variables each, resources, ports, four labels, an owner, a node and a
/// status.
pub(crate) fn pod(i: usize) -> Result<Pod, serde_json::Error> {
    let container = |name: &str, port: u16| {
        json!({
            "name": name, "image": format!("registry.example.com/team-{}/{name}:v1.{}.0", i % 20, i % 7),
            "env": [
                { "name": "LOG_LEVEL", "value": "info" },
                { "name": "SHARD", "value": (i % 16).to_string() },
                { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            ],
            "ports": [{ "name": "http", "containerPort": port }],
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "cpu": "500m", "memory": "256Mi" } },
        })
    };
    let owner = format!("app-{}-5d4f8c7b9", i / 10);
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{owner}-{i:05}"), "namespace": format!("team-{}", i % POD_NAMESPACES),
            "labels": {
                "app": format!("app-{}", i / 10), "tier": if i.is_multiple_of(3) { "front" } else { "back" },
                "team": format!("team-{}", i % POD_NAMESPACES), "pod-template-hash": "5d4f8c7b9",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "controller": true, "blockOwnerDeletion": true,
                "uid": format!("00000000-0000-4000-8000-{:012}", i / 10),
            }],
        },
        "spec": { "nodeName": format!("node-{}", i % 500), "containers": [container("web", 8080), container("sidecar", 9090)] },
    }))
}

fn config_map(i: usize) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("settings-{i:05}"), "namespace": format!("maps-{}", i % CONFIG_MAP_NAMESPACES), "labels": { "bench": "cm" },
        },
        "data": { "settings.yaml": "replicas: 3\n".repeat(20) },
    }))
}

/// Creates all objects, and describes them.
pub(crate) async fn create(client: &Client) -> Result<String, BoxError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let names = (0..POD_NAMESPACES)
        .map(|i| format!("team-{i}"))
        .chain((0..CONFIG_MAP_NAMESPACES).map(|i| format!("maps-{i}")));
    for name in names {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": &name } }))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await?;
        // No controller creates it here, and pods are not admitted without it.
        let account = serde_json::from_value(json!({ "metadata": { "name": "default" } }))?;
        Api::<ServiceAccount>::namespaced(client.clone(), &name)
            .create(&PostParams::default(), &account)
            .await?;
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let client = client.clone();
        writers.spawn(async move {
            let options = PostParams::default();
            for i in (writer..PODS).step_by(WRITERS) {
                let pod = pod(i)?;
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                Api::<Pod>::namespaced(client.clone(), &namespace)
                    .create(&options, &pod)
                    .await?;
            }
            for i in (writer..CONFIG_MAPS).step_by(WRITERS) {
                let map = config_map(i)?;
                let namespace = map.metadata.namespace.clone().unwrap_or_default();
                Api::<ConfigMap>::namespaced(client.clone(), &namespace)
                    .create(&options, &map)
                    .await?;
            }
            Ok::<(), BoxError>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    describe(client).await
}

async fn describe(client: &Client) -> Result<String, BoxError> {
    let one = pod(0)?;
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}",
        one.metadata.namespace.unwrap_or_default(),
        one.metadata.name.unwrap_or_default()
    );
    let text = client
        .request_text(http::Request::get(path).body(Vec::new())?)
        .await?;
    let managed = serde_json::from_str::<serde_json::Value>(&text)?["metadata"]["managedFields"]
        .to_string()
        .len();
    Ok(format!(
        "{PODS} pods of {} bytes, of which managedFields {managed}; {CONFIG_MAPS} config maps",
        text.len()
    ))
}
