//! Persistent volume controller: binds claims to volumes, provisions and reclaims simulated
//! volumes.
//!
//! In: claims, volumes, storage classes. Out: provisioned volumes; claims and volumes bound to each
//! other; the default storage class.
//! Guarantees: a volume is bound to one claim, and its `claimRef` is written before the claim's
//! `volumeName`; existing volumes are preferred to provisioning; claims of other provisioners'
//! classes are not provisioned.

mod plan; // which volume a claim gets

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, ReconcileResult, Request};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;

use self::plan::{BindingPlan, is_bound_to_claim, plan_binding};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::evict::is_another;

/// The provisioner and CSI driver of simulated volumes.
const PROVISIONER: &str = "sim.bellerophon.io";
/// The name of the default storage class.
const DEFAULT_CLASS: &str = "standard";
const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Annotation of objects that the controller bound, as opposed to a user.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

struct PersistentVolumeController {
    client: Client,
    volumes: Lister<PersistentVolume>,
    classes: Lister<StorageClass>,
    claims: Lister<PersistentVolumeClaim>,
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Bound")
}

/// The controllers of claims and volumes, and the task that creates the default storage class.
pub(crate) fn controllers(ctx: &Context) -> Vec<Loop> {
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let volumes = ctx.informer::<PersistentVolume>();
    let classes = ctx.informer::<StorageClass>();
    let client = ctx.client(Component::ControllerManager);
    let controller = Arc::new(PersistentVolumeController {
        client: client.clone(),
        volumes: volumes.lister(),
        classes: classes.lister(),
        claims: claims.lister(),
    });
    let for_claims = controller.clone();
    let for_volumes = controller.clone();
    let on_volume = controller.clone();
    let on_class = controller;
    let claim_controller = Controller::of(&claims)
        // A new volume or class may match any unbound claim.
        .watches(&volumes, move |_| on_volume.unbound_claims())
        .watches(&classes, move |_| on_class.unbound_claims())
        .with_options(ctx.options("persistentvolume-binder-controller", 2))
        .reconcile_with(move |request| for_claims.clone().sync_claim(request));
    let volume_controller = Controller::of(&volumes)
        .watches(&claims, |claim| {
            claim
                .spec
                .iter()
                .filter_map(|spec| spec.volume_name.as_deref())
                .map(ObjectKey::cluster)
                .collect()
        })
        .with_options(ctx.options("persistentvolume-reclaimer", 2))
        .reconcile_with(move |request| for_volumes.clone().sync_volume(request));
    let create_class = Loop::background("storage-class", move |stop| async move {
        if let Some(Err(error)) = stop
            .run_until_cancelled(create_default_class(&client))
            .await
        {
            tracing::warn!(%error, "cannot create the default storage class");
        }
        stop.cancelled().await;
        Ok(())
    });
    vec![
        claim_controller.into(),
        volume_controller.into(),
        create_class,
    ]
}

