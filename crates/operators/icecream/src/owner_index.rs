//! The way from an Icecream to its pods and back, by controller owner references.
//!
//! Guarantee: an owner is accepted only if its UID matches, so that objects of a deleted owner of
//! the same name are not attributed to its successor.

use std::sync::Arc;

use bellerophon::{
    index::{self, Index},
    owner::controller_of,
    prelude::*,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Resource, ResourceExt as _};

use crate::Icecream;

/// The name of the indexes by the UID of the controller owner.
const CONTROLLER_UID: &str = "controller-uid";

/// The caches of all kinds between an Icecream and its pods, indexed by controller.
#[derive(Clone)]
pub(crate) struct OwnerIndex {
    deployments: Lister<Deployment>,
    deployments_by_controller: Index<Deployment>,
    replica_sets: Lister<ReplicaSet>,
    replica_sets_by_controller: Index<ReplicaSet>,
    pods_by_controller: Index<Pod>,
}

impl OwnerIndex {
    pub(crate) fn new(mgr: &mut Manager) -> Self {
        Self {
            deployments: mgr.lister(),
            deployments_by_controller: mgr.index(CONTROLLER_UID, index::controller_uid),
            replica_sets: mgr.lister(),
            replica_sets_by_controller: mgr.index(CONTROLLER_UID, index::controller_uid),
            pods_by_controller: mgr.index(CONTROLLER_UID, index::controller_uid),
        }
    }

    /// The Icecream at the root of a pod's owners.
    pub(crate) fn icecream_of_pod(&self, pod: &Pod) -> Option<ObjectKey> {
        let replica_set = self.replica_sets.get(&owner_of::<ReplicaSet, _>(pod)?)?;
        if controller_of(pod)?.uid != replica_set.uid()? {
            return None;
        }
        self.icecream_of_replica_set(&replica_set)
    }

    /// The Icecream at the root of a ReplicaSet's owners.
    pub(crate) fn icecream_of_replica_set(&self, replica_set: &ReplicaSet) -> Option<ObjectKey> {
        let key = owner_of::<Deployment, _>(replica_set)?;
        let deployment = self.deployments.get(&key)?;
        if controller_of(replica_set)?.uid != deployment.uid()? {
            return None;
        }
        owner_of::<Icecream, _>(&*deployment)
    }

    /// A Deployment by its key, with any controller.
    pub(crate) fn deployment(&self, key: &ObjectKey) -> Option<Arc<Deployment>> {
        self.deployments.get(key)
    }

    /// The Deployments that an Icecream controls, whatever their names.
    pub(crate) fn deployments_of(&self, icecream: &Icecream) -> Vec<Arc<Deployment>> {
        let uid = icecream.uid().unwrap_or_default();
        self.deployments_by_controller.get(&uid)
    }

    /// The pods of a Deployment.
    pub(crate) fn pods_of(&self, deployment: &Deployment) -> Vec<Arc<Pod>> {
        let uid = deployment.uid().unwrap_or_default();
        let replica_sets = self.replica_sets_by_controller.get(&uid);
        let uids = replica_sets
            .iter()
            .filter_map(|replica_set| replica_set.uid());
        uids.flat_map(|uid| self.pods_by_controller.get(&uid))
            .collect()
    }
}

/// The key of an object's controller owner, if that is of the kind `O`.
fn owner_of<O: Resource<DynamicType = ()>, C: Resource>(child: &C) -> Option<ObjectKey> {
    let owner = controller_of(child)
        .filter(|owner| owner.kind == O::kind(&()) && owner.api_version == O::api_version(&()))?;
    Some(ObjectKey::in_namespace_of(child, &owner.name))
}
