//! Script: what a pod's annotations say a simulated container does.
//!
//! Each annotation begins with `sim.bellerophon.io/`. One that ends in `.` and the name of a container counts for that
//! container only, and wins. They are read whenever the kubelet looks, so changing one changes what happens next.
//!
//! | annotation | value | what it does | unless set |
//! |---|---|---|---|
//! | `start-delay` | duration | from the order to start a container until it runs | 1s for the first start, 0s for restarts |
//! | `startup-delay` | duration | from running until the startup probe succeeds | 0s |
//! | `ready-delay` | duration | from started until the readiness probe succeeds | `initialDelaySeconds` of that probe, or 0s |
//! | `ready` | `true`, `false` | whether the readiness probe can succeed at all | `true` |
//! | `live-for` | duration | from running until the liveness probe fails and the container is killed | for ever |
//! | `run-for` | duration | from running until it exits by itself | for ever; 1s for init containers and pods of Jobs |
//! | `exit-code` | number | what it exits with then | 0 |
//! | `exit-reason` | word | the reason shown with it, such as `OOMKilled` | `Completed` or `Error`, by the code |
//! | `fail` | `pull`, `create` | it cannot be started: no such image, or the runtime refuses | it can |
//! | `fail-times` | number | so many starts fail by `fail` or end by `exit-code`; later ones go well | all |
//! | `stop-delay` | duration | how long it takes to exit when asked to; killed when the grace period ends first | 0s |
//! | `stop-exit-code` | number | what it exits with then | 0 |
//!
//! Durations are written as `500ms`, `90s` or `1m30s`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Container;

use super::runtime::{Role, Task};

/// What all these annotations begin with.
pub(crate) const PREFIX: &str = "sim.bellerophon.io/";

/// How long the first start of a container takes: image and sandbox.
const FIRST_START: Duration = Duration::from_secs(1);

/// How long something runs that is meant to end: init containers, jobs.
const SHORT_RUN: Duration = Duration::from_secs(1);

/// Why a container cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    Pull,
    Create,
}

/// What one start of one container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) start_delay: Duration,
    pub(crate) startup_delay: Duration,
    pub(crate) ready_delay: Duration,
    pub(crate) ready: bool,
    pub(crate) live_for: Option<Duration>,
    pub(crate) run_for: Option<Duration>,
    pub(crate) exit_code: i32,
    pub(crate) exit_reason: Option<String>,
    pub(crate) fail: Option<Fail>,
    pub(crate) stop_delay: Duration,
    pub(crate) stop_exit_code: i32,
}

impl Script {
    /// What a task's annotations say about its container; what cannot be understood counts as not set.
    pub(crate) fn of(task: &Task<'_>) -> Self {
        let container = task.container;
        let said = Annotations {
            all: task.pod.metadata.annotations.as_ref(),
            container: &container.name,
        };
        let brief = task.role == Role::Init || is_of_a_job(task);
        let unfailing = said
            .number("fail-times")
            .is_some_and(|times| task.failures >= times);
        let run_for = said.duration("run-for").or(brief.then_some(SHORT_RUN));
        Self {
            start_delay: said
                .duration("start-delay")
                .unwrap_or(if task.attempt == 0 {
                    FIRST_START
                } else {
                    Duration::ZERO
                }),
            startup_delay: said.duration("startup-delay").unwrap_or_default(),
            ready_delay: said
                .duration("ready-delay")
                .unwrap_or_else(|| probe_delay(container)),
            ready: said.text("ready") != Some("false"),
            live_for: said
                .duration("live-for")
                .filter(|_| container.liveness_probe.is_some()),
            // A run that no longer fails is one that lasts, unless it is meant to end.
            run_for: if unfailing && !brief { None } else { run_for },
            exit_code: if unfailing {
                0
            } else {
                said.number("exit-code").unwrap_or_default()
            },
            exit_reason: said
                .text("exit-reason")
                .filter(|_| !unfailing)
                .map(str::to_owned),
            fail: match said.text("fail") {
                Some("pull") if !unfailing => Some(Fail::Pull),
                Some("create") if !unfailing => Some(Fail::Create),
                _ => None,
            },
            stop_delay: said.duration("stop-delay").unwrap_or_default(),
            stop_exit_code: said.number("stop-exit-code").unwrap_or_default(),
        }
    }
}

struct Annotations<'a> {
    all: Option<&'a BTreeMap<String, String>>,
    container: &'a str,
}

impl<'a> Annotations<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        let all = self.all?;
        // Most pods say nothing at all: one look finds out.
        said(all).next()?;
        let value = all
            .get(&format!("{PREFIX}{name}.{}", self.container))
            .or_else(|| all.get(&format!("{PREFIX}{name}")));
        value.map(|value| value.trim())
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        Duration::try_from(self.text(name)?.parse::<SignedDuration>().ok()?).ok()
    }

    fn number(&self, name: &str) -> Option<i32> {
        self.text(name)?.parse().ok()
    }
}

