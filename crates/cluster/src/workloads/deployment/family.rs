//! The sets of a Deployment: the new one, whose template is the Deployment's, and the old ones.
//!
//! In: a Deployment and the ReplicaSets it owns. Out: members, each as read and as wanted.
//! Holds: at most one set is new, the oldest that fits; revisions only grow; what a set was before a rollback is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::workloads::claim::controller_reference;
use crate::workloads::share::fenceposts;
use crate::workloads::template::{TEMPLATE_HASH, hash, same_template};

/// Which revision of the Deployment a set is.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Which revisions it was before.
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// How many replicas the Deployment wanted when the set was last scaled: tells a scaling from a rollout.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// How many it could have had at most then: the base of proportions.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of the Deployment that its sets do not take over.
const OWN_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// The longest list of former revisions that is kept, in characters.
const HISTORY_MAX: usize = 2000;

/// The longest name of a set.
const NAME_MAX: usize = 253;

/// One set: as the cache has it, and as it is wanted.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// `None` for one that is to be created.
    pub(super) read: Option<Arc<ReplicaSet>>,
    pub(super) wanted: ReplicaSet,
}

impl Member {
    fn known(set: &Arc<ReplicaSet>) -> Self {
        Self {
            read: Some(set.clone()),
            wanted: ReplicaSet::clone(set),
        }
    }

    /// How many pods it is to have.
    pub(super) fn replicas(&self) -> i32 {
        self.wanted
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }

    /// How many pods it was to have when it was read.
    pub(super) fn replicas_before(&self) -> i32 {
        self.read.as_ref().map_or(0, |set| {
            set.spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1)
        })
    }

    /// How many pods it has, by its status.
    pub(super) fn actual(&self) -> i32 {
        self.wanted
            .status
            .as_ref()
            .map_or(0, |status| status.replicas)
    }

    /// How many of them are available.
    pub(super) fn available(&self) -> i32 {
        self.wanted
            .status
            .as_ref()
            .and_then(|status| status.available_replicas)
            .unwrap_or(0)
    }

    /// How many of them are ready.
    pub(super) fn ready(&self) -> i32 {
        self.wanted
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or(0)
    }

    /// A number that was noted on it.
    pub(super) fn noted(&self, annotation: &str) -> Option<i32> {
        self.wanted
            .annotations()
            .get(annotation)?
            .parse()
            .ok()
            .filter(|number| *number >= 0)
    }

    /// Its revision; 0 if it has none.
    pub(super) fn revision(&self) -> i64 {
        self.wanted
            .annotations()
            .get(REVISION)
            .and_then(|revision| revision.parse().ok())
            .unwrap_or(0)
    }

    /// Whether it is to have pods.
    pub(super) fn is_active(&self) -> bool {
        self.replicas() > 0
    }

    /// Wants so many pods of it, and notes the size of the Deployment. Says whether the number changed.
    pub(super) fn scale(&mut self, replicas: i32, size: Size) -> bool {
        let changed = self.replicas() != replicas;
        self.wanted.spec.get_or_insert_default().replicas = Some(replicas);
        self.note_size(size);
        changed
    }

    fn note_size(&mut self, size: Size) {
        let annotations = self.wanted.annotations_mut();
        annotations.insert(DESIRED_REPLICAS.into(), size.desired.to_string());
        annotations.insert(MAX_REPLICAS.into(), size.max().to_string());
    }

    /// Older sets come first.
    pub(super) fn age(&self) -> impl Ord + use<> {
        (
            self.wanted
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            self.wanted.name_any(),
        )
    }
}

/// How many pods a Deployment wants, and how far it may stray from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) desired: i32,
    pub(super) max_surge: i32,
    pub(super) max_unavailable: i32,
}

impl Size {
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
        let (max_surge, max_unavailable) = fenceposts(surge, unavailable, desired);
        Self {
            desired,
            max_surge,
            max_unavailable: max_unavailable.min(desired),
        }
    }

    /// The most pods there may be.
    pub(super) fn max(self) -> i32 {
        self.desired.saturating_add(self.max_surge)
    }

    /// The fewest that must be available.
    pub(super) fn min_available(self) -> i32 {
        self.desired - self.max_unavailable
    }
}

/// Whether all old pods go before new ones come.
pub(super) fn is_recreate(spec: &DeploymentSpec) -> bool {
    spec.strategy
        .as_ref()
        .and_then(|strategy| strategy.type_.as_deref())
        == Some("Recreate")
}

/// All sets of one Deployment.
#[derive(Clone, Debug)]
pub(super) struct Family {
    pub(super) new: Option<Member>,
    /// Oldest first.
    pub(super) old: Vec<Member>,
}

