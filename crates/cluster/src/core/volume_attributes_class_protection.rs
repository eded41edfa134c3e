//! VolumeAttributesClass protection: a class referenced by a PersistentVolumeClaim or a
//! PersistentVolume keeps the finalizer `kubernetes.io/vac-protection`.
//!
//! Input: classes, claims, volumes. Output: finalizers added and removed.
//! Guarantees: the finalizer is removed only when neither cache has an object that references the
//! class; every change of a claim or volume enqueues the classes it references.

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, ReconcileResult, Request};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{Api, Client};

use super::volume_protection::{finalizer_patch, patch_finalizers};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// Index of claims and volumes by the name of each class they reference.
const CLASS_INDEX: &str = "volume-attributes-class";

struct VacProtection {
    client: Client,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

/// The controller, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let volumes = ctx.informer::<PersistentVolume>();
    index::add_index(&claims, CLASS_INDEX, pvc_referenced_class_names);
    index::add_index(&volumes, CLASS_INDEX, pv_referenced_class_names);
    let reconciler = Arc::new(VacProtection {
        client: ctx.client(Component::ControllerManager),
        claims: claims.lister(),
        volumes: volumes.lister(),
    });
    let keys = |names: Vec<String>| names.iter().map(ObjectKey::cluster).collect();
    Controller::of(&ctx.informer::<VolumeAttributesClass>())
        .watches(&claims, move |claim| {
            keys(pvc_referenced_class_names(claim))
        })
        .watches(&volumes, move |volume| {
            keys(pv_referenced_class_names(volume))
        })
        .with_options(ctx.options("volumeattributesclass-protection-controller", 1))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

impl VacProtection {
    async fn reconcile(
        self: Arc<Self>,
        request: Request<VolumeAttributesClass>,
    ) -> ReconcileResult {
        let Some(class) = &request.object else {
            return Ok(Outcome::Done);
        };
        let name = request.key.name();
        // Mirrors isBeingUsed of the VAC protection controller.
        let in_use = self
            .claims
            .by_index(CLASS_INDEX, name)
            .is_ok_and(|claims| !claims.is_empty())
            || self
                .volumes
                .by_index(CLASS_INDEX, name)
                .is_ok_and(|volumes| !volumes.is_empty());
        let Some(patch) = finalizer_patch(&**class, FINALIZER, in_use) else {
            return Ok(Outcome::Done);
        };
        patch_finalizers(&Api::all(self.client.clone()), &**class, &patch, &request).await
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