/// The annotations that are meant for simulated nodes.
pub(crate) fn said(all: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    all.range::<str, _>((Bound::Included(PREFIX), Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(PREFIX))
}

/// The annotations of a pod that cannot be understood, in words.
pub(crate) fn mistakes(annotations: Option<&BTreeMap<String, String>>) -> Vec<String> {
    annotations
        .into_iter()
        .flat_map(said)
        .filter_map(|(key, value)| {
            let name = key[PREFIX.len()..].split('.').next().unwrap_or_default();
            let value = value.trim();
            let wanted = match name {
                "start-delay" | "startup-delay" | "ready-delay" | "live-for" | "run-for"
                | "stop-delay" => value
                    .parse::<SignedDuration>()
                    .map_or(true, |duration| duration.is_negative())
                    .then_some("a duration such as 1m30s"),
                "exit-code" | "stop-exit-code" | "fail-times" => {
                    value.parse::<i32>().is_err().then_some("a number")
                }
                "ready" => (!matches!(value, "true" | "false")).then_some("true or false"),
                "fail" => (!matches!(value, "pull" | "create")).then_some("pull or create"),
                "exit-reason" => None,
                _ => {
                    return Some(format!(
                        "annotation {key} means nothing to a simulated node"
                    ));
                }
            }?;
            Some(format!(
                "annotation {key} must be {wanted}, got {value:?}; it is ignored"
            ))
        })
        .collect()
}

fn probe_delay(container: &Container) -> Duration {
    let seconds = container
        .readiness_probe
        .as_ref()
        .and_then(|probe| probe.initial_delay_seconds)
        .unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

fn is_of_a_job(task: &Task<'_>) -> bool {
    let owners = task.pod.metadata.owner_references.iter().flatten();
    task.role == Role::Main
        && owners
            .into_iter()
            .any(|owner| owner.controller == Some(true) && owner.kind == "Job")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn script(annotations: Value, role: Role, attempt: i32, failures: i32) -> Script {
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app", "livenessProbe": {}}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        Script::of(&Task {
            pod: &pod,
            container,
            role,
            attempt,
            failures,
        })
    }

    #[test]
    fn annotations_say_what_a_container_does() {
        let seconds = Duration::from_secs;
        let usual = || script(json!({}), Role::Main, 0, 0);
        let cases: [(&str, Script, Script); 9] = [
            (
                "nothing said",
                usual(),
                Script {
                    start_delay: seconds(1),
                    ..usual()
                },
            ),
            (
                "a restart is quick",
                script(json!({}), Role::Main, 1, 0),
                Script {
                    start_delay: seconds(0),
                    ..usual()
                },
            ),
            (
                "init containers end",
                script(json!({}), Role::Init, 0, 0),
                Script {
                    run_for: Some(seconds(1)),
                    ..usual()
                },
            ),
            (
                "for all",
                script(
                    json!({"sim.bellerophon.io/run-for": "1m30s"}),
                    Role::Main,
                    0,
                    0,
                ),
                Script {
                    run_for: Some(seconds(90)),
                    ..usual()
                },
            ),
            (
                "for this one",
                script(
                    json!({"sim.bellerophon.io/exit-code": "1", "sim.bellerophon.io/exit-code.app": "3"}),
                    Role::Main,
                    0,
                    0,
                ),
                Script {
                    exit_code: 3,
                    ..usual()
                },
            ),
            (
                "for another one",
                script(
                    json!({"sim.bellerophon.io/exit-code.web": "3"}),
                    Role::Main,
                    0,
                    0,
                ),
                usual(),
            ),
            (
                "no number",
                script(
                    json!({"sim.bellerophon.io/exit-code": "many"}),
                    Role::Main,
                    0,
                    0,
                ),
                usual(),
            ),
            (
                "still failing",
                script(
                    json!({"sim.bellerophon.io/fail": "pull", "sim.bellerophon.io/fail-times": "2"}),
                    Role::Main,
                    0,
                    1,
                ),
                Script {
                    fail: Some(Fail::Pull),
                    ..usual()
                },
            ),
            (
                "failed often enough",
                script(
                    json!({"sim.bellerophon.io/fail": "pull", "sim.bellerophon.io/fail-times": "2"}),
                    Role::Main,
                    0,
                    2,
                ),
                usual(),
            ),
        ];
        for (why, got, wanted) in cases {
            assert_eq!(got, wanted, "{why}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let annotations = json!({
            "other.example.com/x": "y", "sim.bellerophon.io/run-for": "soon", "sim.bellerophon.io/fail.app": "pull",
            "sim.bellerophon.io/exit-code": "7", "sim.bellerophon.io/jump": "high",
        });
        let annotations: BTreeMap<String, String> = serde_json::from_value(annotations).unwrap();
        let wanted = [
            "annotation sim.bellerophon.io/jump means nothing to a simulated node",
            "annotation sim.bellerophon.io/run-for must be a duration such as 1m30s, got \"soon\"; it is ignored",
        ];
        assert_eq!(mistakes(Some(&annotations)), wanted);
    }
}
