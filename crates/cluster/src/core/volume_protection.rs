//! Volume protection: claims that pods use, and volumes that claims use, stay until nobody does.
//!
//! In: claims, volumes, pods. Out: finalizers put on and taken off.
//! Holds: a claim is let go only after the server itself was asked for pods that use it, since a cache may not know the newest.

use std::sync::Arc;

use bellerophon::{Controller, Lister, ObjectKey, Outcome, Predicate, ReconcileResult, Request};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::answer::is_not_found;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const CLAIM_IN_USE: &str = "kubernetes.io/pvc-protection";
const VOLUME_IN_USE: &str = "kubernetes.io/pv-protection";

/// Pods by `namespace/claim` of each claim they use.
const BY_CLAIM: &str = "pod-pvc";

struct Claims {
    client: Client,
    pods: Lister<Pod>,
}

/// The loop that protects claims, under its upstream name.
pub(crate) fn claims(ctx: &Context) -> Loop {
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let pods = ctx.pods();
    index::add(&pods, BY_CLAIM, |pod| {
        claims_of(pod).iter().map(ObjectKey::to_string).collect()
    });
    let protector = Arc::new(Claims {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
    });
    Controller::of(&claims)
        // Only a pod that goes can set a claim free.
        .watches_if(&pods, Predicate::concerns(|_| false), claims_of)
        .with_options(ctx.options("persistentvolumeclaim-protection-controller", 1))
        .reconcile_with(move |request| protector.clone().reconcile(request))
        .into()
}

/// The loop that protects volumes, under its upstream name.
pub(crate) fn volumes(ctx: &Context) -> Loop {
    let client = ctx.client(Component::ControllerManager);
    Controller::of(&ctx.informer::<PersistentVolume>())
        .with_options(ctx.options("persistentvolume-protection-controller", 1))
        .reconcile_with(move |request: Request<PersistentVolume>| {
            let client = client.clone();
            async move {
                let Some(volume) = &request.object else {
                    return Ok(Outcome::Done);
                };
                let bound = volume
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref())
                    == Some("Bound");
                let Some(patch) = change(&**volume, VOLUME_IN_USE, bound) else {
                    return Ok(Outcome::Done);
                };
                write(&Api::all(client), &**volume, &patch, &request).await
            }
        })
        .into()
}

impl Claims {
    async fn reconcile(
        self: Arc<Self>,
        request: Request<PersistentVolumeClaim>,
    ) -> ReconcileResult {
        let Some(claim) = &request.object else {
            return Ok(Outcome::Done);
        };
        let going = claim.metadata.deletion_timestamp.is_some();
        let used = going
            && (self.is_used_by_known_pod(&request.key) || self.is_used(&request.key).await?);
        let Some(patch) = change(&**claim, CLAIM_IN_USE, used) else {
            return Ok(Outcome::Done);
        };
        let api = Api::namespaced(
            self.client.clone(),
            request.key.namespace().unwrap_or_default(),
        );
        write(&api, &**claim, &patch, &request).await
    }

    fn is_used_by_known_pod(&self, claim: &ObjectKey) -> bool {
        self.pods
            .by_index(BY_CLAIM, &claim.to_string())
            .is_ok_and(|pods| !pods.is_empty())
    }

    async fn is_used(&self, claim: &ObjectKey) -> Result<bool, kube::Error> {
        let api =
            Api::<Pod>::namespaced(self.client.clone(), claim.namespace().unwrap_or_default());
        Ok(api
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .any(|pod| claims_of(pod).contains(claim)))
    }
}

pub(super) async fn write<K>(
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
        Ok(answer) => request.writes().wrote(&answer),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Done)
}

/// The patch that puts the finalizer on an object that stays, or takes it off one that goes and is not used any more.
pub(super) fn change<K: Resource>(object: &K, finalizer: &str, used: bool) -> Option<Value> {
    let mut finalizers = object.finalizers().to_vec();
    let has = finalizers.iter().any(|name| name == finalizer);
    match (object.meta().deletion_timestamp.is_some(), has) {
        (false, false) => finalizers.push(finalizer.into()),
        (true, true) if !used => finalizers.retain(|name| name != finalizer),
        _ => return None,
    }
    Some(
        json!({ "metadata": { "finalizers": finalizers, "resourceVersion": object.resource_version(), "uid": object.uid() } }),
    )
}

/// The claims that a pod uses. A pod without a node uses nothing yet: no node will let it start with a claim that goes.
fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
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
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    };
    let names = spec.volumes.iter().flatten().filter_map(claim);
    names.map(|name| ObjectKey::beside(pod, &name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(going: bool, finalizers: &[&str]) -> PersistentVolumeClaim {
        let time = going.then_some("2026-01-02T03:04:05Z");
        let metadata = json!({"name": "c", "deletionTimestamp": time, "finalizers": finalizers});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn claim_is_protected_while_it_stays_or_is_used() {
        for (going, finalizers, used, wanted) in [
            (false, &[][..], false, Some(json!([CLAIM_IN_USE]))),
            (false, &["x"], true, Some(json!(["x", CLAIM_IN_USE]))),
            (false, &[CLAIM_IN_USE], false, None),
            (true, &[CLAIM_IN_USE], true, None),
            (true, &["x", CLAIM_IN_USE], false, Some(json!(["x"]))),
            (true, &["x"], false, None),
        ] {
            let patch = change(&claim(going, finalizers), CLAIM_IN_USE, used);
            assert_eq!(
                patch.map(|patch| patch["metadata"]["finalizers"].clone()),
                wanted,
                "{going} {finalizers:?} {used}"
            );
        }
    }

    #[test]
    fn scheduled_pods_use_their_claims() {
        let volumes = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "ephemeral": {}}, {"name": "d"}]);
        for (node, wanted) in [
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
                claims_of(&pod)
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
                wanted
            );
        }
    }
}
