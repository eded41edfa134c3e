//! Plan for one StatefulSet: pods and claims to create, update and delete, and the status.
//!
//! Input: the StatefulSet, its revisions, pods and claims, the time. Output: actions, a status.
//! Guarantees: with `OrderedReady` a replica is created only when all replicas of lower ordinals
//! are available, and deleted only when none of a higher ordinal remains; with `Parallel` all are
//! created and deleted together. A rolling update replaces pods from the highest ordinal down to
//! the partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use kube::ResourceExt;

use super::identity::{
    identity_matches, new_pod, ordinal, ordinals, pod_revision, update_identity,
};
use super::volume_claims;
use crate::workloads::counts::{omit_zero, saturating_i32};
use crate::workloads::int_or_percent::{Round, scaled_value};
use crate::workloads::pods::{
    Phase, duration_from_seconds, has_deletion_timestamp, is_available, is_ready, is_terminal,
    phase,
};

/// One write or event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatefulSetAction {
    /// Create a claim of a pod.
    CreateClaim {
        claim: Box<PersistentVolumeClaim>,
        pod: String,
    },
    /// Create a pod.
    CreatePod(Box<Pod>),
    /// Delete a pod.
    DeletePod(Arc<Pod>),
    /// Restore the identity of a pod: labels and volumes.
    UpdatePod { from: Arc<Pod>, to: Box<Pod> },
    /// Change the owner references of a claim.
    UpdateClaim {
        from: Arc<PersistentVolumeClaim>,
        to: Box<PersistentVolumeClaim>,
    },
    /// Record an event: the claim has another controller.
    RecordConflictingController(String),
    /// Record an event: the pod cannot be created.
    RecordCreateFailure { pod: String, reason: String },
}

/// Name and template of a ControllerRevision.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// Observed state of one StatefulSet.
pub(super) struct StatefulSetState<'a> {
    pub(super) set: &'a StatefulSet,
    /// Revision of the pods that are not updated yet.
    pub(super) current: &'a Revision,
    /// Revision of the set's template.
    pub(super) update: &'a Revision,
    pub(super) pods: &'a [Arc<Pod>],
    /// Claims by name.
    pub(super) claim: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Sync),
    pub(super) now: Timestamp,
}

/// Result of planning one reconcile.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) actions: Vec<StatefulSetAction>,
    pub(super) status: StatefulSetStatus,
}

/// The pods of the desired replicas by ordinal; `None` if a pod does not exist.
type Replicas = BTreeMap<i32, Option<Arc<Pod>>>;

/// Pods beyond the desired replicas, highest ordinal first.
type Condemned = Vec<(i32, Arc<Pod>)>;

/// Whether the next replica is processed in this reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Continue,
    Block,
}

/// Plans one reconcile. Mirrors updateStatefulSet.
pub(super) fn plan(state: &StatefulSetState<'_>) -> Plan {
    let mut actions = Vec::new();
    let mut status = state.compute_replica_status();
    if state.set.metadata.deletion_timestamp.is_none() {
        let (replicas, condemned) = state.partition_pods();
        let progress = state.process_replicas(&replicas, &mut actions);
        let progress = if progress == Progress::Continue {
            state.process_condemned(&replicas, &condemned, &mut actions)
        } else {
            progress
        };
        if progress == Progress::Continue && state.is_rolling_update() {
            state.rolling_update(&replicas, &mut actions, &mut status);
        }
    }
    state.complete_rolling_update(&mut status);
    Plan { actions, status }
}

/// Whether the pod management policy is `Parallel`. Mirrors allowsBurst.
pub(super) fn allows_burst(set: &StatefulSet) -> bool {
    set.spec
        .as_ref()
        .and_then(|spec| spec.pod_management_policy.as_deref())
        == Some("Parallel")
}

