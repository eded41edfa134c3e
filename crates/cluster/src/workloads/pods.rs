//! What a loop asks of a pod: does it count, is it ready, is it available, and when will it be.
//!
//! In: pods as cached, the time. Out: answers.
//! Holds: the words mean what they mean in Kubernetes: an *active* pod neither ended nor is being deleted, an *available*
//! one has been ready for `minReadySeconds`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

/// A pod's place in its life, as its status tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

/// The phase; a pod that nobody has looked at yet is pending.
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

/// Whether it ended, well or badly.
pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), Phase::Succeeded | Phase::Failed)
}

/// Whether it is being deleted.
pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether it counts as a replica: it neither ended nor is being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

/// Whether it is being deleted and has not ended yet.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && is_deleting(pod)
}

/// One of its conditions.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// Whether it serves.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when it serves; `None` if it does not, or did not say.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|ready| ready.status == "True")?
        .last_transition_time
        .as_ref()
        .map(|time| time.0)
}

/// Whether it has been ready for long enough.
pub(crate) fn is_available(pod: &Pod, min_ready: Duration, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready.is_zero()
            || ready_since(pod).is_some_and(|since| later(since, min_ready) <= now))
}

/// How long until one more of these pods becomes available merely by staying ready; `None` if none will.
pub(crate) fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready: Duration,
    now: Timestamp,
) -> Option<Duration> {
    let waits = pods
        .into_iter()
        .filter_map(ready_since)
        .filter_map(|since| until(later(since, min_ready), now));
    if min_ready.is_zero() {
        None
    } else {
        waits.min()
    }
}

/// A moment after another.
pub(crate) fn later(moment: Timestamp, by: Duration) -> Timestamp {
    moment.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// How long until a moment; `None` if it is not ahead.
pub(crate) fn until(moment: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = moment.duration_since(now);
    (left > SignedDuration::ZERO).then(|| left.unsigned_abs())
}

/// A number of seconds in a spec; nothing and nonsense count as none.
pub(crate) fn seconds(field: Option<i32>) -> Duration {
    Duration::from_secs(
        field
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(0),
    )
}

/// The statuses of its containers, those that run before the others included.
pub(crate) fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

/// A label's value.
pub(crate) fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An annotation's value.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The node it is bound to; empty until then.
pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::samples::pod;

    #[test]
    fn pod_is_available_after_it_was_ready_long_enough() {
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
                next_available([&pod], min_ready, now),
                wait.map(Duration::from_secs),
                "{ready_since:?} {min_ready:?}"
            );
        }
    }

    #[test]
    fn pod_counts_until_it_ends_or_is_deleted() {
        for (pod, active, terminating) in [
            (pod("new").build(), true, false),
            (pod("runs").running().build(), true, false),
            (pod("done").phase("Succeeded").build(), false, false),
            (pod("broken").phase("Failed").build(), false, false),
            (pod("going").running().deleting().build(), false, true),
            (pod("gone").phase("Failed").deleting().build(), false, false),
        ] {
            assert_eq!(is_active(&pod), active, "{:?}", pod.metadata.name);
            assert_eq!(is_terminating(&pod), terminating, "{:?}", pod.metadata.name);
        }
    }
}
