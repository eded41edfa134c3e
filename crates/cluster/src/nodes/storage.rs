//! Storage: claims get volumes, as they would from a provider that always has some.
//!
//! In: claims, volumes, storage classes. Out: volumes made for claims, and both bound to each other.
//! Holds: a volume belongs to one claim, and says so before the claim does; volumes that people made go first, the smallest
//! that is large enough; what a class of another provider promises is left to that one.

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, ReconcileResult, Request};
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::component::Component;
use crate::context::{Context, Loop};
use crate::api_errors::is_gone_or_conflict;
use crate::scheduler::quantity_value;

/// Who makes simulated volumes; also the name of their driver.
const PROVISIONER: &str = "sim.bellerophon.io";
/// The class of claims that name none.
const CLASS: &str = "standard";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// Who brought claim and volume together: a loop, not a person.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

struct Storage {
    client: Client,
    volumes: Lister<PersistentVolume>,
    classes: Lister<StorageClass>,
    claims: Lister<PersistentVolumeClaim>,
}

/// What a claim without a volume gets.
#[derive(Debug, PartialEq)]
enum Plan<'a> {
    /// Nobody has one for it now.
    Wait,
    /// One that is there.
    Take(&'a PersistentVolume),
    /// One that is made for it.
    Make,
}

/// What a claim gets, from all volumes there are; `makes` says whether one can be made.
fn plan<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    makes: bool,
) -> Plan<'a> {
    let spec = claim.spec.as_ref();
    let wanted = spec
        .and_then(|spec| spec.volume_name.as_deref())
        .filter(|name| !name.is_empty());
    let mut fitting: Vec<_> = volumes
        .iter()
        .filter(|volume| fits(claim, volume))
        .collect();
    fitting.sort_by_key(|volume| {
        (
            !is_for(claim, volume),
            size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref())),
            volume.name_any(),
        )
    });
    match (fitting.first(), wanted) {
        (Some(volume), _) => Plan::Take(volume),
        (None, None) if makes => Plan::Make,
        (None, _) => Plan::Wait,
    }
}

/// Whether a volume is the claim's, or can become so.
fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (Some(wants), Some(has)) = (&claim.spec, &volume.spec) else {
        return false;
    };
    let named = wants.volume_name.as_deref().filter(|name| !name.is_empty());
    let free = volume.metadata.deletion_timestamp.is_none()
        && (has.claim_ref.is_none() || is_for(claim, volume));
    let modes = wants
        .access_modes
        .iter()
        .flatten()
        .all(|mode| has.access_modes.iter().flatten().any(|known| known == mode));
    let class = |name: &Option<String>| name.clone().unwrap_or_default();
    free && modes
        && named.is_none_or(|name| name == volume.name_any())
        && class(&wants.storage_class_name) == class(&has.storage_class_name)
        && size(
            wants
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref()),
        ) <= size(has.capacity.as_ref())
}

fn is_for(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let reference = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| {
        reference.name == claim.metadata.name
            && reference.namespace == claim.metadata.namespace
            && reference
                .uid
                .as_ref()
                .is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
    })
}

fn size(amounts: Option<&std::collections::BTreeMap<String, Quantity>>) -> i64 {
    amounts
        .and_then(|amounts| amounts.get("storage"))
        .map_or(0, |quantity| quantity_value(quantity))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Bound")
}

/// The loops that bind claims and take back volumes, and the class of claims that name none.
pub(crate) fn loops(ctx: &Context) -> Vec<Loop> {
    let (claims, volumes, classes) = (
        ctx.informer::<PersistentVolumeClaim>(),
        ctx.informer::<PersistentVolume>(),
        ctx.informer::<StorageClass>(),
    );
    let client = ctx.client(Component::ControllerManager);
    let storage = Arc::new(Storage {
        client: client.clone(),
        volumes: volumes.lister(),
        classes: classes.lister(),
        claims: claims.lister(),
    });
    let (binder, keeper, by_volume, by_class) =
        (storage.clone(), storage.clone(), storage.clone(), storage);
    let bind = Controller::of(&claims)
        // A volume or a class that appears may be what any claim waits for.
        .watches(&volumes, move |_| by_volume.waiting())
        .watches(&classes, move |_| by_class.waiting())
        .with_options(ctx.options("persistentvolume-binder-controller", 2))
        .reconcile_with(move |request| binder.clone().bind(request));
    let keep = Controller::of(&volumes)
        .watches(&claims, |claim| {
            claim
                .spec
                .iter()
                .filter_map(|spec| spec.volume_name.as_deref())
                .map(ObjectKey::cluster)
                .collect()
        })
        .with_options(ctx.options("persistentvolume-reclaimer", 2))
        .reconcile_with(move |request| keeper.clone().keep(request));
    let offer = Loop::background("storage-class", move |stop| async move {
        if let Some(Err(error)) = stop.run_until_cancelled(offer_class(&client)).await {
            tracing::warn!(%error, "cannot offer the storage class of simulated volumes");
        }
        stop.cancelled().await;
        Ok(())
    });
    vec![bind.into(), keep.into(), offer]
}

