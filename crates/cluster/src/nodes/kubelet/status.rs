//! Status: what a kubelet says of a pod.
//!
//! In: the pod, its life, the addresses it has. Out: the parts of its status that are the kubelet's, and only those.
//! Holds: a condition's time moves with its status only; conditions of others are never touched; a phase that is final
//! stays.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::runtime::{Exit, Role, State};
use super::super::simulated::after;
use super::life::{Life, Why};
use super::notes;
use super::slot::{PULL_ERROR_SHOWN, Phase, Slot, containers};

/// What the kubelet knows beside the pod's life.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) host_ip: String,
    /// The pod's address, once its network is there.
    pub(crate) pod_ip: Option<String>,
    pub(crate) now: Timestamp,
}

/// Whether a phase is final.
pub(crate) fn is_final(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The kubelet's part of the status.
pub(crate) fn status<Run: Send + 'static>(pod: &Pod, life: &Life<Run>, facts: &Facts) -> PodStatus {
    let known = pod.status.as_ref();
    let was = known.and_then(|status| status.phase.as_deref());
    let phase = if is_final(was) {
        was.unwrap_or_default()
    } else {
        phase(life)
    };
    let (inits, mut mains): (Vec<_>, Vec<_>) =
        life.slots.iter().partition(|slot| slot.role != Role::Main);
    // Kubelets list containers by name, and init containers as the spec has them.
    mains.sort_by(|a, b| a.container(pod).name.cmp(&b.container(pod).name));
    let shown = |slots: Vec<&Slot<Run>>| {
        slots
            .into_iter()
            .map(|slot| container_status(pod, life, slot, facts.now))
            .collect::<Vec<_>>()
    };
    let overdue = life.is_over() && is_overdue(life);
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        host_ip: Some(facts.host_ip.clone()),
        host_ips: Some(vec![HostIP {
            ip: facts.host_ip.clone(),
        }]),
        pod_ip: facts.pod_ip.clone(),
        pod_ips: facts
            .pod_ip
            .as_ref()
            .map(|ip| vec![PodIP { ip: ip.clone() }]),
        start_time: Some(Time(life.started)),
        init_container_statuses: Some(shown(inits)).filter(|statuses| !statuses.is_empty()),
        container_statuses: Some(shown(mains)),
        observed_generation: pod.metadata.generation,
        reason: overdue.then(|| "DeadlineExceeded".into()),
        message: overdue
            .then(|| "Pod was active on the node longer than the specified deadline".into()),
        ..PodStatus::default()
    };
    status.conditions = Some(conditions(pod, life, &status, facts.now));
    status
}

