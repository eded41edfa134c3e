//! Simulation annotations of pods: what the simulated runtime does with a container.
//!
//! Each annotation has the prefix `sim.bellerophon.io/`. With a suffix of `.` and the name of a
//! container it applies to that container only, and takes precedence. Annotations are read at every
//! sync of the pod, so a change applies to what happens next.
//!
//! - `start-delay` (duration): from the start request until the container is running. Default: 1s
//!   for the first start, 0s for restarts.
//! - `startup-delay` (duration): from running until the startup probe succeeds. Default: 0s.
//! - `ready-delay` (duration): from started until the readiness probe succeeds. Default:
//!   `initialDelaySeconds` of the readiness probe, or 0s.
//! - `ready` (`true`, `false`): whether the readiness probe can succeed. Default: `true`.
//! - `live-for` (duration): from running until the liveness probe fails and the container is
//!   killed. Ignored without a liveness probe. Default: never.
//! - `run-for` (duration): from running until the container exits. Default: 1s for init containers
//!   and pods of Jobs, otherwise never.
//! - `exit-code` (integer): the exit code after `run-for`. Default: 0.
//! - `exit-reason` (string): the reason of that termination, such as `OOMKilled`. Default:
//!   `Completed` for exit code 0, otherwise `Error`.
//! - `fail` (`pull`, `create`): the container cannot be started, because the image pull or the
//!   creation fails. Default: starts succeed.
//! - `fail-times` (integer): the number of starts that fail by `fail` or end with `exit-code`;
//!   later ones succeed. Default: all.
//! - `stop-delay` (duration): from the stop request until the container exits; it is killed when
//!   the grace period ends first. Default: 0s.
//! - `stop-exit-code` (integer): the exit code after a stop request. Default: 0.
//! - `log` (string): the log of the container. Default: logs are refused.
//! - `cpu-usage`, `memory-usage` (quantity): what the statistics of the kubelet show. Default: the
//!   request of the container, or 0.
//!
//! Durations are written as `500ms`, `90s` or `1m30s`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::runtime::{ContainerConfig, ContainerType};
use crate::quantity::{is_non_negative, nano_value, value};

/// The prefix of all simulation annotations.
pub(crate) const PREFIX: &str = "sim.bellerophon.io/";

/// Default `start-delay` of the first start, for image pull and sandbox creation.
const FIRST_START_DELAY: Duration = Duration::from_secs(1);

/// Default `run-for` of containers that are expected to complete: init containers and Jobs.
const COMPLETION_TIME: Duration = Duration::from_secs(1);

/// At which step the start of a container fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    ImagePull,
    Create,
}

/// The simulated behaviour of one container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerSimulation {
    pub(crate) start_delay: Duration,
    pub(crate) startup_delay: Duration,
    pub(crate) ready_delay: Duration,
    pub(crate) ready: bool,
    pub(crate) live_for: Option<Duration>,
    pub(crate) run_for: Option<Duration>,
    pub(crate) exit_code: i32,
    pub(crate) exit_reason: Option<String>,
    pub(crate) fail: Option<StartFailure>,
    pub(crate) stop_delay: Duration,
    pub(crate) stop_exit_code: i32,
}

impl ContainerSimulation {
    /// Parses the annotations for one container. Invalid ones count as not set.
    pub(crate) fn of(config: &ContainerConfig<'_>) -> Self {
        let container = config.container;
        let annotations = ContainerAnnotations {
            all: config.pod.metadata.annotations.as_ref(),
            container: &container.name,
        };
        let completes = config.container_type == ContainerType::Init || is_owned_by_job(config);
        let failures_used_up = annotations
            .integer("fail-times")
            .is_some_and(|times| config.failures >= times);
        let run_for = annotations
            .duration("run-for")
            .or(completes.then_some(COMPLETION_TIME));
        Self {
            start_delay: annotations
                .duration("start-delay")
                .unwrap_or(if config.attempt == 0 {
                    FIRST_START_DELAY
                } else {
                    Duration::ZERO
                }),
            startup_delay: annotations.duration("startup-delay").unwrap_or_default(),
            ready_delay: annotations
                .duration("ready-delay")
                .unwrap_or_else(|| probe_delay(container)),
            ready: annotations.value("ready") != Some("false"),
            live_for: annotations
                .duration("live-for")
                .filter(|_| container.liveness_probe.is_some()),
            // After the last failure a container keeps running, unless it is expected to complete.
            run_for: if failures_used_up && !completes {
                None
            } else {
                run_for
            },
            exit_code: if failures_used_up {
                0
            } else {
                annotations.integer("exit-code").unwrap_or_default()
            },
            exit_reason: annotations
                .value("exit-reason")
                .filter(|_| !failures_used_up)
                .map(str::to_owned),
            fail: match annotations.value("fail") {
                Some("pull") if !failures_used_up => Some(StartFailure::ImagePull),
                Some("create") if !failures_used_up => Some(StartFailure::Create),
                _ => None,
            },
            stop_delay: annotations.duration("stop-delay").unwrap_or_default(),
            stop_exit_code: annotations.integer("stop-exit-code").unwrap_or_default(),
        }
    }
}

