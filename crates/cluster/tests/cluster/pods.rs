//! Helpers for pods: conditions, waiting.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::{Api, ResourceExt};
use serde_json::json;

use bellerophon_testkit::{TestCluster, wait_until};

/// A full cluster with a number of nodes and the ServiceAccount `default`.
pub(crate) async fn test_cluster(nodes: usize) -> TestCluster {
    let cluster = TestCluster::with_nodes(nodes).await;
    cluster
        .apply(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        )
        .await;
    cluster
}

/// Waits until a pod in `default` satisfies the predicate, and returns it.
pub(crate) async fn until_pod(
    cluster: &TestCluster,
    name: &str,
    expected: &str,
    predicate: impl Fn(&Pod) -> bool,
) -> Pod {
    let pods: Api<Pod> = cluster.namespaced("default");
    let seen = wait_until(&pods, expected, |pods| {
        pods.iter()
            .any(|pod| pod.name_any() == name && predicate(pod))
    })
    .await;
    seen.into_iter()
        .find(|pod| pod.name_any() == name)
        .expect("the predicate matched this pod")
}

/// The node of a pod.
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

/// Whether a condition of a pod is true.
pub(crate) fn has_condition(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| condition.status == "True")
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    has_condition(pod, "Ready")
}
