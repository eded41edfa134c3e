//! Notes: what a kubelet tells people about a pod, in the words they know.

use bellerophon::{EventType, Note};
use k8s_openapi::api::core::v1::{Container, Pod};

/// One thing to tell about a pod.
pub(crate) type Told = Note;

fn note(type_: EventType, reason: &str, action: &str, note: String) -> Told {
    Note {
        type_,
        reason: reason.into(),
        action: action.into(),
        note,
    }
}

pub(crate) fn pulled(container: &Container) -> Told {
    let image = container.image.as_deref().unwrap_or_default();
    let text = format!(
        "Container image {image:?} already present on machine and can be accessed by the pod"
    );
    note(EventType::Normal, "Pulled", "Pulling", text)
}

pub(crate) fn created() -> Told {
    note(
        EventType::Normal,
        "Created",
        "Creating",
        "Container created".into(),
    )
}

pub(crate) fn started() -> Told {
    note(
        EventType::Normal,
        "Started",
        "Starting",
        "Container started".into(),
    )
}

pub(crate) fn stopping(container: &Container) -> Told {
    note(
        EventType::Normal,
        "Killing",
        "Killing",
        format!("Stopping container {}", container.name),
    )
}

pub(crate) fn unhealthy(container: &Container) -> [Told; 2] {
    let failed = "Liveness probe failed: simulated failure".to_owned();
    let killed = format!(
        "Container {} failed liveness probe, will be restarted",
        container.name
    );
    [
        note(EventType::Warning, "Unhealthy", "Probing", failed),
        note(EventType::Normal, "Killing", "Killing", killed),
    ]
}

pub(crate) fn refused(container: &Container, reason: &str, message: &str) -> Vec<Told> {
    let image = container.image.as_deref().unwrap_or_default();
    if reason != "ErrImagePull" {
        return vec![note(
            EventType::Warning,
            "Failed",
            "Creating",
            format!("Error: {message}"),
        )];
    }
    vec![
        note(
            EventType::Normal,
            "Pulling",
            "Pulling",
            format!("Pulling image {image:?}"),
        ),
        note(
            EventType::Warning,
            "Failed",
            "Pulling",
            format!("Failed to pull image {image:?}: {message}"),
        ),
        note(
            EventType::Warning,
            "Failed",
            "Pulling",
            "Error: ErrImagePull".into(),
        ),
        note(
            EventType::Normal,
            "BackOff",
            "Pulling",
            format!("Back-off pulling image {image:?}"),
        ),
    ]
}

pub(crate) fn back_off(container: &Container, pod: &Pod) -> Told {
    let text = format!(
        "Back-off restarting failed container {} in pod {}",
        container.name,
        full_name(pod)
    );
    note(EventType::Warning, "BackOff", "Restarting", text)
}

pub(crate) fn deadline_exceeded() -> Told {
    let text = "Pod was active on the node longer than the specified deadline".to_owned();
    note(EventType::Normal, "DeadlineExceeded", "Killing", text)
}

pub(crate) fn misunderstood(mistake: String) -> Told {
    note(
        EventType::Warning,
        "InvalidSimulation",
        "Simulating",
        mistake,
    )
}

/// How kubelets name a pod in messages.
pub(crate) fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!(
        "{}_{}({})",
        text(&meta.name),
        text(&meta.namespace),
        text(&meta.uid)
    )
}
