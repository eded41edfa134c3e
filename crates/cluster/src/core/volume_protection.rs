//! PersistentVolumeClaim and PersistentVolume protection: claims used by pods and bound volumes
//! keep a finalizer.
//!
//! Input: claims, volumes, pods. Output: finalizers added and removed.
//! Guarantees: the finalizer of a claim is removed only after a live list of pods, because the pod
//! cache may be stale.

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, Predicate, ReconcileResult, Request};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api_errors::is_not_found;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const PVC_FINALIZER: &str = "kubernetes.io/pvc-protection";
const PV_FINALIZER: &str = "kubernetes.io/pv-protection";

/// Index of pods by `namespace/name` of each claim they use.
const POD_PVC_INDEX: &str = "pod-pvc";

struct PvcProtection {
    client: Client,
    pods: Lister<Pod>,
}

/// The PVC protection controller, under its upstream name.
pub(crate) fn pvc_controller(ctx: &Context) -> Loop {
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let pods = ctx.pods();
    index::add_index(&pods, POD_PVC_INDEX, |pod| {
        claim_keys(pod).iter().map(ObjectKey::to_string).collect()
    });
    let reconciler = Arc::new(PvcProtection {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
    });
    Controller::of(&claims)
        // Only the deletion of a pod can end the use of a claim.
        .watches_if(&pods, Predicate::concerns(|_| false), claim_keys)
        .with_options(ctx.options("persistentvolumeclaim-protection-controller", 1))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

/// The PV protection controller, under its upstream name.
pub(crate) fn pv_controller(ctx: &Context) -> Loop {
    let client = ctx.client(Component::ControllerManager);
    Controller::of(&ctx.informer::<PersistentVolume>())
        .with_options(ctx.options("persistentvolume-protection-controller", 1))
        .reconcile_with(move |request: Request<PersistentVolume>| {
            let client = client.clone();
            async move {
                let Some(volume) = &request.object else {
                    return Ok(Outcome::Done);
                };
                // Mirrors isBeingUsed of the PV protection controller: a bound volume is in use.
                let bound = volume
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref())
                    == Some("Bound");
                let Some(patch) = finalizer_patch(&**volume, PV_FINALIZER, bound) else {
                    return Ok(Outcome::Done);
                };
                patch_finalizers(&Api::all(client), &**volume, &patch, &request).await
            }
        })
        .into()
}

impl PvcProtection {
    async fn reconcile(
        self: Arc<Self>,
        request: Request<PersistentVolumeClaim>,
    ) -> ReconcileResult {
        let Some(claim) = &request.object else {
            return Ok(Outcome::Done);
        };
        let terminating = claim.metadata.deletion_timestamp.is_some();
        // Mirrors isBeingUsedWith: the informer first, then a live list.
        let in_use = terminating
            && (self.ask_informer(&request.key) || self.ask_api_server(&request.key).await?);
        let Some(patch) = finalizer_patch(&**claim, PVC_FINALIZER, in_use) else {
            return Ok(Outcome::Done);
        };
        let api = Api::namespaced(
            self.client.clone(),
            request.key.namespace().unwrap_or_default(),
        );
        patch_finalizers(&api, &**claim, &patch, &request).await
    }

    /// Whether a cached pod uses the claim. Mirrors askInformer.
    fn ask_informer(&self, claim: &ObjectKey) -> bool {
        self.pods
            .by_index(POD_PVC_INDEX, &claim.to_string())
            .is_ok_and(|pods| !pods.is_empty())
    }

    /// Whether a pod uses the claim, by a live list. Mirrors askAPIServer.
    async fn ask_api_server(&self, claim: &ObjectKey) -> Result<bool, kube::Error> {
        let api =
            Api::<Pod>::namespaced(self.client.clone(), claim.namespace().unwrap_or_default());
        Ok(api
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .any(|pod| claim_keys(pod).contains(claim)))
    }
}

pub(super) async fn patch_finalizers<K>(
    api: &Api<K>,
    object: &K,
    patch: &Value,
    request: &Request<K>,
) -> ReconcileResult
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api
        .patch(
            &object.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
    {
        Ok(patched) => request.writes().wrote(&patched),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Done)
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
    names.map(|name| ObjectKey::beside(pod, &name)).collect()
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
