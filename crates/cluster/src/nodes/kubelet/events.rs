//! Events that a kubelet records for a pod, with the reasons and messages of the kubelet.

use bellerophon::events::{Event, EventType};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::super::runtime::ProbeType;

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

/// A pod that the kubelet does not admit.
pub(crate) fn rejected(reason: &str, message: &str) -> PodEvent {
    event(EventType::Warning, reason, "Admitting", message.into())
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

/// A container that is killed because all containers of its pod are restarted.
pub(crate) fn killing_for_restart() -> PodEvent {
    event(EventType::Normal, "Killing", "Killing", "killing".into())
}

/// A container that is killed because its postStart hook failed.
pub(crate) fn killing_after_post_start() -> PodEvent {
    event(
        EventType::Normal,
        "Killing",
        "Killing",
        "FailedPostStartHook".into(),
    )
}

pub(crate) fn unhealthy(container: &Container, probe: ProbeType, message: &str) -> [PodEvent; 2] {
    let (name, lower_name) = match probe {
        ProbeType::Liveness => ("Liveness", "liveness"),
        ProbeType::Startup => ("Startup", "startup"),
    };
    let killed = format!(
        "Container {} failed {lower_name} probe, will be restarted",
        container.name
    );
    [
        probe_failed(name, message),
        event(EventType::Normal, "Killing", "Killing", killed),
    ]
}

/// A failed probe; `probe` is `Liveness`, `Readiness` or `Startup`.
pub(crate) fn probe_failed(probe: &str, output: &str) -> PodEvent {
    let message = format!("{probe} probe failed: {output}");
    event(EventType::Warning, "Unhealthy", "Probing", message)
}

/// A probe whose outcome is unknown and does not count.
pub(crate) fn probe_errored(probe: &str, error: &str) -> PodEvent {
    let message = format!("{probe} probe errored and resulted in unknown state: {error}");
    event(EventType::Warning, "Unhealthy", "Probing", message)
}

/// A probe that succeeded with a warning.
pub(crate) fn probe_warning(probe: &str, output: &str) -> PodEvent {
    let message = format!("{probe} probe warning: {output}");
    event(EventType::Warning, "ProbeWarning", "Probing", message)
}

pub(crate) fn failed(message: &str) -> PodEvent {
    let message = format!("Error: {message}");
    event(EventType::Warning, "Failed", "Creating", message)
}

pub(crate) fn failed_sandbox(message: String) -> PodEvent {
    let reason = "FailedCreatePodSandBox";
    event(EventType::Warning, reason, "Creating", message)
}

pub(crate) fn failed_mount(message: String) -> PodEvent {
    event(EventType::Warning, "FailedMount", "Mounting", message)
}

/// A failed lifecycle hook; `hook` is `PostStartHook` or `PreStopHook`. As upstream, the event does
/// not have the output of the hook, which may contain secrets.
pub(crate) fn hook_failed(hook: &str) -> PodEvent {
    let reason = format!("Failed{hook}");
    let message = format!("{hook} failed");
    event(EventType::Warning, &reason, "Running", message)
}

/// An HTTPS hook whose server speaks HTTP.
pub(crate) fn hook_http_fallback(authority: &str) -> PodEvent {
    let message = format!(
        "request to HTTPS lifecycle hook {authority} got HTTP response, retry with HTTP succeeded"
    );
    event(
        EventType::Warning,
        "LifecycleHTTPFallback",
        "Running",
        message,
    )
}

/// A host port that another process or pod has on this machine.
pub(crate) fn host_port_taken(port: u16) -> PodEvent {
    let message = format!(
        "host port {port} is not published at 127.0.0.1, where another process or pod listens on \
         it; pods reach it at the address of the node"
    );
    event(EventType::Warning, "HostPortTaken", "Creating", message)
}

/// A program that listens on all addresses, without a network namespace.
pub(crate) fn wildcard_listener(container: &str, port: u16, pod_ip: &str) -> PodEvent {
    let message = format!(
        "container {container} listens on port {port} of all addresses: without namespaces, other \
         pods cannot use the port; let it listen on $POD_IP ({pod_ip}), or see `bellerophon doctor`"
    );
    event(EventType::Warning, "WildcardListener", "Starting", message)
}

pub(crate) fn start_failed(container: &Container, reason: &str, message: &str) -> Vec<PodEvent> {
    let image = container.image.as_deref().unwrap_or_default();
    if reason != "ErrImagePull" {
        return vec![failed(message)];
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
