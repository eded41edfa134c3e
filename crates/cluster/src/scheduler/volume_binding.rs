//! Volume binding: which nodes can access the volumes of a pod.
//!
//! In: cached claims, volumes and storage classes. Out: node selectors of the bound volumes, or the
//! message why the pod is unschedulable. Mirrors the PreFilter step of the `VolumeBinding` plugin.

use bellerophon::ObjectKey;
use bellerophon::informer::Lister;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::pod_info::PendingPod;

/// Listers of claims, volumes and storage classes.
pub(crate) struct VolumeBinding {
    pub(crate) claims: Lister<PersistentVolumeClaim>,
    pub(crate) volumes: Lister<PersistentVolume>,
    pub(crate) classes: Lister<StorageClass>,
}

impl VolumeBinding {
    /// The node selectors of the pod's bound volumes; a node must match all of them.
    ///
    /// # Errors
    /// The message why the claims make the pod unschedulable on every node.
    pub(crate) fn node_selectors(&self, pending: &PendingPod) -> Result<Vec<NodeSelector>, String> {
        let mut selectors = Vec::new();
        for name in &pending.volume_claims {
            let key = ObjectKey::namespaced(pending.info.namespace(), name);
            let claim = self
                .claims
                .get(&key)
                .ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
            // The claim is removed as soon as no pod uses it, so a new pod must not start to.
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let volume_name = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.as_ref())
                .filter(|name| !name.is_empty());
            match volume_name.map(|name| self.volumes.get(&ObjectKey::cluster(name.as_str()))) {
                Some(Some(volume)) => selectors.extend(required_node_affinity(&volume)),
                Some(None) => {
                    return Err(
                        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
                            .into(),
                    );
                }
                // Bound after scheduling, so it does not restrict the nodes.
                None if self.waits_for_consumer(&claim) => {}
                None => return Err("pod has unbound immediate PersistentVolumeClaims".into()),
            }
        }
        Ok(selectors)
    }

    /// Whether the claim's class has `volumeBindingMode: WaitForFirstConsumer`.
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

fn required_node_affinity(volume: &PersistentVolume) -> Option<NodeSelector> {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref())
        .and_then(|affinity| affinity.required.clone())
}
