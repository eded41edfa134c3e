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

use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{ObjectMeta, Patch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::plan::{BindingPlan, is_bound_to_claim, plan_binding};
use crate::api_errors::is_gone_or_conflict;
use crate::component::Component;

/// The provisioner and CSI driver of simulated volumes.
const PROVISIONER: &str = "sim.bellerophon.io";
/// The name of the default storage class.
const DEFAULT_CLASS: &str = "standard";
const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Annotation of objects that the controller bound, as opposed to a user.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The maximum number of claims, and of volumes, reconciled concurrently.
const WORKERS: usize = 2;

struct PersistentVolumeController {
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

/// Adds the controllers of claims and volumes, and the task that creates the default storage class.
pub(crate) fn setup(mgr: &mut Manager) {
    let controller = Arc::new(PersistentVolumeController {
        volumes: mgr.lister(),
        classes: mgr.lister(),
        claims: mgr.lister(),
    });
    let on_volume = controller.clone();
    let on_class = controller.clone();
    mgr.controller::<PersistentVolumeClaim>()
        // A new volume or class may match any unbound claim.
        .watches::<PersistentVolume>(move |_| on_volume.unbound_claims())
        .watches::<StorageClass>(move |_| on_class.unbound_claims())
        .name("persistentvolume-binder-controller")
        .concurrency(WORKERS)
        .context(controller.clone())
        .reconcile(PersistentVolumeController::sync_claim);
    mgr.controller::<PersistentVolume>()
        .watches::<PersistentVolumeClaim>(|claim| {
            claim
                .spec
                .iter()
                .filter_map(|spec| spec.volume_name.as_deref())
                .map(ObjectKey::cluster)
                .collect()
        })
        .name("persistentvolume-reclaimer")
        .concurrency(WORKERS)
        .context(controller)
        .reconcile(PersistentVolumeController::sync_volume);
    let name = "storage-class";
    let client = Component::ControllerManager.client(mgr, name);
    mgr.add(name, async move |stop: CancellationToken| {
        let created = stop.run_until_cancelled(create_default_class(&client));
        if let Some(Err(error)) = created.await {
            tracing::warn!(%error, "cannot create the default storage class");
        }
        stop.cancelled().await;
        Ok(())
    });
}

/// Creates the default storage class if there is none of its name.
async fn create_default_class(client: &ReconcileClient) -> Result<(), WriteError> {
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
    match client.create(&class).await {
        Err(error) if error.is_already_exists() => Ok(()),
        created => created.map(|_| ()),
    }
}

impl PersistentVolumeController {
    fn unbound_claims(&self) -> Vec<ObjectKey> {
        self.claims
            .list()
            .iter()
            .filter(|claim| !is_bound(claim))
            .map(|claim| ObjectKey::from_object(&**claim))
            .collect()
    }

    /// Binds an unbound claim. Mirrors `syncUnboundClaim`.
    async fn sync_claim(
        self: Arc<Self>,
        req: Request<PersistentVolumeClaim>,
    ) -> Result<Action, Error> {
        let Some(claim) = req
            .object()
            .filter(|claim| !is_bound(claim) && claim.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Action::await_change());
        };
        let Some(class) = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.clone())
            .or_else(|| self.default_class())
        else {
            return Ok(Action::await_change());
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
            patch_claim(req.client(), claim, &body).await?;
            return Ok(Action::await_change());
        }
        // Only simulated volumes can be provisioned here; other classes have their own provisioner.
        let class = self
            .classes
            .get(&ObjectKey::cluster(class))
            .filter(|class| class.provisioner == PROVISIONER);
        let volumes = self.volumes.list();
        let provisioned;
        let volume = match plan_binding(claim, &volumes, class.is_some()) {
            BindingPlan::Wait => return Ok(Action::await_change()),
            BindingPlan::Bind(volume) => {
                let is_bound = is_bound_to_claim(claim, volume)
                    || bind_volume_to_claim(req.client(), claim, volume).await?;
                if !is_bound {
                    return Ok(Action::await_change());
                }
                volume
            }
            BindingPlan::Provision => {
                provisioned = provision_claim(req.client(), claim, class.as_deref()).await?;
                &provisioned
            }
        };
        bind_claim_to_volume(req.client(), claim, volume).await?;
        Ok(Action::await_change())
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

    /// Updates the phase of a volume, and deletes a released volume with reclaim policy `Delete`.
    /// Mirrors `syncVolume` and `reclaimVolume`.
    async fn sync_volume(self: Arc<Self>, req: Request<PersistentVolume>) -> Result<Action, Error> {
        let Some(volume) = req
            .object()
            .filter(|volume| volume.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Action::await_change());
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
            let statuses = req.client().subresource("status");
            match statuses.patch(volume, &Patch::Merge(&body)).await {
                Err(error) if !is_gone_or_conflict(&error) => return Err(error.into()),
                _ => return Ok(Action::await_change()),
            }
        }
        let is_simulated = volume
            .annotations()
            .get(PROVISIONED_BY)
            .is_some_and(|by| by == PROVISIONER);
        if phase == "Released"
            && is_simulated
            && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
        {
            match req.client().delete(volume).await {
                Err(error) if !is_gone_or_conflict(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Action::await_change())
    }
}

async fn patch_claim(
    client: &ReconcileClient,
    claim: &PersistentVolumeClaim,
    body: &Value,
) -> Result<(), WriteError> {
    match client.patch(claim, &Patch::Merge(body)).await {
        Err(error) if !is_gone_or_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Writes the volume's `claimRef`; returns false on a conflict.
async fn bind_volume_to_claim(
    client: &ReconcileClient,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<bool, WriteError> {
    let body = json!({
        "metadata": {
            "resourceVersion": volume.metadata.resource_version,
            "annotations": { BOUND_BY_CONTROLLER: "yes" },
        },
        "spec": { "claimRef": claim_reference(claim) },
    });
    match client.patch(volume, &Patch::Merge(&body)).await {
        Err(error) if is_gone_or_conflict(&error) => Ok(false),
        bound => bound.map(|_| true),
    }
}

/// Creates a volume that is bound to the claim.
async fn provision_claim(
    client: &ReconcileClient,
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
) -> Result<Arc<PersistentVolume>, Error> {
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
            persistent_volume_reclaim_policy: class.and_then(|class| class.reclaim_policy.clone()),
            storage_class_name: spec.storage_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    match client.create(&volume).await {
        Ok(created) => Ok(created.object()?),
        // It was provisioned before a restart: the name contains the claim's uid.
        Err(error) if error.is_already_exists() => {
            let existing = client.get(&ObjectKey::cluster(name)).await?;
            Ok(existing.ok_or(error)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes the claim's `volumeName`, annotations and status.
async fn bind_claim_to_volume(
    client: &ReconcileClient,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<(), WriteError> {
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
    patch_claim(client, claim, &body).await?;
    let spec = volume.spec.as_ref();
    let status = json!({
        "metadata": { "uid": claim.metadata.uid },
        "status": {
            "phase": "Bound",
            "accessModes": spec.and_then(|spec| spec.access_modes.as_ref()),
            "capacity": spec.and_then(|spec| spec.capacity.as_ref()),
        },
    });
    let statuses = client.subresource("status");
    match statuses.patch(claim, &Patch::Merge(&status)).await {
        Err(error) if !is_gone_or_conflict(&error) => Err(error),
        _ => Ok(()),
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
