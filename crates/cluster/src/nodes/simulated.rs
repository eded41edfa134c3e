//! The simulated runtime: containers that are nothing but points in time.
//!
//! In: a pod's [`Script`]. Out: what would be seen of a container that does so.
//! Holds: how a run is doing depends on script and time alone, so an hour of it costs nothing.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::runtime::{Exit, Look, Runtime, State, Task};
use super::script::{Fail, Script};

/// What a process killed by force exits with.
const KILLED: i32 = 137;

/// Runs nothing, and says what would be seen if it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulated;

/// When a run was ordered, and when it was asked to stop.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedRun {
    begun: Begun,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
enum Begun {
    Ordered(Timestamp),
    Found { running_since: Timestamp },
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    asked: Timestamp,
    deadline: Timestamp,
}

impl Runtime for Simulated {
    type Run = SimulatedRun;

    fn start(&self, _: &Task<'_>, now: Timestamp) -> SimulatedRun {
        SimulatedRun {
            begun: Begun::Ordered(now),
            stop: None,
        }
    }

    fn find(&self, _: &Task<'_>, since: Timestamp) -> Option<SimulatedRun> {
        Some(SimulatedRun {
            begun: Begun::Found {
                running_since: since,
            },
            stop: None,
        })
    }

    fn stop(&self, run: &mut SimulatedRun, now: Timestamp, grace: Duration) {
        let deadline = after(now, grace);
        let known = run.stop.get_or_insert(Stop {
            asked: now,
            deadline,
        });
        known.deadline = known.deadline.min(deadline);
    }

    fn look(&self, task: &Task<'_>, run: &SimulatedRun, now: Timestamp) -> Look {
        let script = Script::of(task);
        let since = match run.begun {
            Begun::Ordered(at) => after(at, script.start_delay),
            Begun::Found { running_since } => running_since,
        };
        if let Some(stop) = run.stop.filter(|stop| stop.asked < since) {
            let exit = Exit {
                started: None,
                finished: stop.asked,
                code: KILLED,
                reason: "ContainerStatusUnknown".into(),
            };
            return Look {
                state: State::Exited(exit),
                again: None,
            };
        }
        if now < since {
            return Look {
                state: State::Creating,
                again: Some(since),
            };
        }
        if let (Some(fail), Begun::Ordered(_)) = (script.fail, run.begun) {
            return Look {
                state: refused(fail, since, task),
                again: None,
            };
        }
        match end(&script, since, run.stop) {
            Some(exit) if exit.finished <= now => Look {
                state: State::Exited(exit),
                again: None,
            },
            end => alive(
                &script,
                since,
                run.stop.is_some(),
                now,
                end.map(|exit| exit.finished),
            ),
        }
    }
}

/// A run that has not ended, with the next time at which something changes.
fn alive(
    script: &Script,
    since: Timestamp,
    stopping: bool,
    now: Timestamp,
    end: Option<Timestamp>,
) -> Look {
    let started_at = after(since, script.startup_delay);
    let ready_at = after(started_at, script.ready_delay);
    let fails_at = script
        .live_for
        .filter(|_| !stopping)
        .map(|live| after(since, live));
    let turns = [
        Some(started_at),
        Some(ready_at).filter(|_| script.ready),
        fails_at,
        end,
    ];
    let again = turns.into_iter().flatten().filter(|at| *at > now).min();
    if fails_at.is_some_and(|at| at <= now) {
        return Look {
            state: State::Unhealthy { since },
            again,
        };
    }
    let state = State::Running {
        since,
        started: started_at <= now,
        ready: script.ready && ready_at <= now,
    };
    Look { state, again }
}

fn refused(fail: Fail, at: Timestamp, task: &Task<'_>) -> State {
    let image = task.container.image.as_deref().unwrap_or_default();
    match fail {
        Fail::Pull => State::Refused {
            at,
            reason: "ErrImagePull",
            message: format!("failed to pull image {image:?}: not found"),
        },
        Fail::Create => {
            let message = format!(
                "container {:?} cannot be created: simulated failure",
                task.container.name
            );
            State::Refused {
                at,
                reason: "CreateContainerError",
                message,
            }
        }
    }
}

/// When and how a run ends that began to run then, if it does.
fn end(script: &Script, since: Timestamp, stop: Option<Stop>) -> Option<Exit> {
    let started = Some(since);
    let reason = |code: i32| if code == 0 { "Completed" } else { "Error" }.to_owned();
    let by_itself = script.run_for.map(|run| {
        let reason = script
            .exit_reason
            .clone()
            .unwrap_or_else(|| reason(script.exit_code));
        Exit {
            started,
            finished: after(since, run),
            code: script.exit_code,
            reason,
        }
    });
    let by_order = stop.map(|stop| {
        let obeyed = after(stop.asked, script.stop_delay);
        let code = if obeyed <= stop.deadline {
            script.stop_exit_code
        } else {
            KILLED
        };
        Exit {
            started,
            finished: obeyed.min(stop.deadline).max(stop.asked),
            code,
            reason: reason(code),
        }
    });
    by_itself
        .into_iter()
        .chain(by_order)
        .min_by_key(|exit| exit.finished)
}

/// That much later, or the end of time.
pub(crate) fn after(at: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    at.saturating_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::super::runtime::Role;
    use super::*;

    /// `second what` for every change, as somebody sees who looks whenever told to.
    fn story(annotations: &[(&str, &str)], stop: Option<(i64, u64)>) -> String {
        let annotations: serde_json::Map<_, _> = annotations
            .iter()
            .map(|(key, value)| (format!("sim.bellerophon.io/{key}"), json!(value)))
            .collect();
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app", "image": "nginx", "livenessProbe": {}}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let task = Task {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            role: Role::Main,
            attempt: 0,
            failures: 0,
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut run = Simulated.start(&task, at(0));
        let (mut now, mut stop, mut told) = (at(0), stop, Vec::new());
        loop {
            if let Some((_, grace)) = stop.take_if(|(asked, _)| at(*asked) <= now) {
                Simulated.stop(&mut run, now, Duration::from_secs(grace));
            }
            let look = Simulated.look(&task, &run, now);
            let what = match &look.state {
                State::Creating => "creating".to_owned(),
                State::Refused { reason, .. } => (*reason).to_owned(),
                State::Running { ready: true, .. } => "ready".to_owned(),
                State::Running { started: true, .. } => "started".to_owned(),
                State::Running { .. } => "running".to_owned(),
                State::Unhealthy { .. } => "unhealthy".to_owned(),
                State::Exited(exit) => format!("{} {}", exit.reason, exit.code),
            };
            told.push(format!("{} {what}", now.as_second()));
            let asked = stop.map(|(asked, _)| at(asked));
            match look.again.into_iter().chain(asked).min() {
                Some(again) => now = again,
                None => return told.join(", "),
            }
        }
    }

    #[test]
    fn runs_follow_their_script() {
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
        for (annotations, stop, wanted) in cases {
            assert_eq!(story(annotations, stop), wanted, "{annotations:?} {stop:?}");
        }
    }
}
