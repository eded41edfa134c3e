//! Old and new ReplicaSets of a Deployment. The new one has the Deployment's pod template.
//!
//! Input: a Deployment and its ReplicaSets. Output: each ReplicaSet in its cached and desired
//! state.
//! Guarantees: at most one ReplicaSet is new, the oldest with an equal template; revision numbers
//! only increase; earlier revision numbers of a ReplicaSet are kept in its revision history.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::workloads::claim::controller_reference;
use crate::workloads::int_or_percent::resolve_fenceposts;
use crate::workloads::template::{POD_TEMPLATE_HASH_LABEL, compute_hash, equal_ignore_hash};

/// Revision of the Deployment that the ReplicaSet corresponds to.
pub(super) const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";
/// Earlier revisions of the ReplicaSet.
const REVISION_HISTORY_ANNOTATION: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the Deployment when the ReplicaSet was last scaled. A different value means
/// that the Deployment was scaled since.
pub(super) const DESIRED_REPLICAS_ANNOTATION: &str = "deployment.kubernetes.io/desired-replicas";
/// `spec.replicas` plus maxSurge at that time, the base of proportional scaling.
pub(super) const MAX_REPLICAS_ANNOTATION: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of the Deployment that are not copied to its ReplicaSets. Mirrors
/// skipCopyAnnotation.
const SKIPPED_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION_ANNOTATION,
    REVISION_HISTORY_ANNOTATION,
    DESIRED_REPLICAS_ANNOTATION,
    MAX_REPLICAS_ANNOTATION,
    "deprecated.deployment.rollback.to",
];

/// Maximum length of the revision history annotation, in characters.
const REVISION_HISTORY_MAX_LENGTH: usize = 2000;

/// Maximum length of the name of a ReplicaSet.
const NAME_MAX_LENGTH: usize = 253;

/// A ReplicaSet in its cached and desired state.
#[derive(Clone, Debug)]
pub(super) struct PlannedReplicaSet {
    /// `None` if it has to be created.
    pub(super) cached: Option<Arc<ReplicaSet>>,
    pub(super) desired: ReplicaSet,
}

impl PlannedReplicaSet {
    fn existing(set: &Arc<ReplicaSet>) -> Self {
        Self {
            cached: Some(set.clone()),
            desired: ReplicaSet::clone(set),
        }
    }

    /// Desired `spec.replicas`.
    pub(super) fn replicas(&self) -> i32 {
        self.desired
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }

    /// Cached `spec.replicas`; 0 if the ReplicaSet does not exist.
    pub(super) fn cached_replicas(&self) -> i32 {
        self.cached.as_ref().map_or(0, |set| {
            set.spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1)
        })
    }

    /// `status.replicas`.
    pub(super) fn actual(&self) -> i32 {
        self.desired
            .status
            .as_ref()
            .map_or(0, |status| status.replicas)
    }

    /// `status.availableReplicas`.
    pub(super) fn available(&self) -> i32 {
        self.desired
            .status
            .as_ref()
            .and_then(|status| status.available_replicas)
            .unwrap_or(0)
    }

    /// `status.readyReplicas`.
    pub(super) fn ready(&self) -> i32 {
        self.desired
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or(0)
    }

    /// The value of a replicas annotation. Mirrors getNonNegativeInt32FromAnnotation.
    pub(super) fn replicas_annotation(&self, annotation: &str) -> Option<i32> {
        self.desired
            .annotations()
            .get(annotation)?
            .parse()
            .ok()
            .filter(|number| *number >= 0)
    }

    /// Its revision; 0 without the annotation.
    pub(super) fn revision(&self) -> i64 {
        self.desired
            .annotations()
            .get(REVISION_ANNOTATION)
            .and_then(|revision| revision.parse().ok())
            .unwrap_or(0)
    }

    /// Whether its desired replicas are not 0.
    pub(super) fn is_active(&self) -> bool {
        self.replicas() > 0
    }

    /// Sets the desired replicas and the replicas annotations. Returns whether the replicas
    /// changed.
    pub(super) fn scale(&mut self, replicas: i32, bounds: ReplicaBounds) -> bool {
        let changed = self.replicas() != replicas;
        self.desired.spec.get_or_insert_default().replicas = Some(replicas);
        self.set_replicas_annotations(bounds);
        changed
    }

    /// Mirrors SetReplicasAnnotations.
    fn set_replicas_annotations(&mut self, bounds: ReplicaBounds) {
        let annotations = self.desired.annotations_mut();
        annotations.insert(
            DESIRED_REPLICAS_ANNOTATION.into(),
            bounds.desired.to_string(),
        );
        annotations.insert(MAX_REPLICAS_ANNOTATION.into(), bounds.max().to_string());
    }

    /// Sort key by creation timestamp and name, oldest first.
    pub(super) fn creation_order(&self) -> impl Ord + use<> {
        (
            self.desired
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            self.desired.name_any(),
        )
    }
}