/// Creates the default storage class if there is none of its name.
async fn create_default_class(client: &Client) -> Result<(), kube::Error> {
    let class = StorageClass {
        metadata: ObjectMeta {
            name: Some(DEFAULT_CLASS.into()),
            annotations: Some([(IS_DEFAULT_CLASS.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
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
        created => created.map(|_| ()),
    }
}

impl PersistentVolumeController {
    fn unbound_claims(&self) -> Vec<ObjectKey> {
        self.claims
            .list()
            .iter()
            .filter(|claim| !is_bound(claim))
            .map(|claim| ObjectKey::of(&**claim))
            .collect()
    }

    /// Binds an unbound claim. Mirrors `syncUnboundClaim`.
    async fn sync_claim(
        self: Arc<Self>,
        request: Request<PersistentVolumeClaim>,
    ) -> ReconcileResult {
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
            // The claim was created before the default class. Mirrors assignDefaultStorageClass;
            // the update enqueues the claim again.
            let body = json!({
                "metadata": { "uid": claim.metadata.uid },
                "spec": { "storageClassName": class },
            });
            self.patch_claim(claim, &body).await?;
            return Ok(Outcome::Done);
        }
        // Only simulated volumes can be provisioned here; other classes have their own provisioner.
        let class = self
            .classes
            .get(&ObjectKey::cluster(class))
            .filter(|class| class.provisioner == PROVISIONER);
        let volumes = self.volumes.list();
        let volume = match plan_binding(claim, &volumes, class.is_some()) {
            BindingPlan::Wait => return Ok(Outcome::Done),
            BindingPlan::Bind(volume) if is_bound_to_claim(claim, volume) => volume.clone(),
            BindingPlan::Bind(volume) => match self.bind_volume_to_claim(claim, volume).await? {
                Some(volume) => volume,
                None => return Ok(Outcome::Done),
            },
            BindingPlan::Provision => self.provision_claim(claim, class.as_deref()).await?,
        };
        self.bind_claim_to_volume(claim, &volume).await?;
        Ok(Outcome::Done)
    }

    /// The newest default storage class. Mirrors `GetDefaultClass`.
    fn default_class(&self) -> Option<String> {
        let is_default = |class: &&Arc<StorageClass>| {
            class
                .annotations()
                .get(IS_DEFAULT_CLASS)
                .is_some_and(|value| value == "true")
        };
        let classes = self.classes.list();
        classes
            .iter()
            .filter(is_default)
            .max_by_key(|class| class.creation_timestamp())
            .map(|class| class.name_any())
    }

    async fn patch_claim(
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
            Err(error) if !is_another(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the volume's `claimRef`; `None` on a conflict.
    async fn bind_volume_to_claim(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Option<PersistentVolume>, kube::Error> {
        let body = json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,
                "annotations": { BOUND_BY_CONTROLLER: "yes" },
            },
            "spec": { "claimRef": claim_reference(claim) },
        });
        match self
            .volumes_api()
            .patch(
                &volume.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Err(error) if is_another(&error) => Ok(None),
            bound => bound.map(Some),
        }
    }

    /// Creates a volume that is bound to the claim.
    async fn provision_claim(
        &self,
        claim: &PersistentVolumeClaim,
        class: Option<&StorageClass>,
    ) -> Result<PersistentVolume, kube::Error> {
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        let spec = claim.spec.clone().unwrap_or_default();
        let volume = PersistentVolume {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes,
                capacity: spec.resources.and_then(|resources| resources.requests),
                claim_ref: Some(claim_reference(claim)),
                csi: Some(CSIPersistentVolumeSource {
                    driver: PROVISIONER.into(),
                    volume_handle: name.clone(),
                    ..CSIPersistentVolumeSource::default()
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
            // It was provisioned before a restart: the name contains the claim's uid.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.volumes_api().get(&name).await
            }
            created => created,
        }
    }

    /// Writes the claim's `volumeName`, annotations and status.
    async fn bind_claim_to_volume(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), kube::Error> {
        let mut annotations = json!({ BIND_COMPLETED: "yes" });
        if claim
            .spec
            .as_ref()
            .is_none_or(|spec| spec.volume_name.is_none())
        {
            // A user who sets volumeName has bound the claim.
            annotations[BOUND_BY_CONTROLLER] = json!("yes");
        }
        let body = json!({
            "metadata": { "uid": claim.metadata.uid, "annotations": annotations },
            "spec": { "volumeName": volume.name_any() },
        });
        self.patch_claim(claim, &body).await?;
        let spec = volume.spec.clone().unwrap_or_default();
        let status = json!({
            "metadata": { "uid": claim.metadata.uid },
            "status": {
                "phase": "Bound",
                "accessModes": spec.access_modes,
                "capacity": spec.capacity,
            },
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
            Err(error) if !is_another(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Updates the phase of a volume, and deletes a released volume with reclaim policy `Delete`.
    /// Mirrors `syncVolume` and `reclaimVolume`.
    async fn sync_volume(self: Arc<Self>, request: Request<PersistentVolume>) -> ReconcileResult {
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
                let exists = self
                    .claims
                    .get(&key)
                    .is_some_and(|claim| claim.metadata.uid == reference.uid);
                if exists { "Bound" } else { "Released" }
            }
        };
        let current_phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if current_phase != Some(phase) {
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
                Err(error) if is_another(&error) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(Outcome::Done);
        }
        let is_simulated = volume
            .annotations()
            .get(PROVISIONED_BY)
            .is_some_and(|by| by == PROVISIONER);
        if phase == "Released"
            && is_simulated
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
                Err(error) if !is_another(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Outcome::Done)
    }

    fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }
}

fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectReference {
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
