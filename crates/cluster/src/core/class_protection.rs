//! Class protection: a class of volume attributes that a claim or a volume names stays until none does.
//!
//! In: classes, claims, volumes. Out: finalizers put on and taken off.
//! Holds: a class is let go only when neither cache knows anything that names it, and is looked at again whenever one of them changes.

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, ReconcileResult, Request};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{Api, Client};

use super::volume_protection::{change, write};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const CLASS_IN_USE: &str = "kubernetes.io/vac-protection";

/// Claims and volumes by each class they name.
const BY_CLASS: &str = "volume-attributes-class";

struct Classes {
    client: Client,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

/// The loop that protects classes, under its upstream name.
pub(crate) fn classes(ctx: &Context) -> Loop {
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let volumes = ctx.informer::<PersistentVolume>();
    index::add(&claims, BY_CLASS, named_by_claim);
    index::add(&volumes, BY_CLASS, named_by_volume);
    let protector = Arc::new(Classes {
        client: ctx.client(Component::ControllerManager),
        claims: claims.lister(),
        volumes: volumes.lister(),
    });
    let keys = |names: Vec<String>| names.iter().map(ObjectKey::cluster).collect();
    Controller::of(&ctx.informer::<VolumeAttributesClass>())
        .watches(&claims, move |claim| keys(named_by_claim(claim)))
        .watches(&volumes, move |volume| keys(named_by_volume(volume)))
        .with_options(ctx.options("volumeattributesclass-protection-controller", 1))
        .reconcile_with(move |request| protector.clone().reconcile(request))
        .into()
}

impl Classes {
    async fn reconcile(
        self: Arc<Self>,
        request: Request<VolumeAttributesClass>,
    ) -> ReconcileResult {
        let Some(class) = &request.object else {
            return Ok(Outcome::Done);
        };
        let name = request.key.name();
        let used = self
            .claims
            .by_index(BY_CLASS, name)
            .is_ok_and(|claims| !claims.is_empty())
            || self
                .volumes
                .by_index(BY_CLASS, name)
                .is_ok_and(|volumes| !volumes.is_empty());
        let Some(patch) = change(&**class, CLASS_IN_USE, used) else {
            return Ok(Outcome::Done);
        };
        write(&Api::all(self.client.clone()), &**class, &patch, &request).await
    }
}

/// The class a claim asks for, the one it has, and the one it is on its way to.
fn named_by_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
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

fn named_by_volume(volume: &PersistentVolume) -> Vec<String> {
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
    fn claims_and_volumes_name_every_class_they_need() {
        let claim = |value: Value| named_by_claim(&serde_json::from_value(value).unwrap());
        assert_eq!(claim(json!({})), [""; 0]);
        assert_eq!(
            claim(
                json!({"spec": {"volumeAttributesClassName": "a"}, "status": {"currentVolumeAttributesClassName": "a"}})
            ),
            ["a"]
        );
        let moving = json!({"spec": {"volumeAttributesClassName": "b"}, "status": {"currentVolumeAttributesClassName": "a",
            "modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "b"}}});
        assert_eq!(claim(moving), ["a", "b"]);
        let volume = |value: Value| named_by_volume(&serde_json::from_value(value).unwrap());
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
