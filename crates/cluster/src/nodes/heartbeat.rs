//! Node registration and heartbeats of the simulated kubelets.
//!
//! In: simulated nodes, their Node objects, the time. Out: Node objects, node status, lease
//! renewals.
//! Guarantees: one work queue serves all nodes; a node that is powered off or partitioned writes
//! nothing; a deleted Node object is created again only after the next boot, as kubelets register
//! only once per start.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::{
    Controller, Entropy, EventRecorder, EventType, Note, ObjectKey, Outcome, Predicate,
    ReconcileResult, Request, Trigger, WallClock,
};
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::node_simulation::{NodeSimulation, Operation};
use super::node_status::{
    LEASE_NAMESPACE, LEASE_RENEW_INTERVAL, STATUS_REPORT_INTERVAL, condition, initial_node,
    new_lease, node_status, node_status_has_changed,
};
use super::simulated_node::{Power, SimulatedNode, SimulatedNodes};
use super::time::{after, remaining};
use crate::component::Component;
use crate::context::Context;

/// The maximum number of nodes reconciled concurrently.
const WORKERS: usize = 8;

/// Renewal times are rounded down to a multiple of this, which divides a second.
const RENEWAL_ALIGNMENT_MS: i64 = 500;

/// Reconciles the Node objects of all simulated nodes.
pub(crate) struct Heartbeat {
    nodes: Arc<SimulatedNodes>,
    client: Client,
    clock: WallClock,
    entropy: Entropy,
    recorder: EventRecorder,
    /// Called with the name of a node that booted or reconnected, to sync its pods.
    on_node_up: Box<dyn Fn(&str) + Send + Sync>,
}

