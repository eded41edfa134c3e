//! A sandbox in the network: its hosts file, and listeners for its connections.
//!
//! In: the ports and names of the cluster. Out: a listener per port (tier A), the hosts file.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bellerophon_process_runtime::Sandbox;
use bellerophon_process_runtime::relay::{Relay, RelayGuard};
use bellerophon_process_runtime::udp_relay::UdpRelay;
use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, warn};

use super::host_ports::HostPort;
use super::hosts::HostsInputs;
use super::service_table::ServiceTable;

/// A pod in the network.
pub(super) struct AttachedSandbox {
    pub(super) sandbox: Sandbox,
    /// The ports of its containers.
    pub(super) ports: BTreeSet<u16>,
    /// The ports on which its programs listen.
    pub(super) listening_ports: BTreeSet<u16>,
    pub(super) host_ports: Vec<HostPort>,
    pub(super) hosts: HostsInputs,
    pub(super) hosts_path: PathBuf,
    pub(super) written_hosts: String,
    pub(super) listeners: HashMap<u16, RelayGuard>,
    /// By the address of a UDP Service.
    pub(super) udp_listeners: HashMap<SocketAddr, RelayGuard>,
}

/// What sandboxes listen on.
pub(super) struct Listening<'a> {
    pub(super) relay: &'a Relay,
    pub(super) udp_relay: &'a UdpRelay,
    /// TCP ports of all addresses.
    pub(super) ports: &'a BTreeSet<u16>,
    pub(super) udp_addresses: BTreeSet<SocketAddr>,
}

/// The Services with the addresses that hosts files have.
pub(super) struct Names<'a> {
    /// In a pod with its own network, or without namespaces.
    pub(super) pod: Cow<'a, ServiceTable>,
    /// On the host.
    pub(super) host: Cow<'a, ServiceTable>,
}

impl AttachedSandbox {
    pub(super) fn find_listeners(&mut self) {
        match self.sandbox.listening_ports() {
            Ok(ports) => self.listening_ports = ports,
            // The sandbox has ended, and is detached soon.
            Err(error) => debug!(ip = %self.sandbox.ip(), %error, "the listeners are unknown"),
        }
    }

    pub(super) async fn sync(&mut self, listening: &Listening<'_>, names: &Names<'_>) {
        let has_host_network = self.sandbox.has_host_network();
        let names = if has_host_network {
            &names.host
        } else {
            &names.pod
        };
        let hosts = self.hosts.hosts(names);
        if hosts != self.written_hosts {
            match write_in_place(&self.hosts_path, &hosts) {
                Ok(()) => self.written_hosts = hosts,
                Err(error) => {
                    let path = self.hosts_path.display();
                    warn!(%path, %error, "the hosts file of a pod was not written");
                }
            }
        }
        // Without namespaces, pods are reached at their addresses directly.
        if self.sandbox.shim_pid().is_none() || has_host_network {
            return;
        }
        self.listen(listening).await;
        self.listen_udp(listening).await;
    }

    async fn listen(&mut self, listening: &Listening<'_>) {
        let ports = listening.ports;
        self.listeners.retain(|port, _| ports.contains(port));
        for port in ports {
            if self.listeners.contains_key(port) {
                continue;
            }
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port));
            match self.sandbox.listen(address).await {
                Ok(listener) => {
                    self.listeners
                        .insert(*port, listening.relay.serve(listener));
                }
                Err(error) => {
                    warn!(ip = %self.sandbox.ip(), port, %error, "cannot listen for a pod");
                }
            }
        }
    }

    /// A socket per address, so that answers come from the address of the Service.
    async fn listen_udp(&mut self, listening: &Listening<'_>) {
        let addresses = &listening.udp_addresses;
        self.udp_listeners
            .retain(|address, _| addresses.contains(address));
        for address in addresses {
            if self.udp_listeners.contains_key(address) {
                continue;
            }
            match self.sandbox.listen_udp(*address).await {
                Ok(socket) => {
                    let guard = listening.udp_relay.serve(socket);
                    self.udp_listeners.insert(*address, guard);
                }
                Err(error) => {
                    warn!(ip = %self.sandbox.ip(), %address, %error, "cannot listen for a pod");
                }
            }
        }
    }
}

/// Whether a pod has the network of its node.
pub(in super::super) fn has_host_network(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.host_network == Some(true))
}

/// The TCP ports that containers name.
pub(in super::super) fn container_ports(pod: &Pod) -> BTreeSet<u16> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let init_containers = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init_containers)
    });
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP"));
    tcp.filter_map(|port| u16::try_from(port.container_port).ok())
        .filter(|port| *port > 0)
        .collect()
}

/// Replaces the text of a file that is mounted, and therefore keeps its inode.
pub(in super::super) fn write_in_place(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let options = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let mut file = options?;
    file.write_all(text.as_bytes())?;
    file.set_len(u64::try_from(text.len()).unwrap_or_default())
}
