//! Heartbeat: kubelets register their nodes and show that they are alive.
//!
//! In: machines, their Node objects, the time. Out: Node objects, their status, renewed leases.
//! Holds: one queue serves all nodes; a machine that is off or cut off writes nothing; a Node that somebody deleted comes
//! back only with a boot of its machine, as with real kubelets.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::{
    Controller, Entropy, EventRecorder, EventType, Note, ObjectKey, Outcome, Predicate,
    ReconcileResult, Request, Trigger, WallClock,
};
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::machines::{Machine, Machines, Power};
use super::orders::{Operation, Orders};
use super::register::{self, LEASE_EVERY, LEASE_NAMESPACE, STATUS_EVERY};
use super::simulated::after;
use crate::component::Component;
use crate::context::Context;

/// How many nodes are looked after at once.
const WORKERS: usize = 8;

/// How long a beat is, in milliseconds; a second is a whole number of them.
const BEAT_MS: i64 = 500;

/// Looks after the Node objects of all machines.
pub(crate) struct Heartbeat {
    machines: Arc<Machines>,
    client: Client,
    clock: WallClock,
    entropy: Entropy,
    recorder: EventRecorder,
    /// Has the pods of a node looked at when it boots or is heard of again.
    revive: Box<dyn Fn(&str) + Send + Sync>,
}

