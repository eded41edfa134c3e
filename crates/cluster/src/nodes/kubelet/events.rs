//! Events that a kubelet records for a pod, with the reasons and messages of the kubelet.

use bellerophon::events::{Event, EventType};
use k8s_openapi::api::core::v1::{Container, Pod};

/// An event of a pod.
pub(crate) type PodEvent = Event;

fn event(type_: EventType, reason: &str, action: &str, message: String) -> PodEvent {
    Event {
        type_,
        reason: reason.into(),
        action: action.into(),
        note: message,
    }
}

pub(crate) fn pulled(container: &Container) -> PodEvent {
    let image = container.image.as_deref().unwrap_or_default();
    let message = format!(
        "Container image {image:?} already present on machine and can be accessed by the pod"
    );
    event(EventType::Normal, "Pulled", "Pulling", message)
}

pub(crate) fn created() -> PodEvent {
    event(
        EventType::Normal,
        "Created",
        "Creating",
        "Container created".into(),
    )
}

pub(crate) fn started() -> PodEvent {
    event(
        EventType::Normal,
        "Started",
        "Starting",
        "Container started".into(),
    )
}

pub(crate) fn stopping(container: &Container) -> PodEvent {
    event(
        EventType::Normal,
        "Killing",
        "Killing",
        format!("Stopping container {}", container.name),
    )
}

pub(crate) fn liveness_failed(container: &Container) -> [PodEvent; 2] {
    let failed = "Liveness probe failed: simulated failure".to_owned();
    let killed = format!(
        "Container {} failed liveness probe, will be restarted",
        container.name
    );
    [
        event(EventType::Warning, "Unhealthy", "Probing", failed),
        event(EventType::Normal, "Killing", "Killing", killed),
    ]
}

pub(crate) fn start_failed(container: &Container, reason: &str, message: &str) -> Vec<PodEvent> {
    let image = container.image.as_deref().unwrap_or_default();
    if reason != "ErrImagePull" {
        return vec![event(
            EventType::Warning,
            "Failed",
            "Creating",
            format!("Error: {message}"),
        )];
    }
    vec![
        event(
            EventType::Normal,
            "Pulling",
            "Pulling",
            format!("Pulling image {image:?}"),
        ),
        event(
            EventType::Warning,
            "Failed",
            "Pulling",
            format!("Failed to pull image {image:?}: {message}"),
        ),
        event(
            EventType::Warning,
            "Failed",
            "Pulling",
            "Error: ErrImagePull".into(),
        ),
        event(
            EventType::Normal,
            "BackOff",
            "Pulling",
            format!("Back-off pulling image {image:?}"),
        ),
    ]
}

pub(crate) fn back_off(container: &Container, pod: &Pod) -> PodEvent {
    let message = format!(
        "Back-off restarting failed container {} in pod {}",
        container.name,
        format_pod(pod)
    );
    event(EventType::Warning, "BackOff", "Restarting", message)
}

pub(crate) fn deadline_exceeded() -> PodEvent {
    let message = "Pod was active on the node longer than the specified deadline".to_owned();
    event(EventType::Normal, "DeadlineExceeded", "Killing", message)
}

pub(crate) fn invalid_simulation(message: String) -> PodEvent {
    event(
        EventType::Warning,
        "InvalidSimulation",
        "Simulating",
        message,
    )
}

/// `name_namespace(uid)`, as `format.Pod` of the kubelet.
pub(crate) fn format_pod(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let field = |field: &Option<String>| field.clone().unwrap_or_default();
    format!(
        "{}_{}({})",
        field(&meta.name),
        field(&meta.namespace),
        field(&meta.uid)
    )
}
