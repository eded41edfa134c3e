//! Timelines of simulated pods: the status after every sync that the worker requests.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::simulated_runtime::{SimulatedInstance, SimulatedRuntime};
use super::super::time::after;
use super::pod_worker::PodWorker;
use super::status::{StatusInputs, generate_pod_status};
use super::status_patch::changed_fields;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod with these annotations. The fields of `spec` replace those of a pod with one container
/// `app` and `restartPolicy: Always`.
fn pod(annotations: &[(&str, &str)], spec: &Value) -> Pod {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(key, value)| (format!("sim.bellerophon.io/{key}"), json!(value)))
        .collect();
    let mut pod = json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u-1", "generation": 1,
            "annotations": annotations,
        },
        "spec": {
            "nodeName": "node-1", "restartPolicy": "Always",
            "containers": [{"name": "app", "image": "nginx"}],
        },
    });
    spec.as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| pod["spec"][key] = value.clone());
    serde_json::from_value(pod).unwrap()
}

fn summary(container: &ContainerStatus) -> String {
    let state = container.state.clone().unwrap_or_default();
    let state = match (state.waiting, state.running, state.terminated) {
        (Some(waiting), _, _) => waiting.reason.unwrap_or_default(),
        (_, Some(_), _) if container.ready => "ready".into(),
        (_, Some(_), _) => "running".into(),
        (_, _, Some(terminated)) => format!(
            "{}({})",
            terminated.reason.unwrap_or_default(),
            terminated.exit_code
        ),
        _ => "?".into(),
    };
    let restarts = if container.restart_count > 0 {
        format!("*{}", container.restart_count)
    } else {
        String::new()
    };
    format!("{}={state}{restarts}", container.name)
}

/// A pod, its worker, and one line for every status that was written.
struct Timeline {
    pod: Pod,
    worker: PodWorker<SimulatedInstance>,
    lines: Vec<String>,
}

impl Timeline {
    fn start(pod: Pod) -> Self {
        let worker = PodWorker::recover(&SimulatedRuntime, &pod, Timestamp::MIN, at(0));
        Self {
            pod,
            worker,
            lines: Vec::new(),
        }
    }

    /// Syncs the pod from one second up to and including another.
    fn run(&mut self, from: i64, to: i64) {
        let mut now = at(from);
        loop {
            let result = self.worker.sync(&SimulatedRuntime, &self.pod, now);
            let pod_ip = self.worker.has_sandbox().then(|| "10.0.0.2".to_owned());
            let inputs = StatusInputs {
                host_ip: "172.16.0.1".into(),
                pod_ip,
                now,
                scheme: "sim",
                runs_ephemeral_containers: false,
            };
            let status = generate_pod_status(&self.pod, &self.worker, &inputs);
            if changed_fields(&self.pod, status.clone()).is_some() {
                let statuses = status
                    .init_container_statuses
                    .iter()
                    .flatten()
                    .chain(status.container_statuses.iter().flatten());
                let containers: Vec<_> = statuses.map(summary).collect();
                self.lines.push(format!(
                    "{} {} {}",
                    now.as_second(),
                    status.phase.as_deref().unwrap_or("?"),
                    containers.join(" ")
                ));
                // The API server stores times in whole seconds.
                self.pod.status =
                    serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap();
            }
            if self.worker.is_terminated() {
                self.lines.push("terminated".into());
                return;
            }
            match result.next_sync.filter(|next_sync| *next_sync <= at(to)) {
                Some(next_sync) => {
                    assert!(next_sync > now, "a sync must not request itself again");
                    now = next_sync;
                }
                None => return,
            }
        }
    }

    fn delete(&mut self, second: i64, grace_seconds: u64) {
        self.pod.metadata.deletion_timestamp =
            Some(Time(after(at(second), Duration::from_secs(grace_seconds))));
        self.pod.metadata.deletion_grace_period_seconds = i64::try_from(grace_seconds).ok();
    }

    fn reboot(&mut self, second: i64) {
        self.worker = PodWorker::recover(&SimulatedRuntime, &self.pod, at(second), at(second));
    }
}