impl Heartbeat {
    /// The controller of all Node objects that are machines' own; `revive` is called with each node that boots or is
    /// heard of again.
    pub(crate) fn controller(
        ctx: &Context,
        machines: Arc<Machines>,
        recorder: EventRecorder,
        revive: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Controller, Trigger) {
        let ours = machines.clone();
        let heartbeat = Arc::new(Self {
            machines: machines.clone(),
            client: ctx.client(Component::Kubelet),
            clock: ctx.clock,
            entropy: ctx.entropy.clone(),
            recorder,
            revive: Box::new(revive),
        });
        let controller = Controller::of(&ctx.informer::<Node>())
            .with_options(ctx.options("kubelet-heartbeat", WORKERS))
            .with_predicate(Predicate::concerns(move |node: &Node| {
                ours.contains(&node.name_any())
            }))
            .reconcile_with(move |request| heartbeat.clone().reconcile(request));
        let trigger = controller.trigger();
        machines
            .names()
            .into_iter()
            .for_each(|name| trigger.reconcile(ObjectKey::cluster(name)));
        (controller, trigger)
    }

    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let name = request.key.name();
        let now = self.clock.now();
        if let Some(node) = &request.object {
            self.obey(node, now);
        }
        let Some(machine) = self.machines.get(name) else {
            return Ok(Outcome::Done);
        };
        match machine.power {
            Power::Off => return Ok(Outcome::Done),
            Power::Booting { until } if now < until => {
                return Ok(Outcome::RequeueAfter(left(now, until)));
            }
            Power::Booting { .. } => {
                self.machines.booted(name, now);
                (self.revive)(name);
            }
            Power::On => {}
        }
        let Some(machine) = self.machines.get(name).filter(Machine::is_heard) else {
            return Ok(Outcome::Done);
        };
        let node = match &request.object {
            Some(node) => self.report(&request, &machine, node, now).await?,
            None if machine.registered => return Ok(Outcome::Done),
            None => Some(self.register(&request, &machine, now).await?),
        };
        if let Some(node) = node.as_ref().or(request.object.as_deref()) {
            self.renew(&machine, node, now).await?;
        }
        Ok(self.machines.get(name).map_or(Outcome::Done, |machine| {
            Outcome::RequeueAfter(left(now, next(&machine, now)))
        }))
    }

    /// Does to the machine what its annotations say.
    fn obey(&self, node: &Node, now: Timestamp) {
        let (name, orders) = (
            node.name_any(),
            Orders::of(node.metadata.annotations.as_ref()),
        );
        let Some(operations) = self.machines.obey(&name, &orders, now) else {
            return;
        };
        if operations.contains(&Operation::Join) {
            (self.revive)(&name);
        }
        for mistake in orders.mistakes {
            self.tell(node, EventType::Warning, "InvalidSimulation", mistake);
        }
    }

    async fn register(
        &self,
        request: &Request<Node>,
        machine: &Machine,
        now: Timestamp,
    ) -> Result<Node, kube::Error> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes
            .create(&PostParams::default(), &register::node(machine, now))
            .await?;
        request.writes().wrote(&node);
        self.machines.change(&machine.name, |machine| {
            (machine.registered, machine.reported) = (true, Some(now))
        });
        self.tell(
            &node,
            EventType::Normal,
            "Starting",
            "Starting kubelet.".into(),
        );
        self.tell_status(&node, "NodeReady");
        self.machines.is_ready(&machine.name);
        Ok(node)
    }

    /// Writes the status if it does not say everything, or was not written for long; returns what was written.
    async fn report(
        &self,
        request: &Request<Node>,
        machine: &Machine,
        node: &Node,
        now: Timestamp,
    ) -> Result<Option<Node>, kube::Error> {
        let known = node.status.as_ref();
        let known_boot = known
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.boot_id.clone())
            .filter(|id| !id.is_empty());
        let mut machine = machine.clone();
        if !machine.registered
            && machine.booted == Timestamp::MIN
            && let Some(boot_id) = known_boot.clone()
        {
            // Another process ran this machine before, and it has not stopped since.
            machine.boot_id = boot_id;
        }
        let wanted = register::status(&machine, known, now);
        let ready = |status: &k8s_openapi::api::core::v1::NodeStatus| {
            register::condition(status, "Ready").is_some_and(|c| c.status == "True")
        };
        let fresh = machine
            .reported
            .is_some_and(|reported| now < after(reported, STATUS_EVERY));
        let was_ready = known.is_some_and(ready);
        let written = if fresh && known.is_some_and(|known| register::says_it_all(known, &wanted)) {
            None
        } else {
            let nodes = Api::<Node>::all(self.client.clone());
            let body = json!({ "metadata": { "uid": node.metadata.uid }, "status": wanted });
            let written = nodes
                .patch_status(
                    &machine.name,
                    &PatchParams::default(),
                    &Patch::Strategic(&body),
                )
                .await?;
            request.writes().wrote(&written);
            Some(written)
        };
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        self.machines.change(&machine.name, |known| {
            (known.registered, known.cordoned) = (true, cordoned);
            known.boot_id.clone_from(&machine.boot_id);
            known.reported = if written.is_some() {
                Some(now)
            } else {
                known.reported
            };
        });
        if known_boot
            .as_ref()
            .is_some_and(|known| *known != machine.boot_id)
        {
            let text = format!(
                "Node {} has been rebooted, boot id: {}",
                machine.name, machine.boot_id
            );
            self.tell(node, EventType::Warning, "Rebooted", text);
        }
        if !was_ready {
            self.tell_status(node, "NodeReady");
        }
        if cordoned != machine.cordoned {
            self.tell_status(
                node,
                if cordoned {
                    "NodeNotSchedulable"
                } else {
                    "NodeSchedulable"
                },
            );
        }
        self.machines.is_ready(&machine.name);
        Ok(written)
    }

    async fn renew(
        &self,
        machine: &Machine,
        node: &Node,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        if machine
            .renewed
            .is_some_and(|renewed| now < after(renewed, LEASE_EVERY))
        {
            return Ok(());
        }
        let leases = Api::<Lease>::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let body = json!({ "spec": { "renewTime": MicroTime(now) } });
        match leases
            .patch(&machine.name, &PatchParams::default(), &Patch::Merge(&body))
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {
                leases
                    .create(&PostParams::default(), &register::lease(node, now))
                    .await?;
            }
            Err(error) => return Err(error),
        }
        // The first renewal spreads all nodes over the period, however many start at once.
        let early = if machine.renewed.is_none() {
            LEASE_EVERY.mul_f64(self.entropy.fraction())
        } else {
            Duration::ZERO
        };
        self.machines.change(&machine.name, |machine| {
            machine.renewed = now.checked_sub(early).ok().map(beat)
        });
        Ok(())
    }

    fn tell_status(&self, node: &Node, status: &str) {
        self.tell(
            node,
            EventType::Normal,
            status,
            format!("Node {} status is now: {status}", node.name_any()),
        );
    }

    fn tell(&self, node: &Node, type_: EventType, reason: &str, note: String) {
        self.recorder.with_instance(node.name_any()).event(
            node,
            Note {
                type_,
                reason: reason.into(),
                action: reason.into(),
                note,
            },
        );
    }
}

/// The beat that a time belongs to. All nodes whose turn comes within one are served together, which wakes everyone who watches
/// leases once and not thousands of times.
fn beat(time: Timestamp) -> Timestamp {
    time.round(
        TimestampRound::new()
            .smallest(Unit::Millisecond)
            .increment(BEAT_MS)
            .mode(RoundMode::Floor),
    )
    .unwrap_or(time)
}

/// When a machine has something to say even if nothing changes.
fn next(machine: &Machine, now: Timestamp) -> Timestamp {
    let lease = machine
        .renewed
        .map_or(now, |renewed| after(renewed, LEASE_EVERY));
    let status = machine
        .reported
        .map_or(now, |reported| after(reported, STATUS_EVERY));
    lease.min(status)
}

pub(crate) fn left(now: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}