/// Desired replicas of a Deployment and the bounds of its rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicaBounds {
    pub(super) desired: i32,
    pub(super) max_surge: i32,
    pub(super) max_unavailable: i32,
}

impl ReplicaBounds {
    pub(super) fn of(spec: &DeploymentSpec) -> Self {
        let desired = spec.replicas.unwrap_or(1);
        if is_recreate(spec) {
            return Self {
                desired,
                max_surge: 0,
                max_unavailable: 0,
            };
        }
        let rolling = spec
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|it| it.max_surge.as_ref());
        let unavailable = rolling.and_then(|it| it.max_unavailable.as_ref());
        let (max_surge, max_unavailable) = resolve_fenceposts(surge, unavailable, desired);
        Self {
            desired,
            max_surge,
            // Mirrors MaxUnavailable: at most all replicas.
            max_unavailable: max_unavailable.min(desired),
        }
    }

    /// Maximum number of replicas of all ReplicaSets.
    pub(super) fn max(self) -> i32 {
        self.desired.saturating_add(self.max_surge)
    }

    /// Minimum number of available replicas.
    pub(super) fn min_available(self) -> i32 {
        self.desired - self.max_unavailable
    }
}

/// Whether the strategy is `Recreate`.
pub(super) fn is_recreate(spec: &DeploymentSpec) -> bool {
    spec.strategy
        .as_ref()
        .and_then(|strategy| strategy.type_.as_deref())
        == Some("Recreate")
}

/// All ReplicaSets of one Deployment.
#[derive(Clone, Debug)]
pub(super) struct ReplicaSets {
    pub(super) new: Option<PlannedReplicaSet>,
    /// Oldest first.
    pub(super) old: Vec<PlannedReplicaSet>,
}

impl ReplicaSets {
    /// Finds the new ReplicaSet and updates its annotations and `minReadySeconds`. Mirrors
    /// FindNewReplicaSet and FindOldReplicaSets.
    pub(super) fn of(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Self {
        let mut old: Vec<_> = sets.iter().map(PlannedReplicaSet::existing).collect();
        old.sort_by_key(PlannedReplicaSet::creation_order);
        let template = deployment.spec.as_ref().map(|spec| &spec.template);
        let has_template = |replica_set: &PlannedReplicaSet| {
            equal_ignore_hash(
                replica_set
                    .desired
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.template.as_ref()),
                template,
            )
        };
        // Mirrors FindNewReplicaSet: of several equal ones the oldest is used.
        let new = old
            .iter()
            .position(has_template)
            .map(|index| old.remove(index));
        let mut replica_sets = Self { new, old };
        let revision = replica_sets.next_revision();
        if let Some(new) = &mut replica_sets.new {
            // minReadySeconds is not part of the template, so a change of it does not create a
            // revision.
            new.desired.spec.get_or_insert_default().min_ready_seconds = deployment
                .spec
                .as_ref()
                .and_then(|spec| spec.min_ready_seconds);
            set_new_replica_set_annotations(&mut new.desired, deployment, revision);
        }
        replica_sets
    }

    /// All ReplicaSets, the new one last.
    pub(super) fn all(&self) -> impl Iterator<Item = &PlannedReplicaSet> {
        self.old.iter().chain(&self.new)
    }

    /// The sum of a count over all ReplicaSets.
    pub(super) fn sum(&self, count: impl Fn(&PlannedReplicaSet) -> i32) -> i32 {
        self.all().map(count).sum()
    }

    // Mirrors getNewReplicaSet (MaxRevision of the old ReplicaSets plus 1): a rollback reuses a
    // ReplicaSet and moves its revision above all others.
    fn next_revision(&self) -> i64 {
        self.old
            .iter()
            .map(PlannedReplicaSet::revision)
            .max()
            .unwrap_or(0)
            + 1
    }

