//! Nodes: where pods run, and what follows when a node is lost.
//!
//! In: pods that have a node. Out: running pods, living nodes; taints, evictions and clean-up when nodes are not.

mod heartbeat; // kubelets show that they are alive
mod machines; // the simulated nodes, below what the API shows
mod orders; // what annotations do to machines
mod register; // what a kubelet says of its node

mod kubelet; // the pods of a node
mod runtime; // what runs containers
mod script; // what simulated containers do
mod simulated; // containers that are nothing but points in time

mod lifecycle; // what follows when a node is not well
mod storage; // volumes for claims

use std::fmt;
use std::sync::Arc;

use bellerophon::{Lister, ObjectKey, Trigger, WallClock};
use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

use self::heartbeat::Heartbeat;
use self::kubelet::Kubelet;
use self::machines::Machines;
use self::orders::Operation;
use self::simulated::Simulated;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

/// The loops of so many simulated nodes, in the order in which they start, and the way to operate those.
pub(crate) fn kubelets(ctx: &Context, nodes: usize) -> (Vec<Loop>, Nodes) {
    let pods = ctx.pods();
    index::add_node_name_index(&pods);
    let machines = Arc::new(Machines::new(
        nodes,
        ctx.entropy.clone(),
        ctx.awaited("nodes"),
    ));
    let recorder = ctx.recorder(Component::Kubelet, "kubelet");
    let (kubelet, pod_trigger) =
        Kubelet::controller(ctx, machines.clone(), Simulated, recorder.clone());
    let residents = Residents {
        pods: pods.lister(),
        trigger: pod_trigger,
    };
    let revived = residents.clone();
    let (heartbeat, node_trigger) =
        Heartbeat::controller(ctx, machines.clone(), recorder, move |node| {
            revived.look_after(node)
        });
    let nodes = Nodes {
        machines,
        clock: ctx.clock,
        trigger: node_trigger,
        residents,
    };
    (vec![heartbeat.into(), kubelet.into()], nodes)
}

/// The loops that look after nodes and storage from outside, in the order in which they start.
pub(crate) fn upkeep(ctx: &Context) -> Vec<Loop> {
    let lifecycle = [
        lifecycle::controller(ctx).into(),
        lifecycle::eviction::controller(ctx).into(),
        lifecycle::pod_gc::work(ctx),
    ];
    lifecycle.into_iter().chain(storage::loops(ctx)).collect()
}

/// There is no simulated node of that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no simulated node named {0}")]
pub struct UnknownNode(String);

/// Operates the simulated nodes of a cluster. Cheap to clone, usable from any thread.
///
/// Each operation takes effect at once, and shows in the API as it would with real machines: a node that is off or cut off
/// is not heard of any more, and the rest of the cluster finds out by its silence.
#[derive(Clone)]
pub struct Nodes {
    machines: Arc<Machines>,
    clock: WallClock,
    trigger: Trigger,
    residents: Residents,
}

impl Nodes {
    /// The names of the simulated nodes.
    pub fn names(&self) -> Vec<String> {
        self.machines.names()
    }

    /// The id of a node's boot; `None` while nothing on it could act: it is off, boots, is cut off, or its kubelet has not
    /// registered yet.
    ///
    /// # Errors
    /// There is no such node.
    pub fn boot_id(&self, node: &str) -> Result<Option<String>, UnknownNode> {
        let machine = self
            .machines
            .get(node)
            .ok_or_else(|| UnknownNode(node.to_owned()))?;
        Ok((machine.is_heard() && machine.registered).then_some(machine.boot_id))
    }

    /// Reboots a node: its containers end, it is away for ten seconds, and comes back with another boot id.
    ///
    /// # Errors
    /// There is no such node.
    pub fn reboot(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::Reboot])
    }

    /// Cuts a node's power: its containers end, and it is not heard of until [`restore`](Self::restore).
    ///
    /// # Errors
    /// There is no such node.
    pub fn power_off(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::PowerOff])
    }

    /// Cuts a node off the network: its containers go on, and it is not heard of until [`restore`](Self::restore), whatever
    /// else is done to it.
    ///
    /// # Errors
    /// There is no such node.
    pub fn partition(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::CutOff])
    }

    /// Brings a node back: one that is off boots, one that was cut off goes on where it is. Does nothing to others.
    ///
    /// # Errors
    /// There is no such node.
    pub fn restore(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::PowerOn, Operation::Join])
    }

    fn operate(&self, node: &str, operations: &[Operation]) -> Result<(), UnknownNode> {
        for operation in operations {
            self.machines
                .operate(node, *operation, self.clock.now())
                .ok_or_else(|| UnknownNode(node.to_owned()))?;
        }
        self.trigger.reconcile(ObjectKey::cluster(node));
        self.residents.look_after(node);
        Ok(())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nodes").field(&self.names().len()).finish()
    }
}

/// The pods of a node, for those who have them looked at.
#[derive(Clone)]
struct Residents {
    pods: Lister<Pod>,
    trigger: Trigger,
}

impl Residents {
    fn look_after(&self, node: &str) {
        let pods = self
            .pods
            .by_index(index::NODE_NAME_INDEX, node)
            .expect("the index was added with the loops");
        pods.iter()
            .for_each(|pod| self.trigger.reconcile(ObjectKey::of(&**pod)));
    }
}
