//! Scaling of a Deployment's ReplicaSets: rolling update steps and proportional scaling.
//!
//! Input: the ReplicaSets, the bounds. Output: the ReplicaSets with new desired replicas.
//! Guarantees: the sum of replicas does not exceed `desired + maxSurge`; old ReplicaSets are scaled
//! down only while `desired - maxUnavailable` pods are available, unhealthy replicas first.

use std::cmp::Reverse;

use super::replica_sets::{
    DESIRED_REPLICAS_ANNOTATION, MAX_REPLICAS_ANNOTATION, PlannedReplicaSet, ReplicaBounds,
    ReplicaSets,
};

/// Whether the Deployment was scaled since its ReplicaSets were last scaled. Mirrors
/// isScalingEvent.
pub(super) fn is_scaling_event(replica_sets: &ReplicaSets, bounds: ReplicaBounds) -> bool {
    replica_sets
        .all()
        .filter(|set| set.is_active())
        .filter_map(|set| set.replicas_annotation(DESIRED_REPLICAS_ANNOTATION))
        .any(|desired| desired != bounds.desired)
}

/// The replicas of the new ReplicaSet that the bounds allow now. Mirrors NewRSNewReplicas.
pub(super) fn new_replica_set_replicas(replica_sets: &ReplicaSets, bounds: ReplicaBounds) -> i32 {
    let current = replica_sets
        .new
        .as_ref()
        .map_or(0, PlannedReplicaSet::replicas);
    let total = replica_sets.sum(PlannedReplicaSet::replicas);
    // Mirrors NewRSNewReplicas: maxSurge limits the sum over all ReplicaSets.
    if total >= bounds.max() {
        current
    } else {
        current + (bounds.max() - total).min(bounds.desired - current)
    }
}

/// Scales the new ReplicaSet by one step. Returns whether it was scaled. Mirrors
/// reconcileNewReplicaSet.
pub(super) fn reconcile_new_replica_set(
    replica_sets: &mut ReplicaSets,
    bounds: ReplicaBounds,
) -> bool {
    let allowed = new_replica_set_replicas(replica_sets, bounds);
    let Some(new) = &mut replica_sets.new else {
        return false;
    };
    // Mirrors reconcileNewReplicaSet: after the Deployment was scaled down, the bounds of the
    // rollout do not apply to the surplus.
    let replicas = if new.replicas() > bounds.desired {
        bounds.desired
    } else {
        allowed
    };
    replicas != new.replicas() && new.scale(replicas, bounds)
}

/// Scales the old ReplicaSets down by one step. Returns whether one was scaled. Mirrors
/// reconcileOldReplicaSets.
pub(super) fn reconcile_old_replica_sets(
    replica_sets: &mut ReplicaSets,
    bounds: ReplicaBounds,
) -> bool {
    let Some(new) = &replica_sets.new else {
        return false;
    };
    // Unavailable replicas of the new ReplicaSet must not be compensated by scaling the old ones
    // down.
    let new_unavailable = new.replicas() - new.available();
    let max_scaled_down =
        replica_sets.sum(PlannedReplicaSet::replicas) - bounds.min_available() - new_unavailable;
    if max_scaled_down <= 0 || replica_sets.old.iter().all(|set| !set.is_active()) {
        return false;
    }
    let unhealthy = cleanup_unhealthy_replicas(&mut replica_sets.old, max_scaled_down, bounds);
    // Mirrors scaleDownOldReplicaSetsForRollingUpdate. The cleaned up replicas were not available,
    // so the count of available ones is still valid.
    let surplus = replica_sets.sum(PlannedReplicaSet::available) - bounds.min_available();
    let healthy = scale_down(
        &mut replica_sets.old,
        surplus,
        bounds,
        PlannedReplicaSet::replicas,
    );
    unhealthy || healthy
}

/// Scales down replicas that are not available, which would block the rollout. Mirrors
/// cleanupUnhealthyReplicas.
fn cleanup_unhealthy_replicas(
    old: &mut [PlannedReplicaSet],
    max: i32,
    bounds: ReplicaBounds,
) -> bool {
    scale_down(old, max, bounds, |set| {
        (set.replicas() - set.available()).max(0)
    })
}

