//! Ephemeral containers, as `kubectl debug` adds them.

use bellerophon_process_runtime::Tier;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::*;

/// Adds an ephemeral container with these fields.
async fn debug(cluster: &ProcessCluster, pod: &str, container: Value) {
    let patch = json!({"spec": {"ephemeralContainers": [container]}});
    let pods = cluster.pods();
    let params = PatchParams::default();
    let patched = pods
        .patch_ephemeral_containers(pod, &params, &Patch::Strategic(patch))
        .await;
    patched.unwrap();
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.ephemeral_container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == name)
}

fn has_ended(pod: &Pod, name: &str) -> bool {
    let state = status(pod, name).and_then(|status| status.state.as_ref());
    state.is_some_and(|state| state.terminated.is_some())
}

#[tokio::test]
async fn ephemeral_container_runs_once_in_a_running_pod() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let spec = json!({"containers": [sh("app", "sleep 1000; true", json!({}))]});
        cluster.create("web", spec).await;
        cluster.until_ready("web").await;
        let script = "echo debugging $POD; exit 3";
        let env =
            json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
        debug(&cluster, "web", sh("first", script, json!({"env": env}))).await;
        let ended = |pod: &Pod| has_ended(pod, "first");
        let pod = cluster.until("web", "the container has ended", ended).await;
        let ended = status(&pod, "first").unwrap();
        let exit = ended
            .state
            .clone()
            .and_then(|state| state.terminated)
            .unwrap();
        assert_eq!(exit.exit_code, 3, "{tier:?}");
        assert_eq!(ended.restart_count, 0, "{tier:?}");
        assert_eq!(ended.started, None, "{tier:?}");
        let lines = cluster.until_logged(&pod, "first", 0, 1).await;
        assert_eq!(lines, ["debugging web"], "{tier:?}");
        assert!(has_condition(&pod, "Ready"), "{tier:?} {:#?}", pod.status);

        debug(
            &cluster,
            "web",
            json!({"name": "second", "image": "no-such-image"}),
        )
        .await;
        let pod = cluster
            .until("web", "the image is not found", |pod| {
                let state = status(pod, "second").and_then(|status| status.state.clone());
                let waiting = state.and_then(|state| state.waiting);
                waiting.is_some_and(|it| it.reason.as_deref() == Some("ErrImagePull"))
            })
            .await;
        assert!(has_ended(&pod, "first"), "{tier:?}");
        cluster.delete("web", 0).await;
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn ephemeral_container_sees_processes_of_its_target() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let apps = [
            sh("app", "exec sleep 1001", json!({})),
            sh("other", "exec sleep 1002", json!({})),
        ];
        cluster.create("web", json!({"containers": apps})).await;
        let pod = cluster.until_ready("web").await;
        // Everything is visible without namespaces.
        let script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' > $DIR/seen; (sleep 1003 &); \
                      echo done; exec sleep 1004";
        let dir = json!([{"name": "DIR", "value": cluster.dir.path()}]);
        let fields = json!({"targetContainerName": "app", "env": dir});
        debug(&cluster, "web", sh("debugger", script, fields)).await;
        cluster.until_logged(&pod, "debugger", 0, 1).await;
        let seen = cluster.lines("seen").join(" ");
        assert!(seen.contains("sleep 1001"), "{tier:?} {seen}");
        if tier == Tier::A {
            assert!(!seen.contains("sleep 1002"), "{tier:?} {seen}");
            // The target ends with all processes of its PID namespace.
            let running = |text: &str| cluster.processes(&pod).iter().any(|it| it.contains(text));
            assert!(running("sleep 1004"));
            kill(&cluster, &pod, "sleep 1004");
            let ended = |pod: &Pod| has_ended(pod, "debugger");
            cluster.until("web", "the debugger has ended", ended).await;
            cluster
                .until_true("its processes have ended", || !running("sleep 1003"))
                .await;
            assert!(running("sleep 1001"));
        }
        cluster.delete("web", 0).await;
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

fn kill(cluster: &ProcessCluster, pod: &Pod, command: &str) {
    let pid = cluster.process_id(pod, command).unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
    assert!(killed.unwrap().success());
}

#[tokio::test]
async fn ephemeral_container_without_its_target_is_not_started() {
    let tier = tiers().await[0];
    let cluster = ProcessCluster::start(tier).await;
    let once = sh("once", "true", json!({}));
    let app = sh("app", "sleep 1000; true", json!({}));
    let spec = json!({"restartPolicy": "Never", "containers": [once, app]});
    cluster.create("web", spec).await;
    let ended = |pod: &Pod| reason(pod, "once").as_deref() == Some("Completed");
    cluster.until("web", "a container has ended", ended).await;
    let fields = json!({"targetContainerName": "once"});
    debug(&cluster, "web", sh("debugger", "true", fields)).await;
    let text = "unable to find target container once";
    cluster.until_event("web", "Failed", text).await;
    cluster.delete("web", 0).await;
    cluster.stop().await;
}
