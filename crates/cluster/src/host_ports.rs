//! Host ports of pods, and their conflicts, for the scheduler and the kubelets.

use k8s_openapi::api::core::v1::PodSpec;

/// A host port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    protocol: String,
    ip: String,
    port: i32,
}

impl HostPort {
    /// Whether two pods with these ports cannot share a node. Mirrors `HostPortInfo.CheckConflict`.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        // The wildcard address conflicts with every address of the same port and protocol.
        let is_wildcard = |ip: &str| matches!(ip, "" | "0.0.0.0" | "::");
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || is_wildcard(&self.ip) || is_wildcard(&other.ip))
    }
}

/// The host ports of containers and sidecars. Ports of other init containers are not reserved.
pub(crate) fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let containers = spec.containers.iter().chain(
        spec.init_containers
            .iter()
            .flatten()
            .filter(|container| container.restart_policy.as_deref() == Some("Always")),
    );
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some(HostPort {
                protocol,
                ip: port.host_ip.clone().unwrap_or_default(),
                port: number,
            })
        })
        .collect()
}
