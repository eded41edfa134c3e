//! Start, restart and end of pods.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{EvictParams, PostParams};
use serde_json::{Value, json};

use bellerophon_testkit::wait_until;

use crate::support::*;

#[tokio::test]
async fn init_containers_run_in_order_and_sidecars_around_the_app() {
    // A sidecar prints its end when it is stopped, and ends.
    let sidecar = |name: &str| {
        let script = format!(
            "trap 'echo {name} stopped >> $DIR/order; exit 0' TERM
             echo {name} started >> $DIR/order
             while :; do sleep 0.05; done"
        );
        // The next container starts after this one has written its line.
        let startup = json!({"exec": {"command": ["grep", "-q", name, "$(DIR)/order"]}});
        sh(
            name,
            &script,
            json!({"restartPolicy": "Always", "startupProbe": with_period(startup)}),
        )
    };
    let init = |name: &str| sh(name, &format!("echo {name} >> $DIR/order"), json!({}));
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let spec = json!({
            "restartPolicy": "Never",
            "initContainers": [init("one"), sidecar("proxy"), init("two"), sidecar("agent")],
            "containers": [sh("app", "echo app >> $DIR/order", json!({}))],
        });
        cluster.create("ordered", spec).await;
        let pod = cluster.until_phase("ordered", "Succeeded").await;
        let expected = [
            "one",
            "proxy started",
            "two",
            "agent started",
            "app",
            "agent stopped",
            "proxy stopped",
        ];
        assert_eq!(cluster.lines("order"), expected, "{tier:?}");
        assert!(has_condition(&pod, "Initialized"), "{tier:?}");
        assert_eq!(restarts(&pod, "proxy"), 0, "{tier:?}");
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

fn with_period(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe["failureThreshold"] = json!(60);
    probe
}

/// A script that exits with one code in its first run and another one in later runs.
fn first_then(file: &str, first: i32, then: i32) -> String {
    format!("test -e $DIR/{file} && exit {then}; touch $DIR/{file}; exit {first}")
}

#[tokio::test]
async fn restart_policies_and_rules_decide_on_exit_codes() {
    let restart_on_42 = || {
        json!({
            "restartPolicy": "Never",
            "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            ],
        })
    };
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let cases = [
            (
                "never",
                "Never",
                "exit 3".to_owned(),
                json!({}),
                "Failed",
                3,
                0,
            ),
            (
                "done",
                "OnFailure",
                "exit 0".to_owned(),
                json!({}),
                "Succeeded",
                0,
                0,
            ),
            (
                "retried",
                "OnFailure",
                first_then("a", 5, 0),
                json!({}),
                "Succeeded",
                0,
                1,
            ),
            (
                "rule",
                "Never",
                first_then("b", 42, 7),
                restart_on_42(),
                "Failed",
                7,
                1,
            ),
        ];
        for (name, policy, script, fields, ..) in &cases {
            let app = sh("app", script, fields.clone());
            let spec = json!({"restartPolicy": policy, "containers": [app]});
            cluster.create(name, spec).await;
        }
        for (name, _, _, _, phase, exit_code, expected_restarts) in cases {
            let pod = cluster.until_phase(name, phase).await;
            assert_eq!(terminated(&pod, "app").0, exit_code, "{tier:?} {name}");
            assert_eq!(restarts(&pod, "app"), expected_restarts, "{tier:?} {name}");
        }
        let retried = cluster.pods().get("retried").await.unwrap();
        let last = container(&retried, "app").and_then(|status| status.last_state.clone());
        let last = last.and_then(|state| state.terminated).unwrap();
        assert_eq!(last.exit_code, 5, "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn rule_restarts_all_containers_of_a_pod() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let rule = json!({
            "restartPolicy": "Never",
            "restartPolicyRules": [{
                "action": "RestartAllContainers",
                "exitCodes": {"operator": "In", "values": [88]},
            }],
        });
        // A container that has not started is not restarted, so each run waits for the other one.
        let main = "echo run >> $DIR/runs; n=$(wc -l < $DIR/runs); echo run $n
                    until test -e $DIR/go-$n; do sleep 0.05; done; exit 88";
        let other = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let spec = json!({
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "initContainers": [sh("init", "echo init >> $DIR/inits", json!({}))],
            "containers": [sh("main", main, rule), sh("other", other, json!({}))],
        });
        cluster.create("all", spec).await;
        let until_restarted = async |times: i32| {
            let is_restarted = |pod: &Pod| {
                ["main", "other"]
                    .into_iter()
                    .all(|name| restarts(pod, name) == times && state(pod, name).running.is_some())
            };
            let expected = format!("all containers were restarted {times} times");
            cluster.until("all", &expected, is_restarted).await
        };
        for times in [0, 1] {
            until_restarted(times).await;
            let go = cluster.dir.path().join(format!("go-{}", times + 1));
            std::fs::write(go, "").unwrap();
        }
        let pod = until_restarted(2).await;
        assert_eq!(restarts(&pod, "init"), 2, "{tier:?}");
        assert_eq!(cluster.lines("inits").len(), 3, "{tier:?}");
        // Every run has its own log, and those of the last two runs are kept.
        for (run, expected) in [(0, None), (1, Some("run 2")), (2, Some("run 3"))] {
            let lines = cluster
                .until_logged(&pod, "main", run, expected.iter().len())
                .await;
            assert_eq!(lines.first().map(String::as_str), expected, "{tier:?}");
        }
        let last = |name: &str| {
            let last = container(&pod, name).and_then(|status| status.last_state.clone());
            let last = last.and_then(|state| state.terminated).unwrap();
            (last.exit_code, last.reason.unwrap())
        };
        assert_eq!(last("main"), (88, "Error".to_owned()), "{tier:?}");
        let removed = (137, "RestartingAllContainers".to_owned());
        assert_eq!(last("other"), removed, "{tier:?}");
        assert_eq!(condition(&pod, "AllContainersRestarting"), Some("False"));
        cluster.delete("all", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn termination_messages_are_read_from_file_or_log() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        // Without namespaces, the file is not at its path.
        let file = "${KUBERNETES_MOUNT_TERMINATION_LOG:-/dev/termination-log}";
        let fallback = || json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
        let long = "head -c 5000 /dev/zero | tr '\\0' a";
        let cases = [
            (
                "file",
                format!("printf done > {file}"),
                json!({}),
                "done".to_owned(),
            ),
            (
                "both",
                format!("echo log; printf file > {file}; exit 1"),
                fallback(),
                "file".into(),
            ),
            (
                "log",
                "echo out of cheese; exit 1".to_owned(),
                fallback(),
                "out of cheese\n".into(),
            ),
            (
                "success",
                "echo all is well".to_owned(),
                fallback(),
                String::new(),
            ),
            (
                "none",
                "echo log; exit 1".to_owned(),
                json!({}),
                String::new(),
            ),
            (
                "long",
                format!("{{ {long}; printf end; }} > {file}"),
                json!({}),
                long_message(),
            ),
        ];
        for (name, script, fields, _) in &cases {
            let app = sh("app", script, fields.clone());
            cluster
                .create(name, json!({"restartPolicy": "Never", "containers": [app]}))
                .await;
        }
        for (name, _, _, expected) in cases {
            let pod = cluster
                .until(name, "it has ended", |pod| {
                    state(pod, "app").terminated.is_some()
                })
                .await;
            assert_eq!(terminated(&pod, "app").1, expected, "{tier:?} {name}");
        }
        cluster.stop().await;
    }
}

