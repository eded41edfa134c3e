//! Local processes and simulated pods on one node.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, LogParams, Patch, PatchParams};
use serde_json::{Value, json};

use bellerophon_testkit::wait_until;

use crate::support::*;

const LABEL: &str = "bellerophon.io/runtime";

/// A pod that is ready if its image, which does not exist, is not needed.
async fn create(cluster: &ProcessCluster, name: &str, fields: Value) {
    let mut spec = json!({"containers": [{"name": "app", "image": "example.com/app:1"}]});
    for (field, value) in fields.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    cluster.create(name, spec).await;
}

/// The scheme of the IDs of containers.
fn scheme(pod: &Pod) -> Option<String> {
    let id = container(pod, "app")?.container_id.clone()?;
    Some(id.split_once(':')?.0.to_owned())
}

async fn label(cluster: &ProcessCluster, value: &str) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let patch = json!({"metadata": {"labels": {LABEL: value}}});
    let patched = nodes
        .patch("node-1", &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.unwrap();
}

#[tokio::test]
async fn runtime_class_and_label_choose_the_runtime() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let classes: Api<RuntimeClass> = Api::all(cluster.client.clone());
        let exist = |classes: &[RuntimeClass]| classes.len() == 2;
        wait_until(&classes, "two RuntimeClasses exist", exist).await;
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let node = nodes.get("node-1").await.unwrap();
        assert_eq!(node.metadata.labels.unwrap()[LABEL], "process");
        let handlers = node.status.unwrap().runtime_handlers.unwrap();
        let handlers: Vec<_> = handlers.into_iter().filter_map(|it| it.name).collect();
        assert_eq!(handlers, ["", "process", "simulated"]);

        let simulated = json!({"runtimeClassName": "simulated"});
        create(&cluster, "by-class", simulated.clone()).await;
        let pod = cluster.until_ready("by-class").await;
        assert_eq!(scheme(&pod).as_deref(), Some("sim"));
        let logs = cluster.pods().logs("by-class", &LogParams::default()).await;
        let refused = logs.unwrap_err().to_string();
        assert!(refused.contains("sim.bellerophon.io/log"), "{refused}");
        create(&cluster, "by-default", json!({})).await;
        cluster
            .until("by-default", "its image is not found", |pod| {
                reason(pod, "app").as_deref() == Some("ErrImagePull")
            })
            .await;

        label(&cluster, "simulated").await;
        create(&cluster, "by-label", json!({})).await;
        let pod = cluster.until_ready("by-label").await;
        assert_eq!(scheme(&pod).as_deref(), Some("sim"));
        let spec = json!({
            "runtimeClassName": "process",
            "containers": [sh("app", "echo started; sleep 1000", json!({}))],
        });
        cluster.create("process", spec).await;
        let pod = cluster.until_ready("process").await;
        assert_eq!(scheme(&pod).as_deref(), Some("process"));
        assert_eq!(cluster.until_logged(&pod, "app", 0, 1).await, ["started"]);
        cluster.delete("process", 0).await;
        cluster.until_deleted("process").await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn pod_waits_for_a_deleted_runtime_class() {
    let tier = tiers().await[0];
    let cluster = ProcessCluster::start(tier).await;
    let classes: Api<RuntimeClass> = Api::all(cluster.client.clone());
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": "fast"}, "handler": "simulated",
    });
    let params = PatchParams::apply("test");
    classes
        .patch("fast", &params, &Patch::Apply(&class))
        .await
        .unwrap();
    let gated =
        json!({"runtimeClassName": "fast", "schedulingGates": [{"name": "example.com/wait"}]});
    create(&cluster, "web", gated.clone()).await;
    create(&cluster, "deleted", gated).await;
    classes
        .delete("fast", &DeleteParams::default())
        .await
        .unwrap();
    let ungated = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    let pods = cluster.pods();
    let params_of_patch = PatchParams::default();
    for name in ["web", "deleted"] {
        let patched = pods.patch(name, &params_of_patch, &ungated).await;
        patched.unwrap();
    }
    let text = "runtimeclass.node.k8s.io \"fast\" not found";
    cluster
        .until_event("web", "FailedCreatePodSandBox", text)
        .await;
    cluster
        .until_event("deleted", "FailedCreatePodSandBox", text)
        .await;
    cluster.delete("deleted", 30).await;
    cluster.until_deleted("deleted").await;
    classes
        .patch("fast", &params, &Patch::Apply(&class))
        .await
        .unwrap();
    let pod = cluster.until_ready("web").await;
    assert_eq!(scheme(&pod).as_deref(), Some("sim"));
    cluster.stop().await;
}
