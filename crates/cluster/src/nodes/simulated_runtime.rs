//! Simulated runtime: containers as timers. No process runs.
//!
//! In: the [`ContainerSimulation`] of a pod, the time. Out: the status a container with that
//! behaviour would have.
//! Guarantees: the status depends on annotations and time alone, so simulated hours cost nothing.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::container_simulation::{self, ContainerSimulation, StartFailure};
use super::kubelet::events::{self, PodEvent};
use super::runtime::{ContainerConfig, Exit, InstanceState, InstanceStatus, ProbeType, Runtime};
use super::time::after;

/// The exit code of a process that was killed with SIGKILL.
const SIGKILL_EXIT_CODE: i32 = 137;

/// The container runtime of simulated nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedRuntime;

/// A simulated container instance.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedInstance {
    start: Start,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
enum Start {
    /// Started by this process.
    Requested(Timestamp),
    /// Started by an earlier process.
    Found { running_since: Timestamp },
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    requested_at: Timestamp,
    /// The end of the grace period.
    deadline: Timestamp,
}

impl Runtime for SimulatedRuntime {
    type Instance = SimulatedInstance;

    fn scheme(&self, _: &Pod) -> &'static str {
        "sim"
    }

    fn validate(&self, pod: &Pod) -> Vec<PodEvent> {
        let messages = container_simulation::validate(pod.metadata.annotations.as_ref());
        messages
            .into_iter()
            .map(events::invalid_simulation)
            .collect()
    }

    fn start(&self, _: &ContainerConfig<'_>, now: Timestamp) -> SimulatedInstance {
        SimulatedInstance {
            start: Start::Requested(now),
            stop: None,
        }
    }

    fn find(&self, _: &ContainerConfig<'_>, started_at: Timestamp) -> Option<SimulatedInstance> {
        Some(SimulatedInstance {
            start: Start::Found {
                running_since: started_at,
            },
            stop: None,
        })
    }

    fn stop(&self, instance: &mut SimulatedInstance, now: Timestamp, grace_period: Duration) {
        let deadline = after(now, grace_period);
        // A second stop request may shorten the grace period, as the CRI demands, but does not
        // restart it.
        let stop = instance.stop.get_or_insert(Stop {
            requested_at: now,
            deadline,
        });
        stop.deadline = stop.deadline.min(deadline);
    }

    fn status(
        &self,
        config: &ContainerConfig<'_>,
        instance: &SimulatedInstance,
        now: Timestamp,
    ) -> InstanceStatus {
        let simulation = ContainerSimulation::of(config);
        let since = match instance.start {
            Start::Requested(at) => after(at, simulation.start_delay),
            Start::Found { running_since } => running_since,
        };
        // Stopped before it was running.
        if let Some(stop) = instance.stop.filter(|stop| stop.requested_at < since) {
            let exit = Exit {
                started_at: None,
                finished_at: stop.requested_at,
                exit_code: SIGKILL_EXIT_CODE,
                reason: "ContainerStatusUnknown".into(),
                message: None,
            };
            return ended(InstanceState::Exited(exit));
        }
        if now < since {
            return InstanceStatus {
                state: InstanceState::Creating,
                next_change: Some(since),
            };
        }
        // An instance that was found running has started already.
        if let (Some(failure), Start::Requested(_)) = (simulation.fail, instance.start) {
            return ended(start_failed(failure, since, config));
        }
        match exit(&simulation, since, instance.stop) {
            Some(exit) if exit.finished_at <= now => ended(InstanceState::Exited(exit)),
            exit => running(
                &simulation,
                since,
                instance.stop.is_some(),
                now,
                exit.map(|exit| exit.finished_at),
            ),
        }
    }
}

fn ended(state: InstanceState) -> InstanceStatus {
    InstanceStatus {
        state,
        next_change: None,
    }
}

/// The status of a running instance, with the time of its next change.
fn running(
    simulation: &ContainerSimulation,
    since: Timestamp,
    stopping: bool,
    now: Timestamp,
    exits_at: Option<Timestamp>,
) -> InstanceStatus {
    let started_at = after(since, simulation.startup_delay);
    let ready_at = after(started_at, simulation.ready_delay);
    // Probes are not run on a container that is being stopped.
    let liveness_fails_at = simulation
        .live_for
        .filter(|_| !stopping)
        .map(|live_for| after(since, live_for));
    let changes = [
        Some(started_at),
        Some(ready_at).filter(|_| simulation.ready),
        liveness_fails_at,
        exits_at,
    ];
    let next_change = changes.into_iter().flatten().filter(|at| *at > now).min();
    if liveness_fails_at.is_some_and(|at| at <= now) {
        return InstanceStatus {
            state: InstanceState::Unhealthy {
                since,
                probe: ProbeType::Liveness,
                message: "simulated failure".into(),
            },
            next_change,
        };
    }
    let state = InstanceState::Running {
        since,
        started: started_at <= now,
        ready: simulation.ready && ready_at <= now,
    };
    InstanceStatus { state, next_change }
}

