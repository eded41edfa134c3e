//! Claims of a StatefulSet's members: made before their pods, kept or given up by policy.
//!
//! In: a set, an ordinal, claims as cached. Out: claims to create; owners a claim should have.
//! Holds: with `Retain` a claim has no owner of ours and outlives its pod and its set. With `whenDeleted: Delete` the set owns
//! it, with `whenScaled: Delete` the pod that is scaled away does: the garbage collector does the rest. A claim that another
//! controller manages, or that an earlier set or pod of the same name owned, is left alone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::identity::{claim_name, ordinals, pod_name};
use crate::workloads::claim::controller_reference;

/// The claims of a member as they are to be created.
pub(super) fn wanted(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = &set.spec else {
        return Vec::new();
    };
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    let labels = spec.selector.match_labels.clone().unwrap_or_default();
    let owners = if deletes(set, When::Deleted) && ordinals(set).contains(&ordinal) {
        Some(vec![controller_reference(set)])
    } else {
        None
    };
    let claim = |template: &PersistentVolumeClaim| PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(set, &template.name_any(), ordinal)),
            namespace: set.namespace(),
            labels: Some(
                template
                    .labels()
                    .clone()
                    .into_iter()
                    .chain(labels.clone())
                    .collect(),
            )
            .filter(|labels: &std::collections::BTreeMap<_, _>| !labels.is_empty()),
            annotations: template.metadata.annotations.clone(),
            finalizers: template.metadata.finalizers.clone(),
            owner_references: owners.clone(),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    };
    templates.iter().map(claim).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Deleted,
    Scaled,
}

fn deletes(set: &StatefulSet, when: When) -> bool {
    let policy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let word = policy.and_then(|policy| match when {
        When::Deleted => policy.when_deleted.as_deref(),
        When::Scaled => policy.when_scaled.as_deref(),
    });
    word == Some("Delete")
}

/// Whether a claim belongs to an earlier pod of this member, and goes with it: a new pod must wait for a new claim.
pub(super) fn is_stale(set: &StatefulSet, claim: &PersistentVolumeClaim, ordinal: i32) -> bool {
    let name = pod_name(set, ordinal);
    deletes(set, When::Scaled)
        && claim
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Pod" && owner.name == name)
}

/// The claim with the owners it should have; `None` if it has them, or is not ours to change.
pub(super) fn owned(
    set: &StatefulSet,
    pod: &Pod,
    ordinal: i32,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolumeClaim> {
    let refers = |owner: &OwnerReference, kind: &str, meta: &ObjectMeta| {
        owner.kind == kind && Some(&owner.name) == meta.name.as_ref()
    };
    let ours = |owner: &OwnerReference| {
        refers(owner, "StatefulSet", set.meta()) || refers(owner, "Pod", pod.meta())
    };
    let is = |owner: &OwnerReference, meta: &ObjectMeta| Some(&owner.uid) == meta.uid.as_ref();
    let owners = claim.owner_references();
    let earlier =
        |owner: &OwnerReference| ours(owner) && !is(owner, set.meta()) && !is(owner, pod.meta());
    if owners.iter().any(earlier) {
        return None;
    }
    let mut kept: Vec<OwnerReference> = owners
        .iter()
        .filter(|owner| !ours(owner))
        .cloned()
        .collect();
    let managed_by_another = kept.iter().any(|owner| owner.controller == Some(true));
    let retains = !deletes(set, When::Deleted) && !deletes(set, When::Scaled);
    if retains || !managed_by_another {
        let scaled_away = !ordinals(set).contains(&ordinal);
        if deletes(set, When::Scaled) && scaled_away {
            kept.push(controller_reference(pod));
        } else if deletes(set, When::Deleted) {
            kept.push(controller_reference(set));
        }
    }
    let key = |owners: &[OwnerReference]| {
        owners
            .iter()
            .map(|owner| (owner.uid.clone(), owner.controller))
            .collect::<std::collections::BTreeSet<_>>()
    };
    (key(&kept) != key(owners)).then(|| {
        let mut changed = claim.clone();
        changed.metadata.owner_references = Some(kept);
        changed
    })
}

/// Whether another controller manages a claim that the policy would have us delete.
pub(super) fn is_contested(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let ours = |owner: &OwnerReference| {
        Some(&owner.uid) == set.metadata.uid.as_ref()
            || Some(&owner.uid) == pod.metadata.uid.as_ref()
    };
    (deletes(set, When::Deleted) || deletes(set, When::Scaled))
        && claim
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && !ours(owner))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workloads::samples::pod;

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "default", "uid": "set" },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "db" } }, "template": {},
                "volumeClaimTemplates": [{ "metadata": { "name": "data", "labels": { "tier": "x" } } }],
                "persistentVolumeClaimRetentionPolicy": { "whenDeleted": deleted, "whenScaled": scaled },
            },
        }))
        .unwrap()
    }

    fn owners(claim: &PersistentVolumeClaim) -> Vec<&str> {
        claim
            .owner_references()
            .iter()
            .map(|owner| owner.uid.as_str())
            .collect()
    }

    #[test]
    fn owners_follow_the_policy() {
        for (deleted, scaled, ordinal, expected) in [
            ("Retain", "Retain", 0, &[][..]),
            ("Retain", "Retain", 5, &[]),
            ("Delete", "Retain", 0, &["set"]),
            ("Delete", "Retain", 5, &["set"]),
            ("Retain", "Delete", 0, &[]),
            ("Retain", "Delete", 5, &["db-5"]),
            ("Delete", "Delete", 0, &["set"]),
            ("Delete", "Delete", 5, &["db-5"]),
        ] {
            let set = set(deleted, scaled);
            let pod = pod(&format!("db-{ordinal}")).build();
            for before in ["Retain", "Delete"] {
                let claim = wanted(&super::tests::set(before, "Retain"), ordinal).remove(0);
                let after = owned(&set, &pod, ordinal, &claim).unwrap_or(claim);
                assert_eq!(
                    owners(&after),
                    expected,
                    "{deleted} {scaled} {ordinal}, was {before}"
                );
                assert!(
                    owned(&set, &pod, ordinal, &after).is_none(),
                    "it is settled"
                );
            }
        }
    }

    #[test]
    fn foreign_and_former_owners_are_respected() {
        let set = set("Delete", "Delete");
        let pod = pod("db-0").build();
        let mut claim = wanted(&set, 0).remove(0);
        claim.metadata.owner_references =
            serde_json::from_value(json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true }])).unwrap();
        assert!(owned(&set, &pod, 0, &claim).is_none());
        assert!(is_contested(&set, &pod, &claim));
        claim.metadata.owner_references =
            serde_json::from_value(json!([{ "apiVersion": "v1", "kind": "Pod", "name": "db-0", "uid": "former", "controller": true }]))
                .unwrap();
        assert!(owned(&set, &pod, 0, &claim).is_none());
        assert!(is_stale(&set, &claim, 0));
    }

    #[test]
    fn claim_is_named_and_labelled_for_its_member() {
        let claim = wanted(&set("Retain", "Retain"), 1).remove(0);
        assert_eq!(claim.name_any(), "data-db-1");
        assert_eq!(claim.labels().len(), 2);
    }
}