impl Family {
    pub(super) fn of(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Self {
        let mut members: Vec<_> = sets.iter().map(Member::known).collect();
        members.sort_by_key(Member::age);
        let template = deployment.spec.as_ref().map(|spec| &spec.template);
        let fits = |member: &Member| {
            same_template(
                member
                    .wanted
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.template.as_ref()),
                template,
            )
        };
        let new = members
            .iter()
            .position(fits)
            .map(|index| members.remove(index));
        let mut family = Self { new, old: members };
        let revision = family.next_revision();
        if let Some(new) = &mut family.new {
            new.wanted.spec.get_or_insert_default().min_ready_seconds = deployment
                .spec
                .as_ref()
                .and_then(|spec| spec.min_ready_seconds);
            annotate(&mut new.wanted, deployment, revision);
        }
        family
    }

    /// All members, the new one last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Member> {
        self.old.iter().chain(&self.new)
    }

    /// The sum over all members.
    pub(super) fn sum(&self, number: impl Fn(&Member) -> i32) -> i32 {
        self.all().map(number).sum()
    }

    fn next_revision(&self) -> i64 {
        self.old.iter().map(Member::revision).max().unwrap_or(0) + 1
    }

    /// The new set, made if there is none. `replicas` says how many pods it begins with.
    pub(super) fn make_new(
        &mut self,
        deployment: &Deployment,
        size: Size,
        replicas: impl FnOnce(&Self) -> i32,
    ) -> &mut Member {
        if self.new.is_none() {
            let mut set = new_set(deployment);
            set.spec.get_or_insert_default().replicas = Some(replicas(self));
            annotate(&mut set, deployment, self.next_revision());
            let mut member = Member {
                read: None,
                wanted: set,
            };
            member.note_size(size);
            self.new = Some(member);
        }
        self.new.as_mut().expect("it was made above")
    }
}

/// The set of the Deployment's present template, without pods.
fn new_set(deployment: &Deployment) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let hash = hash(
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
    labels.insert(TEMPLATE_HASH.into(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector
        .match_labels
        .get_or_insert_default()
        .insert(TEMPLATE_HASH.into(), hash.clone());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(&deployment.name_any(), &hash)),
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

/// The Deployment's name and the hash; a long name is cut, the hash never.
fn set_name(deployment: &str, hash: &str) -> String {
    let room = NAME_MAX.saturating_sub(hash.len() + 1);
    let end = (0..=room.min(deployment.len()))
        .rev()
        .find(|end| deployment.is_char_boundary(*end))
        .unwrap_or(0);
    format!("{}-{hash}", &deployment[..end])
}

/// Gives the new set the Deployment's annotations, and its revision unless it has a later one.
fn annotate(set: &mut ReplicaSet, deployment: &Deployment, revision: i64) {
    let annotations = set.annotations_mut();
    let taken_over = deployment
        .annotations()
        .iter()
        .filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str()));
    annotations.extend(taken_over.map(|(key, value)| (key.clone(), value.clone())));
    let before = annotations.get(REVISION).cloned();
    let number = before
        .as_ref()
        .map_or(Some(0), |before| before.parse::<i64>().ok());
    // What cannot be read is left alone.
    if number.is_none_or(|number| number >= revision) {
        return;
    }
    annotations.insert(REVISION.into(), revision.to_string());
    if let Some(before) = before {
        remember(annotations, before);
    }
}

/// Keeps a former revision; of too many the oldest are forgotten.
fn remember(annotations: &mut BTreeMap<String, String>, revision: String) {
    let history = annotations
        .get(REVISION_HISTORY)
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
    let forgotten = (0..revisions.len())
        .find(|from| length(&revisions[*from..]) <= HISTORY_MAX)
        .unwrap_or(0);
    annotations.insert(REVISION_HISTORY.into(), revisions[forgotten..].join(","));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_the_hash() {
        assert_eq!(set_name("web", "abc"), "web-abc");
        let long = "x".repeat(253);
        assert_eq!(set_name(&long, "abc").len(), NAME_MAX);
        assert!(set_name(&long, "abc").ends_with("x-abc"));
    }

    #[test]
    fn former_revisions_are_kept_within_a_limit() {
        let mut annotations = BTreeMap::new();
        for revision in 1..=1000 {
            remember(&mut annotations, revision.to_string());
        }
        let history = &annotations[REVISION_HISTORY];
        assert!(history.ends_with(",999,1000"), "{}", history.len());
        assert!(history.len() <= HISTORY_MAX, "{}", history.len());
    }
}
