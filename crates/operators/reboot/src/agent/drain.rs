//! Drain: one pass over the pods of a node.
//!
//! In: the pods as the server lists them now. Out: how many are left, and which budget keeps them.
//! Holds: the list is made anew each pass, and an eviction names the pod by uid, so that a pod of the same name elsewhere is
//! never touched; mirror pods, pods of DaemonSets and finished pods are left alone.

use bellerophon::controller_of;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, Preconditions},
};

use super::metrics::Figures;
use crate::policy::{Drain, UnmanagedPods};

/// Pods a page.
const PAGE: u32 = 500;

/// How many pods are evicted at once.
const FAN_OUT: usize = 8;

/// What a pass came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Pods that are still there.
    pub(crate) pods: usize,
    /// What keeps one of them, with the name of the budget.
    pub(crate) blocked: Option<String>,
}

/// Evicts every pod of a node that has to go.
///
/// # Errors
/// Pods cannot be listed or evicted, other than for a budget's sake.
pub(crate) async fn pass(
    client: &Client,
    node: &str,
    drain: &Drain,
    figures: &Figures,
) -> Result<Left, kube::Error> {
    let mut params = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(PAGE);
    let (all, mut left) = (Api::<Pod>::all(client.clone()), Left::default());
    loop {
        let page = all.list(&params).await?;
        let going = page.items.into_iter().filter(|pod| goes(pod, drain));
        let fates = stream::iter(going)
            .map(|pod| async move { evict(client, &pod, drain, figures).await })
            .buffer_unordered(FAN_OUT);
        left = fates
            .try_fold(left, |mut left, fate| async move {
                left.pods += usize::from(fate != Fate::Gone);
                if let Fate::Blocked(why) = fate {
                    left.blocked.get_or_insert(why);
                }
                Ok(left)
            })
            .await?;
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(left),
        }
    }
}

/// Whether a pod has to go before its node reboots.
fn goes(pod: &Pod, drain: &Drain) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let is_finished = matches!(phase, Some("Succeeded" | "Failed"));
    let is_mirror = pod
        .annotations()
        .contains_key("kubernetes.io/config.mirror");
    let stays = match controller_of(pod) {
        Some(owner) => owner.kind == "DaemonSet",
        None => drain.unmanaged_pods == UnmanagedPods::Leave,
    };
    !(is_finished || is_mirror || stays)
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Gone,
    Going,
    Blocked(String),
}

async fn evict(
    client: &Client,
    pod: &Pod,
    drain: &Drain,
    figures: &Figures,
) -> Result<Fate, kube::Error> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(Fate::Going);
    }
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let delete_options = DeleteParams {
        grace_period_seconds: drain
            .grace_period_seconds
            .and_then(|seconds| u32::try_from(seconds).ok()),
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let params = EvictParams {
        delete_options: Some(delete_options),
        ..EvictParams::default()
    };
    let (fate, result) = match pods.evict(&pod.name_any(), &params).await {
        Ok(_) => (Fate::Going, "evicted"),
        Err(kube::Error::Api(status)) => match status.code {
            // 409: another pod has its name by now.
            404 | 409 => (Fate::Gone, "gone"),
            429 => (Fate::Blocked(why(&status, pod)), "blocked"),
            // Several budgets over one pod are an error of the server's own.
            500 => (Fate::Blocked(why(&status, pod)), "failed"),
            403 if is_ending(&status) => (Fate::Going, "going"),
            _ => return Err(kube::Error::Api(status)),
        },
        Err(error) => return Err(error),
    };
    figures.evicted(result);
    Ok(fate)
}

/// What the server says of the budget, which has its name in it.
fn why(status: &kube::core::Status, pod: &Pod) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let cause = causes
        .into_iter()
        .find(|cause| cause.reason == "DisruptionBudget")
        .map_or(&status.message, |cause| &cause.message);
    let pod = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    format!("pod {pod}: {}", crate::notes::reason(cause))
}

/// The namespace is going, and the pod with it.
fn is_ending(status: &kube::core::Status) -> bool {
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_pods_that_can_live_elsewhere_have_to_go() {
        let owner = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        let pod = |owners: Value, annotations: Value, phase: &str| -> Pod {
            serde_json::from_value(
                json!({"metadata": {"name": "p", "ownerReferences": owners, "annotations": annotations}, "status": {"phase": phase}}),
            )
            .expect("a pod")
        };
        let (leave, evict) = (
            Drain::default(),
            Drain {
                unmanaged_pods: UnmanagedPods::Evict,
                ..Drain::default()
            },
        );
        for (what, pod, drain, wanted) in [
            (
                "of a ReplicaSet",
                pod(owner("ReplicaSet"), json!({}), "Running"),
                &leave,
                true,
            ),
            (
                "not started",
                pod(owner("ReplicaSet"), json!({}), "Pending"),
                &leave,
                true,
            ),
            (
                "of a DaemonSet",
                pod(owner("DaemonSet"), json!({}), "Running"),
                &evict,
                false,
            ),
            (
                "finished",
                pod(owner("Job"), json!({}), "Succeeded"),
                &evict,
                false,
            ),
            (
                "failed",
                pod(owner("Job"), json!({}), "Failed"),
                &evict,
                false,
            ),
            (
                "of the kubelet",
                pod(
                    owner("Node"),
                    json!({"kubernetes.io/config.mirror": "x"}),
                    "Running",
                ),
                &evict,
                false,
            ),
            (
                "of nobody",
                pod(json!([]), json!({}), "Running"),
                &leave,
                false,
            ),
            (
                "of nobody, by policy",
                pod(json!([]), json!({}), "Running"),
                &evict,
                true,
            ),
        ] {
            assert_eq!(goes(&pod, drain), wanted, "{what}");
        }
    }
}