/// As kubelets derive it from the containers.
fn phase<Run: Send + 'static>(life: &Life<Run>) -> &'static str {
    if life.is_over() {
        return if !is_overdue(life) && life.mains().all(Slot::succeeded) {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    let unstarted = |slot: &Slot<Run>| match &slot.phase {
        Phase::Waiting
        | Phase::Refused { .. }
        | Phase::Run {
            seen: State::Creating,
            ..
        } => slot.last.is_none(),
        Phase::Run { .. } | Phase::Ended(_) => false,
    };
    if !life.is_initialized() || life.mains().any(unstarted) {
        return "Pending";
    }
    "Running"
}

fn is_overdue<Run>(life: &Life<Run>) -> bool {
    life.ending
        .is_some_and(|ending| ending.why == Why::DeadlineExceeded)
}

fn container_status<Run: Send + 'static>(
    pod: &Pod,
    life: &Life<Run>,
    slot: &Slot<Run>,
    now: Timestamp,
) -> ContainerStatus {
    let container = slot.container(pod);
    let image = container.image.clone().unwrap_or_default();
    let id = |restarts: i32| {
        format!(
            "sim://{}-{}-{restarts}",
            pod.metadata.uid.as_deref().unwrap_or_default(),
            container.name
        )
    };
    let waiting = |reason: &str, message: Option<String>| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.into()),
            message,
        }),
        ..ContainerState::default()
    };
    let terminated = |exit: &Exit, restarts: i32| {
        let known = exit.started.is_some();
        let terminated = ContainerStateTerminated {
            container_id: known.then(|| id(restarts)),
            exit_code: exit.code,
            finished_at: known.then_some(Time(exit.finished)),
            started_at: exit.started.map(Time),
            reason: Some(exit.reason.clone()),
            ..ContainerStateTerminated::default()
        };
        ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        }
    };
    let in_line = if life.slots.iter().any(|slot| slot.role != Role::Main) {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let last = slot
        .last
        .as_ref()
        .map(|exit| terminated(exit, slot.restarts - 1));
    let (state, last_state) = match &slot.phase {
        Phase::Waiting => (waiting(in_line, None), last),
        Phase::Run {
            seen: State::Running { since, .. } | State::Unhealthy { since },
            ..
        } => {
            let running = ContainerStateRunning {
                started_at: Some(Time(*since)),
            };
            (
                ContainerState {
                    running: Some(running),
                    ..ContainerState::default()
                },
                last,
            )
        }
        Phase::Run { .. } => match &slot.last {
            Some(exit) => (terminated(exit, slot.restarts), None),
            None => (waiting(in_line, None), None),
        },
        Phase::Refused {
            since,
            reason: "ErrImagePull",
            ..
        } if after(*since, PULL_ERROR_SHOWN) <= now => (
            waiting(
                "ImagePullBackOff",
                Some(format!("Back-off pulling image {image:?}")),
            ),
            last,
        ),
        Phase::Refused {
            reason, message, ..
        } => (waiting(reason, Some(message.clone())), last),
        Phase::Ended(exit) => match slot
            .restart(pod)
            .filter(|(due, _)| life.ending.is_none() && *due > now)
        {
            Some((_, delay)) => {
                let text = format!(
                    "back-off {} restarting failed container={} pod={}",
                    go(delay),
                    container.name,
                    notes::full_name(pod)
                );
                (
                    waiting("CrashLoopBackOff", Some(text)),
                    Some(terminated(exit, slot.restarts)),
                )
            }
            None => (terminated(exit, slot.restarts), last),
        },
    };
    let (started, ready) = match &slot.phase {
        Phase::Run {
            seen: State::Running { started, ready, .. },
            ..
        } => (*started, *started && *ready && slot.role != Role::Init),
        Phase::Run {
            seen: State::Unhealthy { .. },
            ..
        } => (true, false),
        _ => (false, slot.role == Role::Init && slot.succeeded()),
    };
    let ran = slot.has_run();
    ContainerStatus {
        name: container.name.clone(),
        image_id: if ran {
            format!("sim://{image}")
        } else {
            String::new()
        },
        image,
        container_id: ran.then(|| id(slot.restarts)),
        ready,
        started: Some(started),
        restart_count: slot.restarts,
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

/// A duration in whole seconds as Go writes it.
fn go(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}

/// The conditions that are the kubelet's, with the times they have since.
fn conditions<Run: Send + 'static>(
    pod: &Pod,
    life: &Life<Run>,
    status: &PodStatus,
    now: Timestamp,
) -> Vec<PodCondition> {
    let wanted = [
        (
            "PodReadyToStartContainers",
            if life.has_sandbox() && !life.is_over() {
                HOLDS
            } else {
                (false, None, None)
            },
        ),
        ("Initialized", initialized(pod, life, status)),
        ("Ready", ready(pod, status)),
        ("ContainersReady", containers_ready(pod, status)),
        ("PodScheduled", HOLDS),
    ];
    let known = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let of_type = |type_: &str| {
        known
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == type_)
    };
    let build = |(type_, (holds, reason, message)): (&str, Verdict)| {
        let status = if holds { "True" } else { "False" };
        let since = of_type(type_)
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.map(Into::into),
            message,
            last_transition_time: Some(since.unwrap_or(Time(now))),
            observed_generation: pod.metadata.generation,
            last_probe_time: None,
        }
    };
    wanted.into_iter().map(build).collect()
}

/// Whether a condition holds, with reason and message.
type Verdict = (bool, Option<&'static str>, Option<String>);

const HOLDS: Verdict = (true, None, None);

fn initialized<Run: Send + 'static>(pod: &Pod, life: &Life<Run>, status: &PodStatus) -> Verdict {
    if status.phase.as_deref() == Some("Succeeded") {
        return (true, Some("PodCompleted"), None);
    }
    if life.is_initialized() {
        return HOLDS;
    }
    let incomplete = life
        .slots
        .iter()
        .filter(|slot| slot.role != Role::Main && !slot.lets_others_begin());
    let names: Vec<_> = incomplete
        .map(|slot| slot.container(pod).name.as_str())
        .collect();
    (
        false,
        Some("ContainersNotInitialized"),
        Some(format!(
            "containers with incomplete status: [{}]",
            names.join(" ")
        )),
    )
}

fn containers_ready(pod: &Pod, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Succeeded") => return (false, Some("PodCompleted"), None),
        Some("Failed") => return (false, Some("PodFailed"), None),
        _ => {}
    }
    let statuses = |role: Role| {
        if role == Role::Main {
            &status.container_statuses
        } else {
            &status.init_container_statuses
        }
    };
    let is_ready = |role: Role, name: &str| {
        statuses(role)
            .iter()
            .flatten()
            .any(|status| status.name == name && status.ready)
    };
    let unready = containers(pod)
        .filter(|(role, _, container)| *role != Role::Init && !is_ready(*role, &container.name));
    let names: Vec<_> = unready
        .map(|(_, _, container)| container.name.as_str())
        .collect();
    if names.is_empty() {
        return HOLDS;
    }
    (
        false,
        Some("ContainersNotReady"),
        Some(format!(
            "containers with unready status: [{}]",
            names.join(" ")
        )),
    )
}