impl Heartbeat {
    /// Builds the controller of the Node objects of simulated nodes. `on_node_up` is called with
    /// the name of each node that booted or reconnected.
    pub(crate) fn controller(
        ctx: &Context,
        nodes: Arc<SimulatedNodes>,
        recorder: EventRecorder,
        on_node_up: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Controller, Trigger) {
        let simulated_nodes = nodes.clone();
        let heartbeat = Arc::new(Self {
            nodes: nodes.clone(),
            client: ctx.client(Component::Kubelet),
            clock: ctx.clock,
            entropy: ctx.entropy.clone(),
            recorder,
            on_node_up: Box::new(on_node_up),
        });
        let controller = Controller::of(&ctx.informer::<Node>())
            .with_options(ctx.options("kubelet-heartbeat", WORKERS))
            .with_predicate(Predicate::concerns(move |node: &Node| {
                simulated_nodes.contains(&node.name_any())
            }))
            .reconcile_with(move |request| heartbeat.clone().reconcile(request));
        let trigger = controller.trigger();
        // Nodes are not registered yet, so no informer event enqueues them.
        for name in nodes.names() {
            trigger.reconcile(ObjectKey::cluster(name));
        }
        (controller, trigger)
    }

    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let name = request.key.name();
        let now = self.clock.now();
        // Annotations apply to unreachable nodes too: they are how such a node is restored.
        if let Some(node) = &request.object {
            self.apply_annotations(node, now);
        }
        let Some(simulated) = self.nodes.get(name) else {
            return Ok(Outcome::Done);
        };
        match simulated.power {
            Power::Off => return Ok(Outcome::Done),
            Power::Booting { until } if now < until => {
                return Ok(Outcome::RequeueAfter(remaining(now, until)));
            }
            Power::Booting { .. } => {
                self.nodes.finish_boot(name, now);
                (self.on_node_up)(name);
            }
            Power::On => {}
        }
        let Some(simulated) = self.nodes.get(name).filter(SimulatedNode::is_reachable) else {
            return Ok(Outcome::Done);
        };
        let written = match &request.object {
            Some(node) => {
                self.update_node_status(&request, &simulated, node, now)
                    .await?
            }
            // A kubelet does not register again while it runs.
            None if simulated.registered => return Ok(Outcome::Done),
            None => Some(self.register(&request, &simulated, now).await?),
        };
        if let Some(node) = written.as_ref().or(request.object.as_deref()) {
            self.renew_lease(&simulated, node, now).await?;
        }
        Ok(self.nodes.get(name).map_or(Outcome::Done, |simulated| {
            Outcome::RequeueAfter(remaining(now, next_heartbeat(&simulated, now)))
        }))
    }

    /// Operates the simulated node as its annotations request.
    fn apply_annotations(&self, node: &Node, now: Timestamp) {
        let name = node.name_any();
        let simulation = NodeSimulation::of(node.metadata.annotations.as_ref());
        let Some(operations) = self.nodes.apply_annotations(&name, &simulation, now) else {
            return;
        };
        if operations.contains(&Operation::Reconnect) {
            (self.on_node_up)(&name);
        }
        for error in simulation.errors {
            self.record_event(node, EventType::Warning, "InvalidSimulation", error);
        }
    }

    /// Creates the Node object. Mirrors `registerWithAPIServer`.
    async fn register(
        &self,
        request: &Request<Node>,
        simulated: &SimulatedNode,
        now: Timestamp,
    ) -> Result<Node, kube::Error> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes
            .create(&PostParams::default(), &initial_node(simulated, now))
            .await?;
        request.writes().wrote(&node);
        self.nodes.update(&simulated.name, |simulated| {
            simulated.registered = true;
            simulated.status_reported_at = Some(now);
        });
        self.record_event(
            &node,
            EventType::Normal,
            "Starting",
            "Starting kubelet.".into(),
        );
        self.record_node_status_event(&node, "NodeReady");
        self.nodes.mark_ready(&simulated.name);
        Ok(node)
    }

    /// Writes the status if it changed or is due; returns the written Node. Mirrors
    /// `tryUpdateNodeStatus`.
    async fn update_node_status(
        &self,
        request: &Request<Node>,
        simulated: &SimulatedNode,
        node: &Node,
        now: Timestamp,
    ) -> Result<Option<Node>, kube::Error> {
        let current = node.status.as_ref();
        let current_boot_id = current
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.boot_id.clone())
            .filter(|id| !id.is_empty());
        let mut simulated = simulated.clone();
        if !simulated.registered
            && simulated.booted_at == Timestamp::MIN
            && let Some(boot_id) = current_boot_id.clone()
        {
            // The node ran under an earlier process and has not rebooted since.
            simulated.boot_id = boot_id;
        }
        let reported = node_status(&simulated, current, now);
        let is_fresh = simulated
            .status_reported_at
            .is_some_and(|reported_at| now < after(reported_at, STATUS_REPORT_INTERVAL));
        let has_changed = current.is_none_or(|current| node_status_has_changed(current, &reported));
        let written = if is_fresh && !has_changed {
            None
        } else {
            let nodes = Api::<Node>::all(self.client.clone());
            let body = json!({ "metadata": { "uid": node.metadata.uid }, "status": reported });
            let written = nodes
                .patch_status(
                    &simulated.name,
                    &PatchParams::default(),
                    &Patch::Strategic(&body),
                )
                .await?;
            request.writes().wrote(&written);
            Some(written)
        };
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        self.nodes.update(&simulated.name, |state| {
            state.registered = true;
            state.unschedulable = unschedulable;
            state.boot_id.clone_from(&simulated.boot_id);
            if written.is_some() {
                state.status_reported_at = Some(now);
            }
        });
        if current_boot_id
            .as_ref()
            .is_some_and(|current| *current != simulated.boot_id)
        {
            let message = format!(
                "Node {} has been rebooted, boot id: {}",
                simulated.name, simulated.boot_id
            );
            self.record_event(node, EventType::Warning, "Rebooted", message);
        }
        // The Ready condition was missing, False or Unknown.
        if !current.is_some_and(is_ready) {
            self.record_node_status_event(node, "NodeReady");
        }
        if unschedulable != simulated.unschedulable {
            let reason = if unschedulable {
                "NodeNotSchedulable"
            } else {
                "NodeSchedulable"
            };
            self.record_node_status_event(node, reason);
        }
        self.nodes.mark_ready(&simulated.name);
        Ok(written)
    }

    /// Renews the lease if it is due; creates it if it is missing.
    async fn renew_lease(
        &self,
        simulated: &SimulatedNode,
        node: &Node,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        if simulated
            .lease_renewed_at
            .is_some_and(|renewed_at| now < after(renewed_at, LEASE_RENEW_INTERVAL))
        {
            return Ok(());
        }
        let leases = Api::<Lease>::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let body = json!({ "spec": { "renewTime": MicroTime(now) } });
        match leases
            .patch(
                &simulated.name,
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Ok(_) => {}
            // The first renewal of a node, or the lease was deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                leases
                    .create(&PostParams::default(), &new_lease(node, now))
                    .await?;
            }
            Err(error) => return Err(error),
        }
        // The jitter of the first renewal spreads nodes that start together over the interval.
        let jitter = if simulated.lease_renewed_at.is_none() {
            LEASE_RENEW_INTERVAL.mul_f64(self.entropy.fraction())
        } else {
            Duration::ZERO
        };
        self.nodes.update(&simulated.name, |simulated| {
            simulated.lease_renewed_at = now.checked_sub(jitter).ok().map(align_renewal);
        });
        Ok(())
    }

    fn record_node_status_event(&self, node: &Node, status: &str) {
        self.record_event(
            node,
            EventType::Normal,
            status,
            format!("Node {} status is now: {status}", node.name_any()),
        );
    }

    fn record_event(&self, node: &Node, type_: EventType, reason: &str, message: String) {
        self.recorder.with_instance(node.name_any()).event(
            node,
            Note {
                type_,
                reason: reason.into(),
                action: reason.into(),
                note: message,
            },
        );
    }
}

fn is_ready(status: &NodeStatus) -> bool {
    condition(status, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Rounds a renewal time down, so that the nodes of one interval are renewed together. A watcher of
/// leases then receives one batch instead of thousands of single events.
fn align_renewal(time: Timestamp) -> Timestamp {
    time.round(
        TimestampRound::new()
            .smallest(Unit::Millisecond)
            .increment(RENEWAL_ALIGNMENT_MS)
            .mode(RoundMode::Floor),
    )
    .unwrap_or(time)
}

/// When the lease or the status is due next.
fn next_heartbeat(simulated: &SimulatedNode, now: Timestamp) -> Timestamp {
    let lease_due = simulated
        .lease_renewed_at
        .map_or(now, |renewed_at| after(renewed_at, LEASE_RENEW_INTERVAL));
    let status_due = simulated.status_reported_at.map_or(now, |reported_at| {
        after(reported_at, STATUS_REPORT_INTERVAL)
    });
    lease_due.min(status_due)
}