#[test]
fn pods_follow_the_simulation_annotations() {
    let proxy = || json!({"name": "proxy", "restartPolicy": "Always"});
    let init = || json!({"initContainers": [{"name": "prepare"}, proxy()]});
    let restart_all = || {
        let exit_codes = json!({"operator": "In", "values": [88]});
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": exit_codes}]);
        json!({"name": "app", "restartPolicy": "Never", "restartPolicyRules": rules})
    };
    let cases: [(&str, &[(&str, &str)], Value, i64, &[&str]); 14] = [
        (
            "rule that restarts all containers",
            &[
                ("start-delay", "0s"),
                ("run-for.app", "2s"),
                ("exit-code.app", "88"),
                ("fail-times.app", "1"),
            ],
            json!({"containers": [restart_all(), {"name": "other"}]}),
            60,
            &[
                "0 Running app=ready other=ready",
                "2 Running app=ready*1 other=ready*1",
            ],
        ),
        (
            "no annotations",
            &[],
            json!({}),
            60,
            &["0 Pending app=ContainerCreating", "1 Running app=ready"],
        ),
        (
            "ready-delay",
            &[("ready-delay", "5s")],
            json!({}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=running",
                "6 Running app=ready",
            ],
        ),
        (
            "init container, sidecar, app container",
            &[("startup-delay.proxy", "2s")],
            init(),
            60,
            &[
                "0 Pending prepare=PodInitializing proxy=PodInitializing app=PodInitializing",
                "1 Pending prepare=running proxy=PodInitializing app=PodInitializing",
                "2 Pending prepare=Completed(0) proxy=PodInitializing app=PodInitializing",
                "3 Pending prepare=Completed(0) proxy=running app=PodInitializing",
                "5 Pending prepare=Completed(0) proxy=ready app=PodInitializing",
                "6 Running prepare=Completed(0) proxy=ready app=ready",
            ],
        ),
        (
            "crash loop",
            &[("run-for", "1s"), ("exit-code", "1")],
            json!({}),
            45,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "2 Running app=ready*1",
                "3 Running app=CrashLoopBackOff*1",
                "13 Running app=ready*2",
                "14 Running app=CrashLoopBackOff*2",
                "34 Running app=ready*3",
                "35 Running app=CrashLoopBackOff*3",
            ],
        ),
        (
            "crash loop that ends after two failures",
            &[("run-for", "1s"), ("exit-code", "1"), ("fail-times", "2")],
            json!({}),
            600,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "2 Running app=ready*1",
                "3 Running app=CrashLoopBackOff*1",
                "13 Running app=ready*2",
            ],
        ),
        (
            "image pull failure",
            &[("fail", "pull"), ("fail-times", "2")],
            json!({}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Pending app=ErrImagePull",
                "3 Pending app=ImagePullBackOff",
                "11 Pending app=ContainerCreating",
                "12 Pending app=ErrImagePull",
                "14 Pending app=ImagePullBackOff",
                "32 Pending app=ContainerCreating",
                "33 Running app=ready",
            ],
        ),
        (
            "completion with restartPolicy Never",
            &[("run-for", "3s")],
            json!({"restartPolicy": "Never"}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Succeeded app=Completed(0)",
                "terminated",
            ],
        ),
        (
            "failure with restartPolicy Never",
            &[("run-for", "3s"), ("exit-code", "9")],
            json!({"restartPolicy": "Never"}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Failed app=Error(9)",
                "terminated",
            ],
        ),
        (
            "restartPolicy OnFailure",
            &[("run-for", "3s"), ("exit-code", "9"), ("fail-times", "1")],
            json!({"restartPolicy": "OnFailure"}),
            60,
            // After the last failure the container keeps running.
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Running app=ready*1",
            ],
        ),
        (
            "failed init container with restartPolicy Never",
            &[("exit-code.prepare", "1")],
            json!({"restartPolicy": "Never", "initContainers": [{"name": "prepare"}]}),
            60,
            &[
                "0 Pending prepare=PodInitializing app=PodInitializing",
                "1 Pending prepare=running app=PodInitializing",
                "2 Failed prepare=Error(1) app=PodInitializing",
                "terminated",
            ],
        ),
        (
            "sidecar is stopped after the app container",
            &[
                ("run-for.app", "3s"),
                ("stop-delay.proxy", "2s"),
                ("start-delay", "0s"),
            ],
            json!({"restartPolicy": "Never", "initContainers": [proxy()]}),
            60,
            &[
                "0 Running proxy=ready app=ready",
                "3 Running proxy=ready app=Completed(0)",
                "5 Succeeded proxy=Completed(0) app=Completed(0)",
                "terminated",
            ],
        ),
        (
            "activeDeadlineSeconds",
            &[("stop-delay", "2s")],
            json!({"activeDeadlineSeconds": 10}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "12 Failed app=Completed(0)",
                "terminated",
            ],
        ),
        (
            "liveness probe failure",
            &[("live-for", "8s"), ("fail-times", "1")],
            json!({"containers": [{"name": "app", "livenessProbe": {}}]}),
            12,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "9 Running app=ready*1",
            ],
        ),
    ];
    for (case, annotations, spec, to, expected) in cases {
        let mut timeline = Timeline::start(pod(annotations, &spec));
        timeline.run(0, to);
        assert_eq!(timeline.lines, expected, "{case}");
    }
}