fn ready(pod: &Pod, status: &PodStatus) -> Verdict {
    let containers = containers_ready(pod, status);
    if !containers.0 {
        return containers;
    }
    let known = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let gates = pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let closed: Vec<_> = gates
        .filter_map(|gate| {
            let type_ = &gate.condition_type;
            match known
                .into_iter()
                .flatten()
                .find(|condition| condition.type_ == *type_)
            {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {type_:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {type_:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if closed.is_empty() {
        HOLDS
    } else {
        (
            false,
            Some("ReadinessGatesNotReady"),
            Some(closed.join(", ")),
        )
    }
}

/// What of `wanted` the pod does not say yet, as the status of a strategic merge patch; `None` if it says all of it.
pub(crate) fn difference(pod: &Pod, mut wanted: PodStatus) -> Option<PodStatus> {
    let none = PodStatus::default();
    let known = pod.status.as_ref().unwrap_or(&none);
    fn changed<T: PartialEq>(known: &Option<T>, wanted: &mut Option<T>) {
        if wanted == known {
            *wanted = None;
        }
    }
    changed(&known.phase, &mut wanted.phase);
    changed(&known.host_ip, &mut wanted.host_ip);
    changed(&known.host_ips, &mut wanted.host_ips);
    changed(&known.pod_ip, &mut wanted.pod_ip);
    changed(&known.pod_ips, &mut wanted.pod_ips);
    changed(&known.observed_generation, &mut wanted.observed_generation);
    changed(&known.reason, &mut wanted.reason);
    changed(&known.message, &mut wanted.message);
    if known.start_time.is_some() {
        wanted.start_time = None;
    }
    for (known, wanted) in [
        (&known.container_statuses, &mut wanted.container_statuses),
        (
            &known.init_container_statuses,
            &mut wanted.init_container_statuses,
        ),
    ] {
        if let (Some(known), Some(now)) = (known, &*wanted)
            && known.len() == now.len()
            && known
                .iter()
                .zip(now)
                .all(|(known, now)| shows_the_same(known, now))
        {
            *wanted = None;
        }
    }
    let conditions: Vec<_> = wanted
        .conditions
        .take()
        .into_iter()
        .flatten()
        .filter(|wanted| {
            !known
                .conditions
                .iter()
                .flatten()
                .any(|known| says_the_same(known, wanted))
        })
        .collect();
    wanted.conditions = Some(conditions).filter(|conditions| !conditions.is_empty());
    (wanted != none).then_some(wanted)
}

/// A difference as the body of a strategic merge patch. Conditions are merged field by field, so what one no longer says is
/// taken away by name.
pub(crate) fn patch(pod: &Pod, difference: &PodStatus) -> Value {
    let mut body = json!({ "metadata": { "uid": pod.metadata.uid }, "status": difference });
    let known: Vec<_> = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .collect();
    for condition in body["status"]["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        let Some(before) = known.iter().find(|known| condition["type"] == known.type_) else {
            continue;
        };
        for (field, was) in [("reason", &before.reason), ("message", &before.message)] {
            if was.is_some() && condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    body
}

fn says_the_same(known: &PodCondition, wanted: &PodCondition) -> bool {
    known.type_ == wanted.type_
        && known.status == wanted.status
        && known.reason == wanted.reason
        && known.message == wanted.message
        && known.observed_generation == wanted.observed_generation
}

/// Whether two statuses tell people the same. Times in objects have whole seconds.
fn shows_the_same(known: &ContainerStatus, wanted: &ContainerStatus) -> bool {
    let mut wanted = wanted.clone();
    for state in [&mut wanted.state, &mut wanted.last_state]
        .into_iter()
        .flatten()
    {
        state
            .running
            .iter_mut()
            .for_each(|running| whole_seconds(&mut running.started_at));
        state.terminated.iter_mut().for_each(|terminated| {
            whole_seconds(&mut terminated.started_at);
            whole_seconds(&mut terminated.finished_at);
        });
    }
    let told = |status: &ContainerStatus| {
        status
            .last_state
            .clone()
            .filter(|state| *state != ContainerState::default())
    };
    let same_last = told(known) == told(&wanted);
    wanted.last_state.clone_from(&known.last_state);
    same_last && *known == wanted
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(time) = time
        && let Ok(whole) = Timestamp::from_second(time.0.as_second())
    {
        time.0 = whole;
    }
}