struct ContainerAnnotations<'a, 'n> {
    all: Option<&'a BTreeMap<String, String>>,
    container: &'n str,
}

/// The log of a container, as written in the annotations.
pub(crate) fn log_annotation<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let annotations = ContainerAnnotations {
        all: pod.metadata.annotations.as_ref(),
        container,
    };
    annotations.text("log")
}

/// What a container uses all the time that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedUsage {
    /// In billionths of a CPU.
    pub(crate) nano_cores: u64,
    /// In bytes.
    pub(crate) memory: u64,
}

impl SimulatedUsage {
    /// By the annotations of a pod, or by the requests of the container.
    pub(crate) fn of(pod: &Pod, container: &Container) -> Self {
        let annotations = ContainerAnnotations {
            all: pod.metadata.annotations.as_ref(),
            container: &container.name,
        };
        let requests = container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref());
        let amount = |annotation: &str, resource: &str, value: fn(&Quantity) -> i64| {
            let request = || requests?.get(resource).cloned();
            let quantity = annotations.quantity(annotation).or_else(request);
            let amount = quantity.as_ref().map_or(0, value);
            u64::try_from(amount).unwrap_or_default()
        };
        Self {
            nano_cores: amount("cpu-usage", "cpu", nano_value),
            memory: amount("memory-usage", "memory", value),
        }
    }
}

impl<'a> ContainerAnnotations<'a, '_> {
    fn value(&self, name: &str) -> Option<&'a str> {
        self.text(name).map(str::trim)
    }

    /// The value with the white space around it.
    fn text(&self, name: &str) -> Option<&'a str> {
        let all = self.all?;
        // Most pods have no simulation annotation; this avoids formatting the keys.
        simulation_annotations(all).next()?;
        let value = all
            .get(&format!("{PREFIX}{name}.{}", self.container))
            .or_else(|| all.get(&format!("{PREFIX}{name}")));
        value.map(String::as_str)
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        Duration::try_from(self.value(name)?.parse::<SignedDuration>().ok()?).ok()
    }

    fn integer(&self, name: &str) -> Option<i32> {
        self.value(name)?.parse().ok()
    }

    fn quantity(&self, name: &str) -> Option<Quantity> {
        let text = self.value(name)?;
        is_non_negative(text).then(|| Quantity(text.to_owned()))
    }
}

