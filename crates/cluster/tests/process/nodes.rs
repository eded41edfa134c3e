//! Nodes that are powered off or rebooted, and shims that are killed.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::*;

/// Sets the annotation that operates the node.
async fn annotate(cluster: &ProcessCluster, name: &str, value: Value) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let annotations = json!({format!("sim.bellerophon.io/{name}"): value});
    let patch = json!({"metadata": {"annotations": annotations}});
    nodes
        .patch("node-1", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

#[tokio::test]
async fn power_loss_kills_processes_and_pods_start_again() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let volume = "${KUBERNETES_MOUNT_DATA:-/data}";
        let script = format!(
            "echo run >> {volume}/runs; cp {volume}/runs $DIR/runs
             trap '' TERM; (setsid sleep 1000 &); while :; do sleep 0.05; done"
        );
        let app = sh(
            "app",
            &script,
            json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
        );
        let spec = json!({
            "containers": [app],
            "volumes": [{"name": "data", "emptyDir": {}}],
        });
        cluster.create("web", spec).await;
        let pod = cluster.until_ready("web").await;
        assert!(!cluster.processes(&pod).is_empty(), "{tier:?}");
        annotate(&cluster, "power", json!("off")).await;
        cluster.until_no_process(&pod).await;
        annotate(&cluster, "power", json!(null)).await;
        let is_restarted = |pod: &_| restarts(pod, "app") == 1 && has_condition(pod, "Ready");
        let restarted = cluster.until("web", "it runs again", is_restarted).await;
        let last = container(&restarted, "app").and_then(|it| it.last_state.clone());
        let last = last.and_then(|state| state.terminated).unwrap();
        assert_eq!(last.reason.as_deref(), Some("Unknown"), "{tier:?}");
        // The volume of a pod survives the reboot.
        let written = async {
            while cluster.lines("runs").len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        written.await;
        cluster
            .cluster
            .nodes()
            .unwrap()
            .power_off("node-1")
            .unwrap();
        cluster.until_no_process(&pod).await;
        cluster.cluster.nodes().unwrap().restore("node-1").unwrap();
        let is_restarted = |pod: &_| restarts(pod, "app") == 2 && has_condition(pod, "Ready");
        cluster.until("web", "it runs again", is_restarted).await;
        cluster.delete("web", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn partition_does_not_stop_processes() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let spec = json!({"containers": [sh("app", "sleep 1000; true", json!({}))]});
        cluster.create("web", spec).await;
        let pod = cluster.until_ready("web").await;
        let before = cluster.processes(&pod);
        let nodes = cluster.cluster.nodes().unwrap().clone();
        nodes.partition("node-1").unwrap();
        annotate(&cluster, "network", json!("off")).await;
        nodes.restore("node-1").unwrap();
        annotate(&cluster, "network", json!(null)).await;
        let after = cluster.until_ready("web").await;
        assert_eq!(restarts(&after, "app"), 0, "{tier:?}");
        assert_eq!(cluster.processes(&pod), before, "{tier:?}");
        cluster.delete("web", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn containers_restart_in_a_new_sandbox_if_it_was_killed() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let spec = json!({"containers": [sh("app", "sleep 1000; true", json!({}))]});
        cluster.create("web", spec).await;
        cluster.until_ready("web").await;
        cluster.kill_shims();
        let is_restarted = |pod: &_| restarts(pod, "app") == 1 && has_condition(pod, "Ready");
        let pod = cluster.until("web", "it runs again", is_restarted).await;
        let last = container(&pod, "app").and_then(|it| it.last_state.clone());
        let last = last.and_then(|state| state.terminated).unwrap();
        assert_eq!(last.exit_code, 137, "{tier:?}");
        cluster.delete("web", 0).await;
        cluster.stop().await;
    }
}