/// The last 4096 bytes of 5000 and `end`.
fn long_message() -> String {
    "a".repeat(4093) + "end"
}

#[tokio::test]
async fn failed_post_start_hook_kills_the_container() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let hook = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
        let script = "trap 'echo stopped; exit 3' TERM; while :; do sleep 0.05; done";
        let lifecycle = json!({
            "postStart": hook("echo secret; exit 1"),
            "preStop": hook("touch $DIR/pre-stop"),
        });
        let app = sh("app", script, json!({"lifecycle": lifecycle}));
        cluster
            .create(
                "hook",
                json!({"restartPolicy": "Never", "containers": [app]}),
            )
            .await;
        let pod = cluster.until_phase("hook", "Failed").await;
        assert_eq!(terminated(&pod, "app").0, 3, "{tier:?}");
        assert!(cluster.dir.path().join("pre-stop").exists(), "{tier:?}");
        let event = cluster
            .until_event("hook", "FailedPostStartHook", "PostStartHook failed")
            .await;
        assert!(!event.message.unwrap().contains("secret"), "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn active_deadline_ends_the_pod() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let spec = json!({
            "activeDeadlineSeconds": 1,
            "containers": [sh("app", script, json!({}))],
        });
        cluster.create("late", spec).await;
        let pod = cluster.until_phase("late", "Failed").await;
        let status = pod.status.as_ref().unwrap();
        assert_eq!(
            status.reason.as_deref(),
            Some("DeadlineExceeded"),
            "{tier:?}"
        );
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn job_runs_to_completion() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "test $JOB_COMPLETION_INDEX -lt 3";
        let job = json!({
            "metadata": {"name": "sum"},
            "spec": {
                "completions": 3, "parallelism": 2, "completionMode": "Indexed",
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "containers": [sh("app", script, json!({}))],
                }},
            },
        });
        let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), "default");
        let job: Job = serde_json::from_value(job).unwrap();
        jobs.create(&PostParams::default(), &job).await.unwrap();
        let done = wait_until(&jobs, "the job is complete", |jobs| {
            let status = jobs.first().and_then(|job| job.status.as_ref());
            status.is_some_and(|status| status.completion_time.is_some())
        });
        let done = done.await;
        let status = done[0].status.as_ref().unwrap();
        assert_eq!(status.succeeded, Some(3), "{tier:?}");
        assert_eq!(status.failed.unwrap_or_default(), 0, "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn evicted_and_deleted_pods_leave_no_process() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "trap '' TERM; (setsid sleep 1000 &); while :; do sleep 0.05; done";
        for name in ["evicted", "deleted"] {
            let spec = json!({
                "terminationGracePeriodSeconds": 1,
                "containers": [sh("app", script, json!({}))],
            });
            cluster.create(name, spec).await;
        }
        let evicted = cluster.until_ready("evicted").await;
        let deleted = cluster.until_ready("deleted").await;
        let pods = cluster.pods();
        pods.evict("evicted", &EvictParams::default())
            .await
            .unwrap();
        cluster.delete("deleted", 0).await;
        cluster.until_deleted("deleted").await;
        cluster.until_no_process(&deleted).await;
        cluster.until_deleted("evicted").await;
        cluster.until_no_process(&evicted).await;
        let logs = cluster.log_dir(&evicted, "app");
        let removed = async {
            while logs.exists() {
                tokio::task::yield_now().await;
            }
        };
        removed.await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn empty_dir_is_writable_by_every_user() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "stat -c %a ${KUBERNETES_MOUNT_DATA:-/data}";
        let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let spec = json!({
            "restartPolicy": "Never",
            "containers": [sh("app", script, mounts)],
            "volumes": [{"name": "data", "emptyDir": {}}],
        });
        cluster.create("web", spec).await;
        let pod = cluster.until_phase("web", "Succeeded").await;
        let lines = cluster.until_logged(&pod, "app", 0, 1).await;
        assert_eq!(lines, ["777"], "{tier:?}");
        cluster.stop().await;
    }
}
