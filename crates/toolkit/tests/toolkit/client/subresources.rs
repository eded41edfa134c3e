//! Subresources: requests whose response is the object, and those whose response is a status.

use std::sync::Arc;

use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::Patch;
use serde_json::{Value, json};

use super::{Context, reconcile};
use crate::harness::api;

fn decode<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn binding_assigns_the_pod_to_a_node() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client();
        let metadata = json!({ "name": "default", "namespace": "default" });
        let account: ServiceAccount = decode(json!({ "metadata": metadata }));
        client.create_or_update(&account, |_| {}).await?;
        let pod: Pod = decode(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        }));
        let pod = client.create(&pod).await?.object()?;
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": "web" },
            "target": { "kind": "Node", "name": "node-1" },
        });
        let subresource = client.subresource("binding");
        subresource.create(&*pod, &binding).await?;
        let bound = client.get::<Pod>(&ObjectKey::from_object(&*pod)).await?;
        let node = bound.and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        ctx.log.push(format!("{node:?}"));
        let error = subresource.create(&*pod, &binding).await.unwrap_err();
        ctx.log.push(error.to_string());
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log[0], r#"Some("node-1")"#);
    let expected = "cannot create a subresource of Pod default/web: ";
    assert!(log[1].starts_with(expected), "{}", log[1]);
}

#[tokio::test(start_paused = true)]
async fn scale_changes_the_replicas() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client();
        let deployment: Deployment = decode(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] },
                },
            },
        }));
        let deployment = client.create(&deployment).await?.object()?;
        let replicas = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
        let scale = client.subresource("scale");
        scale.patch(&*deployment, &replicas).await?;
        let deployments = api::<Deployment>(client.kube());
        let scaled = deployments.get("web").await?;
        let replicas = scaled.spec.and_then(|spec| spec.replicas);
        ctx.log.push(format!("{replicas:?}"));
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log, ["Some(3)"]);
}
