//! The Kubernetes objects of a store, with only the fields that the operator manages.
//!
//! Guarantees: Pods, Services, Secrets and the PodDisruptionBudget are controlled by the
//! Bellerophon; claims have no owner, so that no garbage collection deletes data.

mod backup_pods; // Pods that write, delete and restore backup files
mod claims; // volumes of members and backups
mod member_pod; // the Pod of a member
mod secrets; // authority, tokens, certificates
mod services; // Services, PodDisruptionBudget, ScheduledBackup

pub(crate) use backup_pods::{
    BACKUP_CONTAINER, BackupFile, backup_pod, backup_pod_name, cleanup_pod, restore_pod,
};
pub(crate) use claims::{backup_claim, member_claim};
pub(crate) use member_pod::member_pod;
pub(crate) use secrets::{
    CA_CERTIFICATE, CERTIFICATE, PRIVATE_KEY, TOKEN, certificate_secret, not_after, secret, text,
};
pub(crate) use services::{budget, client_service, peer_service, schedule};

use std::collections::BTreeMap;

use bellerophon::owner::{OwnerError, set_controller_reference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};

use crate::{
    crd::{Bellerophon, BellerophonStatus},
    names,
};

/// The user that the containers run as, as in the images of the operators.
pub(crate) const USER: i64 = 65532;

/// The inputs of a member's Pod: a Pod with another revision is rolled.
pub fn revision(hero: &Bellerophon, status: &BellerophonStatus) -> String {
    let image = status.image.as_deref().unwrap_or(&hero.spec.image);
    format!("{image} {}", hero.spec.winged_horse_name)
}

/// Metadata of an object of a store.
fn metadata(hero: &Bellerophon, name: String, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: hero.namespace(),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// Metadata of an object that all members share.
fn shared_metadata(hero: &Bellerophon, name: String) -> ObjectMeta {
    metadata(hero, name, names::labels(&hero.name_any()))
}

/// An object that is controlled by the Bellerophon.
fn owned<K: Resource>(hero: &Bellerophon, mut object: K) -> Result<K, OwnerError> {
    set_controller_reference(hero, &mut object)?;
    Ok(object)
}
