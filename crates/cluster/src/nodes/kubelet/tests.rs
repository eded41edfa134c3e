//! Lives of pods, minute by minute, as somebody sees who looks whenever the kubelet says so.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::simulated::{Simulated, SimulatedRun, after};
use super::life::Life;
use super::status::{self, Facts};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod with these annotations; `spec` is merged over one container `app` with a policy of `Always`.
fn pod(annotations: &[(&str, &str)], spec: &Value) -> Pod {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(key, value)| (format!("sim.bellerophon.io/{key}"), json!(value)))
        .collect();
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u-1", "generation": 1, "annotations": annotations},
        "spec": {"nodeName": "node-1", "restartPolicy": "Always", "containers": [{"name": "app", "image": "nginx"}]},
    });
    spec.as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| pod["spec"][key] = value.clone());
    serde_json::from_value(pod).unwrap()
}

fn shown(container: &ContainerStatus) -> String {
    let state = container.state.clone().unwrap_or_default();
    let what = match (state.waiting, state.running, state.terminated) {
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
    format!("{}={what}{restarts}", container.name)
}

/// A pod, its life, and everything that was written about it.
struct Story {
    pod: Pod,
    life: Life<SimulatedRun>,
    booted: Timestamp,
    told: Vec<String>,
}

impl Story {
    fn begin(pod: Pod) -> Self {
        let life = Life::recover(&Simulated, &pod, Timestamp::MIN, at(0));
        Self {
            pod,
            life,
            booted: Timestamp::MIN,
            told: Vec::new(),
        }
    }

    /// Looks after the pod up to and including that second.
    fn until(&mut self, from: i64, to: i64) {
        let mut now = at(from);
        loop {
            let advance = self.life.advance(&Simulated, &self.pod, now);
            let pod_ip = self.life.has_sandbox().then(|| "10.0.0.2".to_owned());
            let facts = Facts {
                host_ip: "172.16.0.1".into(),
                pod_ip,
                now,
            };
            let wanted = status::status(&self.pod, &self.life, &facts);
            if status::difference(&self.pod, wanted.clone()).is_some() {
                let statuses = wanted
                    .init_container_statuses
                    .iter()
                    .flatten()
                    .chain(wanted.container_statuses.iter().flatten());
                let containers: Vec<_> = statuses.map(shown).collect();
                self.told.push(format!(
                    "{} {} {}",
                    now.as_second(),
                    wanted.phase.as_deref().unwrap_or("?"),
                    containers.join(" ")
                ));
                // As the server stores it: times in whole seconds.
                self.pod.status =
                    serde_json::from_value(serde_json::to_value(wanted).unwrap()).unwrap();
            }
            if self.life.is_over() {
                self.told.push("over".into());
                return;
            }
            match advance.again.filter(|again| *again <= at(to)) {
                Some(again) => {
                    assert!(again > now, "looking again at the same moment");
                    now = again;
                }
                None => return,
            }
        }
    }

    fn delete(&mut self, second: i64, grace: u64) {
        self.pod.metadata.deletion_timestamp =
            Some(Time(after(at(second), Duration::from_secs(grace))));
    }

    fn reboot(&mut self, second: i64) {
        self.booted = at(second);
        self.life = Life::recover(&Simulated, &self.pod, self.booted, at(second));
    }
}

#[test]
fn pods_live_by_their_script() {
    let init = || json!({"initContainers": [{"name": "prepare"}, {"name": "proxy", "restartPolicy": "Always"}]});
    let cases: [(&str, &[(&str, &str)], Value, i64, &[&str]); 13] = [
        (
            "a server",
            &[],
            json!({}),
            60,
            &["0 Pending app=ContainerCreating", "1 Running app=ready"],
        ),
        (
            "slow to be ready",
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
            "init container, sidecar, main",
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
            "a crash loop",
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
            "failing twice, then well",
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
            "no such image",
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
            "a run that succeeds once",
            &[("run-for", "3s")],
            json!({"restartPolicy": "Never"}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Succeeded app=Completed(0)",
                "over",
            ],
        ),
        (
            "a run that fails once",
            &[("run-for", "3s"), ("exit-code", "9")],
            json!({"restartPolicy": "Never"}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Failed app=Error(9)",
                "over",
            ],
        ),
        (
            "tried until it succeeds",
            &[("run-for", "3s"), ("exit-code", "9"), ("fail-times", "1")],
            json!({"restartPolicy": "OnFailure"}),
            60,
            // A run that no longer fails lasts.
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "4 Running app=ready*1",
            ],
        ),
        (
            "init container that fails for good",
            &[("exit-code.prepare", "1")],
            json!({"restartPolicy": "Never", "initContainers": [{"name": "prepare"}]}),
            60,
            &[
                "0 Pending prepare=PodInitializing app=PodInitializing",
                "1 Pending prepare=running app=PodInitializing",
                "2 Failed prepare=Error(1) app=PodInitializing",
                "over",
            ],
        ),
        (
            "sidecar ends with what it serves",
            &[
                ("run-for.app", "3s"),
                ("stop-delay.proxy", "2s"),
                ("start-delay", "0s"),
            ],
            json!({"restartPolicy": "Never", "initContainers": [{"name": "proxy", "restartPolicy": "Always"}]}),
            60,
            &[
                "0 Running proxy=ready app=ready",
                "3 Running proxy=ready app=Completed(0)",
                "5 Succeeded proxy=Completed(0) app=Completed(0)",
                "over",
            ],
        ),
        (
            "active too long",
            &[("stop-delay", "2s")],
            json!({"activeDeadlineSeconds": 10}),
            60,
            &[
                "0 Pending app=ContainerCreating",
                "1 Running app=ready",
                "12 Failed app=Completed(0)",
                "over",
            ],
        ),
        (
            "killed by its liveness probe",
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
    for (why, annotations, spec, to, wanted) in cases {
        let mut story = Story::begin(pod(annotations, &spec));
        story.until(0, to);
        assert_eq!(story.told, wanted, "{why}");
    }
}

#[test]
fn deletion_stops_a_pod_within_its_grace() {
    for (why, annotations, wanted) in [
        (
            "obeys",
            &[][..],
            &["5 Succeeded app=Completed(0)", "over"][..],
        ),
        (
            "takes its time",
            &[("stop-delay", "7s")],
            &["12 Succeeded app=Completed(0)", "over"],
        ),
        (
            "is killed",
            &[("stop-delay", "7m")],
            &["35 Failed app=Error(137)", "over"],
        ),
        (
            "never ran",
            &[("start-delay", "1h")],
            &["5 Failed app=ContainerStatusUnknown(137)", "over"],
        ),
        (
            "waits after a crash",
            &[("run-for", "1s"), ("exit-code", "1")],
            &["5 Failed app=Error(1)*1", "over"],
        ),
    ] {
        let mut story = Story::begin(pod(annotations, &json!({})));
        story.until(0, 4);
        story.told.clear();
        story.delete(5, 30);
        story.until(5, 60);
        assert_eq!(story.told, wanted, "{why}");
    }
}

#[test]
fn shorter_grace_counts_at_once() {
    let mut story = Story::begin(pod(&[("stop-delay", "7m")], &json!({})));
    story.until(0, 4);
    story.delete(5, 300);
    story.until(5, 9);
    story.delete(10, 1);
    story.told.clear();
    story.until(10, 60);
    assert_eq!(story.told, ["11 Failed app=Error(137)", "over"]);
}

#[test]
fn reboot_restarts_what_ran() {
    let mut story = Story::begin(pod(&[], &json!({"initContainers": [{"name": "prepare"}]})));
    story.until(0, 60);
    story.told.clear();
    story.reboot(100);
    story.until(100, 200);
    assert_eq!(
        story.told,
        [
            "100 Pending prepare=running*1 app=PodInitializing",
            "101 Running prepare=Completed(0)*1 app=ready*1"
        ]
    );
    let last = story.pod.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref()),
        (255, Some("Unknown"))
    );
}

#[test]
fn another_kubelet_finds_everything_as_it_was() {
    for (annotations, to) in [
        (&[][..], 60),
        (&[("run-for", "1s"), ("exit-code", "1")], 20),
        (&[("ready-delay", "5s")], 3),
    ] {
        let (mut one, mut other) = (
            Story::begin(pod(annotations, &json!({}))),
            Story::begin(pod(annotations, &json!({}))),
        );
        one.until(0, 120);
        other.until(0, to);
        other.life = Life::recover(&Simulated, &other.pod, Timestamp::MIN, at(to));
        other.until(to, 120);
        assert_eq!(one.told, other.told, "{annotations:?}");
    }
}

#[test]
fn status_tells_why_a_pod_is_not_ready() {
    let conditions = |annotations: &[(&str, &str)], spec: &Value, to: i64| -> Vec<String> {
        let mut story = Story::begin(pod(annotations, spec));
        story.until(0, to);
        let conditions = story.pod.status.unwrap().conditions.unwrap();
        let told = conditions
            .iter()
            .filter(|condition| condition.status != "True" || condition.reason.is_some());
        told.map(|c| {
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
            "Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate \"example.com/ok\" does not exist."
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
