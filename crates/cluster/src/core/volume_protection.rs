//! PersistentVolumeClaim and PersistentVolume protection: claims used by pods and bound volumes
//! keep a finalizer.
//!
//! Input: claims, volumes, pods. Output: finalizers added and removed.
//! Guarantees: the finalizer of a claim is removed only after a live list of pods, because the pod
//! cache may be stale.

use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::index;

const PVC_FINALIZER: &str = "kubernetes.io/pvc-protection";
const PV_FINALIZER: &str = "kubernetes.io/pv-protection";

struct PvcProtection {
    /// Pods by `namespace/name` of each claim they use.
    pods_by_claim: Index<Pod>,
}

/// Adds the PVC protection controller, under its upstream name.
pub(crate) fn setup_pvc(mgr: &mut Manager) {
    let pods = index::pods(mgr);
    let pods_by_claim = pods.index("pod-pvc", |pod| {
        claim_keys(pod).iter().map(ObjectKey::to_string).collect()
    });
    mgr.controller::<PersistentVolumeClaim>()
        // Only the deletion of a pod can end the use of a claim.
        .watches::<Pod>(claim_keys)
        .predicate(Predicate::deletions())
        .name("persistentvolumeclaim-protection-controller")
        .reconcile(PvcProtection { pods_by_claim });
}

/// Adds the PV protection controller, under its upstream name.
pub(crate) fn setup_pv(mgr: &mut Manager) {
    mgr.controller::<PersistentVolume>()
        .name("persistentvolume-protection-controller")
        .reconcile(protect_volume);
}

async fn protect_volume(req: Request<PersistentVolume>) -> Result<Action, Error> {
    let Some(volume) = req.object() else {
        return Ok(Action::await_change());
    };
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let Some(patch) = finalizer_patch(volume, PV_FINALIZER, phase == Some("Bound")) else {
        return Ok(Action::await_change());
    };
    patch_finalizers(&req, volume, &patch).await
}

impl Reconciler<PersistentVolumeClaim> for PvcProtection {
    async fn reconcile(&self, req: Request<PersistentVolumeClaim>) -> Result<Action, Error> {
        let Some(claim) = req.object() else {
            return Ok(Action::await_change());
        };
        let terminating = claim.metadata.deletion_timestamp.is_some();
        // Mirrors isBeingUsedWith: the informer first, then a live list.
        let in_use = terminating && (self.ask_informer(req.key()) || ask_api_server(&req).await?);
        let Some(patch) = finalizer_patch(claim, PVC_FINALIZER, in_use) else {
            return Ok(Action::await_change());
        };
        patch_finalizers(&req, claim, &patch).await
    }
}

impl PvcProtection {
    /// Whether a cached pod uses the claim. Mirrors askInformer.
    fn ask_informer(&self, claim: &ObjectKey) -> bool {
        !self.pods_by_claim.keys(&claim.to_string()).is_empty()
    }
}

/// Whether a pod uses the claim, by a live list. Mirrors askAPIServer.
async fn ask_api_server(req: &Request<PersistentVolumeClaim>) -> Result<bool, Error> {
    let claim = req.key();
    let pods = req
        .client()
        .list::<Pod>(claim.namespace(), &ListParams::default())
        .await?;
    Ok(pods.iter().any(|pod| claim_keys(pod).contains(claim)))
}

pub(super) async fn patch_finalizers<K: Kind>(
    req: &Request<K>,
    object: &K,
    patch: &Value,
) -> Result<Action, Error> {
    match req.client().patch(object, &Patch::Merge(patch)).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Action::await_change()),
    }
}

/// The patch that adds the finalizer to an object, or removes it from a terminating object that is
/// no longer in use; `None` if there is nothing to change.
///
/// Mirrors NeedToAddFinalizer and IsDeletionCandidate.
pub(super) fn finalizer_patch<K: Resource>(
    object: &K,
    finalizer: &str,
    in_use: bool,
) -> Option<Value> {
    let mut finalizers = object.finalizers().to_vec();
    let has_finalizer = finalizers.iter().any(|name| name == finalizer);
    match (object.meta().deletion_timestamp.is_some(), has_finalizer) {
        // A terminating object must not get the finalizer: the API server rejects new finalizers on
        // it.
        (false, false) => finalizers.push(finalizer.into()),
        (true, true) if !in_use => finalizers.retain(|name| name != finalizer),
        _ => return None,
    }
    Some(json!({
        "metadata": {
            "finalizers": finalizers,
            "resourceVersion": object.resource_version(),
            "uid": object.uid(),
        },
    }))
}

/// The claims that a pod uses. A pod that is not scheduled uses none: the kubelet does not start a
/// pod that references a terminating claim.
fn claim_keys(pod: &Pod) -> Vec<ObjectKey> {
    let Some(spec) = pod
        .spec
        .as_ref()
        .filter(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()))
    else {
        return Vec::new();
    };
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| match (
        &volume.persistent_volume_claim,
        &volume.ephemeral,
    ) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        // Mirrors ephemeral.VolumeClaimName.
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    };
    let names = spec.volumes.iter().flatten().filter_map(claim);
    names
        .map(|name| ObjectKey::in_namespace_of(pod, &name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(terminating: bool, finalizers: &[&str]) -> PersistentVolumeClaim {
        let time = terminating.then_some("2026-01-02T03:04:05Z");
        let metadata = json!({"name": "c", "deletionTimestamp": time, "finalizers": finalizers});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn finalizer_is_kept_until_terminating_and_unused() {
        for (terminating, finalizers, in_use, expected) in [
            (false, &[][..], false, Some(json!([PVC_FINALIZER]))),
            (false, &["x"], true, Some(json!(["x", PVC_FINALIZER]))),
            (false, &[PVC_FINALIZER], false, None),
            (true, &[PVC_FINALIZER], true, None),
            (true, &["x", PVC_FINALIZER], false, Some(json!(["x"]))),
            (true, &["x"], false, None),
        ] {
            let patch = finalizer_patch(&claim(terminating, finalizers), PVC_FINALIZER, in_use);
            assert_eq!(
                patch.map(|patch| patch["metadata"]["finalizers"].clone()),
                expected,
                "{terminating} {finalizers:?} {in_use}"
            );
        }
    }

    #[test]
    fn only_scheduled_pods_use_their_claims() {
        let volumes = json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "b", "ephemeral": {}},
            {"name": "d"},
        ]);
        for (node, expected) in [
            (json!("n"), vec!["x/c", "x/p-b"]),
            (json!(""), vec![]),
            (json!(null), vec![]),
        ] {
            let spec = json!({"containers": [], "nodeName": node, "volumes": volumes});
            let pod: Pod = serde_json::from_value(
                json!({"metadata": {"name": "p", "namespace": "x"}, "spec": spec}),
            )
            .unwrap();
            assert_eq!(
                claim_keys(&pod)
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
                expected
            );
        }
    }
}