fn start_failed(
    failure: StartFailure,
    at: Timestamp,
    config: &ContainerConfig<'_>,
) -> InstanceState {
    match failure {
        StartFailure::ImagePull => {
            let image = config.container.image.as_deref().unwrap_or_default();
            InstanceState::StartFailed {
                at,
                reason: "ErrImagePull",
                message: format!("failed to pull image {image:?}: not found"),
            }
        }
        StartFailure::Create => {
            let name = &config.container.name;
            InstanceState::StartFailed {
                at,
                reason: "CreateContainerError",
                message: format!("container {name:?} cannot be created: simulated failure"),
            }
        }
    }
}

/// When and how an instance that is running since then ends, if it does.
fn exit(simulation: &ContainerSimulation, since: Timestamp, stop: Option<Stop>) -> Option<Exit> {
    let default_reason = |code: i32| if code == 0 { "Completed" } else { "Error" }.to_owned();
    let completed = simulation.run_for.map(|run_for| {
        let exit_code = simulation.exit_code;
        let reason = simulation.exit_reason.clone();
        Exit {
            started_at: Some(since),
            finished_at: after(since, run_for),
            exit_code,
            reason: reason.unwrap_or_else(|| default_reason(exit_code)),
            message: None,
        }
    });
    let stopped = stop.map(|stop| {
        let exits_at = after(stop.requested_at, simulation.stop_delay);
        let exit_code = if exits_at <= stop.deadline {
            simulation.stop_exit_code
        } else {
            SIGKILL_EXIT_CODE
        };
        Exit {
            started_at: Some(since),
            finished_at: exits_at.min(stop.deadline).max(stop.requested_at),
            exit_code,
            reason: default_reason(exit_code),
            message: None,
        }
    });
    // Whichever comes first.
    completed
        .into_iter()
        .chain(stopped)
        .min_by_key(|exit| exit.finished_at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::runtime::ContainerType;
    use super::*;

    /// `second state` for every status change; `stop` is the second of the stop request and the
    /// grace period.
    fn timeline(annotations: &[(&str, &str)], stop: Option<(i64, u64)>) -> String {
        let annotations: serde_json::Map<_, _> = annotations
            .iter()
            .map(|(key, value)| (format!("sim.bellerophon.io/{key}"), json!(value)))
            .collect();
        let container = json!({"name": "app", "image": "nginx", "livenessProbe": {}});
        let pod = json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": [container]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let config = ContainerConfig {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            container_type: ContainerType::App,
            attempt: 0,
            failures: 0,
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut instance = SimulatedRuntime.start(&config, at(0));
        let mut now = at(0);
        let mut stop = stop;
        let mut lines = Vec::new();
        loop {
            if let Some((_, grace_seconds)) = stop.take_if(|(second, _)| at(*second) <= now) {
                SimulatedRuntime.stop(&mut instance, now, Duration::from_secs(grace_seconds));
            }
            let status = SimulatedRuntime.status(&config, &instance, now);
            let state = match &status.state {
                InstanceState::Creating => "creating".to_owned(),
                InstanceState::StartFailed { reason, .. } => (*reason).to_owned(),
                InstanceState::Running { ready: true, .. } => "ready".to_owned(),
                InstanceState::Running { started: true, .. } => "started".to_owned(),
                InstanceState::Running { .. } => "running".to_owned(),
                InstanceState::Unhealthy { .. } => "unhealthy".to_owned(),
                InstanceState::Exited(exit) => format!("{} {}", exit.reason, exit.exit_code),
            };
            lines.push(format!("{} {state}", now.as_second()));
            let stop_at = stop.map(|(second, _)| at(second));
            match status.next_change.into_iter().chain(stop_at).min() {
                Some(next) => now = next,
                None => return lines.join(", "),
            }
        }
    }

    #[test]
    fn instances_follow_the_simulation_annotations() {
        let cases: [(&[(&str, &str)], Option<(i64, u64)>, &str); 11] = [
            (&[], None, "0 creating, 1 ready"),
            (
                &[("startup-delay", "2s"), ("ready-delay", "3s")],
                None,
                "0 creating, 1 running, 3 started, 6 ready",
            ),
            (&[("ready", "false")], None, "0 creating, 1 started"),
            (
                &[("run-for", "9s"), ("exit-code", "2")],
                None,
                "0 creating, 1 ready, 10 Error 2",
            ),
            (
                &[
                    ("run-for", "9s"),
                    ("exit-code", "137"),
                    ("exit-reason", "OOMKilled"),
                ],
                None,
                "0 creating, 1 ready, 10 OOMKilled 137",
            ),
            (
                &[("live-for", "5s")],
                None,
                "0 creating, 1 ready, 6 unhealthy",
            ),
            (&[("fail", "pull")], None, "0 creating, 1 ErrImagePull"),
            (&[], Some((5, 30)), "0 creating, 1 ready, 5 Completed 0"),
            (
                &[("stop-delay", "10s")],
                Some((5, 30)),
                "0 creating, 1 ready, 5 ready, 15 Completed 0",
            ),
            (
                &[("stop-delay", "60s")],
                Some((5, 30)),
                "0 creating, 1 ready, 5 ready, 35 Error 137",
            ),
            (
                &[("start-delay", "9s")],
                Some((5, 30)),
                "0 creating, 5 ContainerStatusUnknown 137",
            ),
        ];
        for (annotations, stop, expected) in cases {
            assert_eq!(
                timeline(annotations, stop),
                expected,
                "{annotations:?} {stop:?}"
            );
        }
    }
}
