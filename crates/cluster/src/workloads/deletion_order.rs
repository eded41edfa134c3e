//! Deletion order: which pods are deleted first on scale-down.
//!
//! Input: pods, related pods on the same nodes, the time. Output: the pods to delete. Order, as
//! ActivePodsWithRanks.Less: unassigned before assigned, pending before running, not ready before
//! ready, lower `pod-deletion-cost` first, more related pods on the same node first, ready for a
//! shorter time first, more restarts first, newer before older.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::workloads::pods::{annotation, is_active, is_ready, node_name, phase, ready_since};

/// Annotation with the deletion cost of a pod; a lower cost is deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The `count` pods to delete. `related` are the pods of all ReplicaSets with the same controller,
/// counted per node. Mirrors getPodsToDelete and getPodsRankedByRelatedPodsOnSameNode.
pub(crate) fn pods_to_delete(
    mut pods: Vec<Arc<Pod>>,
    related: &[Arc<Pod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    // Without a choice the order does not matter.
    if count < pods.len() {
        let mut related_per_node: HashMap<&str, usize> = HashMap::new();
        for pod in related.iter().filter(|pod| is_active(pod)) {
            *related_per_node.entry(node_name(pod)).or_default() += 1;
        }
        pods.sort_by_cached_key(|pod| {
            let related = related_per_node.get(node_name(pod)).copied();
            deletion_rank(pod, related.unwrap_or(0), now)
        });
        pods.truncate(count);
    }
    pods
}

/// Sort key; smaller is deleted first. Ages are compared by logarithm, as in logarithmicRankDiff,
/// so that a scale-down does not always delete the newest pods; equal ranks are ordered by uid.
fn deletion_rank(pod: &Pod, related: usize, now: Timestamp) -> impl Ord + use<> {
    let ready = is_ready(pod);
    let cost = annotation(pod, DELETION_COST)
        .and_then(|cost| cost.parse::<i32>().ok())
        .unwrap_or(0);
    let ready_for = if ready {
        logarithmic_age(ready_since(pod), now)
    } else {
        0
    };
    let (restarts, sidecar_restarts) = max_container_restarts(pod);
    let age = logarithmic_age(
        pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        now,
    );
    let state = (!node_name(pod).is_empty(), phase(pod), ready);
    (
        state,
        cost,
        Reverse(related),
        ready_for,
        Reverse(restarts),
        Reverse(sidecar_restarts),
        age,
        pod.metadata.uid.clone(),
    )
}

/// Base-2 logarithm of the age in nanoseconds; an unknown time counts as age 0.
fn logarithmic_age(since: Option<Timestamp>, now: Timestamp) -> i32 {
    let nanoseconds = since.map_or(0, |since| now.duration_since(since).as_nanos());
    u128::try_from(nanoseconds)
        .ok()
        .and_then(u128::checked_ilog2)
        .and_then(|log| i32::try_from(log).ok())
        // As in logarithmicRankDiff, an age of 0 and a time in the future have rank -1.
        .unwrap_or(-1)
}

/// Maximum restart count of the containers, and of the sidecar containers. Mirrors
/// maxContainerRestarts.
fn max_container_restarts(pod: &Pod) -> (i32, i32) {
    let status = pod.status.as_ref();
    let containers = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let init_containers = status
        .and_then(|status| status.init_container_statuses.as_ref())
        .into_iter()
        .flatten();
    let sidecars = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<_> = sidecars
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| &container.name)
        .collect();
    (
        containers
            .map(|container| container.restart_count)
            .max()
            .unwrap_or(0),
        init_containers
            .filter(|container| sidecars.contains(&&container.name))
            .map(|container| container.restart_count)
            .max()
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::test_objects::pod;

    /// Each pod is ordered before the next one for exactly one reason.
    #[test]
    fn pods_are_ordered_as_by_kubernetes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ready = |name: &str| pod(name).on("n").running().ready_since(0);
        let ordered = [
            pod("a-unassigned").running().ready().cached(),
            pod("b-pending").on("n").phase("Pending").cached(),
            pod("c-unknown").on("n").phase("Unknown").cached(),
            pod("d-not-ready").on("n").running().cached(),
            ready("e-cheap").annotation(DELETION_COST, "-5").cached(),
            pod("f-many-related")
                .on("full")
                .running()
                .ready_since(0)
                .cached(),
            pod("g-ready-lately")
                .on("n")
                .running()
                .ready_since(999_000)
                .cached(),
            ready("h-restarts").restarts(3).cached(),
            ready("i-young").created(999_999).cached(),
            ready("j-by-uid").cached(),
            ready("k-by-uid").cached(),
            ready("l-expensive")
                .annotation(DELETION_COST, "100")
                .cached(),
        ];
        let related: Vec<_> = (0..5)
            .map(|i| pod(&format!("r{i}")).on("full").running().cached())
            .collect();
        for split in 1..ordered.len() {
            let mut mixed: Vec<_> = ordered.to_vec();
            mixed.reverse();
            mixed.rotate_left(split);
            let names = |pods: &[Arc<Pod>]| {
                pods.iter()
                    .map(|pod| pod.metadata.name.clone().unwrap())
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                names(&pods_to_delete(mixed, &related, split, now)),
                names(&ordered[..split])
            );
        }
    }
}
