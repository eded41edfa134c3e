//! The whole chain, with a scheduler and nodes: what people apply runs.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::{image, is_active, is_ready, template};
use bellerophon_testkit::{World, until};

#[tokio::test(start_paused = true)]
async fn what_is_applied_runs_on_nodes_and_is_rolled_out() {
    let world = World::with_nodes(3).await;
    let spec = |name: &str, version: u32| json!({ "selector": { "matchLabels": { "app": name } }, "template": template(name, &format!("{name}:{version}")) });
    let object = |kind: &str, name: &str, version: u32| {
        let mut object = json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name }, "spec": spec(name, version) });
        if kind != "DaemonSet" {
            object["spec"]["replicas"] = json!(4);
        }
        if kind == "StatefulSet" {
            object["spec"]["serviceName"] = json!(name);
        }
        object
    };
    for version in [1, 2] {
        for (kind, name) in [
            ("Deployment", "web"),
            ("StatefulSet", "db"),
            ("DaemonSet", "agent"),
        ] {
            world.apply(object(kind, name, version)).await;
        }
        until(
            &world.within::<Deployment>("default"),
            "the deployment is rolled out",
            |all| {
                let status = all[0].status.clone().unwrap_or_default();
                status.observed_generation == all[0].metadata.generation
                    && status.updated_replicas == Some(4)
                    && status.available_replicas == Some(4)
                    && status.replicas == Some(4)
            },
        )
        .await;
        until(
            &world.within::<StatefulSet>("default"),
            "the members are up to date",
            |all| {
                let status = all[0].status.clone().unwrap_or_default();
                status.observed_generation == all[0].metadata.generation
                    && status.updated_replicas == Some(4)
                    && status.ready_replicas == Some(4)
            },
        )
        .await;
        until(
            &world.within::<DaemonSet>("default"),
            "every node has its daemon",
            |all| {
                let status = all[0].status.clone().unwrap_or_default();
                status.observed_generation == all[0].metadata.generation
                    && status.updated_number_scheduled == Some(3)
                    && status.number_available == Some(3)
            },
        )
        .await;
    }
    let pods = until(
        &world.within::<Pod>("default"),
        "nothing else is left",
        |pods| pods.len() == 11,
    )
    .await;
    assert!(
        pods.iter()
            .all(|pod| is_active(pod) && is_ready(pod) && image(pod).ends_with(":2"))
    );
    let mut nodes: Vec<_> = pods
        .iter()
        .filter(|pod| pod.labels()["app"] == "agent")
        .map(|pod| pod.spec.as_ref().unwrap().node_name.clone())
        .collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 3, "one daemon a node");
    world.stop().await;
}
