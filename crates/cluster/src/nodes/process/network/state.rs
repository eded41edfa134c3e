//! The state of the network: attached sandboxes and listeners on the host.
//!
//! In: sandboxes, the table of Services. Out: the ports on which pods connect, the addresses of host
//! ports, listeners.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use bellerophon::ObjectKey;
use bellerophon_process_runtime::relay::{Backends, RelayGuard};
use tokio::net::TcpListener;
use tracing::warn;

use super::HOST;
use super::attached_sandbox::AttachedSandbox;
use super::service_table::ServiceTable;

/// Ports on which one pod can connect. Further ones are refused.
const PORTS_MAX: usize = 1024;

/// Sandboxes and listeners.
#[derive(Default)]
pub(super) struct State {
    /// By the uid of the pod.
    pub(super) sandboxes: HashMap<String, AttachedSandbox>,
    /// Listeners on the host, by node port or host port.
    pub(super) node_ports: HashMap<u16, RelayGuard>,
    /// The pod whose host port is one of this machine.
    pub(super) host_port_owners: BTreeMap<u16, String>,
    /// Listeners of Services without namespaces.
    pub(super) loopback: HashMap<ObjectKey, LoopbackService>,
    /// Addresses that could not be listened on, which was logged.
    pub(super) failed: BTreeSet<SocketAddr>,
}

/// The listeners of a Service without namespaces.
pub(super) struct LoopbackService {
    pub(super) ip: IpAddr,
    /// By the port of the Service.
    pub(super) ports: HashMap<u16, (SocketAddr, RelayGuard)>,
    pub(super) udp_ports: HashMap<u16, RelayGuard>,
}

impl LoopbackService {
    pub(super) fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            ports: HashMap::new(),
            udp_ports: HashMap::new(),
        }
    }
}

impl State {
    /// Whether a pod has the network of this machine.
    pub(super) fn has_host_network(&self) -> bool {
        let mut sandboxes = self.sandboxes.values();
        sandboxes.any(|attached| attached.sandbox.has_host_network())
    }

    /// Adds the addresses of host ports. The first pod with a host port has that of this machine.
    pub(super) fn add_host_ports(&mut self, backends: &mut HashMap<SocketAddr, Backends>) {
        let sandboxes = &self.sandboxes;
        self.host_port_owners.retain(|port, owner| {
            let owner = sandboxes.get(owner);
            let mut ports = owner.into_iter().flat_map(|owner| &owner.host_ports);
            ports.any(|it| it.host_port == *port)
        });
        for (uid, sandbox) in sandboxes {
            for port in &sandbox.host_ports {
                let owner = self.host_port_owners.entry(port.host_port);
                let is_owner = owner.or_insert_with(|| uid.clone()) == uid;
                let host = is_owner.then_some(HOST);
                for ip in port.node_ip.into_iter().chain(host) {
                    let address = SocketAddr::new(ip, port.host_port);
                    backends.insert(address, port.backends());
                }
            }
        }
    }

    /// The ports on which pods connect.
    pub(super) fn ports(&self, table: &ServiceTable) -> BTreeSet<u16> {
        let pods = self.sandboxes.values();
        let pods = pods.flat_map(|it| it.ports.iter().chain(&it.listening_ports));
        let mut ports = table.ports();
        ports.extend(pods);
        let host_ports = self.sandboxes.values().flat_map(|it| &it.host_ports);
        ports.extend(host_ports.map(|port| port.host_port));
        if ports.len() > PORTS_MAX {
            warn!(
                ports = ports.len(),
                limit = PORTS_MAX,
                "not all ports are reachable from pods"
            );
        }
        ports.into_iter().take(PORTS_MAX).collect()
    }

    /// Listens on the host. A failure is logged once.
    pub(super) async fn listen(&mut self, address: SocketAddr) -> Option<TcpListener> {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                self.failed.remove(&address);
                Some(listener)
            }
            Err(error) => {
                if self.failed.insert(address) {
                    warn!(%address, %error, "cannot listen for a Service");
                }
                None
            }
        }
    }

    /// Listens on the address, or on a free port of it: ports below 1024 may be privileged.
    pub(super) async fn listen_near(
        &mut self,
        address: SocketAddr,
    ) -> Option<(SocketAddr, TcpListener)> {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(_) => self.listen(SocketAddr::new(address.ip(), 0)).await?,
        };
        let bound = listener.local_addr().ok()?;
        Some((bound, listener))
    }
}
