//! Pod status as a kubelet generates it from the states of the containers.
//!
//! In: the pod, its worker, its addresses. Out: the fields of `v1.PodStatus` that the kubelet owns.
//! Guarantees: a condition's transition time changes only with its status; conditions of other
//! components are not included; a terminal phase is final.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::runtime::{ContainerType, Exit, InstanceState, ProbeType};
use super::super::time::{after, format_go_duration};
use super::conditions::pod_conditions;
use super::container::{ContainerPhase, PULL_ERROR_SHOWN, PodContainer};
use super::ephemeral;
use super::events::format_pod;
use super::pod_worker::{PodWorker, TerminationReason};

/// What the status depends on besides pod and worker.
#[derive(Clone, Debug)]
pub(crate) struct StatusInputs {
    pub(crate) host_ip: String,
    /// `None` before the pod sandbox exists.
    pub(crate) pod_ip: Option<String>,
    pub(crate) now: Timestamp,
    /// The scheme of container and image IDs.
    pub(crate) scheme: &'static str,
    /// Whether the runtime starts ephemeral containers.
    pub(crate) runs_ephemeral_containers: bool,
}

pub(crate) fn is_terminal_phase(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Mirrors `generateAPIPodStatus`.
pub(crate) fn generate_pod_status<I: Send + 'static>(
    pod: &Pod,
    worker: &PodWorker<I>,
    inputs: &StatusInputs,
) -> PodStatus {
    let current_phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    // Mirrors generateAPIPodStatus: a pod does not leave a terminal phase, also if the kubelet has
    // lost its containers.
    let phase = if is_terminal_phase(current_phase) {
        current_phase.unwrap_or_default()
    } else {
        pod_phase(worker)
    };
    let statuses = |types: &[ContainerType]| {
        worker
            .containers
            .iter()
            .filter(|container| types.contains(&container.container_type))
            .map(|container| container_status(pod, worker, container, inputs))
            .collect::<Vec<_>>()
    };
    let mut container_statuses = statuses(&[ContainerType::App]);
    // Kubelets sort the statuses of containers by name; init containers keep the spec's order.
    container_statuses.sort_by(|a, b| a.name.cmp(&b.name));
    let init_container_statuses = statuses(&[ContainerType::Init, ContainerType::Sidecar]);
    let mut ephemeral_statuses = statuses(&[ContainerType::Ephemeral]);
    ephemeral_statuses.sort_by(|a, b| a.name.cmp(&b.name));
    let deadline_exceeded = worker.is_terminated() && exceeded_deadline(worker);
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        host_ip: Some(inputs.host_ip.clone()),
        host_ips: Some(vec![HostIP {
            ip: inputs.host_ip.clone(),
        }]),
        pod_ip: inputs.pod_ip.clone(),
        pod_ips: inputs
            .pod_ip
            .as_ref()
            .map(|ip| vec![PodIP { ip: ip.clone() }]),
        start_time: Some(Time(worker.start_time)),
        init_container_statuses: Some(init_container_statuses)
            .filter(|statuses| !statuses.is_empty()),
        container_statuses: Some(container_statuses),
        ephemeral_container_statuses: match inputs.runs_ephemeral_containers {
            true => Some(ephemeral_statuses).filter(|statuses| !statuses.is_empty()),
            false => ephemeral::unsupported_statuses(pod, inputs.now),
        },
        observed_generation: pod.metadata.generation,
        reason: deadline_exceeded.then(|| "DeadlineExceeded".into()),
        message: deadline_exceeded
            .then(|| "Pod was active on the node longer than the specified deadline".into()),
        ..PodStatus::default()
    };
    status.conditions = Some(pod_conditions(pod, worker, &status, inputs.now));
    status
}