impl StatefulSetState<'_> {
    fn spec(&self) -> &StatefulSetSpec {
        self.set
            .spec
            .as_ref()
            .expect("a set without a spec has no selector and is not planned")
    }

    fn rolling_update_strategy(&self) -> Option<&RollingUpdateStatefulSetStrategy> {
        self.spec()
            .update_strategy
            .as_ref()?
            .rolling_update
            .as_ref()
    }

    fn is_rolling_update(&self) -> bool {
        self.spec()
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            != Some("OnDelete")
    }

    fn min_ready(&self) -> Duration {
        duration_from_seconds(self.spec().min_ready_seconds)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now) && !has_deletion_timestamp(pod)
    }

    /// Partitions the pods into desired replicas and condemned ones.
    fn partition_pods(&self) -> (Replicas, Condemned) {
        let mut replicas: Replicas = ordinals(self.set).map(|ordinal| (ordinal, None)).collect();
        let mut condemned = Condemned::new();
        for pod in self.pods {
            let Some(ordinal) = ordinal(self.set, pod) else {
                continue;
            };
            match replicas.get_mut(&ordinal) {
                Some(replica) => *replica = Some(pod.clone()),
                None => condemned.push((ordinal, pod.clone())),
            }
        }
        condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        (replicas, condemned)
    }

    fn process_replicas(
        &self,
        replicas: &Replicas,
        actions: &mut Vec<StatefulSetAction>,
    ) -> Progress {
        let burst = allows_burst(self.set);
        for (ordinal, pod) in replicas {
            let progress = match pod {
                None => self.create_replica(*ordinal, actions),
                Some(pod) => self.process_replica(*ordinal, pod, actions),
            };
            // Mirrors runForAll: with OrderedReady the first replica that is not available ends the
            // reconcile.
            if progress == Progress::Block && !burst {
                return Progress::Block;
            }
        }
        Progress::Continue
    }

    /// Creates a replica and its claims, unless an earlier claim is terminating.
    fn create_replica(&self, ordinal: i32, actions: &mut Vec<StatefulSetAction>) -> Progress {
        let revision = if self.uses_current_revision(ordinal) {
            self.current
        } else {
            self.update
        };
        let pod = new_pod(self.set, &revision.template, &revision.name, ordinal);
        let claims: Vec<_> = volume_claims::desired_claims(self.set, ordinal)
            .into_iter()
            .map(|desired| ((self.claim)(&desired.name_any()), desired))
            .collect();
        if claims.iter().any(|(existing, _)| {
            existing
                .as_ref()
                .is_some_and(|existing| volume_claims::is_claim_stale(self.set, existing, ordinal))
        }) {
            return Progress::Block;
        }
        let terminating = claims.iter().find(|(existing, _)| {
            existing
                .as_ref()
                .is_some_and(|existing| existing.metadata.deletion_timestamp.is_some())
        });
        if let Some((_, claim)) = terminating {
            actions.push(StatefulSetAction::RecordCreateFailure {
                pod: pod.name_any(),
                reason: format!("pvc {} is being deleted", claim.name_any()),
            });
            return Progress::Block;
        }
        self.create_missing_claims(ordinal, &pod.name_any(), actions);
        actions.push(StatefulSetAction::CreatePod(Box::new(pod)));
        // The new pod is not available yet, so with OrderedReady the next ordinal waits.
        Progress::Block
    }

    fn create_missing_claims(&self, ordinal: i32, pod: &str, actions: &mut Vec<StatefulSetAction>) {
        let missing = volume_claims::desired_claims(self.set, ordinal)
            .into_iter()
            .filter(|claim| (self.claim)(&claim.name_any()).is_none());
        actions.extend(missing.map(|claim| StatefulSetAction::CreateClaim {
            claim: Box::new(claim),
            pod: pod.to_owned(),
        }));
    }

    /// Whether a replica of this ordinal is created from the current revision. Mirrors
    /// newVersionedStatefulSetPod.
    fn uses_current_revision(&self, ordinal: i32) -> bool {
        let replica_index = ordinal - ordinals(self.set).start;
        match self.rolling_update_strategy() {
            Some(rolling) => replica_index < rolling.partition.unwrap_or(0),
            None => {
                self.is_rolling_update()
                    && replica_index
                        < self
                            .set
                            .status
                            .as_ref()
                            .and_then(|status| status.current_replicas)
                            .unwrap_or(0)
            }
        }
    }

    /// Mirrors processReplica.
    fn process_replica(
        &self,
        ordinal: i32,
        pod: &Arc<Pod>,
        actions: &mut Vec<StatefulSetAction>,
    ) -> Progress {
        // A terminal pod, failed or succeeded, is deleted and created again.
        if is_terminal(pod) {
            actions.extend(
                (!has_deletion_timestamp(pod)).then(|| StatefulSetAction::DeletePod(pod.clone())),
            );
            return Progress::Block;
        }
        // Mirrors processReplica: a pending pod may lack claims.
        if phase(pod) == Phase::Pending && !has_deletion_timestamp(pod) {
            self.create_missing_claims(ordinal, &pod.name_any(), actions);
        }
        let is_running_and_available = phase(pod) == Phase::Running && self.is_available(pod);
        if !is_running_and_available && !allows_burst(self.set) {
            return Progress::Block;
        }
        if !identity_matches(self.set, pod, ordinal) {
            self.create_missing_claims(ordinal, &pod.name_any(), actions);
            let mut updated = Pod::clone(pod);
            update_identity(self.set, &mut updated, ordinal);
            actions.push(StatefulSetAction::UpdatePod {
                from: pod.clone(),
                to: Box::new(updated),
            });
        }
        self.update_claim_owners(ordinal, pod, actions);
        Progress::Continue
    }

    /// Updates the owner references of a replica's claims. Mirrors
    /// UpdatePodClaimForRetentionPolicy.
    fn update_claim_owners(&self, ordinal: i32, pod: &Pod, actions: &mut Vec<StatefulSetAction>) {
        for claim in volume_claims::desired_claims(self.set, ordinal)
            .iter()
            .filter_map(|claim| (self.claim)(&claim.name_any()))
        {
            if let Some(claim_with_owners) =
                volume_claims::with_owner_refs(self.set, pod, ordinal, &claim)
            {
                actions.extend(
                    volume_claims::has_unexpected_controller(self.set, pod, &claim)
                        .then(|| StatefulSetAction::RecordConflictingController(claim.name_any())),
                );
                actions.push(StatefulSetAction::UpdateClaim {
                    from: claim,
                    to: Box::new(claim_with_owners),
                });
            }
        }
    }

    /// Mirrors processCondemned.
    fn process_condemned(
        &self,
        replicas: &Replicas,
        condemned: &Condemned,
        actions: &mut Vec<StatefulSetAction>,
    ) -> Progress {
        for (ordinal, pod) in condemned {
            self.update_claim_owners(*ordinal, pod, actions);
        }
        let burst = allows_burst(self.set);
        let lowest_first = replicas
            .values()
            .flatten()
            .chain(condemned.iter().rev().map(|(_, pod)| pod));
        // Mirrors updateStatefulSet: the unavailable pod with the lowest ordinal.
        let first_unavailable = lowest_first
            .into_iter()
            .find(|pod| !self.is_available(pod))
            .map(|pod| pod.uid());
        for (_, pod) in condemned {
            // In order, one pod is deleted at a time, and only the first unavailable one while pods
            // are unavailable.
            let is_blocked = has_deletion_timestamp(pod)
                || (!self.is_available(pod) && first_unavailable != Some(pod.uid()));
            if !burst && is_blocked {
                return Progress::Block;
            }
            if !has_deletion_timestamp(pod) {
                actions.push(StatefulSetAction::DeletePod(pod.clone()));
            }
            if !burst {
                return Progress::Block;
            }
        }
        Progress::Continue
    }

    /// Deletes pods that do not have the update revision, highest ordinal first. Mirrors
    /// updateStatefulSetAfterInvariantEstablished.
    fn rolling_update(
        &self,
        replicas: &Replicas,
        actions: &mut Vec<StatefulSetAction>,
        status: &mut StatefulSetStatus,
    ) {
        let partition = ordinals(self.set).start
            + self
                .rolling_update_strategy()
                .and_then(|rolling| rolling.partition)
                .unwrap_or(0);
        let is_outdated =
            |pod: &Pod| pod_revision(pod) != self.update.name && !has_deletion_timestamp(pod);
        let is_unavailable =
            |pod: &Option<Arc<Pod>>| !pod.as_ref().is_some_and(|pod| self.is_available(pod));
        // Pods that are unavailable for other reasons use the budget too.
        let mut budget = match self
            .rolling_update_strategy()
            .and_then(|rolling| rolling.max_unavailable.as_ref())
        {
            Some(max) => {
                let total = self.spec().replicas.unwrap_or(1);
                let max = usize::try_from(scaled_value(Some(max), total, Round::Down).max(1))
                    .unwrap_or(1);
                max.saturating_sub(replicas.values().filter(|pod| is_unavailable(pod)).count())
            }
            None => 1,
        };
        // Without maxUnavailable the update waits for every pod it replaced.
        let one_by_one = self
            .rolling_update_strategy()
            .and_then(|rolling| rolling.max_unavailable.as_ref())
            .is_none();
        for (_, pod) in replicas.range(partition..).rev() {
            if budget == 0 {
                return;
            }
            match pod {
                Some(pod) if is_outdated(pod) => {
                    // A terminal pod has been deleted by process_replica.
                    if !is_terminal(pod) {
                        actions.push(StatefulSetAction::DeletePod(pod.clone()));
                    }
                    let current = status.current_replicas.unwrap_or(0)
                        - i32::from(pod_revision(pod) == self.current.name);
                    // The deleted pod no longer counts as a replica of the current revision.
                    status.current_replicas = omit_zero(current.max(0));
                    budget -= 1;
                }
                pod if one_by_one && is_unavailable(pod) => return,
                _ => {}
            }
        }
    }

    /// Mirrors computeReplicaStatus.
    fn compute_replica_status(&self) -> StatefulSetStatus {
        let count = |predicate: &dyn Fn(&Pod) -> bool| {
            let pods = self
                .pods
                .iter()
                .filter(|pod| ordinal(self.set, pod).is_some());
            saturating_i32(pods.filter(|pod| predicate(pod)).count())
        };
        let has_revision =
            |pod: &Pod, name: &str| !has_deletion_timestamp(pod) && pod_revision(pod) == name;
        let is_running_and_ready = |pod: &Pod| phase(pod) == Phase::Running && is_ready(pod);
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: count(&|_| true),
            ready_replicas: omit_zero(count(&is_running_and_ready)),
            available_replicas: Some(count(&|pod| {
                is_running_and_ready(pod) && is_available(pod, self.min_ready(), self.now)
            })),
            current_replicas: omit_zero(count(&|pod| has_revision(pod, &self.current.name))),
            updated_replicas: omit_zero(count(&|pod| has_revision(pod, &self.update.name))),
            current_revision: Some(self.current.name.clone()),
            update_revision: Some(self.update.name.clone()),
            collision_count: Some(
                self.set
                    .status
                    .as_ref()
                    .and_then(|status| status.collision_count)
                    .unwrap_or(0),
            ),
            conditions: self
                .set
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone()),
        }
    }

    /// Makes the update revision the current one when all replicas are updated and ready. Mirrors
    /// completeRollingUpdate.
    fn complete_rolling_update(&self, status: &mut StatefulSetStatus) {
        let desired = self.spec().replicas.unwrap_or(1);
        let counts = [
            status.updated_replicas.unwrap_or(0),
            status.ready_replicas.unwrap_or(0),
            status.replicas,
        ];
        if self.is_rolling_update() && counts.into_iter().all(|count| count == desired) {
            status.current_replicas = status.updated_replicas;
            status.current_revision = status.update_revision.clone();
        }
    }
}

#[cfg(test)]
mod tests;