/// The annotations with the simulation prefix.
pub(crate) fn simulation_annotations(
    all: &BTreeMap<String, String>,
) -> impl Iterator<Item = (&String, &String)> {
    all.range::<str, _>((Bound::Included(PREFIX), Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(PREFIX))
}

/// Messages about invalid simulation annotations of a pod.
pub(crate) fn validate(annotations: Option<&BTreeMap<String, String>>) -> Vec<String> {
    annotations
        .into_iter()
        .flat_map(simulation_annotations)
        .filter_map(|(key, value)| {
            let name = key[PREFIX.len()..].split('.').next().unwrap_or_default();
            let value = value.trim();
            let expected = match name {
                "start-delay" | "startup-delay" | "ready-delay" | "live-for" | "run-for"
                | "stop-delay" => value
                    .parse::<SignedDuration>()
                    .map_or(true, |duration| duration.is_negative())
                    .then_some("a duration such as 1m30s"),
                "exit-code" | "stop-exit-code" | "fail-times" => {
                    value.parse::<i32>().is_err().then_some("an integer")
                }
                "ready" => (!matches!(value, "true" | "false")).then_some("true or false"),
                "fail" => (!matches!(value, "pull" | "create")).then_some("pull or create"),
                "cpu-usage" | "memory-usage" => {
                    (!is_non_negative(value)).then_some("a quantity such as 250m or 64Mi")
                }
                "exit-reason" | "log" => None,
                _ => {
                    return Some(format!(
                        "annotation {key} is not a simulation annotation of pods; it is ignored"
                    ));
                }
            }?;
            Some(format!(
                "annotation {key} must be {expected}, got {value:?}; it is ignored"
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

fn is_owned_by_job(config: &ContainerConfig<'_>) -> bool {
    let owners = config.pod.metadata.owner_references.iter().flatten();
    config.container_type == ContainerType::App
        && owners
            .into_iter()
            .any(|owner| owner.controller == Some(true) && owner.kind == "Job")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn simulation(
        annotations: Value,
        container_type: ContainerType,
        attempt: i32,
        failures: i32,
    ) -> ContainerSimulation {
        let pod = json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "app", "livenessProbe": {}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        ContainerSimulation::of(&ContainerConfig {
            pod: &pod,
            container,
            container_type,
            attempt,
            failures,
        })
    }

    #[test]
    fn annotations_override_the_defaults() {
        let seconds = Duration::from_secs;
        let defaults = || simulation(json!({}), ContainerType::App, 0, 0);
        let cases: [(&str, ContainerSimulation, ContainerSimulation); 9] = [
            (
                "no annotations",
                defaults(),
                ContainerSimulation {
                    start_delay: seconds(1),
                    ..defaults()
                },
            ),
            (
                "restart",
                simulation(json!({}), ContainerType::App, 1, 0),
                ContainerSimulation {
                    start_delay: seconds(0),
                    ..defaults()
                },
            ),
            (
                "init container",
                simulation(json!({}), ContainerType::Init, 0, 0),
                ContainerSimulation {
                    run_for: Some(seconds(1)),
                    ..defaults()
                },
            ),
            (
                "all containers",
                simulation(
                    json!({"sim.bellerophon.io/run-for": "1m30s"}),
                    ContainerType::App,
                    0,
                    0,
                ),
                ContainerSimulation {
                    run_for: Some(seconds(90)),
                    ..defaults()
                },
            ),
            (
                "suffix of this container",
                simulation(
                    json!({
                        "sim.bellerophon.io/exit-code": "1",
                        "sim.bellerophon.io/exit-code.app": "3",
                    }),
                    ContainerType::App,
                    0,
                    0,
                ),
                ContainerSimulation {
                    exit_code: 3,
                    ..defaults()
                },
            ),
            (
                "suffix of another container",
                simulation(
                    json!({"sim.bellerophon.io/exit-code.web": "3"}),
                    ContainerType::App,
                    0,
                    0,
                ),
                defaults(),
            ),
            (
                "invalid integer",
                simulation(
                    json!({"sim.bellerophon.io/exit-code": "many"}),
                    ContainerType::App,
                    0,
                    0,
                ),
                defaults(),
            ),
            (
                "fewer failures than fail-times",
                simulation(
                    json!({
                        "sim.bellerophon.io/fail": "pull",
                        "sim.bellerophon.io/fail-times": "2",
                    }),
                    ContainerType::App,
                    0,
                    1,
                ),
                ContainerSimulation {
                    fail: Some(StartFailure::ImagePull),
                    ..defaults()
                },
            ),
            (
                "as many failures as fail-times",
                simulation(
                    json!({
                        "sim.bellerophon.io/fail": "pull",
                        "sim.bellerophon.io/fail-times": "2",
                    }),
                    ContainerType::App,
                    0,
                    2,
                ),
                defaults(),
            ),
        ];
        for (case, actual, expected) in cases {
            assert_eq!(actual, expected, "{case}");
        }
    }

    #[test]
    fn usage_is_that_of_annotations_or_requests() {
        let requests = json!({"cpu": "250m", "memory": "64Mi"});
        for (case, annotations, requests, nano_cores, memory) in [
            ("no requests", json!({}), json!({}), 0, 0),
            (
                "requests",
                json!({}),
                requests.clone(),
                250_000_000,
                64 << 20,
            ),
            (
                "annotations",
                json!({
                    "sim.bellerophon.io/cpu-usage": "1.5",
                    "sim.bellerophon.io/cpu-usage.app": "2",
                    "sim.bellerophon.io/memory-usage": "1Gi",
                }),
                requests.clone(),
                2_000_000_000,
                1 << 30,
            ),
            (
                "invalid annotation",
                json!({"sim.bellerophon.io/cpu-usage": "-1"}),
                requests,
                250_000_000,
                64 << 20,
            ),
        ] {
            let container = json!({"name": "app", "resources": {"requests": requests}});
            let pod = json!({
                "metadata": {"annotations": annotations},
                "spec": {"containers": [container]},
            });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let expected = SimulatedUsage { nano_cores, memory };
            assert_eq!(SimulatedUsage::of(&pod, container), expected, "{case}");
        }
    }

    #[test]
    fn invalid_annotations_are_reported() {
        let annotations = json!({
            "other.example.com/x": "y",
            "sim.bellerophon.io/run-for": "soon",
            "sim.bellerophon.io/fail.app": "pull",
            "sim.bellerophon.io/exit-code": "7",
            "sim.bellerophon.io/cpu-usage": "250m",
            "sim.bellerophon.io/jump": "high",
            "sim.bellerophon.io/memory-usage": "much",
        });
        let annotations: BTreeMap<String, String> = serde_json::from_value(annotations).unwrap();
        let expected = [
            "annotation sim.bellerophon.io/jump is not a simulation annotation of pods; \
             it is ignored",
            "annotation sim.bellerophon.io/memory-usage must be a quantity such as 250m or 64Mi, \
             got \"much\"; it is ignored",
            "annotation sim.bellerophon.io/run-for must be a duration such as 1m30s, \
             got \"soon\"; it is ignored",
        ];
        assert_eq!(validate(Some(&annotations)), expected);
    }
}