/// Offers the class unless there is one of its name.
async fn offer_class(client: &Client) -> Result<(), kube::Error> {
    let class = StorageClass {
        metadata: kube::api::ObjectMeta {
            name: Some(CLASS.into()),
            annotations: Some([(IS_DEFAULT.to_owned(), "true".to_owned())].into()),
            ..Default::default()
        },
        provisioner: PROVISIONER.into(),
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    };
    match Api::<StorageClass>::all(client.clone())
        .create(&PostParams::default(), &class)
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        offered => offered.map(|_| ()),
    }
}

impl Storage {
    /// Claims that have no volume yet.
    fn waiting(&self) -> Vec<ObjectKey> {
        self.claims
            .list()
            .iter()
            .filter(|claim| !is_bound(claim))
            .map(|claim| ObjectKey::of(&**claim))
            .collect()
    }

    async fn bind(self: Arc<Self>, request: Request<PersistentVolumeClaim>) -> ReconcileResult {
        let Some(claim) = request
            .object
            .as_deref()
            .filter(|claim| !is_bound(claim) && claim.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let Some(class) = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.clone())
            .or_else(|| self.default_class())
        else {
            return Ok(Outcome::Done);
        };
        if claim
            .spec
            .as_ref()
            .is_some_and(|spec| spec.storage_class_name.is_none())
        {
            // It came before there was a default class; the change brings it back.
            let body = json!({ "metadata": { "uid": claim.metadata.uid }, "spec": { "storageClassName": class } });
            self.write_claim(claim, &body).await?;
            return Ok(Outcome::Done);
        }
        let class = self
            .classes
            .get(&ObjectKey::cluster(class))
            .filter(|class| class.provisioner == PROVISIONER);
        let all = self.volumes.list();
        let volume = match plan(claim, &all, class.is_some()) {
            Plan::Wait => return Ok(Outcome::Done),
            Plan::Take(volume) if is_for(claim, volume) => volume.clone(),
            Plan::Take(volume) => match self.claim_volume(claim, volume).await? {
                Some(volume) => volume,
                None => return Ok(Outcome::Done),
            },
            Plan::Make => self.make_volume(claim, class.as_deref()).await?,
        };
        self.bind_both(claim, &volume).await?;
        Ok(Outcome::Done)
    }

    /// The class of claims that name none: of several the newest.
    fn default_class(&self) -> Option<String> {
        let is_default = |class: &&Arc<StorageClass>| {
            class
                .annotations()
                .get(IS_DEFAULT)
                .is_some_and(|value| value == "true")
        };
        let all = self.classes.list();
        all.iter()
            .filter(is_default)
            .max_by_key(|class| class.creation_timestamp())
            .map(|class| class.name_any())
    }

