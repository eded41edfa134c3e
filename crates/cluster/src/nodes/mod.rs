//! Nodes: kubelets with simulated containers or local processes, and the controllers of node lifecycle and storage.
//!
//! In: pods that are bound to a node. Out: running pods and Ready nodes; taints, evictions and pod
//! garbage collection when nodes fail; bound volumes.

mod heartbeat; // node registration, node status, lease renewals
mod node_simulation; // simulation annotations of Nodes
mod node_status; // Node objects and leases
mod simulated_node; // power, network and addresses of nodes

mod container_simulation; // simulation annotations of pods
mod kubelet; // pod sync and pod status
mod process; // containers as local processes
mod runtime; // container runtime interface
mod runtime_handlers; // the runtime of each pod
mod simulated_runtime; // containers as timers
mod simulated_streams; // logs from annotations

mod lifecycle; // node lifecycle, taint eviction, pod garbage collection
mod storage; // persistent volume controller

mod time; // timestamp arithmetic

use std::fmt;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::clock::Clock;
use bellerophon::controller::ControllerHandle;
use bellerophon::index::Index;
use bellerophon::manager::{Manager, Runnable, RunnableGroup};
use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) use self::kubelet::server::Sample;
pub use self::kubelet::server::{KubeletSockets, Kubelets};

use self::heartbeat::Heartbeat;
use self::kubelet::Kubelet;
use self::kubelet::server::{ContainerStreams, KubeletServer};
use self::node_simulation::Operation;
use self::node_status::RuntimeInfo;
pub use self::process::ProcessNodes;
use self::process::ProcessRuntime;
use self::runtime_handlers::{RuntimeHandlers, create_runtime_classes};
use self::simulated_node::SimulatedNodes;
use self::simulated_runtime::SimulatedRuntime;
use self::simulated_streams::SimulatedStreams;
use crate::component::Component;
use crate::index;

/// Adds the controllers of `count` nodes, whose containers are simulated or local processes.
/// Their kubelets are reached by `kubelets` in process, and by `sockets`.
/// Returns the handle to operate the nodes, and whether every node has been Ready.
pub(crate) fn setup_kubelets(
    mgr: &mut Manager,
    count: usize,
    process_nodes: Option<ProcessNodes>,
    kubelets: Kubelets,
    sockets: Option<KubeletSockets>,
) -> (Nodes, watch::Receiver<bool>) {
    let (all_ready, nodes_ready) = watch::channel(false);
    let info = match &process_nodes {
        Some(nodes) => RuntimeInfo::process(nodes.runtime.capabilities()),
        None => RuntimeInfo::simulated(),
    };
    let nodes = SimulatedNodes::new(count, mgr.rng().clone(), all_ready, info);
    if let Some(sockets) = &sockets {
        nodes.set_kubelet_ports(&sockets.ports());
    }
    let nodes = Arc::new(nodes);
    let recorder = Component::Kubelet.recorder(mgr, "kubelet");
    let pods;
    let streams: Arc<dyn ContainerStreams>;
    match process_nodes {
        Some(process_nodes) => {
            let process =
                ProcessRuntime::new(mgr, process_nodes, nodes.host_ips(), recorder.clone());
            let client = Component::Kubelet.client(mgr, "kubelet");
            let runtime = RuntimeHandlers::new(process.clone(), client);
            streams = Arc::new(runtime.streams(simulated_streams(mgr)));
            pods = Kubelet::setup(mgr, nodes.clone(), runtime, recorder.clone());
            process.set_kubelet(pods.clone());
            setup_runtime_classes(mgr);
        }
        None => {
            pods = Kubelet::setup(mgr, nodes.clone(), SimulatedRuntime, recorder.clone());
            streams = Arc::new(simulated_streams(mgr));
        }
    }
    let pods_on_node = PodsOnNode {
        by_node_name: index::by_node_name(&index::pods(mgr)),
        kubelet: pods,
    };
    let pods_of_changed_node = pods_on_node.clone();
    let heartbeat = Heartbeat::setup(mgr, nodes.clone(), recorder, move |node| {
        pods_of_changed_node.enqueue(node, "the node was operated or booted");
    });
    let server = KubeletServer::new(
        nodes.clone(),
        Component::Kubelet.client(mgr, "kubelet"),
        streams,
        mgr.clock(),
    );
    setup_servers(mgr, server, kubelets, sockets);
    let handle = Nodes {
        nodes,
        clock: mgr.clock(),
        heartbeat,
        pods_on_node,
    };
    (handle, nodes_ready)
}

fn simulated_streams(mgr: &mut Manager) -> SimulatedStreams {
    let client = Component::Kubelet.client(mgr, "kubelet");
    let informer = index::pods(mgr);
    SimulatedStreams::new(client, mgr.clock(), informer)
}