/// How long a container waits before each of its restarts if it fails after that time.
fn restart_delays(run_for: &str, to: i64) -> Vec<i64> {
    let annotations = [
        ("start-delay", "0s"),
        ("run-for", run_for),
        ("exit-code", "1"),
    ];
    let mut timeline = Timeline::start(pod(&annotations, &json!({})));
    timeline.run(0, to);
    let second = |line: &String| line.split(' ').next().unwrap().parse::<i64>().unwrap();
    let waits = timeline.lines.windows(2);
    waits
        .filter(|pair| pair[0].contains("CrashLoopBackOff"))
        .map(|pair| second(&pair[1]) - second(&pair[0]))
        .collect()
}

#[test]
fn restart_back_off_doubles_up_to_the_maximum_and_is_reset() {
    let expected = [10, 20, 40, 80, 160, 300, 300];
    assert_eq!(restart_delays("1s", 950), expected);
    let none: [i64; 0] = [];
    assert_eq!(restart_delays("601s", 6000), none);
    assert_eq!(restart_delays("600s", 2000), [10, 20]);
}

#[test]
fn grace_period_begins_when_the_deletion_is_observed() {
    let mut timeline = Timeline::start(pod(&[("stop-delay", "7m")], &json!({})));
    timeline.run(0, 4);
    timeline.lines.clear();
    timeline.delete(5, 30);
    timeline.run(7, 60);
    assert_eq!(timeline.lines, ["37 Failed app=Error(137)", "terminated"]);
}

#[test]
fn sidecars_end_together_after_the_grace_period() {
    let annotations = [("start-delay", "0s"), ("stop-delay", "7m")];
    let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always"});
    let spec = json!({"initContainers": [sidecar("first"), sidecar("second")]});
    let mut timeline = Timeline::start(pod(&annotations, &spec));
    timeline.run(0, 4);
    timeline.lines.clear();
    timeline.delete(5, 30);
    timeline.run(5, 60);
    let expected = [
        "35 Failed first=Error(137) second=Error(137) app=Error(137)",
        "terminated",
    ];
    assert_eq!(timeline.lines, expected);
}

#[test]
fn deleted_pod_terminates_within_its_grace_period() {
    for (case, annotations, expected) in [
        (
            "exits immediately",
            &[][..],
            &["5 Succeeded app=Completed(0)", "terminated"][..],
        ),
        (
            "exits within the grace period",
            &[("stop-delay", "7s")],
            &["12 Succeeded app=Completed(0)", "terminated"],
        ),
        (
            "killed after the grace period",
            &[("stop-delay", "7m")],
            &["35 Failed app=Error(137)", "terminated"],
        ),
        (
            "never running",
            &[("start-delay", "1h")],
            &["5 Failed app=ContainerStatusUnknown(137)", "terminated"],
        ),
        (
            "in CrashLoopBackOff",
            &[("run-for", "1s"), ("exit-code", "1")],
            &["5 Failed app=Error(1)*1", "terminated"],
        ),
    ] {
        let mut timeline = Timeline::start(pod(annotations, &json!({})));
        timeline.run(0, 4);
        timeline.lines.clear();
        timeline.delete(5, 30);
        timeline.run(5, 60);
        assert_eq!(timeline.lines, expected, "{case}");
    }
}

