//! Programs and specs that do not work: a clear status, nothing orphaned, nothing lost.

use std::os::unix::fs::PermissionsExt;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn program_that_cannot_be_executed_is_a_start_error() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let file = cluster.dir.path().join("not-executable");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let cases = [
            (
                "missing",
                json!("/no/such/program"),
                "no such file or directory",
            ),
            (
                "name",
                json!("no-such-program"),
                "executable file not found in $path",
            ),
            ("mode", json!(file), "permission denied"),
            ("directory", json!("/usr"), "is a directory"),
        ];
        for (name, program, _) in &cases {
            let app = json!({"name": "app", "image": "sh", "command": [program]});
            let spec = json!({"restartPolicy": "Never", "containers": [app]});
            cluster.create(name, spec).await;
        }
        for (name, _, message) in cases {
            let pod = cluster.until_phase(name, "Failed").await;
            assert_eq!(
                reason(&pod, "app").as_deref(),
                Some("StartError"),
                "{tier:?} {name}"
            );
            let (code, text) = terminated(&pod, "app");
            assert_eq!(code, 128, "{tier:?} {name}");
            let text = text.to_lowercase();
            assert!(text.contains(message), "{tier:?} {name}: {text}");
            cluster.until_event(name, "Failed", "Error: ").await;
            cluster.until_no_process(&pod).await;
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn program_that_forks_and_exits_leaves_no_process() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "trap '' TERM HUP; (setsid sh -c 'trap \"\" TERM; sleep 1000; true' &)
                      sleep 1000 & exit 0";
        let app = sh("app", script, json!({}));
        cluster
            .create(
                "daemon",
                json!({"restartPolicy": "Never", "containers": [app]}),
            )
            .await;
        let pod = cluster.until_phase("daemon", "Succeeded").await;
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn program_that_ignores_sigterm_is_killed() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "trap '' TERM; while :; do sleep 0.05; done";
        let spec = json!({
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 1,
            "terminationGracePeriodSeconds": 1,
            "containers": [sh("app", script, json!({}))],
        });
        cluster.create("stubborn", spec).await;
        let pod = cluster.until_phase("stubborn", "Failed").await;
        assert_eq!(terminated(&pod, "app").0, 137, "{tier:?}");
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn crash_loop_backs_off() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let app = sh("app", "echo run >> $DIR/runs; exit 1", json!({}));
        cluster.create("loop", json!({"containers": [app]})).await;
        let is_waiting = |pod: &_| {
            reason(pod, "app").as_deref() == Some("CrashLoopBackOff") && restarts(pod, "app") == 1
        };
        let pod = cluster
            .until("loop", "it waits for its back-off", is_waiting)
            .await;
        let message = state(&pod, "app")
            .waiting
            .and_then(|it| it.message)
            .unwrap();
        assert!(
            message.starts_with("back-off 10s restarting failed container=app"),
            "{message}"
        );
        // The first restart is immediate, the second one waits 10 s.
        assert_eq!(cluster.lines("runs").len(), 2, "{tier:?}");
        let runs = [0, 1].map(|run| cluster.log_dir(&pod, "app").join(format!("{run}.log")));
        assert!(runs.iter().all(|log| log.exists()), "{tier:?}");
        cluster
            .until_event(
                "loop",
                "BackOff",
                "Back-off restarting failed container app",
            )
            .await;
        cluster.delete("loop", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn logs_are_bounded() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let zeros = |bytes: u32| format!("head -c {bytes} /dev/zero | tr '\\0' x");
        let cases = [
            ("lines", format!("{} | fold -w 4000", zeros(80_000_000))),
            // One line without an end.
            ("line", zeros(100_000_000)),
        ];
        for (name, script) in &cases {
            let app = sh("app", script, json!({}));
            cluster
                .create(name, json!({"restartPolicy": "Never", "containers": [app]}))
                .await;
        }
        for (name, _) in cases {
            let pod = cluster.until_phase(name, "Succeeded").await;
            let files = std::fs::read_dir(cluster.log_dir(&pod, "app")).unwrap();
            let sizes: Vec<u64> = files
                .map(|file| file.unwrap().metadata().unwrap().len())
                .collect();
            assert!(sizes.len() <= 5, "{tier:?} {name} {sizes:?}");
            assert!(
                sizes.iter().sum::<u64>() > 30 << 20,
                "{tier:?} {name} {sizes:?}"
            );
            // A file is rotated after the chunk with which it exceeds its size.
            let largest = (10 << 20) + (64 << 10);
            assert!(
                sizes.iter().all(|size| *size <= largest),
                "{tier:?} {name} {sizes:?}"
            );
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn program_can_open_ten_thousand_files() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let app = json!({"name": "app", "image": "helper", "args": ["open", "10000"]});
        cluster
            .create(
                "files",
                json!({"restartPolicy": "Never", "containers": [app]}),
            )
            .await;
        let pod = cluster.until_phase("files", "Succeeded").await;
        let lines: Vec<_> = cluster
            .log(&pod, "app", 0)
            .into_iter()
            .map(|it| it.1)
            .collect();
        assert_eq!(lines, ["10000 files"], "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn unknown_image_names_the_option_to_add() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let app = json!({"name": "app", "image": "registry.example.com/shop:1"});
        cluster
            .create("unknown", json!({"containers": [app]}))
            .await;
        for expected in ["ErrImagePull", "ImagePullBackOff"] {
            let is_waiting = |pod: &_| reason(pod, "app").as_deref() == Some(expected);
            let pod = cluster.until("unknown", expected, is_waiting).await;
            let message = state(&pod, "app")
                .waiting
                .and_then(|it| it.message)
                .unwrap();
            let option = "--image 'registry.example.com/shop=PROGRAM'";
            assert!(message.contains(option), "{tier:?} {message}");
        }
        cluster.delete("unknown", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn pod_waits_for_a_missing_config_map() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "cat ${KUBERNETES_MOUNT_SETTINGS:-/etc/settings}/color";
        let app = sh(
            "app",
            script,
            json!({"volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}]}),
        );
        let spec = json!({
            "restartPolicy": "Never",
            "containers": [app],
            "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
        });
        cluster.create("waiting", spec).await;
        let message = "configmap \"settings\" not found";
        cluster.until_event("waiting", "FailedMount", message).await;
        let pod = cluster.pods().get("waiting").await.unwrap();
        assert_eq!(
            reason(&pod, "app").as_deref(),
            Some("ContainerCreating"),
            "{tier:?}"
        );
        let settings = json!({"metadata": {"name": "settings"}, "data": {"color": "red\n"}});
        let settings: ConfigMap = serde_json::from_value(settings).unwrap();
        let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
        config_maps
            .create(&PostParams::default(), &settings)
            .await
            .unwrap();
        let pod = cluster.until_phase("waiting", "Succeeded").await;
        let lines: Vec<_> = cluster
            .log(&pod, "app", 0)
            .into_iter()
            .map(|it| it.1)
            .collect();
        assert_eq!(lines, ["red"], "{tier:?}");
        cluster.stop().await;
    }
}
