//! Workloads, with the test in the place of scheduler and kubelet: it says when pods are ready, fail or are gone.

mod cron_job; // jobs at their times
mod daemon_set; // one pod on every node
mod deployment; // one template at a time, rolled out
mod disruption; // how many pods may be taken away
mod job; // pods that are to end well
mod replica_set; // so many equal pods
mod stateful_set; // members with names and storage
mod whole; // with scheduler and nodes

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{World, until};

/// A cluster without nodes, with what pods need to be admitted.
pub(crate) async fn world() -> World {
    let world = World::with_nodes(0).await;
    world.apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } })).await;
    world
}

/// A template of pods labelled `app`, with one container of this image.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "containers": [{ "name": "main", "image": image }] } })
}

/// Whether a pod neither ended nor is being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(crate) fn image(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.containers[0].image.as_deref())
        .unwrap_or_default()
}

/// Waits for exactly so many active pods in `default`.
pub(crate) async fn pods(world: &World, count: usize) -> Vec<Pod> {
    let wanted = format!("{count} active pods");
    let all = until(&world.within("default"), &wanted, |pods: &[Pod]| {
        pods.iter().filter(|pod| is_active(pod)).count() == count
    })
    .await;
    all.into_iter().filter(is_active).collect()
}

/// Makes a pod run and serve from now on.
pub(crate) async fn make_ready(world: &World, pod: &Pod) {
    let since = now(world);
    let conditions = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": since }]);
    set_status(
        world,
        pod,
        json!({ "phase": "Running", "conditions": conditions }),
    )
    .await;
}

/// Ends a pod.
pub(crate) async fn finish(world: &World, pod: &Pod, phase: &str) {
    let finished = json!({ "terminated": { "exitCode": if phase == "Failed" { 1 } else { 0 }, "finishedAt": now(world) } });
    let containers = json!([{ "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": finished }]);
    let conditions =
        json!([{ "type": "Ready", "status": "False", "lastTransitionTime": now(world) }]);
    set_status(
        world,
        pod,
        json!({ "phase": phase, "containerStatuses": containers, "conditions": conditions }),
    )
    .await;
}

pub(crate) async fn set_status(world: &World, pod: &Pod, status: Value) {
    let pods: Api<Pod> = world.within(&pod.namespace().unwrap_or_default());
    match pods
        .patch_status(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": status })),
        )
        .await
    {
        Ok(_) => {}
        // Gone meanwhile, and so is its kubelet's business.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("cannot set the status of {}: {error}", pod.name_any()),
    }
}

/// Makes every active pod that is not ready yet so.
pub(crate) async fn make_all_ready(world: &World) {
    for pod in world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("pods")
    {
        if is_active(&pod) && !is_ready(&pod) {
            make_ready(world, &pod).await;
        }
    }
}

/// The time of day in the cluster.
pub(crate) fn now(world: &World) -> Timestamp {
    world.clock.now()
}

/// The name of an object's controller.
pub(crate) fn controller<K: Resource>(object: &K) -> Option<&str> {
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.name.as_str())
}

/// Changes an object by a merge patch.
pub(crate) async fn patch<K>(api: &Api<K>, name: &str, patch: Value) -> K
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("a patch")
}
