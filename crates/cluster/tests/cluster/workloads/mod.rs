//! Workload controllers. The tests act as scheduler and kubelet: they set the status of pods.

mod cron_job; // CronJob
mod daemon_set; // DaemonSet
mod deployment; // Deployment
mod disruption; // PodDisruptionBudget
mod end_to_end; // with scheduler and simulated nodes
mod job; // Job
mod replica_set; // ReplicaSet and ReplicationController
mod stateful_set; // StatefulSet

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use bellerophon_testkit::{TestCluster, wait_until};

/// A cluster without nodes, with the ServiceAccount `default`.
pub(crate) async fn test_cluster() -> TestCluster {
    let cluster = TestCluster::with_nodes(0).await;
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "default" },
        }))
        .await;
    cluster
}

/// A pod template with label `app` and one container.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [{ "name": "main", "image": image }] },
    })
}

/// Whether a pod is neither terminal nor terminating.
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

/// All objects of a kind in `default`.
pub(crate) async fn list<K>(cluster: &TestCluster) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let objects = cluster.namespaced::<K>("default");
    objects.list(&Default::default()).await.unwrap().items
}

/// Waits for exactly `count` active pods in `default`.
pub(crate) async fn pods(cluster: &TestCluster, count: usize) -> Vec<Pod> {
    let description = format!("{count} active pods");
    let all = wait_until(
        &cluster.namespaced("default"),
        &description,
        |pods: &[Pod]| pods.iter().filter(|pod| is_active(pod)).count() == count,
    )
    .await;
    all.into_iter().filter(is_active).collect()
}

/// Sets a pod running and ready.
pub(crate) async fn make_ready(cluster: &TestCluster, pod: &Pod) {
    let time = now(cluster);
    let conditions = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": time }]);
    set_status(
        cluster,
        pod,
        json!({ "phase": "Running", "conditions": conditions }),
    )
    .await;
}

/// Sets a pod's phase to `Succeeded` or `Failed`.
pub(crate) async fn finish(cluster: &TestCluster, pod: &Pod, phase: &str) {
    let finished = json!({
        "terminated": {
            "exitCode": if phase == "Failed" { 1 } else { 0 },
            "finishedAt": now(cluster),
        },
    });
    let containers = json!([
        {
            "name": "main",
            "image": "x",
            "imageID": "",
            "ready": false,
            "restartCount": 0,
            "state": finished,
        },
    ]);
    let conditions =
        json!([{ "type": "Ready", "status": "False", "lastTransitionTime": now(cluster) }]);
    set_status(
        cluster,
        pod,
        json!({ "phase": phase, "containerStatuses": containers, "conditions": conditions }),
    )
    .await;
}

pub(crate) async fn set_status(cluster: &TestCluster, pod: &Pod, status: Value) {
    let pods: Api<Pod> = cluster.namespaced(&pod.namespace().unwrap_or_default());
    match pods
        .patch_status(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": status })),
        )
        .await
    {
        Ok(_) => {}
        // The pod was deleted in the meantime.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("cannot set the status of {}: {error}", pod.name_any()),
    }
}

/// Sets all active pods ready.
pub(crate) async fn make_all_ready(cluster: &TestCluster) {
    for pod in cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("pods")
    {
        if is_active(&pod) && !is_ready(&pod) {
            make_ready(cluster, &pod).await;
        }
    }
}

/// The time of the test cluster.
pub(crate) fn now(cluster: &TestCluster) -> Timestamp {
    cluster.clock.now()
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

/// Sends a merge patch.
pub(crate) async fn patch<K>(api: &Api<K>, name: &str, patch: Value) -> K
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("a patch")
}
