//! Pods, with the status column of `kubectl get pods`.
//! Guarantees: the status is the reason of a container where it has one, otherwise the phase.
//! Mirrors `printPod` in `pkg/printers/internalversion`.

use bellerophon_apimachinery::{duration::since, table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, RowCondition, age, name},
};

pub(super) static POD: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text(
            "Ready",
            "The aggregate readiness state of this pod for accepting traffic.",
        ),
        Column::text(
            "Status",
            "The aggregate status of the containers in this pod.",
        ),
        Column::text(
            "Restarts",
            "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
        ),
        Column::AGE,
        Column::text("IP", descriptions::POD_IP).wide(),
        Column::text("Node", descriptions::POD_NODE).wide(),
        Column::text("Nominated Node", descriptions::POD_NOMINATED_NODE).wide(),
        Column::text("Readiness Gates", descriptions::POD_READINESS_GATES).wide(),
    ],
    cells,
    conditions,
    ..Printer::PLAIN
};

fn cells(pod: &Object, now: Time) -> Vec<Value> {
    let seen = Containers::of(pod);
    vec![
        name(pod),
        format!("{}/{}", seen.ready, total_containers(pod)).into(),
        status(pod, seen.word).into(),
        seen.restarts.words(now).into(),
        age(pod, now),
        address(pod).into(),
        pod.filled_or("spec.nodeName", "<none>").into(),
        pod.filled_or("status.nominatedNodeName", "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

fn conditions(pod: &Object) -> Vec<RowCondition> {
    let (reason, message) = match pod.text("status.phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return Vec::new(),
    };
    vec![RowCondition {
        type_: "Completed",
        status: "True",
        reason,
        message,
    }]
}

/// Containers that count towards readiness: all that are meant to keep running.
fn total_containers(pod: &Object) -> usize {
    let sidecars = pod
        .list("spec.initContainers")
        .iter()
        .filter(|container| restarts_always(container))
        .count();
    pod.list("spec.containers").len() + sidecars
}

/// An init container that keeps running next to the others.
fn restarts_always(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

/// The last word on a pod: deletion overrules what its containers do.
fn status(pod: &Object, word: String) -> String {
    if pod.meta.deletion_timestamp.is_none() {
        return word;
    }
    match (pod.text("status.reason"), pod.text("status.phase")) {
        ("NodeLost", _) => "Unknown".into(),
        (_, "Succeeded" | "Failed") => word,
        _ => "Terminating".into(),
    }
}

/// `podIP` is the older field and wins where the two differ.
fn address(pod: &Object) -> &str {
    let first = pod
        .list("status.podIPs")
        .first()
        .map_or("<none>", |ip| ip.filled_or("ip", "<none>"));
    pod.filled_or("status.podIP", first)
}

fn readiness_gates(pod: &Object) -> String {
    let gates = pod.list("spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates
        .iter()
        .filter(|gate| pod.is_true("status.conditions", gate.text("conditionType")))
        .count();
    format!("{open}/{}", gates.len())
}

/// The totals over the containers of a pod.
struct Containers {
    word: String,
    ready: usize,
    restarts: Restarts,
}

#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Time>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += container.int("restartCount");
        self.last = self
            .last
            .max(container.time("lastState.terminated.finishedAt"));
    }

    fn words(self, now: Time) -> String {
        match self.last {
            Some(last) if self.count != 0 => {
                format!("{} ({} ago)", self.count, since(Some(last), now))
            }
            _ => self.count.to_string(),
        }
    }
}

impl Containers {
    fn of(pod: &Object) -> Self {
        let mut seen = Self {
            word: phase_word(pod),
            ready: 0,
            restarts: Restarts::default(),
        };
        let sidecars = seen.initialise(pod);
        if let Some(restarts) = sidecars {
            seen.restarts = restarts;
            seen.run(pod);
        }
        seen
    }

    /// Visits the init containers up to the first that is not complete. Returns the restarts of
    /// sidecars, once the pod is initialized; before, all init containers count.
    fn initialise(&mut self, pod: &Object) -> Option<Restarts> {
        let specs = pod.list("spec.initContainers");
        let mut sidecars = Restarts::default();
        let mut held_up = false;
        for (index, container) in pod.list("status.initContainerStatuses").iter().enumerate() {
            let sidecar = specs
                .iter()
                .any(|spec| spec.text("name") == container.text("name") && restarts_always(spec));
            self.restarts.add(container);
            if sidecar {
                sidecars.add(container);
            }
            if container.has("state.terminated") && container.int("state.terminated.exitCode") == 0
            {
                continue;
            }
            if sidecar && container.flag("started") {
                self.ready += usize::from(container.flag("ready"));
                continue;
            }
            self.word =
                init_word(container).unwrap_or_else(|| format!("Init:{index}/{}", specs.len()));
            held_up = true;
            break;
        }
        (!held_up || pod.is_true("status.conditions", "Initialized")).then_some(sidecars)
    }

    /// Visits the containers from the last to the first, whose reason is shown.
    fn run(&mut self, pod: &Object) {
        let mut running = false;
        let mut failure = None;
        for container in pod.list("status.containerStatuses").iter().rev() {
            self.restarts.add(container);
            if !container.text("state.waiting.reason").is_empty() {
                self.word = container.text("state.waiting.reason").into();
            } else if container.has("state.terminated") {
                self.word = terminated_word(container);
                if container.int("state.terminated.exitCode") != 0 {
                    failure = Some(self.word.clone());
                }
            } else if container.flag("ready") && container.has("state.running") {
                running = true;
                self.ready += 1;
            }
        }
        if self.word == "Completed" {
            self.word = match failure {
                _ if running && pod.is_true("status.conditions", "Ready") => "Running".into(),
                Some(failure) => failure,
                None if running => "NotReady".into(),
                None => "Completed".into(),
            };
        }
    }
}

fn phase_word(pod: &Object) -> String {
    let gated = |condition: &Value| {
        condition.text("type") == "PodScheduled" && condition.text("reason") == "SchedulingGated"
    };
    if pod.list("status.conditions").iter().any(gated) {
        return "SchedulingGated".into();
    }
    pod.filled_or("status.reason", pod.text("status.phase"))
        .into()
}

/// Why an init container blocks the pod; `None` when it is just not complete.
fn init_word(container: &Value) -> Option<String> {
    if container.has("state.terminated") {
        return Some(format!("Init:{}", terminated_word(container)));
    }
    match container.text("state.waiting.reason") {
        "" | "PodInitializing" => None,
        reason => Some(format!("Init:{reason}")),
    }
}

fn terminated_word(container: &Value) -> String {
    match (
        container.text("state.terminated.reason"),
        container.int("state.terminated.signal"),
    ) {
        ("", 0) => format!("ExitCode:{}", container.int("state.terminated.exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::printer::tests::{NOW, check, object};

    /// A pod with this many containers, its status, and the first four cells of its row.
    fn check_status(containers: usize, status: Value, ready: &str, word: &str, restarts: &str) {
        let containers: Vec<Value> = (0..containers)
            .map(|n| json!({ "name": format!("c{n}") }))
            .collect();
        check_pod(
            json!({ "spec": { "containers": containers }, "status": status }),
            ready,
            word,
            restarts,
        );
    }

    fn check_pod(pod: Value, ready: &str, word: &str, restarts: &str) {
        let cells = POD.row(&object(pod), Time::parse(NOW).unwrap()).cells;
        assert_eq!(cells[1..4], [ready, word, restarts]);
    }

    fn running(name: &str) -> Value {
        json!({ "name": name, "ready": true, "started": true, "restartCount": 0, "state": { "running": {} } })
    }

    fn exited(code: i64, reason: &str) -> Value {
        json!({ "name": "c", "restartCount": 0, "state": { "terminated": { "exitCode": code, "reason": reason } } })
    }

    #[test]
    fn status_is_what_the_containers_do() {
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        for (containers, status, expected) in [
            (2, json!({ "phase": "Pending" }), ("0/2", "Pending")),
            (
                1,
                json!({ "phase": "Failed", "reason": "Evicted" }),
                ("0/1", "Evicted"),
            ),
            (
                1,
                json!({ "phase": "Running", "containerStatuses": [running("a")] }),
                ("1/1", "Running"),
            ),
            (
                1,
                json!({ "phase": "Pending", "containerStatuses": [{ "state": { "waiting": { "reason": "ImagePullBackOff" } } }] }),
                ("0/1", "ImagePullBackOff"),
            ),
            (
                1,
                json!({ "phase": "Succeeded", "containerStatuses": [exited(0, "Completed")] }),
                ("0/1", "Completed"),
            ),
            (
                1,
                json!({ "phase": "Failed", "containerStatuses": [exited(3, "")] }),
                ("0/1", "ExitCode:3"),
            ),
            (
                1,
                json!({ "phase": "Failed", "containerStatuses": [{ "state": { "terminated": { "exitCode": 137, "signal": 9 } } }] }),
                ("0/1", "Signal:9"),
            ),
            (
                2,
                json!({ "phase": "Running", "containerStatuses": [exited(0, "Completed"), running("b")] }),
                ("1/2", "NotReady"),
            ),
            (
                2,
                json!({ "phase": "Running", "conditions": ready, "containerStatuses": [exited(0, "Completed"), running("b")] }),
                ("1/2", "Running"),
            ),
            (
                2,
                json!({ "phase": "Running", "containerStatuses": [exited(0, "Completed"), exited(1, "Error")] }),
                ("0/2", "Error"),
            ),
            (
                1,
                json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] }),
                ("0/1", "SchedulingGated"),
            ),
        ] {
            check_status(containers, status, expected.0, expected.1, "0");
        }
    }

    #[test]
    fn init_containers_show_their_progress() {
        let spec = json!({ "containers": [{ "name": "c" }], "initContainers": [{ "name": "i0" }, { "name": "i1" }] });
        for (second, word) in [
            (running("i1"), "Init:1/2"),
            (
                json!({ "state": { "waiting": { "reason": "PodInitializing" } } }),
                "Init:1/2",
            ),
            (
                json!({ "state": { "waiting": { "reason": "CrashLoopBackOff" } } }),
                "Init:CrashLoopBackOff",
            ),
            (exited(1, "Error"), "Init:Error"),
            (exited(2, ""), "Init:ExitCode:2"),
        ] {
            let status = json!({ "phase": "Pending", "initContainerStatuses": [exited(0, "Completed"), second] });
            check_pod(json!({ "spec": spec, "status": status }), "0/1", word, "0");
        }
    }

    #[test]
    fn sidecars_count_as_containers() {
        let spec = json!({ "containers": [{ "name": "c" }], "initContainers": [{ "name": "s", "restartPolicy": "Always" }, { "name": "i" }] });
        let mut sidecar = running("s");
        sidecar["restartCount"] = 2.into();
        let mut init = exited(0, "Completed");
        init["restartCount"] = 5.into();
        let past = json!({ "phase": "Running", "initContainerStatuses": [sidecar, init], "containerStatuses": [running("c")] });
        check_pod(
            json!({ "spec": spec, "status": past }),
            "2/2",
            "Running",
            "2",
        );
        let before = json!({ "phase": "Pending", "initContainerStatuses": [sidecar, { "name": "i", "restartCount": 1, "state": {} }] });
        check_pod(
            json!({ "spec": spec, "status": before }),
            "1/2",
            "Init:1/2",
            "3",
        );
    }

    #[test]
    fn restarts_show_the_time_of_the_last_one() {
        let crashed = |at: &str| json!({ "restartCount": 3, "lastState": { "terminated": { "finishedAt": at } }, "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
        let status = json!({ "phase": "Running", "containerStatuses": [crashed("2026-01-02T03:09:05Z"), crashed("2026-01-02T03:04:05Z")] });
        check_status(2, status, "0/2", "CrashLoopBackOff", "6 (5m ago)");
    }

    #[test]
    fn deletion_overrules_the_containers() {
        for (status, word) in [
            (json!({ "phase": "Running" }), "Terminating"),
            (
                json!({ "phase": "Running", "reason": "NodeLost" }),
                "Unknown",
            ),
            (json!({ "phase": "Succeeded" }), "Succeeded"),
        ] {
            let meta = json!({ "name": "p", "deletionTimestamp": NOW });
            check_pod(
                json!({ "metadata": meta, "spec": { "containers": [{}] }, "status": status }),
                "0/1",
                word,
                "0",
            );
        }
    }

    #[test]
    fn wide_columns_show_place_and_gates() {
        let spec = json!({ "containers": [{}], "nodeName": "node-a", "readinessGates": [{ "conditionType": "lb" }, { "conditionType": "dns" }] });
        let status = json!({
            "phase": "Running", "podIPs": [{ "ip": "10.0.0.7" }], "nominatedNodeName": "node-b",
            "conditions": [{ "type": "lb", "status": "True" }, { "type": "dns", "status": "False" }],
        });
        let cells = json!([
            "x", "0/1", "Running", "0", "10m", "10.0.0.7", "node-a", "node-b", "1/2"
        ]);
        check(
            "v1",
            "Pod",
            json!({ "spec": spec, "status": status }),
            cells,
        );
    }

    #[test]
    fn finished_pods_are_marked_as_completed() {
        for (phase, reason) in [
            ("Succeeded", Some("Succeeded")),
            ("Failed", Some("Failed")),
            ("Running", None),
        ] {
            let row = POD.row(
                &object(json!({ "status": { "phase": phase } })),
                Time::parse(NOW).unwrap(),
            );
            assert_eq!(
                row.conditions.first().map(|condition| condition.reason),
                reason
            );
        }
    }
}
