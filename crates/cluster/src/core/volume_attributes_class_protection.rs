//! VolumeAttributesClass protection: a class referenced by a PersistentVolumeClaim or a
//! PersistentVolume keeps the finalizer `kubernetes.io/vac-protection`.
//!
//! Input: classes, claims, volumes. Output: finalizers added and removed.
//! Guarantees: the finalizer is removed only when neither cache has an object that references the
//! class; every change of a claim or volume enqueues the classes it references.

use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};

use super::volume_protection::{finalizer_patch, patch_finalizers};

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// Claims and volumes by the name of each class they reference.
const CLASS_INDEX: &str = "volume-attributes-class";

struct VacProtection {
    claims: Index<PersistentVolumeClaim>,
    volumes: Index<PersistentVolume>,
}

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    let protection = VacProtection {
        claims: mgr.index(CLASS_INDEX, pvc_referenced_class_names),
        volumes: mgr.index(CLASS_INDEX, pv_referenced_class_names),
    };
    let keys = |names: Vec<String>| names.iter().map(ObjectKey::cluster).collect();
    mgr.controller::<VolumeAttributesClass>()
        .watches::<PersistentVolumeClaim>(move |claim| keys(pvc_referenced_class_names(claim)))
        .watches::<PersistentVolume>(move |volume| keys(pv_referenced_class_names(volume)))
        .name("volumeattributesclass-protection-controller")
        .reconcile(protection);
}

impl Reconciler<VolumeAttributesClass> for VacProtection {
    async fn reconcile(&self, req: Request<VolumeAttributesClass>) -> Result<Action, Error> {
        let Some(class) = req.object() else {
            return Ok(Action::await_change());
        };
        let name = req.key().name();
        let in_use = !self.claims.keys(name).is_empty() || !self.volumes.keys(name).is_empty();
        let Some(patch) = finalizer_patch(class, FINALIZER, in_use) else {
            return Ok(Action::await_change());
        };
        patch_finalizers(&req, class, &patch).await
    }
}

/// The class in the claim's spec, its current class, and the target of a modification in progress.
/// Mirrors getPVCReferencedVACNames.
fn pvc_referenced_class_names(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let mut names: Vec<String> = [
        claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_attributes_class_name.clone()),
        status.and_then(|status| status.current_volume_attributes_class_name.clone()),
        status.and_then(|status| {
            status
                .modify_volume_status
                .as_ref()?
                .target_volume_attributes_class_name
                .clone()
        }),
    ]
    .into_iter()
    .flatten()
    .filter(|name| !name.is_empty())
    .collect();
    names.sort();
    names.dedup();
    names
}

fn pv_referenced_class_names(volume: &PersistentVolume) -> Vec<String> {
    volume
        .spec
        .iter()
        .filter_map(|spec| spec.volume_attributes_class_name.clone())
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_and_volumes_reference_every_class_in_use() {
        let claim =
            |value: Value| pvc_referenced_class_names(&serde_json::from_value(value).unwrap());
        assert_eq!(claim(json!({})), [""; 0]);
        assert_eq!(
            claim(json!({
                "spec": {"volumeAttributesClassName": "a"},
                "status": {"currentVolumeAttributesClassName": "a"},
            })),
            ["a"]
        );
        let modifying = json!({
            "spec": {"volumeAttributesClassName": "b"},
            "status": {
                "currentVolumeAttributesClassName": "a",
                "modifyVolumeStatus": {
                    "status": "InProgress",
                    "targetVolumeAttributesClassName": "b",
                },
            },
        });
        assert_eq!(claim(modifying), ["a", "b"]);
        let volume =
            |value: Value| pv_referenced_class_names(&serde_json::from_value(value).unwrap());
        assert_eq!(
            volume(json!({"spec": {"volumeAttributesClassName": "a"}})),
            ["a"]
        );
        assert_eq!(
            volume(json!({"spec": {"volumeAttributesClassName": ""}})),
            [""; 0]
        );
    }
}
