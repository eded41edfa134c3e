//! Node lifecycle controller: marks nodes without heartbeats as `Unknown` and taints unhealthy
//! nodes.
//!
//! In: nodes, their leases, the time. Out: `Unknown` conditions, taints, pods marked not ready. The
//! controllers in [`taint_eviction`] and [`pod_gc`] then delete pods.
//! Guarantees: conditions become `Unknown` only after a whole grace period without heartbeats;
//! managed taints follow from conditions and `spec.unschedulable` alone.

mod health; // conditions and taints
mod heartbeats; // lease renewals and node status
mod zones; // rate of NoExecute taints

pub(crate) mod pod_gc; // orphaned and terminated pods
pub(crate) mod taint_eviction; // pods that do not tolerate taints

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellerophon::{
    Controller, EventRecorder, EventType, HandlerOptions, Lister, Note, Outcome, ReconcileResult,
    Request, WallClock, Writes,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use self::health::{
    NoExecutePolicy, desired_taints, has_no_execute_taint, ready_status, unknown_conditions,
};
use self::heartbeats::Heartbeats;
use self::zones::Zones;
use super::time::{after, remaining};
use crate::component::Component;
use crate::context::Context;
use crate::evict::is_another;
use crate::index;

/// How long a node may send no heartbeats (upstream `nodeMonitorGracePeriod`).
const MONITOR_GRACE_PERIOD: Duration = Duration::from_secs(50);
/// The same for a node that never reported a Ready condition (upstream `nodeStartupGracePeriod`).
const STARTUP_GRACE_PERIOD: Duration = Duration::from_secs(60);
/// How often an unhealthy node is reconciled (upstream `nodeMonitorPeriod`).
const MONITOR_PERIOD: Duration = Duration::from_secs(5);

const WORKERS: usize = 8;
/// The maximum number of concurrent pod status updates per node.
const MAX_CONCURRENT_POD_UPDATES: usize = 8;

/// Reconciles nodes by their heartbeats and conditions.
pub(crate) struct NodeLifecycle {
    client: Client,
    clock: WallClock,
    recorder: EventRecorder,
    heartbeats: Heartbeats,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    zones: Mutex<Zones>,
}

/// Builds the node lifecycle controller.
pub(crate) fn controller(ctx: &Context) -> Controller {
    let nodes = ctx.informer::<Node>();
    let pods = ctx.pods();
    let leases = ctx.informer::<Lease>();
    index::by_node(&pods);
    let heartbeats = Heartbeats::new(ctx.clock);
    leases.add_handler(heartbeats.clone(), HandlerOptions::default());
    let lifecycle = Arc::new(NodeLifecycle {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
        recorder: ctx.recorder(Component::ControllerManager, "node-controller"),
        heartbeats,
        nodes: nodes.lister(),
        pods: pods.lister(),
        zones: Mutex::default(),
    });
    Controller::of(&nodes)
        .with_options(ctx.options("node-lifecycle-controller", WORKERS))
        .reconcile_with(move |request| lifecycle.clone().reconcile(request))
}

impl NodeLifecycle {
    /// Mirrors one pass of `monitorNodeHealth` for a node.
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let Some(node) = request.object.as_deref() else {
            self.heartbeats.remove(request.key.name());
            return Ok(Outcome::Done);
        };
        let now = self.clock.now();
        // A node that was just created may not have reported yet.
        let grace_period = if ready_status(node).is_empty() {
            STARTUP_GRACE_PERIOD
        } else {
            MONITOR_GRACE_PERIOD
        };
        let deadline = after(self.heartbeats.last_observed(node), grace_period);
        let conditions = if deadline <= now {
            unknown_conditions(node, now)
        } else {
            Vec::new()
        };
        if !conditions.is_empty() {
            // The update of the status enqueues the node again.
            self.mark_unknown(request.writes(), node, &conditions)
                .await?;
            return Ok(Outcome::Done);
        }
        let no_execute = self.no_execute_policy(node, now);
        if let Some(taints) = desired_taints(node, no_execute, now) {
            self.set_taints(request.writes(), node, &taints).await?;
        }
        let ready = ready_status(node);
        if ready == "False" || ready == "Unknown" {
            self.mark_pods_not_ready(node, now).await?;
            // The eviction rate of its zone may allow the NoExecute taint later.
            return Ok(Outcome::RequeueAfter(MONITOR_PERIOD));
        }
        Ok(Outcome::RequeueAfter(
            remaining(now, deadline).max(Duration::from_secs(1)),
        ))
    }

    /// What to do with the `NoExecute` taint of a node. Mirrors `handleDisruption` and the
    /// rate-limited tainting of zones.
    fn no_execute_policy(&self, node: &Node, now: Timestamp) -> NoExecutePolicy {
        if ready_status(node) == "True" {
            return NoExecutePolicy::Remove;
        }
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        if zones
            .counted_at
            .is_none_or(|counted_at| after(counted_at, MONITOR_PERIOD) <= now)
        {
            zones.count(self.nodes.list().iter().map(|node| &**node), now);
        }
        match has_no_execute_taint(node) {
            // Taints that were added before the full disruption are removed again.
            true if zones.is_fully_disrupted() => NoExecutePolicy::Remove,
            true => NoExecutePolicy::Add,
            false => zones.try_evict(node, now),
        }
    }

    /// Writes `Unknown` conditions and records the `NodeNotReady` event.
    async fn mark_unknown(
        &self,
        writes: &Writes,
        node: &Node,
        conditions: &[NodeCondition],
    ) -> Result<(), kube::Error> {
        let body = json!({
            "metadata": { "uid": node.metadata.uid },
            "status": { "conditions": conditions },
        });
        let nodes = Api::<Node>::all(self.client.clone());
        match nodes
            .patch_status(
                &node.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&body),
            )
            .await
        {
            Ok(written) => writes.wrote(&written),
            Err(error) if is_another(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        // Only the transition from Ready is an event.
        if ready_status(node) == "True" {
            let message = format!("Node {} status is now: NodeNotReady", node.name_any());
            self.recorder.event(
                node,
                Note {
                    type_: EventType::Normal,
                    reason: "NodeNotReady".into(),
                    action: "NodeNotReady".into(),
                    note: message,
                },
            );
        }
        Ok(())
    }

    async fn set_taints(
        &self,
        writes: &Writes,
        node: &Node,
        taints: &[Taint],
    ) -> Result<(), kube::Error> {
        // The patch replaces the whole list, so the resource version guards against lost updates.
        let body = json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": taints },
        });
        let nodes = Api::<Node>::all(self.client.clone());
        match nodes
            .patch(
                &node.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Ok(written) => writes.wrote(&written),
            Err(error) if is_another(&error) => {
                tracing::debug!(node = node.name_any(), "conflict on taints, retrying");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sets the Ready condition of the node's pods to `False`. Mirrors `MarkPodsNotReady`.
    async fn mark_pods_not_ready(&self, node: &Node, now: Timestamp) -> Result<(), kube::Error> {
        let pods = self
            .pods
            .by_index(index::BY_NODE, &node.name_any())
            .unwrap_or_default();
        let not_ready = pods.into_iter().filter_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
            let not_ready = PodCondition {
                status: "False".into(),
                last_transition_time: Some(Time(now)),
                ..ready.clone()
            };
            Some((pod, not_ready))
        });
        let updates =
            stream::iter(not_ready).map(|(pod, condition)| self.mark_pod_not_ready(pod, condition));
        updates
            .buffer_unordered(MAX_CONCURRENT_POD_UPDATES)
            .try_collect::<()>()
            .await
    }

    async fn mark_pod_not_ready(
        &self,
        pod: Arc<Pod>,
        condition: PodCondition,
    ) -> Result<(), kube::Error> {
        let body = json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [condition] },
        });
        let pods = Api::<Pod>::namespaced(
            self.client.clone(),
            pod.metadata.namespace.as_deref().unwrap_or("default"),
        );
        match pods
            .patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&body),
            )
            .await
        {
            Err(error) if !is_another(&error) => return Err(error),
            _ => {}
        }
        self.recorder.event(
            &*pod,
            Note {
                type_: EventType::Warning,
                reason: "NodeNotReady".into(),
                action: "NodeNotReady".into(),
                note: "Node is not ready".into(),
            },
        );
        Ok(())
    }
}
