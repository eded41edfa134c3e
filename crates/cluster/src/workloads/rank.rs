//! Ranking: which pods go first when there are too many.
//!
//! In: pods, those they share nodes with, the time. Out: the pods to delete.
//! Holds: the order is Kubernetes': not assigned before assigned, pending before running, not ready before ready, cheap
//! before dear (`pod-deletion-cost`), crowded before alone, young before old, restarting before steady.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::workloads::pods::{annotation, is_active, is_ready, node_name, phase, ready_since};

/// By which people say which pods are dear to them.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The `count` pods that go first. `related` are all pods that the owner's owner has, which tell how crowded nodes are.
pub(crate) fn first_to_go(
    mut pods: Vec<Arc<Pod>>,
    related: &[Arc<Pod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if count < pods.len() {
        let mut crowd: HashMap<&str, usize> = HashMap::new();
        for pod in related.iter().filter(|pod| is_active(pod)) {
            *crowd.entry(node_name(pod)).or_default() += 1;
        }
        pods.sort_by_cached_key(|pod| {
            rank(pod, crowd.get(node_name(pod)).copied().unwrap_or(0), now)
        });
        pods.truncate(count);
    }
    pods
}

/// Smaller goes first. Ages count by their order of magnitude, so that a scale-down does not always hit the youngest;
/// within a magnitude the uid decides, which is as good as chance and never changes.
fn rank(pod: &Pod, crowd: usize, now: Timestamp) -> impl Ord + use<> {
    let ready = is_ready(pod);
    let cost = annotation(pod, DELETION_COST)
        .and_then(|cost| cost.parse::<i32>().ok())
        .unwrap_or(0);
    let ready_for = if ready {
        magnitude(ready_since(pod), now)
    } else {
        0
    };
    let (restarts, sidecar_restarts) = restarts(pod);
    let age = magnitude(
        pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        now,
    );
    let state = (!node_name(pod).is_empty(), phase(pod), ready);
    (
        state,
        cost,
        Reverse(crowd),
        ready_for,
        Reverse(restarts),
        Reverse(sidecar_restarts),
        age,
        pod.metadata.uid.clone(),
    )
}

/// The logarithm of the time since a moment; an unknown moment is the youngest.
fn magnitude(moment: Option<Timestamp>, now: Timestamp) -> i32 {
    let nanoseconds = moment.map_or(0, |moment| now.duration_since(moment).as_nanos());
    u128::try_from(nanoseconds)
        .ok()
        .and_then(u128::checked_ilog2)
        .and_then(|log| i32::try_from(log).ok())
        .unwrap_or(-1)
}

/// The most restarts of a main container, and of one that accompanies them.
fn restarts(pod: &Pod) -> (i32, i32) {
    let status = pod.status.as_ref();
    let main = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let init = status
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
        main.map(|container| container.restart_count)
            .max()
            .unwrap_or(0),
        init.filter(|container| sidecars.contains(&&container.name))
            .map(|container| container.restart_count)
            .max()
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::samples::pod;

    /// Each pod goes before the next one, for one reason.
    #[test]
    fn pods_go_in_the_order_of_kubernetes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ready = |name: &str| pod(name).on("n").running().ready_since(0);
        let ordered = [
            pod("a-unassigned").running().ready().cached(),
            pod("b-pending").on("n").phase("Pending").cached(),
            pod("c-unknown").on("n").phase("Unknown").cached(),
            pod("d-not-ready").on("n").running().cached(),
            ready("e-cheap").annotation(DELETION_COST, "-5").cached(),
            pod("f-crowded")
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
            ready("l-dear").annotation(DELETION_COST, "100").cached(),
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
                names(&first_to_go(mixed, &related, split, now)),
                names(&ordered[..split])
            );
        }
    }
}
