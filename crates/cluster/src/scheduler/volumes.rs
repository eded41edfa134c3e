//! Volumes: where the claims of a pod can be reached.
//!
//! In: claims, volumes and storage classes as they are cached. Out: the nodes that reach them, or why nobody can tell.

use bellerophon::{Lister, ObjectKey};
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::pod_info::Pending;

/// What is known of storage.
pub(crate) struct Volumes {
    pub(crate) claims: Lister<PersistentVolumeClaim>,
    pub(crate) volumes: Lister<PersistentVolume>,
    pub(crate) classes: Lister<StorageClass>,
}

impl Volumes {
    /// The nodes from which the pod's volumes can be reached; all must match.
    ///
    /// # Errors
    /// Why its claims keep it from running anywhere.
    pub(crate) fn of(&self, pending: &Pending) -> Result<Vec<NodeSelector>, String> {
        let mut selectors = Vec::new();
        for name in &pending.claims {
            let key = ObjectKey::namespaced(pending.info.namespace(), name);
            let claim = self
                .claims
                .get(&key)
                .ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let bound = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.as_ref())
                .filter(|name| !name.is_empty());
            match bound.map(|name| self.volumes.get(&ObjectKey::cluster(name.as_str()))) {
                Some(Some(volume)) => selectors.extend(reach(&volume)),
                Some(None) => {
                    return Err(
                        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
                            .into(),
                    );
                }
                None if self.waits_for_consumer(&claim) => {}
                None => return Err("pod has unbound immediate PersistentVolumeClaims".into()),
            }
        }
        Ok(selectors)
    }

    /// Whether the claim is bound only once a pod that uses it has a node.
    fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.as_deref())
            .unwrap_or_default();
        let mode = self
            .classes
            .get(&ObjectKey::cluster(class))
            .and_then(|class| class.volume_binding_mode.clone());
        mode.as_deref() == Some("WaitForFirstConsumer")
    }
}

fn reach(volume: &PersistentVolume) -> Option<NodeSelector> {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref())
        .and_then(|affinity| affinity.required.clone())
}
