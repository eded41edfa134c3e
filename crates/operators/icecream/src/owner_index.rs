//! The way from an Icecream to its pods and back, by controller owner references.
//!
//! Guarantee: an owner is accepted only if its UID matches, so that objects of a deleted owner of
//! the same name are not attributed to its successor.

use std::sync::Arc;

use bellerophon::{IndexError, Lister, ObjectKey, controller_of};
use bellerophon_operator::BY_CONTROLLER;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Resource, ResourceExt as _};

use crate::Icecream;

/// The caches of all kinds between an Icecream and its pods, indexed by controller.
#[derive(Clone)]
pub(crate) struct OwnerIndex {
    pub(crate) deployments: Lister<Deployment>,
    pub(crate) replica_sets: Lister<ReplicaSet>,
    pub(crate) pods: Lister<Pod>,
}

impl OwnerIndex {
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

    /// The Deployments that an Icecream controls, whatever their names.
    pub(crate) fn deployments_of(
        &self,
        icecream: &Icecream,
    ) -> Result<Vec<Arc<Deployment>>, IndexError> {
        let uid = icecream.uid().unwrap_or_default();
        self.deployments.by_index(BY_CONTROLLER, &uid)
    }

    /// The pods of a Deployment.
    pub(crate) fn pods_of(&self, deployment: &Deployment) -> Result<Vec<Arc<Pod>>, IndexError> {
        let uid = deployment.uid().unwrap_or_default();
        let mut pods = Vec::new();
        for replica_set in self.replica_sets.by_index(BY_CONTROLLER, &uid)? {
            let uid = replica_set.uid().unwrap_or_default();
            pods.extend(self.pods.by_index(BY_CONTROLLER, &uid)?);
        }
        Ok(pods)
    }
}

/// The key of an object's controller owner, if that is of the kind `O`.
fn owner_of<O: Resource<DynamicType = ()>, C: Resource>(child: &C) -> Option<ObjectKey> {
    let owner = controller_of(child)
        .filter(|owner| owner.kind == O::kind(&()) && owner.api_version == O::api_version(&()))?;
    Some(ObjectKey::beside(child, &owner.name))
}
