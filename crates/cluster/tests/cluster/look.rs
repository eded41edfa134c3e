//! What tests ask of pods, and how they wait for one.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::{Api, ResourceExt};
use serde_json::json;

use bellerophon_testkit::{World, until};

/// A whole cluster with so many nodes, in which pods can be created.
pub(crate) async fn world(nodes: usize) -> World {
    let world = World::with_nodes(nodes).await;
    world
        .apply(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        )
        .await;
    world
}

/// Waits until a pod in `default` is as wanted, and returns it.
pub(crate) async fn until_pod(
    world: &World,
    name: &str,
    wanted: &str,
    so: impl Fn(&Pod) -> bool,
) -> Pod {
    let pods: Api<Pod> = world.within("default");
    let seen = until(&pods, wanted, |pods| {
        pods.iter().any(|pod| pod.name_any() == name && so(pod))
    })
    .await;
    seen.into_iter()
        .find(|pod| pod.name_any() == name)
        .expect("it was just there")
}

/// The node a pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A condition of a pod by its type.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// Whether a condition of a pod holds.
pub(crate) fn holds(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| condition.status == "True")
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    holds(pod, "Ready")
}
