//! Plan for one Deployment: desired ReplicaSets, ReplicaSets to delete, status.
//!
//! Input: the Deployment, its ReplicaSets, whether a ReplicaSet has running pods, the time.
//! Output: a plan.
//! Guarantees: one reconcile makes at most one step of a rollout; the next step follows when the
//! statuses of the ReplicaSets change.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet};
use kube::ResourceExt;

use super::replica_sets::{
    PlannedReplicaSet, REVISION_ANNOTATION, ReplicaBounds, ReplicaSets, is_recreate,
};
use super::scale::{
    is_scaling_event, new_replica_set_replicas, reconcile_new_replica_set,
    reconcile_old_replica_sets, scale, scale_old_to_zero,
};
use super::status::{
    calculate_status, check_paused_conditions, is_complete, next_progress_check,
    set_new_replica_set_condition, sync_rollout_status,
};

/// Result of planning one reconcile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) replica_sets: ReplicaSets,
    /// Old ReplicaSets beyond the revision history limit.
    pub(super) delete: Vec<Arc<ReplicaSet>>,
    pub(super) status: DeploymentStatus,
    /// Time until the progress deadline has to be checked.
    pub(super) requeue_after: Option<Duration>,
}

impl Plan {
    /// The revision of the new ReplicaSet, if the Deployment's annotation differs.
    pub(super) fn new_revision(&self, deployment: &Deployment) -> Option<String> {
        let revision = self
            .replica_sets
            .new
            .as_ref()?
            .desired
            .annotations()
            .get(REVISION_ANNOTATION)?;
        (deployment.annotations().get(REVISION_ANNOTATION) != Some(revision))
            .then(|| revision.clone())
    }
}

/// Plans one reconcile. `has_pods` returns whether a ReplicaSet has pods that are not terminal,
/// independent of its status. Mirrors syncDeployment.
pub(super) fn plan(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    has_pods: impl Fn(&ReplicaSet) -> bool,
    now: Timestamp,
) -> Plan {
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut planner = Planner {
        deployment,
        bounds: ReplicaBounds::of(&spec),
        replica_sets: ReplicaSets::of(deployment, sets),
        delete: Vec::new(),
        before: deployment.status.clone().unwrap_or_default(),
        now,
    };
    // Mirrors syncStatusOnly: a terminating Deployment gets a status, but is not scaled.
    let terminating = deployment.metadata.deletion_timestamp.is_some();
    if !terminating {
        check_paused_conditions(&mut planner.before, deployment, now);
    }
    let is_rollout = !terminating && planner.sync(&spec, has_pods);
    planner.finish(is_rollout)
}

struct Planner<'a> {
    deployment: &'a Deployment,
    bounds: ReplicaBounds,
    replica_sets: ReplicaSets,
    delete: Vec<Arc<ReplicaSet>>,
    /// The status before this reconcile, with the conditions for pause and resume.
    before: DeploymentStatus,
    now: Timestamp,
}

impl Planner<'_> {
    /// Scales the ReplicaSets. Returns whether this is a step of a rollout, whose progress is
    /// reported.
    fn sync(&mut self, spec: &DeploymentSpec, has_pods: impl Fn(&ReplicaSet) -> bool) -> bool {
        let paused = spec.paused == Some(true);
        // Mirrors sync: while paused, and when the replicas changed, the rollout does not proceed.
        if paused || is_scaling_event(&self.replica_sets, self.bounds) {
            scale(&mut self.replica_sets, self.bounds, !is_recreate(spec));
            if paused {
                self.cleanup(spec);
            }
            return false;
        }
        let unchanged = if is_recreate(spec) {
            self.rollout_recreate(has_pods)
        } else {
            self.rollout_rolling()
        };
        // Old ReplicaSets are kept for a rollback until the rollout is complete.
        if unchanged && is_complete(self.deployment, &self.before) {
            self.cleanup(spec);
        }
        true
    }

    /// Returns whether no ReplicaSet was scaled. Mirrors rolloutRolling.
    fn rollout_rolling(&mut self) -> bool {
        let bounds = self.bounds;
        self.replica_sets
            .get_or_create_new(self.deployment, bounds, |replica_sets| {
                new_replica_set_replicas(replica_sets, bounds)
            });
        // Mirrors rolloutRolling: old ReplicaSets are scaled down only if the new one was not
        // scaled up, because the statuses do not reflect that write yet.
        !reconcile_new_replica_set(&mut self.replica_sets, bounds)
            && !reconcile_old_replica_sets(&mut self.replica_sets, bounds)
    }

    /// Scales the new ReplicaSet up once all old pods are gone. Returns whether no ReplicaSet was
    /// scaled. Mirrors rolloutRecreate and oldPodsRunning.
    fn rollout_recreate(&mut self, has_pods: impl Fn(&ReplicaSet) -> bool) -> bool {
        // Mirrors oldPodsRunning. status.replicas does not count terminating pods, and with
        // Recreate old and new pods must not run at the same time.
        let pods_running = |set: &PlannedReplicaSet| set.actual() > 0 || has_pods(&set.desired);
        if scale_old_to_zero(&mut self.replica_sets, self.bounds)
            || self.replica_sets.old.iter().any(pods_running)
        {
            return false;
        }
        let bounds = self.bounds;
        let new = self
            .replica_sets
            .get_or_create_new(self.deployment, bounds, |_| bounds.desired);
        new.replicas() == bounds.desired || !new.scale(bounds.desired, bounds)
    }

    /// Selects old ReplicaSets without pods beyond the revision history limit, lowest revision
    /// first. Mirrors cleanupDeployment.
    fn cleanup(&mut self, spec: &DeploymentSpec) {
        // Mirrors HasRevisionHistoryLimit: the largest value means no limit.
        let Some(limit) = spec
            .revision_history_limit
            .filter(|limit| *limit != i32::MAX)
        else {
            return;
        };
        let mut old: Vec<&PlannedReplicaSet> = self
            .replica_sets
            .old
            .iter()
            .filter(|set| set.desired.metadata.deletion_timestamp.is_none())
            .collect();
        old.sort_by_key(|set| (set.revision(), set.creation_order()));
        let surplus = old
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        // Mirrors cleanupDeployment: as long as the status is older than the spec, the ReplicaSet
        // may still have pods.
        let is_scaled_down = |set: &&&PlannedReplicaSet| {
            let observed = set
                .desired
                .status
                .as_ref()
                .and_then(|status| status.observed_generation)
                .unwrap_or(0);
            set.actual() == 0
                && set.replicas() == 0
                && set.desired.metadata.generation.unwrap_or(0) <= observed
        };
        self.delete = old
            .iter()
            .take(surplus)
            .filter(is_scaled_down)
            .filter_map(|set| set.cached.clone())
            .collect();
    }

    fn finish(self, is_rollout: bool) -> Plan {
        let Self {
            deployment,
            bounds,
            replica_sets,
            delete,
            mut before,
            now,
        } = self;
        if let Some(new) = &replica_sets.new {
            set_new_replica_set_condition(&mut before, deployment, new, now);
        }
        let mut status = calculate_status(&before, deployment, &replica_sets, bounds, now);
        let mut requeue_after = None;
        if is_rollout {
            sync_rollout_status(&mut status, &before, deployment, &replica_sets, now);
            requeue_after = next_progress_check(deployment, &status, now);
        }
        Plan {
            replica_sets,
            delete,
            status,
            requeue_after,
        }
    }
}

#[cfg(test)]
mod tests;