    /// The new ReplicaSet. If there is none, it is planned with the result of `replicas`. Mirrors
    /// getNewReplicaSet.
    pub(super) fn get_or_create_new(
        &mut self,
        deployment: &Deployment,
        bounds: ReplicaBounds,
        replicas: impl FnOnce(&Self) -> i32,
    ) -> &mut PlannedReplicaSet {
        if self.new.is_none() {
            let mut set = new_replica_set(deployment);
            set.spec.get_or_insert_default().replicas = Some(replicas(self));
            set_new_replica_set_annotations(&mut set, deployment, self.next_revision());
            let mut replica_set = PlannedReplicaSet {
                cached: None,
                desired: set,
            };
            replica_set.set_replicas_annotations(bounds);
            self.new = Some(replica_set);
        }
        self.new.as_mut().expect("it was set above")
    }
}

/// A ReplicaSet of the Deployment's template, with 0 replicas.
fn new_replica_set(deployment: &Deployment) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let hash = compute_hash(
        &spec.template,
        deployment
            .status
            .as_ref()
            .and_then(|status| status.collision_count),
    );
    let mut template: PodTemplateSpec = spec.template;
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(POD_TEMPLATE_HASH_LABEL.into(), hash.clone());
    let labels = labels.clone();
    // With the hash in the selector, the ReplicaSets of one Deployment do not select each other's
    // pods.
    let mut selector = spec.selector;
    selector
        .match_labels
        .get_or_insert_default()
        .insert(POD_TEMPLATE_HASH_LABEL.into(), hash.clone());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(generate_replica_set_name(&deployment.name_any(), &hash)),
            namespace: deployment.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

/// The Deployment's name, truncated if necessary, and the hash. Mirrors generateReplicaSetName.
fn generate_replica_set_name(deployment: &str, hash: &str) -> String {
    let prefix_max = NAME_MAX_LENGTH.saturating_sub(hash.len() + 1);
    let end = (0..=prefix_max.min(deployment.len()))
        .rev()
        .find(|end| deployment.is_char_boundary(*end))
        .unwrap_or(0);
    format!("{}-{hash}", &deployment[..end])
}

/// Copies the Deployment's annotations to the new ReplicaSet and sets its revision, unless it has a
/// higher one. Mirrors SetNewReplicaSetAnnotations.
fn set_new_replica_set_annotations(set: &mut ReplicaSet, deployment: &Deployment, revision: i64) {
    let annotations = set.annotations_mut();
    let copied = deployment
        .annotations()
        .iter()
        .filter(|(key, _)| !SKIPPED_ANNOTATIONS.contains(&key.as_str()));
    // Mirrors copyDeploymentAnnotationsToReplicaSet.
    annotations.extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    let current = annotations.get(REVISION_ANNOTATION).cloned();
    let number = current
        .as_ref()
        .map_or(Some(0), |current| current.parse::<i64>().ok());
    // A revision that is not a number is kept.
    if number.is_none_or(|number| number >= revision) {
        return;
    }
    annotations.insert(REVISION_ANNOTATION.into(), revision.to_string());
    if let Some(current) = current {
        append_revision_history(annotations, current);
    }
}

/// Appends an earlier revision to the history and drops the oldest ones beyond the maximum length.
fn append_revision_history(annotations: &mut BTreeMap<String, String>, revision: String) {
    let history = annotations
        .get(REVISION_HISTORY_ANNOTATION)
        .cloned()
        .unwrap_or_default();
    let mut revisions: Vec<&str> = history
        .split(',')
        .filter(|revision| !revision.is_empty())
        .collect();
    revisions.push(&revision);
    let length = |revisions: &[&str]| {
        revisions
            .iter()
            .map(|revision| revision.len() + 1)
            .sum::<usize>()
            .saturating_sub(1)
    };
    let first = (0..revisions.len())
        .find(|from| length(&revisions[*from..]) <= REVISION_HISTORY_MAX_LENGTH)
        .unwrap_or(0);
    annotations.insert(
        REVISION_HISTORY_ANNOTATION.into(),
        revisions[first..].join(","),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_truncated_before_the_hash() {
        assert_eq!(generate_replica_set_name("web", "abc"), "web-abc");
        let long = "x".repeat(253);
        assert_eq!(
            generate_replica_set_name(&long, "abc").len(),
            NAME_MAX_LENGTH
        );
        assert!(generate_replica_set_name(&long, "abc").ends_with("x-abc"));
    }

    #[test]
    fn revision_history_has_a_maximum_length() {
        let mut annotations = BTreeMap::new();
        for revision in 1..=1000 {
            append_revision_history(&mut annotations, revision.to_string());
        }
        let history = &annotations[REVISION_HISTORY_ANNOTATION];
        assert!(history.ends_with(",999,1000"), "{}", history.len());
        assert!(
            history.len() <= REVISION_HISTORY_MAX_LENGTH,
            "{}",
            history.len()
        );
    }
}
