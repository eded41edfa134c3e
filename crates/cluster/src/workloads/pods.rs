//! Status of pods: phase, readiness, availability.
//!
//! Terms, as upstream: a *terminal* pod has phase `Succeeded` or `Failed`; an *active* pod is
//! neither terminal nor has a deletion timestamp; an *available* pod has been ready for
//! `minReadySeconds`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

/// Phase of a pod. The order is that of the deletion order of ReplicaSets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

/// The phase of a pod. Default: `Pending`.
pub(crate) fn phase(pod: &Pod) -> Phase {
    match pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
    {
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Unknown") => Phase::Unknown,
        _ => Phase::Pending,
    }
}

/// Whether the phase is `Succeeded` or `Failed`.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), Phase::Succeeded | Phase::Failed)
}

/// Whether it has a deletion timestamp.
pub(crate) fn has_deletion_timestamp(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether it counts as a replica. Mirrors IsPodActive.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !has_deletion_timestamp(pod)
}

/// Whether it has a deletion timestamp and is not terminal. Mirrors IsPodTerminating.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    !is_terminal(pod) && has_deletion_timestamp(pod)
}

/// The condition of a type.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// Whether the condition `Ready` is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Transition time of the condition `Ready`; `None` if the pod is not ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|ready| ready.status == "True")?
        .last_transition_time
        .as_ref()
        .map(|time| time.0)
}

/// Whether it has been ready for `min_ready`. Mirrors IsPodAvailable.
pub(crate) fn is_available(pod: &Pod, min_ready: Duration, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready.is_zero()
            || ready_since(pod).is_some_and(|since| saturating_add(since, min_ready) <= now))
}

/// Time until the next of these pods becomes available if it stays ready; `None` if there is none.
/// Mirrors FindMinNextPodAvailabilityCheck.
pub(crate) fn next_availability_check<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready: Duration,
    now: Timestamp,
) -> Option<Duration> {
    let waits = pods
        .into_iter()
        .filter_map(ready_since)
        .filter_map(|since| time_until(saturating_add(since, min_ready), now));
    if min_ready.is_zero() {
        None
    } else {
        waits.min()
    }
}

/// `time + duration`, at most [`Timestamp::MAX`].
pub(crate) fn saturating_add(time: Timestamp, duration: Duration) -> Timestamp {
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

/// Time until `time`; `None` if it has passed.
pub(crate) fn time_until(time: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = time.duration_since(now);
    (left > SignedDuration::ZERO).then(|| left.unsigned_abs())
}

/// A field in seconds, such as `minReadySeconds`; absent and negative values are 0.
pub(crate) fn duration_from_seconds(field: Option<i32>) -> Duration {
    Duration::from_secs(
        field
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(0),
    )
}

/// The statuses of init containers and containers.
pub(crate) fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

/// The value of a label.
pub(crate) fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The value of an annotation.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The node of a pod; empty if it is not scheduled.
pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::test_objects::pod;

    #[test]
    fn pod_is_available_after_min_ready_seconds() {
        let now = Timestamp::from_second(1000).unwrap();
        for (ready_since, min_ready, available, wait) in [
            (None, 0, false, None),
            (None, 10, false, None),
            (Some(1000), 0, true, None),
            (Some(1000), 10, false, Some(10)),
            (Some(995), 10, false, Some(5)),
            (Some(990), 10, true, None),
        ] {
            let pod = match ready_since {
                Some(second) => pod("a").running().ready_since(second).build(),
                None => pod("a").running().build(),
            };
            let min_ready = Duration::from_secs(min_ready);
            assert_eq!(
                is_available(&pod, min_ready, now),
                available,
                "{ready_since:?} {min_ready:?}"
            );
            assert_eq!(
                next_availability_check([&pod], min_ready, now),
                wait.map(Duration::from_secs),
                "{ready_since:?} {min_ready:?}"
            );
        }
    }

    #[test]
    fn terminal_or_deleted_pod_is_not_active() {
        for (pod, active, terminating) in [
            (pod("new").build(), true, false),
            (pod("running").running().build(), true, false),
            (pod("succeeded").phase("Succeeded").build(), false, false),
            (pod("failed").phase("Failed").build(), false, false),
            (pod("terminating").running().deleting().build(), false, true),
            (
                pod("terminal").phase("Failed").deleting().build(),
                false,
                false,
            ),
        ] {
            assert_eq!(is_active(&pod), active, "{:?}", pod.metadata.name);
            assert_eq!(is_terminating(&pod), terminating, "{:?}", pod.metadata.name);
        }
    }
}