/// Removes up to `max` replicas, oldest ReplicaSet first, from each at most `removable`. Returns
/// whether one was scaled.
fn scale_down(
    sets: &mut [PlannedReplicaSet],
    mut max: i32,
    bounds: ReplicaBounds,
    removable: impl Fn(&PlannedReplicaSet) -> i32,
) -> bool {
    let mut scaled = false;
    for set in sets.iter_mut().filter(|set| set.is_active()) {
        let removed = removable(set).min(max);
        if removed > 0 {
            set.scale(set.replicas() - removed, bounds);
            max -= removed;
            scaled = true;
        }
    }
    scaled
}

/// Scales all old ReplicaSets to 0. Returns whether one was scaled. Mirrors
/// scaleDownOldReplicaSetsForRecreate.
pub(super) fn scale_old_to_zero(replica_sets: &mut ReplicaSets, bounds: ReplicaBounds) -> bool {
    scale_down(
        &mut replica_sets.old,
        i32::MAX,
        bounds,
        PlannedReplicaSet::replicas,
    )
}

/// Applies a change of the Deployment's replicas. A single active ReplicaSet gets all of it; during
/// a rolling update it is distributed proportionally, so that the share of the new template does
/// not grow. Mirrors DeploymentController.scale.
pub(super) fn scale(replica_sets: &mut ReplicaSets, bounds: ReplicaBounds, rolling: bool) {
    if let Some(set) = find_active_or_latest(replica_sets) {
        if set.replicas() != bounds.desired {
            set.scale(bounds.desired, bounds);
        }
        return;
    }
    if replica_sets
        .new
        .as_ref()
        .is_some_and(|new| is_saturated(new, bounds))
    {
        scale_old_to_zero(replica_sets, bounds);
    } else if rolling {
        scale_proportionally(replica_sets, bounds);
    }
}

/// The only active ReplicaSet, or the latest if none is active; `None` if several are active.
/// Mirrors FindActiveOrLatest.
fn find_active_or_latest(replica_sets: &mut ReplicaSets) -> Option<&mut PlannedReplicaSet> {
    let active = replica_sets.all().filter(|set| set.is_active()).count();
    match active {
        0 if replica_sets.new.is_some() => replica_sets.new.as_mut(),
        0 => replica_sets.old.last_mut(),
        1 => replica_sets
            .old
            .iter_mut()
            .chain(&mut replica_sets.new)
            .find(|set| set.is_active()),
        _ => None,
    }
}

/// Whether the new ReplicaSet has all desired replicas available. Mirrors IsSaturated.
fn is_saturated(new: &PlannedReplicaSet, bounds: ReplicaBounds) -> bool {
    new.replicas() == bounds.desired
        && new.replicas_annotation(DESIRED_REPLICAS_ANNOTATION) == Some(bounds.desired)
        && new.available() == bounds.desired
}

fn scale_proportionally(replica_sets: &mut ReplicaSets, bounds: ReplicaBounds) {
    let actual: i32 = replica_sets.sum(PlannedReplicaSet::actual);
    let mut active: Vec<&mut PlannedReplicaSet> = replica_sets
        .old
        .iter_mut()
        .chain(&mut replica_sets.new)
        .filter(|set| set.is_active())
        .collect();
    // Mirrors scale: without desired replicas no surge is allowed.
    let allowed = if bounds.desired > 0 { bounds.max() } else { 0 };
    let to_add = allowed - active.iter().map(|set| set.replicas()).sum::<i32>();
    // Larger ReplicaSets first. Of equal ones the newer is scaled up first, the older down first.
    active.sort_by_key(|set| (Reverse(set.replicas()), set.creation_order()));
    if to_add > 0 {
        active.sort_by_key(|set| Reverse((set.replicas(), set.creation_order())));
    }
    let mut added = 0;
    let mut new_replicas: Vec<i32> = Vec::with_capacity(active.len());
    for set in &active {
        let proportion = replica_set_proportion(set, bounds, actual, to_add, added);
        new_replicas.push(set.replicas() + proportion);
        added += proportion;
    }
    // The rounding remainder goes to the largest.
    if let Some(largest) = new_replicas.first_mut() {
        *largest = (*largest + to_add - added).max(0);
    }
    for (set, replicas) in active.into_iter().zip(new_replicas) {
        set.scale(replicas, bounds);
    }
}

