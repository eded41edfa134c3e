//! Host ports: ports of containers at the address of their node.
//!
//! In: `hostPort` of containers. Out: the addresses that reach them.
//! Guarantees: `hostIP` is ignored, because a node has one address; TCP only.

use std::net::{IpAddr, SocketAddr};

use bellerophon_process_runtime::relay::Backends;
use k8s_openapi::api::core::v1::Pod;

/// A port of a container that is one of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPort {
    pub(super) host_port: u16,
    pub(super) node_ip: Option<IpAddr>,
    /// The address of the container.
    endpoint: SocketAddr,
}

impl HostPort {
    /// The container.
    pub(super) fn backends(&self) -> Backends {
        Backends {
            endpoints: vec![self.endpoint],
            affinity: None,
        }
    }
}

/// The host ports of a pod with that address.
pub(super) fn of_pod(pod: &Pod, ip: IpAddr, node_ip: Option<IpAddr>) -> Vec<HostPort> {
    let containers = pod.spec.iter().flat_map(|spec| {
        let init_containers = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init_containers)
    });
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP"));
    let port = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    tcp.filter_map(|it| {
        Some(HostPort {
            host_port: port(it.host_port?)?,
            node_ip,
            endpoint: SocketAddr::new(ip, port(it.container_port)?),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn host_port_reaches_the_container_port() {
        let pod = json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "ports": [
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 81},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
            ]}]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let ports = of_pod(&pod, IpAddr::from([10, 1, 0, 2]), None);
        let expected = HostPort {
            host_port: 8080,
            node_ip: None,
            endpoint: SocketAddr::from(([10, 1, 0, 2], 80)),
        };
        assert_eq!(ports, [expected]);
    }
}