/// Mirrors `getPhase`.
fn pod_phase<I: Send + 'static>(worker: &PodWorker<I>) -> &'static str {
    if worker.is_terminated() {
        let all_succeeded = worker.app_containers().all(PodContainer::succeeded);
        return if all_succeeded && !exceeded_deadline(worker) {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    let has_never_run = |container: &PodContainer<I>| match &container.phase {
        ContainerPhase::Waiting
        | ContainerPhase::StartFailed { .. }
        | ContainerPhase::Active {
            observed: InstanceState::Creating,
            ..
        } => container.last_exit.is_none(),
        ContainerPhase::Active { .. } | ContainerPhase::Terminated(_) => false,
    };
    if !worker.is_initialized() || worker.app_containers().any(has_never_run) {
        return "Pending";
    }
    "Running"
}

fn exceeded_deadline<I>(worker: &PodWorker<I>) -> bool {
    worker
        .termination
        .is_some_and(|termination| termination.reason == TerminationReason::DeadlineExceeded)
}

/// Mirrors `convertToAPIContainerStatuses` for one container.
fn container_status<I: Send + 'static>(
    pod: &Pod,
    worker: &PodWorker<I>,
    container: &PodContainer<I>,
    inputs: &StatusInputs,
) -> ContainerStatus {
    let spec = container.spec(pod);
    let image = spec.image.clone().unwrap_or_default();
    let (state, last_state) = container_states(pod, worker, container, inputs);
    let (started, ready) = match &container.phase {
        ContainerPhase::Active {
            observed: InstanceState::Running { started, ready, .. },
            ..
        } => {
            let can_be_ready = matches!(
                container.container_type,
                ContainerType::App | ContainerType::Sidecar
            );
            (*started, *started && *ready && can_be_ready)
        }
        ContainerPhase::Active {
            observed: InstanceState::Unhealthy { probe, .. },
            ..
        } => (*probe == ProbeType::Liveness, false),
        // A completed init container is ready.
        _ => {
            let is_ready = container.container_type == ContainerType::Init && container.succeeded();
            (false, is_ready)
        }
    };
    let has_run = container.has_run();
    ContainerStatus {
        name: spec.name.clone(),
        image_id: if has_run {
            format!("{}://{image}", inputs.scheme)
        } else {
            String::new()
        },
        image,
        container_id: has_run
            .then(|| container_id(pod, &spec.name, container.restart_count, inputs)),
        ready,
        // Ephemeral containers have no startup.
        started: (container.container_type != ContainerType::Ephemeral).then_some(started),
        restart_count: container.restart_count,
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

/// The `state` and `lastState` of a container.
fn container_states<I: Send + 'static>(
    pod: &Pod,
    worker: &PodWorker<I>,
    container: &PodContainer<I>,
    inputs: &StatusInputs,
) -> (ContainerState, Option<ContainerState>) {
    let spec = container.spec(pod);
    let has_init_containers = worker.containers.iter().any(|container| {
        matches!(
            container.container_type,
            ContainerType::Init | ContainerType::Sidecar
        )
    });
    let waiting_reason = if has_init_containers {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let now = inputs.now;
    let terminated_as = |exit: &Exit, restarts: i32| {
        terminated(exit, container_id(pod, &spec.name, restarts, inputs))
    };
    // A restart counts once the container is running.
    let is_counted = matches!(
        &container.phase,
        ContainerPhase::Active { .. } | ContainerPhase::Terminated(_)
    );
    let last_restarts = container.restart_count - i32::from(is_counted);
    let last_state = container
        .last_exit
        .as_ref()
        .map(|exit| terminated_as(exit, last_restarts));
    match &container.phase {
        ContainerPhase::Waiting => (waiting(waiting_reason, None), last_state),
        ContainerPhase::Active {
            observed: InstanceState::Running { since, .. } | InstanceState::Unhealthy { since, .. },
            ..
        } => (running(*since), last_state),
        ContainerPhase::Active { .. } => match &container.last_exit {
            // A restarted container keeps its previous state until it is running.
            Some(exit) => (terminated_as(exit, container.restart_count), None),
            None => (waiting(waiting_reason, None), None),
        },
        ContainerPhase::StartFailed {
            at,
            reason: reason @ "ErrImagePull",
            message,
        } if after(*at, PULL_ERROR_SHOWN) <= now => {
            let image = spec.image.as_deref().unwrap_or_default();
            let message = format!("Back-off pulling image {image:?}: {reason}: {message}");
            (waiting("ImagePullBackOff", Some(message)), last_state)
        }
        ContainerPhase::StartFailed {
            reason, message, ..
        } => (waiting(reason, Some(message.clone())), last_state),
        ContainerPhase::Terminated(exit) => match container
            .next_restart(pod)
            .filter(|(due, _)| worker.termination.is_none() && *due > now)
        {
            Some((_, delay)) => {
                let message = format!(
                    "back-off {} restarting failed container={} pod={}",
                    format_go_duration(delay),
                    spec.name,
                    format_pod(pod)
                );
                (
                    waiting("CrashLoopBackOff", Some(message)),
                    Some(terminated_as(exit, container.restart_count)),
                )
            }
            None => (terminated_as(exit, container.restart_count), last_state),
        },
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.into()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn running(since: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(since)),
        }),
        ..ContainerState::default()
    }
}

fn terminated(exit: &Exit, container_id: String) -> ContainerState {
    // A container that was never running has neither id nor times.
    let has_run = exit.started_at.is_some();
    let terminated = ContainerStateTerminated {
        container_id: has_run.then_some(container_id),
        exit_code: exit.exit_code,
        finished_at: has_run.then_some(Time(exit.finished_at)),
        started_at: exit.started_at.map(Time),
        reason: Some(exit.reason.clone()),
        message: exit.message.clone(),
        ..ContainerStateTerminated::default()
    };
    ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    }
}

fn container_id(pod: &Pod, container: &str, restarts: i32, inputs: &StatusInputs) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let scheme = inputs.scheme;
    format!("{scheme}://{uid}-{container}-{restarts}")
}
