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

use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::events::EventRecorder;
use bellerophon::index::Index;
use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::json;

use self::health::{
    NoExecutePolicy, desired_taints, has_no_execute_taint, ready_status, unknown_conditions,
};
use self::heartbeats::Heartbeats;
use self::zones::Zones;
use super::time::{after, remaining};
use crate::api_errors::is_gone_or_conflict;
use crate::component::Component;
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
    recorder: EventRecorder,
    heartbeats: Heartbeats,
    nodes: Lister<Node>,
    pods_by_node: Index<Pod>,
    zones: Mutex<Zones>,
}

/// Adds the node lifecycle controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let heartbeats = Heartbeats::new(mgr.clock());
    let leases = mgr.informer::<Lease>(InformerOptions::default());
    leases.add_event_handler(heartbeats.clone());
    let lifecycle = NodeLifecycle {
        recorder: Component::ControllerManager.recorder(mgr, "node-controller"),
        heartbeats,
        nodes: mgr.lister(),
        pods_by_node: index::by_node_name(&index::pods(mgr)),
        zones: Mutex::default(),
    };
    mgr.controller::<Node>()
        .name("node-lifecycle-controller")
        .concurrency(WORKERS)
        .reconcile(lifecycle);
}

impl Reconciler<Node> for NodeLifecycle {
    /// Mirrors one pass of `monitorNodeHealth` for a node.
    async fn reconcile(&self, req: Request<Node>) -> Result<Action, Error> {
        let Some(node) = req.object() else {
            self.heartbeats.remove(req.key().name());
            return Ok(Action::await_change());
        };
        let now = req.now();
        // A node that was just created may not have reported yet.
        let grace_period = if ready_status(node).is_empty() {
            STARTUP_GRACE_PERIOD
        } else {
            MONITOR_GRACE_PERIOD
        };
        // By the time of observation, not by the times in the lease: the clock of the node may be
        // wrong.
        let deadline = after(self.heartbeats.last_observed(node), grace_period);
        let conditions = if deadline <= now {
            unknown_conditions(node, now)
        } else {
            Vec::new()
        };
        if !conditions.is_empty() {
            // The update of the status enqueues the node again.
            self.mark_unknown(req.client(), node, &conditions).await?;
            return Ok(Action::await_change());
        }
        let no_execute = self.no_execute_policy(node, now);
        if let Some(taints) = desired_taints(node, no_execute, now) {
            set_taints(req.client(), node, &taints).await?;
        }
        let ready = ready_status(node);
        if ready == "False" || ready == "Unknown" {
            self.mark_pods_not_ready(req.client(), node, now).await?;
            // The eviction rate of its zone may allow the NoExecute taint later.
            return Ok(Action::requeue_after(MONITOR_PERIOD).reason("the node is not ready"));
        }
        let delay = remaining(now, deadline).max(Duration::from_secs(1));
        Ok(Action::requeue_after(delay).reason("the grace period may have ended"))
    }
}

impl NodeLifecycle {
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
        client: &ReconcileClient,
        node: &Node,
        conditions: &[NodeCondition],
    ) -> Result<(), WriteError> {
        let body = json!({
            "metadata": { "uid": node.metadata.uid },
            "status": { "conditions": conditions },
        });
        let statuses = client.subresource("status");
        match statuses.patch(node, &Patch::Strategic(&body)).await {
            Ok(_) => {}
            Err(error) if is_gone_or_conflict(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        // Only the transition from Ready is an event.
        if ready_status(node) == "True" {
            let message = format!("Node {} status is now: NodeNotReady", node.name_any());
            let event = Event::normal("NodeNotReady", "NodeNotReady", message);
            self.recorder.event(node, event);
        }
        Ok(())
    }

    /// Sets the Ready condition of the node's pods to `False`. Mirrors `MarkPodsNotReady`.
    async fn mark_pods_not_ready(
        &self,
        client: &ReconcileClient,
        node: &Node,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let pods = self.pods_by_node.get(&node.name_any());
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
        let updates = stream::iter(not_ready)
            .map(|(pod, condition)| self.mark_pod_not_ready(client, pod, condition));
        updates
            .buffer_unordered(MAX_CONCURRENT_POD_UPDATES)
            .try_collect::<()>()
            .await
    }

    async fn mark_pod_not_ready(
        &self,
        client: &ReconcileClient,
        pod: Arc<Pod>,
        condition: PodCondition,
    ) -> Result<(), WriteError> {
        let body = json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [condition] },
        });
        let statuses = client.subresource("status");
        match statuses.patch(&*pod, &Patch::Strategic(&body)).await {
            Err(error) if !is_gone_or_conflict(&error) => return Err(error),
            _ => {}
        }
        let event = Event::warning("NodeNotReady", "NodeNotReady", "Node is not ready");
        self.recorder.event(&*pod, event);
        Ok(())
    }
}

async fn set_taints(
    client: &ReconcileClient,
    node: &Node,
    taints: &[Taint],
) -> Result<(), WriteError> {
    // The patch replaces the whole list, so the resource version guards against lost updates.
    let body = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    });
    match client.patch(node, &Patch::Merge(&body)).await {
        Err(error) if is_gone_or_conflict(&error) => {
            tracing::debug!(node = node.name_any(), "conflict on taints, retrying");
            Ok(())
        }
        written => written.map(|_| ()),
    }
}
