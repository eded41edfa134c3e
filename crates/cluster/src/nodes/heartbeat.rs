//! Node registration and heartbeats of the simulated kubelets.
//!
//! In: simulated nodes, their Node objects, the time. Out: Node objects, node status, lease
//! renewals.
//! Guarantees: one work queue serves all nodes; a node that is powered off or partitioned writes
//! nothing; a deleted Node object is created again only after the next boot, as kubelets register
//! only once per start.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::clock::Rng;
use bellerophon::controller::ControllerHandle;
use bellerophon::events::{EventRecorder, EventType};
use bellerophon::kinds::encode;
use bellerophon::prelude::*;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Value, json};

use super::node_simulation::NodeSimulation;
use super::node_status::{
    LEASE_RENEW_INTERVAL, STATUS_REPORT_INTERVAL, condition, initial_node, new_lease, node_status,
    node_status_has_changed,
};
use super::simulated_node::{Power, SimulatedNode, SimulatedNodes};
use super::time::{after, remaining};
use crate::component::Component;

/// The maximum number of nodes reconciled concurrently.
const WORKERS: usize = 8;

/// Renewal times are rounded down to a multiple of this, which divides a second.
const RENEWAL_ALIGNMENT_MS: i64 = 500;

/// Reconciles the Node objects of all simulated nodes.
pub(crate) struct Heartbeat {
    nodes: Arc<SimulatedNodes>,
    /// Renews leases. Renewals are not part of the trace, of which they would be the largest part.
    lease_client: ReconcileClient,
    rng: Rng,
    recorder: EventRecorder,
    /// Called with the name of a node that was operated or booted, to sync its pods.
    on_node_change: Box<dyn Fn(&str) + Send + Sync>,
}

impl Heartbeat {
    /// Adds the controller of the Node objects of simulated nodes. `on_node_change` is called with
    /// the name of each node that was operated or booted.
    pub(crate) fn setup(
        mgr: &mut Manager,
        nodes: Arc<SimulatedNodes>,
        recorder: EventRecorder,
        on_node_change: impl Fn(&str) + Send + Sync + 'static,
    ) -> ControllerHandle {
        let simulated_nodes = nodes.clone();
        let names = nodes.names();
        let heartbeat = Self {
            nodes,
            lease_client: Component::Kubelet.client(mgr, "kubelet"),
            rng: mgr.rng().clone(),
            recorder,
            on_node_change: Box::new(on_node_change),
        };
        let handle = mgr
            .controller::<Node>()
            .predicate(Predicate::filter(move |node: &Node| {
                simulated_nodes.contains(&node.name_any())
            }))
            .name("kubelet-heartbeat")
            .concurrency(WORKERS)
            .with_options(Component::Kubelet.controller_options())
            .reconcile(heartbeat);
        // Nodes are not registered yet, so no informer event enqueues them.
        for name in names {
            handle.enqueue(ObjectKey::cluster(name), "the kubelet starts");
        }
        handle
    }

    /// Applies the annotations: operates the simulated node, and sets its restart back-off.
    fn apply_annotations(&self, node: &Node, now: Timestamp) {
        let name = node.name_any();
        let simulation = NodeSimulation::of(node.metadata.annotations.as_ref());
        if !self.nodes.apply_annotations(&name, &simulation, now) {
            return;
        }
        (self.on_node_change)(&name);
        for error in simulation.errors {
            self.record_event(node, EventType::Warning, "InvalidSimulation", error);
        }
    }