    async fn write_claim(
        &self,
        claim: &PersistentVolumeClaim,
        body: &serde_json::Value,
    ) -> Result<(), kube::Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(
            self.client.clone(),
            &claim.namespace().unwrap_or_default(),
        );
        match claims
            .patch(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(body),
            )
            .await
        {
            Err(error) if !is_gone_or_conflict(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the claim into the volume; `None` if somebody was faster.
    async fn claim_volume(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Option<PersistentVolume>, kube::Error> {
        let metadata = json!({ "resourceVersion": volume.metadata.resource_version, "annotations": { BOUND_BY_CONTROLLER: "yes" } });
        let body = json!({ "metadata": metadata, "spec": { "claimRef": reference(claim) } });
        match self
            .volumes_api()
            .patch(
                &volume.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Err(error) if is_gone_or_conflict(&error) => Ok(None),
            claimed => claimed.map(Some),
        }
    }

    async fn make_volume(
        &self,
        claim: &PersistentVolumeClaim,
        class: Option<&StorageClass>,
    ) -> Result<PersistentVolume, kube::Error> {
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        let spec = claim.spec.clone().unwrap_or_default();
        let volume = PersistentVolume {
            metadata: kube::api::ObjectMeta {
                name: Some(name.clone()),
                annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
                ..Default::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes,
                capacity: spec.resources.and_then(|resources| resources.requests),
                claim_ref: Some(reference(claim)),
                csi: Some(k8s_openapi::api::core::v1::CSIPersistentVolumeSource {
                    driver: PROVISIONER.into(),
                    volume_handle: name.clone(),
                    ..Default::default()
                }),
                persistent_volume_reclaim_policy: class
                    .and_then(|class| class.reclaim_policy.clone()),
                storage_class_name: spec.storage_class_name,
                volume_mode: spec.volume_mode,
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        };
        match self
            .volumes_api()
            .create(&PostParams::default(), &volume)
            .await
        {
            // Made before a restart; its name says for whom.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.volumes_api().get(&name).await
            }
            made => made,
        }
    }

    async fn bind_both(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), kube::Error> {
        let mut annotations = json!({ "pv.kubernetes.io/bind-completed": "yes" });
        if claim
            .spec
            .as_ref()
            .is_none_or(|spec| spec.volume_name.is_none())
        {
            annotations[BOUND_BY_CONTROLLER] = json!("yes");
        }
        let bound = json!({
            "metadata": { "uid": claim.metadata.uid, "annotations": annotations },
            "spec": { "volumeName": volume.name_any() },
        });
        self.write_claim(claim, &bound).await?;
        let spec = volume.spec.clone().unwrap_or_default();
        let status = json!({
            "metadata": { "uid": claim.metadata.uid },
            "status": { "phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity },
        });
        let claims = Api::<PersistentVolumeClaim>::namespaced(
            self.client.clone(),
            &claim.namespace().unwrap_or_default(),
        );
        match claims
            .patch_status(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&status),
            )
            .await
        {
            Err(error) if !is_gone_or_conflict(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Keeps the phase of a volume true, and takes back what nobody claims any more.
    async fn keep(self: Arc<Self>, request: Request<PersistentVolume>) -> ReconcileResult {
        let Some(volume) = request
            .object
            .as_deref()
            .filter(|volume| volume.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = match spec
            .claim_ref
            .as_ref()
            .filter(|reference| reference.uid.is_some())
        {
            None => "Available",
            Some(reference) => {
                let key = ObjectKey::namespaced(
                    reference.namespace.as_deref().unwrap_or_default(),
                    reference.name.as_deref().unwrap_or_default(),
                );
                let claimed = self
                    .claims
                    .get(&key)
                    .is_some_and(|claim| claim.metadata.uid == reference.uid);
                if claimed { "Bound" } else { "Released" }
            }
        };
        let shown = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if shown != Some(phase) {
            let body =
                json!({ "metadata": { "uid": volume.metadata.uid }, "status": { "phase": phase } });
            match self
                .volumes_api()
                .patch_status(
                    request.key.name(),
                    &PatchParams::default(),
                    &Patch::Merge(&body),
                )
                .await
            {
                Ok(written) => request.writes().wrote(&written),
                Err(error) if is_gone_or_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(Outcome::Done);
        }
        let ours = volume
            .annotations()
            .get(PROVISIONED_BY)
            .is_some_and(|by| by == PROVISIONER);
        if phase == "Released"
            && ours
            && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
        {
            let preconditions = Some(Preconditions {
                uid: volume.uid(),
                resource_version: volume.resource_version(),
            });
            let params = DeleteParams {
                preconditions,
                ..DeleteParams::default()
            };
            match self.volumes_api().delete(request.key.name(), &params).await {
                Err(error) if !is_gone_or_conflict(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Outcome::Done)
    }

    fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_get_the_smallest_volume_that_is_large_enough() {
        let claim = |volume: &str| -> PersistentVolumeClaim {
            let claim = json!({
                "metadata": {"name": "data", "namespace": "default", "uid": "u"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard", "volumeName": volume,
                    "resources": {"requests": {"storage": "2Gi"}}},
            });
            serde_json::from_value(claim).unwrap()
        };
        let volume = |name: &str,
                      size: &str,
                      class: &str,
                      claimed: Option<&str>|
         -> Arc<PersistentVolume> {
            let mut volume = json!({
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "capacity": {"storage": size}},
            });
            if let Some(uid) = claimed {
                volume["spec"]["claimRef"] =
                    json!({"name": "data", "namespace": "default", "uid": uid});
            }
            Arc::new(serde_json::from_value(volume).unwrap())
        };
        let cases: [(&str, &str, Vec<Arc<PersistentVolume>>, bool, Option<&str>); 7] = [
            (
                "the smallest",
                "",
                vec![
                    volume("large", "9Gi", "standard", None),
                    volume("fits", "3Gi", "standard", None),
                ],
                true,
                Some("fits"),
            ),
            (
                "none is large enough",
                "",
                vec![volume("small", "1Gi", "standard", None)],
                false,
                None,
            ),
            (
                "of its class",
                "",
                vec![volume("other", "3Gi", "fast", None)],
                false,
                None,
            ),
            (
                "its own first",
                "",
                vec![
                    volume("free", "2Gi", "standard", None),
                    volume("own", "9Gi", "standard", Some("u")),
                ],
                true,
                Some("own"),
            ),
            (
                "not another's",
                "",
                vec![volume("taken", "3Gi", "standard", Some("x"))],
                false,
                None,
            ),
            (
                "the one it names",
                "large",
                vec![
                    volume("large", "9Gi", "standard", None),
                    volume("fits", "3Gi", "standard", None),
                ],
                true,
                Some("large"),
            ),
            (
                "and waits for it",
                "later",
                vec![volume("fits", "3Gi", "standard", None)],
                true,
                None,
            ),
        ];
        for (why, named, volumes, makes, wanted) in cases {
            match (plan(&claim(named), &volumes, makes), wanted) {
                (Plan::Take(volume), Some(name)) => assert_eq!(volume.name_any(), name, "{why}"),
                (Plan::Wait, None) => {}
                (other, _) => panic!("{why}: {other:?}"),
            }
        }
        assert_eq!(plan(&claim(""), &[], true), Plan::Make);
    }
}