#[test]
fn shorter_grace_period_replaces_the_longer_one() {
    let mut timeline = Timeline::start(pod(&[("stop-delay", "7m")], &json!({})));
    timeline.run(0, 4);
    timeline.delete(5, 300);
    timeline.run(5, 9);
    timeline.delete(10, 1);
    timeline.lines.clear();
    timeline.run(10, 60);
    assert_eq!(timeline.lines, ["11 Failed app=Error(137)", "terminated"]);
}

#[test]
fn reboot_restarts_containers_and_init_containers() {
    let mut timeline = Timeline::start(pod(&[], &json!({"initContainers": [{"name": "prepare"}]})));
    timeline.run(0, 60);
    timeline.lines.clear();
    timeline.reboot(100);
    timeline.run(100, 200);
    assert_eq!(
        timeline.lines,
        [
            "100 Pending prepare=running*1 app=PodInitializing",
            "101 Running prepare=Completed(0)*1 app=ready*1"
        ]
    );
    let last = timeline.pod.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(last.exit_code, 255);
    assert_eq!(last.reason.as_deref(), Some("Unknown"));
}

#[test]
fn restarted_kubelet_recovers_the_worker_from_the_status() {
    for (annotations, to) in [
        (&[][..], 60),
        (&[("run-for", "1s"), ("exit-code", "1")], 20),
        (&[("ready-delay", "5s")], 3),
    ] {
        let mut uninterrupted = Timeline::start(pod(annotations, &json!({})));
        uninterrupted.run(0, 120);
        let mut restarted = Timeline::start(pod(annotations, &json!({})));
        restarted.run(0, to);
        restarted.worker =
            PodWorker::recover(&SimulatedRuntime, &restarted.pod, Timestamp::MIN, at(to));
        restarted.run(to, 120);
        assert_eq!(uninterrupted.lines, restarted.lines, "{annotations:?}");
    }
}

#[test]
fn conditions_carry_reason_and_message() {
    let conditions = |annotations: &[(&str, &str)], spec: &Value, to: i64| -> Vec<String> {
        let mut timeline = Timeline::start(pod(annotations, spec));
        timeline.run(0, to);
        let conditions = timeline.pod.status.unwrap().conditions.unwrap();
        let notable = conditions
            .iter()
            .filter(|condition| condition.status != "True" || condition.reason.is_some());
        notable
            .map(|c| {
                format!(
                    "{}={} {} {}",
                    c.type_,
                    c.status,
                    c.reason.as_deref().unwrap_or("-"),
                    c.message.as_deref().unwrap_or("-")
                )
            })
            .collect()
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(conditions(&[], &json!({}), 10), none);
    assert_eq!(
        conditions(&[], &json!({}), 0),
        [
            "PodReadyToStartContainers=False - -",
            "Ready=False ContainersNotReady containers with unready status: [app]",
            "ContainersReady=False ContainersNotReady containers with unready status: [app]",
        ]
    );
    assert_eq!(
        conditions(
            &[],
            &json!({"readinessGates": [{"conditionType": "example.com/ok"}]}),
            10
        ),
        [
            "Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate \
             \"example.com/ok\" does not exist."
        ]
    );
    assert_eq!(
        conditions(&[], &json!({"initContainers": [{"name": "prepare"}]}), 1)[0],
        "Initialized=False ContainersNotInitialized containers with incomplete status: [prepare]"
    );
    assert_eq!(
        conditions(&[("run-for", "1s")], &json!({"restartPolicy": "Never"}), 10),
        [
            "PodReadyToStartContainers=False - -",
            "Initialized=True PodCompleted -",
            "Ready=False PodCompleted -",
            "ContainersReady=False PodCompleted -"
        ]
    );
}
