//! Status of one PodDisruptionBudget: healthy pods and allowed disruptions.
//!
//! Input: the PodDisruptionBudget, its pods, the expected scale, the time. Output: a status.
//! Guarantees: without a known scale no disruption is allowed; a pod with a granted eviction is not
//! healthy until it is deleted or [`DELETION_TIMEOUT`] has passed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::conditions::{ConditionStatus, ConditionUpdate, set_status_condition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::workloads::counts::saturating_i32;
use crate::workloads::int_or_percent::{Round, scaled_value};
use crate::workloads::pods::{has_deletion_timestamp, is_ready, saturating_add, time_until};

/// Time after which a granted eviction without a deletion is dropped, as upstream
/// (DeletionTimeout).
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// Condition type: at least one disruption is allowed.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// Result of planning one reconcile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) status: PodDisruptionBudgetStatus,
    /// Pods with a granted eviction that were not deleted in time.
    pub(super) not_deleted: Vec<Arc<Pod>>,
    /// Time until the next granted eviction is dropped.
    pub(super) requeue_after: Option<Duration>,
}

/// Whether the scale of the pods' controllers has to be known.
pub(super) fn needs_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// Plans one reconcile. `scale` is the sum of the controllers' replicas; it is used only if
/// [`needs_scale`]. Mirrors getExpectedPodCount and updatePdbStatus.
pub(super) fn plan(
    pdb: &PodDisruptionBudget,
    spec: &PodDisruptionBudgetSpec,
    pods: &[Arc<Pod>],
    scale: i32,
    now: Timestamp,
) -> Plan {
    let current = pdb.status.clone().unwrap_or_default();
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        // Mirrors getExpectedPodCount: percentages are relative to the controllers' scale.
        (Some(max), _) => (
            scale,
            (scale - scaled_value(Some(max), scale, Round::Up)).max(0),
        ),
        (None, Some(IntOrString::Int(min))) => (saturating_i32(pods.len()), *min),
        (None, min) => (scale, scaled_value(min.as_ref(), scale, Round::Up)),
    };
    let DisruptedPods {
        disrupted,
        not_deleted,
        requeue_after,
    } = build_disrupted_pods(&current, pods, now);
    // Mirrors countHealthyPods: from the grant of an eviction on, the pod does not count, although
    // the deletion may not have reached the cache.
    let is_healthy = |pod: &&Arc<Pod>| {
        !has_deletion_timestamp(pod) && !disrupted.contains_key(&pod.name_any()) && is_ready(pod)
    };
    let healthy = saturating_i32(pods.iter().filter(is_healthy).count());
    // Mirrors updatePdbStatus: without expected pods no disruption is allowed.
    let allowed = if expected > 0 {
        (healthy - desired).max(0)
    } else {
        0
    };
    let mut status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|disrupted| !disrupted.is_empty()),
        observed_generation: pdb.metadata.generation,
        conditions: current.conditions,
    };
    let (condition_status, reason) = if allowed > 0 {
        (ConditionStatus::True, "SufficientPods")
    } else {
        (ConditionStatus::False, "InsufficientPods")
    };
    set_disruption_allowed(&mut status, condition_status, reason, "", now);
    Plan {
        status,
        not_deleted,
        requeue_after,
    }
}

/// Granted evictions of pods that are not terminating.
#[derive(Default)]
struct DisruptedPods {
    /// Time of the grant by pod name, within the deletion timeout.
    disrupted: BTreeMap<String, Time>,
    /// Pods whose deletion timeout has passed.
    not_deleted: Vec<Arc<Pod>>,
    /// Time until the next deletion timeout.
    requeue_after: Option<Duration>,
}