/// Creates the RuntimeClasses of nodes with local processes when the cluster starts.
fn setup_runtime_classes(mgr: &mut Manager) {
    let name = "runtime-classes";
    let client = Component::ControllerManager.client(mgr, name);
    mgr.add(name, async move |stop: CancellationToken| {
        let created = stop.run_until_cancelled(create_runtime_classes(&client));
        if let Some(Err(error)) = created.await {
            warn!(%error, "cannot create the RuntimeClasses of process nodes");
        }
        stop.cancelled().await;
        Ok(())
    });
}

/// Adds the HTTP servers of the kubelets.
fn setup_servers(
    mgr: &mut Manager,
    server: KubeletServer,
    kubelets: Kubelets,
    sockets: Option<KubeletSockets>,
) {
    let serve = async move |stop: CancellationToken| {
        kubelets.serve(server, sockets, stop).await;
        Ok(())
    };
    mgr.add("kubelet-server", serve.in_group(RunnableGroup::Servers));
}

/// Adds the node lifecycle and storage controllers.
pub(crate) fn setup_controllers(mgr: &mut Manager) {
    lifecycle::setup(mgr);
    lifecycle::taint_eviction::setup(mgr);
    lifecycle::pod_gc::setup(mgr);
    storage::setup(mgr);
}

/// There is no simulated node of that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no simulated node named {0}")]
pub struct UnknownNode(String);

/// Operates the simulated nodes of a cluster. Cheap to clone, usable from any thread.
///
/// An operation takes effect immediately on the simulated node. The API shows it as it would show
/// the failure of a real node: a node that is powered off or partitioned stops renewing its lease,
/// and the node lifecycle controller marks it `Unknown` after the grace period.
#[derive(Clone)]
pub struct Nodes {
    nodes: Arc<SimulatedNodes>,
    clock: Clock,
    heartbeat: ControllerHandle,
    pods_on_node: PodsOnNode,
}

impl Nodes {
    /// The names of the simulated nodes.
    pub fn names(&self) -> Vec<String> {
        self.nodes.names()
    }

    /// The boot ID of a node; `None` while nothing on the node can act: it is powered off, booting
    /// or partitioned, or its kubelet has not registered yet.
    ///
    /// # Errors
    /// There is no such node.
    pub fn boot_id(&self, node: &str) -> Result<Option<String>, UnknownNode> {
        let simulated = self
            .nodes
            .get(node)
            .ok_or_else(|| UnknownNode(node.to_owned()))?;
        let can_act = simulated.is_reachable() && simulated.registered;
        Ok(can_act.then_some(simulated.boot_id))
    }

    /// Reboots a node: its containers end, and 10 seconds later it has booted with a new boot ID.
    ///
    /// # Errors
    /// There is no such node.
    pub fn reboot(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::Reboot])
    }

    /// Powers a node off until [`restore`](Self::restore): its containers end, and it sends no
    /// heartbeats.
    ///
    /// # Errors
    /// There is no such node.
    pub fn power_off(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::PowerOff])
    }

    /// Partitions a node from the API server until [`restore`](Self::restore): its containers keep
    /// running, and it sends no heartbeats. A reboot does not end the partition.
    ///
    /// # Errors
    /// There is no such node.
    pub fn partition(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::Partition])
    }

    /// Restores a node: boots it if it is powered off, and ends its partition. Does nothing to a
    /// node that is running and connected.
    ///
    /// # Errors
    /// There is no such node.
    pub fn restore(&self, node: &str) -> Result<(), UnknownNode> {
        self.operate(node, &[Operation::PowerOn, Operation::Reconnect])
    }

    fn operate(&self, node: &str, operations: &[Operation]) -> Result<(), UnknownNode> {
        for operation in operations {
            self.nodes
                .operate(node, *operation, self.clock.now())
                .ok_or_else(|| UnknownNode(node.to_owned()))?;
        }
        let reason = "the node was operated";
        // The simulated machine has changed, but no object has: nothing else would enqueue its
        // keys.
        self.heartbeat.enqueue(ObjectKey::cluster(node), reason);
        self.pods_on_node.enqueue(node, reason);
        Ok(())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nodes").field(&self.names().len()).finish()
    }
}

/// Enqueues the pods of a node for the kubelet.
#[derive(Clone)]
struct PodsOnNode {
    by_node_name: Index<Pod>,
    kubelet: ControllerHandle,
}

impl PodsOnNode {
    fn enqueue(&self, node: &str, reason: &'static str) {
        for key in self.by_node_name.keys(node) {
            self.kubelet.enqueue(key, reason);
        }
    }
}
