//! PersistentVolumeClaims of a StatefulSet and their retention policy.
//!
//! Input: a StatefulSet, an ordinal, cached claims. Output: claims to create; owner references of
//! existing claims.
//! Rules: with `Retain` a claim has no owner reference and outlives pod and set. With `whenDeleted:
//! Delete` the set owns it; with `whenScaled: Delete` the condemned pod owns it. The garbage
//! collector deletes it with its owner. A claim that has another controller, or references an
//! earlier set or pod of the same name, is not modified.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::identity::{claim_name, ordinals, pod_name};
use crate::workloads::claim::controller_reference;

/// The claims of a replica. Mirrors getPersistentVolumeClaims.
pub(super) fn desired_claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
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

/// Field of the retention policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Deleted,
    Scaled,
}

/// Whether the retention policy is `Delete`.
fn deletes(set: &StatefulSet, when: When) -> bool {
    let policy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let value = policy.and_then(|policy| match when {
        When::Deleted => policy.when_deleted.as_deref(),
        When::Scaled => policy.when_scaled.as_deref(),
    });
    value == Some("Delete")
}

/// Whether a claim is owned by an earlier pod of the ordinal and will be deleted with it, so that
/// the new pod has to wait for a new claim. Mirrors PodClaimIsStale.
pub(super) fn is_claim_stale(
    set: &StatefulSet,
    claim: &PersistentVolumeClaim,
    ordinal: i32,
) -> bool {
    let name = pod_name(set, ordinal);
    deletes(set, When::Scaled)
        && claim
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Pod" && owner.name == name)
}

/// The claim with the owner references of the retention policy; `None` if it has them, or must not
/// be modified. Mirrors updateClaimOwnerRefForSetAndPod.
pub(super) fn with_owner_refs(
    set: &StatefulSet,
    pod: &Pod,
    ordinal: i32,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolumeClaim> {
    let references = |owner: &OwnerReference, kind: &str, meta: &ObjectMeta| {
        owner.kind == kind && Some(&owner.name) == meta.name.as_ref()
    };
    let references_set_or_pod = |owner: &OwnerReference| {
        references(owner, "StatefulSet", set.meta()) || references(owner, "Pod", pod.meta())
    };
    let has_uid = |owner: &OwnerReference, meta: &ObjectMeta| Some(&owner.uid) == meta.uid.as_ref();
    let owners = claim.owner_references();
    let is_stale_reference = |owner: &OwnerReference| {
        references_set_or_pod(owner) && !has_uid(owner, set.meta()) && !has_uid(owner, pod.meta())
    };
    // Mirrors hasStaleOwnerRef.
    if owners.iter().any(is_stale_reference) {
        return None;
    }
    let mut desired: Vec<OwnerReference> = owners
        .iter()
        .filter(|owner| !references_set_or_pod(owner))
        .cloned()
        .collect();
    let has_other_controller = desired.iter().any(|owner| owner.controller == Some(true));
    let retains = !deletes(set, When::Deleted) && !deletes(set, When::Scaled);
    // Mirrors isClaimOwnerUpToDate: a claim of another controller is not owned.
    if retains || !has_other_controller {
        let is_condemned = !ordinals(set).contains(&ordinal);
        if deletes(set, When::Scaled) && is_condemned {
            desired.push(controller_reference(pod));
        } else if deletes(set, When::Deleted) {
            desired.push(controller_reference(set));
        }
    }
    let key = |owners: &[OwnerReference]| {
        owners
            .iter()
            .map(|owner| (owner.uid.clone(), owner.controller))
            .collect::<std::collections::BTreeSet<_>>()
    };
    (key(&desired) != key(owners)).then(|| {
        let mut updated = claim.clone();
        updated.metadata.owner_references = Some(desired);
        updated
    })
}

/// Whether a claim that the policy deletes has another controller. Mirrors hasUnexpectedController.
pub(super) fn has_unexpected_controller(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> bool {
    let is_set_or_pod = |owner: &OwnerReference| {
        Some(&owner.uid) == set.metadata.uid.as_ref()
            || Some(&owner.uid) == pod.metadata.uid.as_ref()
    };
    (deletes(set, When::Deleted) || deletes(set, When::Scaled))
        && claim
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && !is_set_or_pod(owner))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workloads::test_objects::pod;

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "default", "uid": "set" },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "db" } },
                "template": {},
                "volumeClaimTemplates": [
                    { "metadata": { "name": "data", "labels": { "tier": "x" } } },
                ],
                "persistentVolumeClaimRetentionPolicy": {
                    "whenDeleted": deleted,
                    "whenScaled": scaled,
                },
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
    fn owner_references_follow_the_retention_policy() {
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
                let claim = desired_claims(&super::tests::set(before, "Retain"), ordinal).remove(0);
                let after = with_owner_refs(&set, &pod, ordinal, &claim).unwrap_or(claim);
                assert_eq!(
                    owners(&after),
                    expected,
                    "{deleted} {scaled} {ordinal}, before {before}"
                );
                assert!(
                    with_owner_refs(&set, &pod, ordinal, &after).is_none(),
                    "second update is empty"
                );
            }
        }
    }

    #[test]
    fn claims_of_other_or_former_owners_are_not_modified() {
        let set = set("Delete", "Delete");
        let pod = pod("db-0").build();
        let mut claim = desired_claims(&set, 0).remove(0);
        claim.metadata.owner_references = serde_json::from_value(json!([
            { "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true },
        ]))
        .unwrap();
        assert!(with_owner_refs(&set, &pod, 0, &claim).is_none());
        assert!(has_unexpected_controller(&set, &pod, &claim));
        claim.metadata.owner_references = serde_json::from_value(json!([
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "db-0",
                "uid": "former",
                "controller": true,
            },
        ]))
        .unwrap();
        assert!(with_owner_refs(&set, &pod, 0, &claim).is_none());
        assert!(is_claim_stale(&set, &claim, 0));
    }

    #[test]
    fn claim_has_name_and_labels_of_its_ordinal() {
        let claim = desired_claims(&set("Retain", "Retain"), 1).remove(0);
        assert_eq!(claim.name_any(), "data-db-1");
        assert_eq!(claim.labels().len(), 2);
    }
}
