//! Node lifecycle: what follows when a node is not well.
//!
//! In: nodes, their leases, the time. Out: conditions `Unknown`, taints, pods that are not ready; then [`eviction`] and
//! [`pod_gc`] see to the pods.
//! Holds: a node is given up only after the whole grace period without a sign of life; taints follow from conditions alone.

mod health; // what conditions mean
mod heartbeats; // signs of life
pub(crate) mod pod_gc; // pods nobody else takes away
pub(crate) mod taint_eviction; // pods that a taint drives out
mod zones; // how fast

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellerophon::{
    Controller, EventRecorder, EventType, HandlerOptions, Lister, Note, Outcome, ReconcileResult,
    Request, WallClock, Writes,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use self::health::{DriveOut, drives_out, readiness, taints, unknown_conditions};
use self::heartbeats::Heard;
use self::zones::Zones;
use super::time::after;
use super::time::remaining;
use crate::component::Component;
use crate::context::Context;
use crate::api_errors::is_gone_or_conflict;
use crate::index;

/// How long a node may be silent.
const GRACE: Duration = Duration::from_secs(50);
/// How long a node may be silent that never said anything.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// How often nodes that are not well are looked at while they wait for their zone's turn.
const MONITOR_EVERY: Duration = Duration::from_secs(5);

const WORKERS: usize = 8;
/// How many pods of one node are written at once.
const PODS_AT_ONCE: usize = 8;

/// Judges nodes by their signs of life.
pub(crate) struct Lifecycle {
    client: Client,
    clock: WallClock,
    recorder: EventRecorder,
    heard: Heard,
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    zones: Mutex<Zones>,
}

/// The controller that judges all nodes.
pub(crate) fn controller(ctx: &Context) -> Controller {
    let (nodes, pods, leases) = (ctx.informer::<Node>(), ctx.pods(), ctx.informer::<Lease>());
    index::add_node_name_index(&pods);
    let heard = Heard::new(ctx.clock);
    leases.add_handler(heard.clone(), HandlerOptions::default());
    let lifecycle = Arc::new(Lifecycle {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
        recorder: ctx.recorder(Component::ControllerManager, "node-controller"),
        heard,
        nodes: nodes.lister(),
        pods: pods.lister(),
        zones: Mutex::default(),
    });
    Controller::of(&nodes)
        .with_options(ctx.options("node-lifecycle-controller", WORKERS))
        .reconcile_with(move |request| lifecycle.clone().reconcile(request))
}

impl Lifecycle {
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let Some(node) = request.object.as_deref() else {
            self.heard.forget(request.key.name());
            return Ok(Outcome::Done);
        };
        let now = self.clock.now();
        let grace = if readiness(node).is_empty() {
            STARTUP_GRACE
        } else {
            GRACE
        };
        let deadline = after(self.heard.of(node), grace);
        let conditions = if deadline <= now {
            unknown_conditions(node, now)
        } else {
            Vec::new()
        };
        if !conditions.is_empty() {
            self.give_up(request.writes(), node, &conditions).await?;
            return Ok(Outcome::Done);
        }
        let drive_out = self.drive_out(node, now);
        if let Some(taints) = taints(node, drive_out, now) {
            self.taint(request.writes(), node, &taints).await?;
        }
        let ready = readiness(node);
        if ready == "False" || ready == "Unknown" {
            self.mark_pods_not_ready(node, now).await?;
            // Silent or not, it waits for its zone's turn, and for the day that no longer all are lost.
            return Ok(Outcome::RequeueAfter(MONITOR_EVERY));
        }
        Ok(Outcome::RequeueAfter(
            remaining(now, deadline).max(Duration::from_secs(1)),
        ))
    }

    /// Whether the node's pods may be driven out; nobody is asked about a node that is well.
    fn drive_out(&self, node: &Node, now: Timestamp) -> DriveOut {
        if readiness(node) == "True" {
            return DriveOut::Nobody;
        }
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        if zones
            .counted
            .is_none_or(|counted| after(counted, MONITOR_EVERY) <= now)
        {
            zones.count(self.nodes.list().iter().map(|node| &**node), now);
        }
        match drives_out(node) {
            true if zones.all_lost() => DriveOut::Nobody,
            true => DriveOut::Yes,
            false => zones.ask(node, now),
        }
    }

    async fn give_up(
        &self,
        writes: &Writes,
        node: &Node,
        conditions: &[k8s_openapi::api::core::v1::NodeCondition],
    ) -> Result<(), kube::Error> {
        let body = json!({ "metadata": { "uid": node.metadata.uid }, "status": { "conditions": conditions } });
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
            Err(error) if is_gone_or_conflict(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        if readiness(node) == "True" {
            let note = format!("Node {} status is now: NodeNotReady", node.name_any());
            self.recorder.event(
                node,
                Note {
                    type_: EventType::Normal,
                    reason: "NodeNotReady".into(),
                    action: "NodeNotReady".into(),
                    note,
                },
            );
        }
        Ok(())
    }

    async fn taint(
        &self,
        writes: &Writes,
        node: &Node,
        taints: &[Taint],
    ) -> Result<(), kube::Error> {
        // The list is replaced as a whole, so nobody may have changed it since it was read.
        let body = json!({ "metadata": { "resourceVersion": node.metadata.resource_version }, "spec": { "taints": taints } });
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
            Err(error) if is_gone_or_conflict(&error) => {
                tracing::debug!(node = node.name_any(), "changed meanwhile, looked at again")
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn mark_pods_not_ready(&self, node: &Node, now: Timestamp) -> Result<(), kube::Error> {
        let pods = self
            .pods
            .by_index(index::NODE_NAME_INDEX, &node.name_any())
            .unwrap_or_default();
        let ready = pods.into_iter().filter_map(|pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
            let ready = PodCondition {
                status: "False".into(),
                last_transition_time: Some(Time(now)),
                ..ready.clone()
            };
            Some((pod, ready))
        });
        let marks = stream::iter(ready).map(|(pod, condition)| self.mark_not_ready(pod, condition));
        marks
            .buffer_unordered(PODS_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    async fn mark_not_ready(
        &self,
        pod: Arc<Pod>,
        condition: PodCondition,
    ) -> Result<(), kube::Error> {
        let body = json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } });
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
            Err(error) if !is_gone_or_conflict(&error) => return Err(error),
            _ => {}
        }
        let (reason, note) = ("NodeNotReady".to_owned(), "Node is not ready".to_owned());
        self.recorder.event(
            &*pod,
            Note {
                type_: EventType::Warning,
                action: reason.clone(),
                reason,
                note,
            },
        );
        Ok(())
    }
}
