//! Workloads with scheduler and simulated nodes.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::{image, is_active, is_ready, template};
use bellerophon_testkit::{TestCluster, wait_until};

#[tokio::test(start_paused = true)]
async fn workloads_are_scheduled_and_rolled_out() {
    let cluster = TestCluster::with_nodes(3).await;
    let spec = |name: &str, version: u32| {
        json!({
            "selector": { "matchLabels": { "app": name } },
            "template": template(name, &format!("{name}:{version}")),
        })
    };
    let object = |kind: &str, name: &str, version: u32| {
        let mut object = json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": { "name": name },
            "spec": spec(name, version),
        });
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
            cluster.apply(object(kind, name, version)).await;
        }
        wait_until(
            &cluster.namespaced::<Deployment>("default"),
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
        wait_until(
            &cluster.namespaced::<StatefulSet>("default"),
            "the StatefulSet is updated",
            |all| {
                let status = all[0].status.clone().unwrap_or_default();
                status.observed_generation == all[0].metadata.generation
                    && status.updated_replicas == Some(4)
                    && status.ready_replicas == Some(4)
            },
        )
        .await;
        wait_until(
            &cluster.namespaced::<DaemonSet>("default"),
            "the DaemonSet is updated",
            |all| {
                let status = all[0].status.clone().unwrap_or_default();
                status.observed_generation == all[0].metadata.generation
                    && status.updated_number_scheduled == Some(3)
                    && status.number_available == Some(3)
            },
        )
        .await;
    }
    let pods = wait_until(
        &cluster.namespaced::<Pod>("default"),
        "only the updated pods remain",
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
    assert_eq!(nodes.len(), 3, "one daemon pod per node");
    cluster.stop().await;
}
