//! The plan for one budget: how many of its pods are healthy, and how many may be taken away.
//!
//! In: the budget, its pods, the size of what owns them, the time. Out: a status.
//! Holds: what cannot be counted allows nothing; a pod whose eviction was granted does not count as healthy until it is gone
//! or two minutes have passed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::{ConditionStatus, SetCondition, set_condition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::workloads::int_or_percent::{Round, scaled_value};
use crate::workloads::pods::{has_deletion_timestamp, is_ready, saturating_add, time_until};

/// How long a granted eviction may take until it counts as given up.
const EVICTION_MAX: Duration = Duration::from_secs(120);

/// The condition that tells whether a pod may be taken away.
const ALLOWED: &str = "DisruptionAllowed";

/// What is told.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) status: PodDisruptionBudgetStatus,
    /// Pods whose granted evictions did not happen.
    pub(super) spared: Vec<Arc<Pod>>,
    /// When a granted eviction is given up.
    pub(super) next: Option<Duration>,
}

/// Whether the size of what owns the pods must be known.
pub(super) fn needs_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// Makes the plan. `scale` is how many pods their owners want together, where that is needed.
pub(super) fn plan(
    budget: &PodDisruptionBudget,
    spec: &PodDisruptionBudgetSpec,
    pods: &[Arc<Pod>],
    scale: i32,
    now: Timestamp,
) -> Plan {
    let was = budget.status.clone().unwrap_or_default();
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(max), _) => (
            scale,
            (scale - scaled_value(Some(max), scale, Round::Up)).max(0),
        ),
        (None, Some(IntOrString::Int(min))) => {
            (i32::try_from(pods.len()).unwrap_or(i32::MAX), *min)
        }
        (None, min) => (scale, scaled_value(min.as_ref(), scale, Round::Up)),
    };
    let (disrupted, spared, next) = granted(&was, pods, now);
    let counts = |pod: &&Arc<Pod>| {
        !has_deletion_timestamp(pod) && !disrupted.contains_key(&pod.name_any()) && is_ready(pod)
    };
    let healthy = i32::try_from(pods.iter().filter(counts).count()).unwrap_or(i32::MAX);
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
        observed_generation: budget.metadata.generation,
        conditions: was.conditions,
    };
    let (holds, reason) = if allowed > 0 {
        (ConditionStatus::True, "SufficientPods")
    } else {
        (ConditionStatus::False, "InsufficientPods")
    };
    tell(&mut status, holds, reason, "", now);
    Plan {
        status,
        spared,
        next,
    }
}

/// Evictions that were granted and are still awaited; pods that were spared; when the next one is given up.
fn granted(
    was: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Vec<Arc<Pod>>, Option<Duration>) {
    let mut awaited = BTreeMap::new();
    let mut spared = Vec::new();
    let mut next = None;
    let known = was.disrupted_pods.clone().unwrap_or_default();
    for pod in pods.iter().filter(|pod| !has_deletion_timestamp(pod)) {
        let Some(since) = known.get(&pod.name_any()) else {
            continue;
        };
        match time_until(saturating_add(since.0, EVICTION_MAX), now) {
            None => spared.push(pod.clone()),
            Some(left) => {
                awaited.insert(pod.name_any(), since.clone());
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            }
        }
    }
    (awaited, spared, next)
}

/// The status when the owners' size cannot be told: nothing is allowed.
pub(super) fn fail_safe(
    budget: &PodDisruptionBudget,
    why: &str,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    tell(&mut status, ConditionStatus::False, "SyncFailed", why, now);
    status
}

fn tell(
    status: &mut PodDisruptionBudgetStatus,
    holds: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let observed_generation = status.observed_generation;
    let set = SetCondition {
        type_: ALLOWED,
        status: holds,
        reason,
        message,
        observed_generation,
    };
    set_condition(status.conditions.get_or_insert_default(), &set, now);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workloads::test_objects::pod;

    fn now() -> Timestamp {
        Timestamp::from_second(10_000).unwrap()
    }

    fn budget(spec: Value, disrupted: Value) -> PodDisruptionBudget {
        let status = json!({ "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": 0, "disruptedPods": disrupted });
        serde_json::from_value(
            json!({ "metadata": { "name": "b", "generation": 3 }, "spec": spec, "status": status }),
        )
        .unwrap()
    }

    fn counted(spec: Value, ready: usize, broken: usize, scale: i32) -> (i32, i32, i32, i32) {
        let ready = (0..ready).map(|i| pod(&format!("r{i}")).running().ready().cached());
        let pods: Vec<_> = ready
            .chain((0..broken).map(|i| pod(&format!("b{i}")).running().cached()))
            .collect();
        let budget = budget(spec, json!({}));
        let status = plan(&budget, budget.spec.as_ref().unwrap(), &pods, scale, now()).status;
        let all = [
            status.expected_pods,
            status.desired_healthy,
            status.current_healthy,
            status.disruptions_allowed,
        ];
        all.map(Option::unwrap).into()
    }

    #[test]
    fn budget_allows_what_is_to_spare() {
        for (spec, ready, broken, scale, expected) in [
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
                counted(spec.clone(), ready, broken, scale),
                expected,
                "{spec}, {ready} ready, {broken} not, of {scale}"
            );
        }
    }

    #[test]
    fn granted_eviction_counts_until_it_is_over() {
        let ago = |seconds: i64| json!(Timestamp::from_second(10_000 - seconds).unwrap());
        let budget = budget(
            json!({ "minAvailable": 1 }),
            json!({ "a": ago(50), "b": ago(121), "gone": ago(5), "c": ago(5) }),
        );
        let pods = [
            pod("a").running().ready().cached(),
            pod("b").running().ready().cached(),
            pod("c").running().ready().deleting().cached(),
            pod("d").running().ready().cached(),
        ];
        let plan = plan(&budget, budget.spec.as_ref().unwrap(), &pods, 0, now());
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
            plan.spared
                .iter()
                .map(|pod| pod.name_any())
                .collect::<Vec<_>>(),
            ["b"]
        );
        assert_eq!(plan.next, Some(Duration::from_secs(70)));
        assert_eq!(plan.status.observed_generation, Some(3));
    }

    #[test]
    fn what_cannot_be_counted_allows_nothing() {
        let mut budget = budget(json!({ "maxUnavailable": 1 }), json!({}));
        budget.status.as_mut().unwrap().disruptions_allowed = Some(4);
        let status = fail_safe(&budget, "found no controllers for pod \"x\"", now());
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!(status.conditions.unwrap()[0].reason.as_str(), "SyncFailed");
    }
}
