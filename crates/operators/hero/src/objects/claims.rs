//! The volumes of members and of backups. They have no owner: policy and finalizer decide.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt as _;

use super::{metadata, shared_metadata};
use crate::{
    crd::{Bellerophon, MemberStatus},
    names,
};

/// The claim of a member, labelled with cluster and member id.
pub(crate) fn member_claim(
    hero: &Bellerophon,
    cluster_id: &str,
    member: &MemberStatus,
) -> PersistentVolumeClaim {
    let labels = names::claim_labels(hero, cluster_id, member);
    let storage = &hero.spec.storage;
    PersistentVolumeClaim {
        metadata: metadata(hero, member.name.clone(), labels),
        spec: Some(spec(&storage.size, storage.class_name.as_deref())),
        status: None,
    }
}

/// The claim that holds the backups of a store. It outlives the Bellerophon.
pub(crate) fn backup_claim(hero: &Bellerophon) -> PersistentVolumeClaim {
    let policy = &hero.spec.backup;
    PersistentVolumeClaim {
        metadata: shared_metadata(hero, names::backup_claim(&hero.name_any())),
        spec: Some(spec(&policy.size, policy.class_name.as_deref())),
        status: None,
    }
}

fn spec(size: &str, class: Option<&str>) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        storage_class_name: class.map(str::to_owned),
        resources: Some(VolumeResourceRequirements {
            requests: Some(BTreeMap::from([(
                "storage".to_owned(),
                Quantity(size.to_owned()),
            )])),
            ..VolumeResourceRequirements::default()
        }),
        ..PersistentVolumeClaimSpec::default()
    }
}
