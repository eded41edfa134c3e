//! Binding plan: which volume an unbound claim gets.
//!
//! In: a claim, all volumes, whether a volume can be provisioned. Out: a [`BindingPlan`].
//! Guarantees: a volume that is pre-bound to the claim is preferred, then the smallest matching
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::quantity;

/// How an unbound claim is bound.
#[derive(Debug, PartialEq)]
pub(super) enum BindingPlan<'a> {
    /// No volume matches, and none can be provisioned.
    Wait,
    /// To an existing volume.
    Bind(&'a PersistentVolume),
    /// To a volume that is provisioned for it.
    Provision,
}

/// Plans the binding of a claim. Mirrors the decisions of `syncUnboundClaim`: a claim with a
/// `volumeName` waits for that volume.
pub(super) fn plan_binding<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    can_provision: bool,
) -> BindingPlan<'a> {
    let mut matching: Vec<_> = volumes
        .iter()
        .filter(|volume| satisfies_claim(claim, volume))
        .collect();
    matching.sort_by_key(|volume| {
        (
            !is_bound_to_claim(claim, volume),
            storage_size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref())),
            volume.name_any(),
        )
    });
    match (matching.first(), volume_name(claim)) {
        (Some(volume), _) => BindingPlan::Bind(volume),
        (None, None) if can_provision => BindingPlan::Provision,
        (None, _) => BindingPlan::Wait,
    }
}

/// Whether a volume is bound to the claim, or can be. Mirrors `FindMatchingVolume`.
fn satisfies_claim(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (Some(claim_spec), Some(volume_spec)) = (&claim.spec, &volume.spec) else {
        return false;
    };
    let is_available = volume.metadata.deletion_timestamp.is_none()
        && (volume_spec.claim_ref.is_none() || is_bound_to_claim(claim, volume));
    let volume_modes = volume_spec.access_modes.as_deref().unwrap_or_default();
    let has_access_modes = claim_spec
        .access_modes
        .iter()
        .flatten()
        .all(|mode| volume_modes.contains(mode));
    let class = |name: &Option<String>| name.clone().unwrap_or_default();
    let requests = claim_spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    is_available
        && has_access_modes
        && volume_name(claim).is_none_or(|name| name == volume.name_any())
        && class(&claim_spec.storage_class_name) == class(&volume_spec.storage_class_name)
        && storage_size(requests) <= storage_size(volume_spec.capacity.as_ref())
}

/// Whether the volume's `claimRef` names the claim. Mirrors `IsVolumeBoundToClaim`: without a uid
/// the volume was pre-bound by a user.
pub(super) fn is_bound_to_claim(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let claim_ref = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    claim_ref.is_some_and(|claim_ref| {
        claim_ref.name == claim.metadata.name
            && claim_ref.namespace == claim.metadata.namespace
            && claim_ref
                .uid
                .as_ref()
                .is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
    })
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .filter(|name| !name.is_empty())
}

fn storage_size(resources: Option<&BTreeMap<String, Quantity>>) -> i64 {
    resources
        .and_then(|resources| resources.get("storage"))
        .map_or(0, quantity::value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_bound_to_the_smallest_matching_volume() {
        let claim = |volume_name: &str| -> PersistentVolumeClaim {
            let claim = json!({
                "metadata": {"name": "data", "namespace": "default", "uid": "u"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "standard",
                    "volumeName": volume_name,
                    "resources": {"requests": {"storage": "2Gi"}},
                },
            });
            serde_json::from_value(claim).unwrap()
        };
        let volume = |name: &str,
                      size: &str,
                      class: &str,
                      claim_uid: Option<&str>|
         -> Arc<PersistentVolume> {
            let mut volume = json!({
                "metadata": {"name": name},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": class,
                    "capacity": {"storage": size},
                },
            });
            if let Some(uid) = claim_uid {
                volume["spec"]["claimRef"] =
                    json!({"name": "data", "namespace": "default", "uid": uid});
            }
            Arc::new(serde_json::from_value(volume).unwrap())
        };
        let cases: [(&str, &str, Vec<Arc<PersistentVolume>>, bool, Option<&str>); 7] = [
            (
                "smallest matching volume",
                "",
                vec![
                    volume("large", "9Gi", "standard", None),
                    volume("fits", "3Gi", "standard", None),
                ],
                true,
                Some("fits"),
            ),
            (
                "no volume is large enough",
                "",
                vec![volume("small", "1Gi", "standard", None)],
                false,
                None,
            ),
            (
                "other storage class",
                "",
                vec![volume("other", "3Gi", "fast", None)],
                false,
                None,
            ),
            (
                "volume bound to the claim",
                "",
                vec![
                    volume("free", "2Gi", "standard", None),
                    volume("own", "9Gi", "standard", Some("u")),
                ],
                true,
                Some("own"),
            ),
            (
                "volume bound to another claim",
                "",
                vec![volume("taken", "3Gi", "standard", Some("x"))],
                false,
                None,
            ),
            (
                "volumeName",
                "large",
                vec![
                    volume("large", "9Gi", "standard", None),
                    volume("fits", "3Gi", "standard", None),
                ],
                true,
                Some("large"),
            ),
            (
                "volumeName of a missing volume",
                "later",
                vec![volume("fits", "3Gi", "standard", None)],
                true,
                None,
            ),
        ];
        for (case, volume_name, volumes, can_provision, expected) in cases {
            match (
                plan_binding(&claim(volume_name), &volumes, can_provision),
                expected,
            ) {
                (BindingPlan::Bind(volume), Some(name)) => {
                    assert_eq!(volume.name_any(), name, "{case}");
                }
                (BindingPlan::Wait, None) => {}
                (other, _) => panic!("{case}: {other:?}"),
            }
        }
        assert_eq!(plan_binding(&claim(""), &[], true), BindingPlan::Provision);
    }
}
