//! The drain of a node: one attempt to evict its pods.
//!
//! Input: the pods as the server lists them now. Output: the number of remaining pods, and the
//! PodDisruptionBudget that blocks them.
//!
//! Guarantees: pods are listed again for each attempt, and an eviction has the UID of its pod as a
//! precondition, so that a pod of the same name on another node is never evicted; mirror pods, pods
//! of DaemonSets and finished pods are skipped, as by `kubectl drain`.

use bellerophon::{
    client::{ReconcileClient, WriteError},
    owner::controller_of,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::json;

use super::metrics::AgentMetrics;
use crate::{
    annotations::sanitize_reason,
    policy::{Drain, UnmanagedPods},
};

/// The maximum number of concurrent evictions.
const CONCURRENCY_MAX: usize = 8;

/// The state of a node after an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainStatus {
    /// The number of pods that still have to be evicted or terminate.
    pub(crate) remaining: usize,
    /// Why one of them cannot be evicted, with the name of the PodDisruptionBudget.
    pub(crate) blocked_by: Option<String>,
}

/// Evicts the pods of a node.
///
/// # Errors
/// Pods cannot be listed, or an eviction fails for another reason than a PodDisruptionBudget.
pub(crate) async fn evict_pods(
    client: &ReconcileClient,
    node: &str,
    drain: &Drain,
    metrics: &AgentMetrics,
) -> Result<DrainStatus, WriteError> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    // From the server, by node: a cache of the pods of one node per agent would cost the server a
    // watch each.
    let mut pods = client.list::<Pod>(None, &params).await?;
    pods.retain(|pod| is_evicted(pod, drain));
    let results = stream::iter(pods)
        .map(|pod| async move { evict(client, &pod, drain, metrics).await })
        .buffer_unordered(CONCURRENCY_MAX);
    results
        .try_fold(DrainStatus::default(), |mut status, result| async move {
            status.remaining += usize::from(result != EvictionResult::Gone);
            if let EvictionResult::Blocked(message) = result {
                status.blocked_by.get_or_insert(message);
            }
            Ok(status)
        })
        .await
}

/// Whether a pod has to be evicted before its node reboots.
fn is_evicted(pod: &Pod, drain: &Drain) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let is_finished = matches!(phase, Some("Succeeded" | "Failed"));
    let annotations = pod.annotations();
    // Mirrors mirrorPodFilter and daemonSetFilter of kubectl drain (pkg/drain/filters.go). Pods of
    // DaemonSets tolerate cordoned nodes and would be back at the same place.
    let is_mirror = annotations.contains_key("kubernetes.io/config.mirror");
    let stays = match controller_of(pod) {
        Some(owner) => owner.kind == "DaemonSet",
        None => drain.unmanaged_pods == UnmanagedPods::Leave,
    };
    !(is_finished || is_mirror || stays)
}

/// The result of an eviction.
#[derive(Debug, PartialEq, Eq)]
enum EvictionResult {
    Gone,
    Terminating,
    Blocked(String),
}

async fn evict(
    client: &ReconcileClient,
    pod: &Pod,
    drain: &Drain,
    metrics: &AgentMetrics,
) -> Result<EvictionResult, WriteError> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(EvictionResult::Terminating);
    }
    let mut eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name_any(), "namespace": pod.namespace()},
        "deleteOptions": {"preconditions": {"uid": pod.uid()}},
    });
    if let Some(seconds) = drain.grace_period_seconds
        && let Ok(seconds) = u32::try_from(seconds)
    {
        eviction["deleteOptions"]["gracePeriodSeconds"] = json!(seconds);
    }
    let response = client.subresource("eviction").create(pod, &eviction).await;
    let Err(error) = response else {
        metrics.count_eviction("evicted");
        return Ok(EvictionResult::Terminating);
    };
    let Some(status) = error.status() else {
        return Err(error);
    };
    let (result, label) = match status.code {
        // 409: the precondition failed, since another pod has the name by now.
        404 | 409 => (EvictionResult::Gone, "gone"),
        429 => (
            EvictionResult::Blocked(block_message(status, pod)),
            "blocked",
        ),
        // The eviction API fails if more than one PodDisruptionBudget selects a pod.
        500 => (
            EvictionResult::Blocked(block_message(status, pod)),
            "failed",
        ),
        403 if is_namespace_terminating(status) => (EvictionResult::Terminating, "terminating"),
        _ => return Err(error),
    };
    metrics.count_eviction(label);
    Ok(result)
}

/// The server's message about the PodDisruptionBudget, which has its name.
fn block_message(status: &kube::core::Status, pod: &Pod) -> String {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    let message = causes
        .find(|cause| cause.reason == "DisruptionBudget")
        .map_or(&status.message, |cause| &cause.message);
    let namespace = pod.namespace().unwrap_or_default();
    let name = pod.name_any();
    format!("pod {namespace}/{name}: {}", sanitize_reason(message))
}

/// Whether the namespace controller deletes the pod.
fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(owner_kind: Option<&str>, annotations: Value, phase: &str) -> Pod {
        let owners: Vec<Value> = owner_kind
            .map(|kind| {
                json!({
                    "apiVersion": "apps/v1", "kind": kind, "name": "o",
                    "uid": "u", "controller": true,
                })
            })
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "p", "ownerReferences": owners, "annotations": annotations},
            "status": {"phase": phase},
        }))
        .expect("a Pod")
    }

    #[test]
    fn pods_that_are_recreated_elsewhere_are_evicted() {
        let leave = Drain::default();
        let evict = Drain {
            unmanaged_pods: UnmanagedPods::Evict,
            ..Drain::default()
        };
        let none = || json!({});
        let mirror = json!({"kubernetes.io/config.mirror": "x"});
        for (what, pod, drain, expected) in [
            (
                "of a ReplicaSet",
                pod(Some("ReplicaSet"), none(), "Running"),
                &leave,
                true,
            ),
            (
                "not started",
                pod(Some("ReplicaSet"), none(), "Pending"),
                &leave,
                true,
            ),
            (
                "of a DaemonSet",
                pod(Some("DaemonSet"), none(), "Running"),
                &evict,
                false,
            ),
            (
                "succeeded",
                pod(Some("Job"), none(), "Succeeded"),
                &evict,
                false,
            ),
            ("failed", pod(Some("Job"), none(), "Failed"), &evict, false),
            (
                "mirror pod",
                pod(Some("Node"), mirror, "Running"),
                &evict,
                false,
            ),
            (
                "unmanaged, Leave",
                pod(None, none(), "Running"),
                &leave,
                false,
            ),
            (
                "unmanaged, Evict",
                pod(None, none(), "Running"),
                &evict,
                true,
            ),
        ] {
            assert_eq!(is_evicted(&pod, drain), expected, "{what}");
        }
    }
}
