//! Pod conditions that the kubelet owns.
//!
//! In: the pod, its worker, the rest of the new status. Out: `PodReadyToStartContainers`,
//! `Initialized`, `Ready`, `ContainersReady` and `PodScheduled`; `AllContainersRestarting` if a
//! restart policy rule of the pod restarts all containers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::runtime::ContainerType;
use super::container::{PodContainer, containers};
use super::pod_worker::PodWorker;
use super::restart_policy::all_containers_could_restart;

/// Status, reason and message of a condition.
#[derive(Clone, Debug)]
struct ConditionValue {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionValue {
    const TRUE: Self = Self {
        status: true,
        reason: None,
        message: None,
    };
    const FALSE: Self = Self {
        status: false,
        reason: None,
        message: None,
    };

    fn with_reason(self, reason: &'static str) -> Self {
        Self {
            reason: Some(reason),
            ..self
        }
    }

    fn with_message(self, message: String) -> Self {
        Self {
            message: Some(message),
            ..self
        }
    }
}

/// The conditions of the pod. A condition with an unchanged status keeps its transition time.
pub(super) fn pod_conditions<I: Send + 'static>(
    pod: &Pod,
    worker: &PodWorker<I>,
    status: &PodStatus,
    now: Timestamp,
) -> Vec<PodCondition> {
    let has_sandbox = worker.has_sandbox() && !worker.is_terminated();
    let mut conditions = vec![
        (
            "PodReadyToStartContainers",
            if has_sandbox {
                ConditionValue::TRUE
            } else {
                ConditionValue::FALSE
            },
        ),
        ("Initialized", initialized(pod, worker, status)),
        ("Ready", ready(pod, status)),
        ("ContainersReady", containers_ready(pod, status)),
        ("PodScheduled", ConditionValue::TRUE),
    ];
    if all_containers_could_restart(pod) {
        let restarting = all_containers_restarting(worker, status);
        conditions.push(("AllContainersRestarting", restarting));
    }
    let build = |(type_, value): (&str, ConditionValue)| {
        let status = if value.status { "True" } else { "False" };
        let last_transition = current_conditions(pod)
            .find(|current| current.type_ == type_)
            .filter(|current| current.status == status)
            .and_then(|current| current.last_transition_time.clone());
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: value.reason.map(Into::into),
            message: value.message,
            last_transition_time: Some(last_transition.unwrap_or(Time(now))),
            observed_generation: pod.metadata.generation,
            last_probe_time: None,
        }
    };
    conditions.into_iter().map(build).collect()
}

fn current_conditions(pod: &Pod) -> impl Iterator<Item = &PodCondition> {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
}

/// Mirrors `GeneratePodInitializedCondition`.
fn initialized<I: Send + 'static>(
    pod: &Pod,
    worker: &PodWorker<I>,
    status: &PodStatus,
) -> ConditionValue {
    if status.phase.as_deref() == Some("Succeeded") {
        return ConditionValue::TRUE.with_reason("PodCompleted");
    }
    // Mirrors GeneratePodInitializedCondition: a pod whose containers are all restarted stays
    // initialized.
    let was_initialized = current_conditions(pod)
        .any(|condition| condition.type_ == "Initialized" && condition.status == "True");
    if worker.is_initialized() || was_initialized {
        return ConditionValue::TRUE;
    }
    let is_incomplete = |container: &&PodContainer<I>| {
        container.container_type != ContainerType::App && !container.allows_next_container()
    };
    let names: Vec<_> = worker
        .containers
        .iter()
        .filter(is_incomplete)
        .map(|container| container.spec(pod).name.clone())
        .collect();
    ConditionValue::FALSE
        .with_reason("ContainersNotInitialized")
        .with_message(format!(
            "containers with incomplete status: [{}]",
            names.join(" ")
        ))
}

/// Mirrors `GenerateAllContainersRestartingCondition`.
fn all_containers_restarting<I>(worker: &PodWorker<I>, status: &PodStatus) -> ConditionValue {
    match status.phase.as_deref() {
        Some("Succeeded") => ConditionValue::FALSE.with_reason("PodCompleted"),
        Some("Failed") => ConditionValue::FALSE.with_reason("PodFailed"),
        _ if worker.restarting_all => ConditionValue::TRUE
            .with_reason("RestartAllContainersStarted")
            .with_message("container exited with restart policy rule".to_owned()),
        _ => ConditionValue::FALSE,
    }
}

/// Mirrors `GenerateContainersReadyCondition`.
fn containers_ready(pod: &Pod, status: &PodStatus) -> ConditionValue {
    match status.phase.as_deref() {
        Some("Succeeded") => return ConditionValue::FALSE.with_reason("PodCompleted"),
        Some("Failed") => return ConditionValue::FALSE.with_reason("PodFailed"),
        _ => {}
    }
    let statuses = |container_type: ContainerType| {
        if container_type == ContainerType::App {
            &status.container_statuses
        } else {
            &status.init_container_statuses
        }
    };
    let is_ready = |container_type: ContainerType, name: &str| {
        statuses(container_type)
            .iter()
            .flatten()
            .any(|status| status.name == name && status.ready)
    };
    let names: Vec<_> = containers(pod)
        .filter(|(container_type, _, container)| {
            // Sidecars count like app containers; init containers do not.
            *container_type != ContainerType::Init && !is_ready(*container_type, &container.name)
        })
        .map(|(_, _, container)| container.name.as_str())
        .collect();
    if names.is_empty() {
        return ConditionValue::TRUE;
    }
    ConditionValue::FALSE
        .with_reason("ContainersNotReady")
        .with_message(format!(
            "containers with unready status: [{}]",
            names.join(" ")
        ))
}

/// Mirrors `GeneratePodReadyCondition`: containers and readiness gates.
fn ready(pod: &Pod, status: &PodStatus) -> ConditionValue {
    let containers_ready = containers_ready(pod, status);
    if !containers_ready.status {
        return containers_ready;
    }
    let gates = pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let not_ready: Vec<_> = gates
        .filter_map(|gate| {
            let type_ = &gate.condition_type;
            match current_conditions(pod).find(|condition| condition.type_ == *type_) {
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
    if not_ready.is_empty() {
        ConditionValue::TRUE
    } else {
        ConditionValue::FALSE
            .with_reason("ReadinessGatesNotReady")
            .with_message(not_ready.join(", "))
    }
}