    /// Creates the Node object. Mirrors `registerWithAPIServer`.
    async fn register(
        &self,
        req: &Request<Node>,
        simulated: &SimulatedNode,
        now: Timestamp,
    ) -> Result<Arc<Node>, Error> {
        let created = req.client().create(&initial_node(simulated, now)).await?;
        let node = created.object()?;
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

    /// Writes the status if it changed or is due. Mirrors `tryUpdateNodeStatus`.
    async fn update_node_status(
        &self,
        req: &Request<Node>,
        simulated: &SimulatedNode,
        node: &Node,
        now: Timestamp,
    ) -> Result<(), Error> {
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
        // Mirrors tryUpdateNodeStatus: between two reports the lease alone is the heartbeat, which
        // is a much smaller write.
        let is_due = !is_fresh || has_changed;
        if is_due {
            let patch = Patch::Strategic(status_patch(node, reported)?);
            let statuses = req.client().subresource("status");
            statuses.patch(node, &patch).await?;
        }
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        self.nodes.update(&simulated.name, |state| {
            state.registered = true;
            state.unschedulable = unschedulable;
            state.boot_id.clone_from(&simulated.boot_id);
            if is_due {
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
        Ok(())
    }

    /// Renews the lease if it is due; creates it if it is missing.
    async fn renew_lease(
        &self,
        simulated: &SimulatedNode,
        node: &Node,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        if simulated
            .lease_renewed_at
            .is_some_and(|renewed_at| now < after(renewed_at, LEASE_RENEW_INTERVAL))
        {
            return Ok(());
        }
        let client = &self.lease_client;
        let lease = new_lease(node, now);
        let renewal = json!({ "spec": { "renewTime": MicroTime(now) } });
        let renewed = client.patch(&lease, &Patch::Merge(&renewal)).await;
        match renewed {
            // The first renewal of a node, or the lease was deleted.
            Err(error) if error.is_not_found() => client.create(&lease).await?,
            renewed => renewed?,
        };
        // The jitter of the first renewal spreads nodes that start together over the interval.
        let jitter = if simulated.lease_renewed_at.is_none() {
            LEASE_RENEW_INTERVAL.mul_f64(self.rng.fraction())
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
        let event = Event {
            type_,
            reason: reason.into(),
            action: reason.into(),
            note: message,
        };
        let recorder = self.recorder.with_instance(node.name_any());
        recorder.event(node, event);
    }
}

impl Reconciler<Node> for Heartbeat {
    async fn reconcile(&self, req: Request<Node>) -> Result<Action, Error> {
        let name = req.key().name();
        let now = req.now();
        // Annotations apply to unreachable nodes too: they are how such a node is restored.
        if let Some(node) = req.object() {
            self.apply_annotations(node, now);
        }
        let Some(simulated) = self.nodes.get(name) else {
            return Ok(Action::await_change());
        };
        match simulated.power {
            Power::Off => return Ok(Action::await_change()),
            Power::Booting { until } if now < until => {
                return Ok(Action::requeue_after(remaining(now, until)).reason("the node boots"));
            }
            Power::Booting { .. } => {
                self.nodes.finish_boot(name, now);
                (self.on_node_change)(name);
            }
            Power::On => {}
        }
        let Some(simulated) = self.nodes.get(name).filter(SimulatedNode::is_reachable) else {
            return Ok(Action::await_change());
        };
        let registered;
        let node = match req.object() {
            Some(node) => {
                self.update_node_status(&req, &simulated, node, now).await?;
                node
            }
            // A kubelet does not register again while it runs.
            None if simulated.registered => return Ok(Action::await_change()),
            None => {
                registered = self.register(&req, &simulated, now).await?;
                &registered
            }
        };
        // The lease is last: its owner reference needs the uid of the registered Node.
        self.renew_lease(&simulated, node, now).await?;
        Ok(match self.nodes.get(name) {
            Some(simulated) => {
                let delay = remaining(now, next_heartbeat(&simulated, now));
                Action::requeue_after(delay).reason("the next heartbeat is due")
            }
            None => Action::await_change(),
        })
    }
}

/// The strategic merge patch of a node's status.
fn status_patch(node: &Node, status: NodeStatus) -> Result<Value, serde_json::Error> {
    // The uid makes the server reject the status of a Node that was deleted and created again.
    let patched = Node {
        metadata: ObjectMeta {
            uid: node.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        status: Some(status),
        ..Node::default()
    };
    serde_json::from_slice(&encode(&patched)?)
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