/// The number of replicas to add to a ReplicaSet (to remove, if negative), of those that are not
/// yet distributed. Mirrors GetReplicaSetProportion and getReplicaSetFraction.
fn replica_set_proportion(
    set: &PlannedReplicaSet,
    bounds: ReplicaBounds,
    actual: i32,
    to_add: i32,
    added: i32,
) -> i32 {
    let current = set.replicas();
    let remaining = to_add - added;
    if current == 0 || remaining == 0 {
        return 0;
    }
    let fraction = if bounds.desired == 0 {
        -current
    } else {
        // Without the annotation the base is the number of existing pods.
        match set
            .replicas_annotation(MAX_REPLICAS_ANNOTATION)
            .filter(|max| *max > 0)
            .unwrap_or(actual)
        {
            0 => 0,
            // Mirrors getReplicaSetFraction: relative to the maximum for which the ReplicaSet was
            // last scaled, so that rounding errors of repeated scaling do not add up.
            base => round(f64::from(current) * f64::from(bounds.max()) / f64::from(base)) - current,
        }
    };
    // The rounded fractions may add up to more than there is to distribute.
    if to_add > 0 {
        fraction.min(remaining)
    } else {
        fraction.max(remaining)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the conversion saturates, and the result is limited to the remaining replicas"
)]
fn round(number: f64) -> i32 {
    number.round() as i32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
    use serde_json::json;

    use super::*;

    /// ReplicaSets as `replicas/available/max-replicas annotation`, the new one last, `-` for none.
    fn replica_sets(sets: &[&str], desired: i32) -> ReplicaSets {
        let template =
            |image: &str| json!({ "spec": { "containers": [{ "name": "x", "image": image }] } });
        let deployment: Deployment = serde_json::from_value(
            json!({ "spec": { "replicas": desired, "selector": {}, "template": template("new") } }),
        )
        .unwrap();
        let last = sets.len() - 1;
        let sets = sets
            .iter()
            .enumerate()
            .filter(|(_, text)| **text != "-")
            .map(|(index, text)| {
                let counts: Vec<i32> = text
                    .split('/')
                    .map(|count| count.parse().unwrap())
                    .collect();
                let image = if index == last {
                    "new".into()
                } else {
                    format!("old-{index}")
                };
                let set: ReplicaSet = serde_json::from_value(json!({
                    "metadata": {
                        "name": format!("s{index}"),
                        "creationTimestamp": format!("2026-01-01T00:00:0{index}Z"),
                        "annotations": { MAX_REPLICAS_ANNOTATION: counts[2].to_string() },
                    },
                    "spec": { "replicas": counts[0], "selector": {}, "template": template(&image) },
                    "status": { "replicas": counts[0], "availableReplicas": counts[1] },
                }))
                .unwrap();
                Arc::new(set)
            });
        ReplicaSets::of(&deployment, &sets.collect::<Vec<_>>())
    }

    fn replicas(replica_sets: &ReplicaSets) -> Vec<i32> {
        replica_sets
            .all()
            .map(PlannedReplicaSet::replicas)
            .collect()
    }

    fn bounds(desired: i32, max_surge: i32, max_unavailable: i32) -> ReplicaBounds {
        ReplicaBounds {
            desired,
            max_surge,
            max_unavailable,
        }
    }

    #[test]
    fn new_replica_set_is_scaled_up_within_bounds() {
        for (sets, bounds, expected) in [
            (&["10/10/12", "0/0/12"][..], bounds(10, 2, 2), vec![10, 2]),
            (&["8/8/12", "2/0/12"], bounds(10, 2, 2), vec![8, 4]),
            (&["8/8/12", "4/0/12"], bounds(10, 2, 2), vec![8, 4]),
            (&["0/0/12", "8/8/12"], bounds(10, 2, 2), vec![0, 10]),
            (&["0/0/12", "12/8/12"], bounds(10, 2, 2), vec![0, 10]),
        ] {
            let mut replica_sets = replica_sets(sets, bounds.desired);
            let scaled = reconcile_new_replica_set(&mut replica_sets, bounds);
            assert_eq!(replicas(&replica_sets), expected, "{sets:?} {bounds:?}");
            assert_eq!(
                scaled,
                replica_sets.new.as_ref().unwrap().replicas()
                    != replica_sets.new.as_ref().unwrap().cached_replicas(),
                "{sets:?}"
            );
        }
    }

    #[test]
    fn old_replica_sets_are_scaled_down_within_availability() {
        for (case, sets, bounds, expected) in [
            (
                "two may be unavailable",
                &["10/10/13", "3/0/13"][..],
                bounds(10, 3, 2),
                vec![8, 3],
            ),
            (
                "new replicas are available",
                &["8/8/13", "5/5/13"],
                bounds(10, 3, 2),
                vec![3, 5],
            ),
            (
                "new replicas crash",
                &["8/8/13", "5/0/13"],
                bounds(10, 3, 2),
                vec![8, 5],
            ),
            (
                "an old replica is lost while new ones crash",
                &["8/7/13", "5/0/13"],
                bounds(10, 3, 2),
                vec![8, 5],
            ),
            (
                "rollback: unhealthy replicas are removed",
                &["5/0/13", "8/7/13"],
                bounds(10, 3, 2),
                vec![1, 8],
            ),
            (
                "rollover: unhealthy replicas are removed first",
                &["8/8/13", "5/0/13", "0/0/13"],
                bounds(10, 3, 2),
                vec![8, 0, 0],
            ),
            (
                "no old replicas",
                &["0/0/13", "10/10/13"],
                bounds(10, 3, 2),
                vec![0, 10],
            ),
            (
                "none may be unavailable",
                &["10/10/11", "1/0/11"],
                bounds(10, 1, 0),
                vec![10, 1],
            ),
            (
                "one is replaced",
                &["10/10/11", "1/1/11"],
                bounds(10, 1, 0),
                vec![9, 1],
            ),
        ] {
            let mut replica_sets = replica_sets(sets, bounds.desired);
            reconcile_old_replica_sets(&mut replica_sets, bounds);
            assert_eq!(
                replicas(&replica_sets),
                expected,
                "{case}: {sets:?} {bounds:?}"
            );
        }
    }

    #[test]
    fn scaling_during_a_rollout_is_proportional() {
        for (case, sets, bounds, expected) in [
            (
                "single active ReplicaSet",
                &["5/5/5", "0/0/5"][..],
                bounds(10, 0, 1),
                vec![10, 0],
            ),
            (
                "none is active: the new one",
                &["0/0/5", "0/0/5"],
                bounds(10, 0, 1),
                vec![0, 10],
            ),
            (
                "none is active or new: the latest",
                &["0/0/5", "0/0/5", "-"],
                bounds(10, 0, 1),
                vec![0, 10],
            ),
            (
                "doubled",
                &["8/8/13", "5/0/13"],
                bounds(20, 6, 2),
                vec![16, 10],
            ),
            (
                "halved",
                &["16/16/26", "10/0/26"],
                bounds(10, 3, 2),
                vec![8, 5],
            ),
            (
                "the largest gets the remainder",
                &["6/6/10", "4/0/10"],
                bounds(5, 0, 1),
                vec![3, 2],
            ),
            ("to 0", &["8/8/13", "5/0/13"], bounds(0, 0, 0), vec![0, 0]),
            (
                "the newer of equal ones is scaled up first",
                &["5/5/10", "5/0/10"],
                bounds(11, 0, 1),
                vec![5, 6],
            ),
            (
                "without the annotation",
                &["8/8/0", "5/0/0"],
                bounds(20, 6, 2),
                vec![16, 10],
            ),
        ] {
            let mut replica_sets = replica_sets(sets, bounds.desired);
            scale(&mut replica_sets, bounds, true);
            assert_eq!(
                replicas(&replica_sets),
                expected,
                "{case}: {sets:?} {bounds:?}"
            );
        }
    }
}