/// Mirrors buildDisruptedPodMap.
fn build_disrupted_pods(
    current: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> DisruptedPods {
    let mut result = DisruptedPods::default();
    let granted = current.disrupted_pods.clone().unwrap_or_default();
    for pod in pods.iter().filter(|pod| !has_deletion_timestamp(pod)) {
        let Some(since) = granted.get(&pod.name_any()) else {
            continue;
        };
        match time_until(saturating_add(since.0, DELETION_TIMEOUT), now) {
            None => result.not_deleted.push(pod.clone()),
            Some(left) => {
                result.disrupted.insert(pod.name_any(), since.clone());
                let after = result.requeue_after;
                result.requeue_after = Some(after.map_or(left, |after| after.min(left)));
            }
        }
    }
    result
}

/// The status when the expected scale is not known: no disruption is allowed. Mirrors failSafe.
pub(super) fn fail_safe(
    pdb: &PodDisruptionBudget,
    error: &str,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let mut status = pdb.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    set_disruption_allowed(
        &mut status,
        ConditionStatus::False,
        "SyncFailed",
        error,
        now,
    );
    status
}

fn set_disruption_allowed(
    status: &mut PodDisruptionBudgetStatus,
    condition_status: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let observed_generation = status.observed_generation;
    let condition = ConditionUpdate {
        observed_generation,
        ..ConditionUpdate::new(DISRUPTION_ALLOWED, condition_status, reason).message(message)
    };
    set_status_condition(status.conditions.get_or_insert_default(), condition, now);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workloads::test_objects::pod;

    fn now() -> Timestamp {
        Timestamp::from_second(10_000).unwrap()
    }

    fn pdb(spec: Value, disrupted: Value) -> PodDisruptionBudget {
        let status = json!({
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
            "disruptionsAllowed": 0,
            "disruptedPods": disrupted,
        });
        serde_json::from_value(
            json!({ "metadata": { "name": "b", "generation": 3 }, "spec": spec, "status": status }),
        )
        .unwrap()
    }

    /// Expected pods, desired healthy, current healthy, disruptions allowed.
    fn counts(spec: Value, ready: usize, unready: usize, scale: i32) -> (i32, i32, i32, i32) {
        let ready = (0..ready).map(|i| pod(&format!("r{i}")).running().ready().cached());
        let pods: Vec<_> = ready
            .chain((0..unready).map(|i| pod(&format!("b{i}")).running().cached()))
            .collect();
        let pdb = pdb(spec, json!({}));
        let status = plan(&pdb, pdb.spec.as_ref().unwrap(), &pods, scale, now()).status;
        let fields = [
            status.expected_pods,
            status.desired_healthy,
            status.current_healthy,
            status.disruptions_allowed,
        ];
        fields.map(Option::unwrap).into()
    }

    #[test]
    fn disruptions_are_allowed_above_desired_healthy() {
        for (spec, ready, unready, scale, expected) in [
            (json!({ "minAvailable": 2 }), 3, 0, 0, (3, 2, 3, 1)),
            (json!({ "minAvailable": 2 }), 1, 2, 0, (3, 2, 1, 0)),
            (json!({ "minAvailable": 0 }), 0, 0, 0, (0, 0, 0, 0)),
            (json!({ "minAvailable": "50%" }), 5, 0, 5, (5, 3, 5, 2)),
            (json!({ "maxUnavailable": 1 }), 3, 0, 3, (3, 2, 3, 1)),
            (json!({ "maxUnavailable": 1 }), 2, 1, 3, (3, 2, 2, 0)),
            (
                json!({ "maxUnavailable": "30%" }),
                10,
                0,
                10,
                (10, 7, 10, 3),
            ),
            (json!({ "maxUnavailable": 5 }), 3, 0, 3, (3, 0, 3, 3)),
            (json!({ "maxUnavailable": 1 }), 3, 0, 5, (5, 4, 3, 0)),
        ] {
            assert_eq!(
                counts(spec.clone(), ready, unready, scale),
                expected,
                "{spec}, {ready} ready, {unready} not ready, scale {scale}"
            );
        }
    }

    #[test]
    fn granted_eviction_is_dropped_after_the_timeout() {
        let ago = |seconds: i64| json!(Timestamp::from_second(10_000 - seconds).unwrap());
        let pdb = pdb(
            json!({ "minAvailable": 1 }),
            json!({ "a": ago(50), "b": ago(121), "deleted": ago(5), "c": ago(5) }),
        );
        let pods = [
            pod("a").running().ready().cached(),
            pod("b").running().ready().cached(),
            pod("c").running().ready().deleting().cached(),
            pod("d").running().ready().cached(),
        ];
        let plan = plan(&pdb, pdb.spec.as_ref().unwrap(), &pods, 0, now());
        assert_eq!(
            plan.status
                .disrupted_pods
                .unwrap()
                .into_keys()
                .collect::<Vec<_>>(),
            ["a"]
        );
        assert_eq!(plan.status.current_healthy, Some(2));
        assert_eq!(plan.status.disruptions_allowed, Some(1));
        assert_eq!(
            plan.not_deleted
                .iter()
                .map(|pod| pod.name_any())
                .collect::<Vec<_>>(),
            ["b"]
        );
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(70)));
        assert_eq!(plan.status.observed_generation, Some(3));
    }

    #[test]
    fn unknown_scale_allows_no_disruption() {
        let mut pdb = pdb(json!({ "maxUnavailable": 1 }), json!({}));
        pdb.status.as_mut().unwrap().disruptions_allowed = Some(4);
        let status = fail_safe(&pdb, "found no controllers for pod \"x\"", now());
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!(status.conditions.unwrap()[0].reason.as_str(), "SyncFailed");
    }
}
