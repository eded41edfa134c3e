//! The network of a sandbox.
//!
//! The pod's network namespace has its own loopback and the pod's address. A second namespace,
//! connected by a veth pair, answers for all other addresses: listeners of Services and of other
//! pods are there, so that they never conflict with a listener of the pod on the same port.
//!
//! Without veth support, these listeners are in the pod's namespace, and a wildcard listener of
//! the pod conflicts with a Service of the same port.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::netlink::{LOOPBACK, Netlink};
use crate::protocol::{SandboxSetup, Transport};

/// The name and index of the link to the other namespace.
const LINK_NAME: &str = "eth0";
const LINK: u32 = 2;

const BACKLOG: i32 = 128;

/// The network namespaces of a sandbox. The process is in the pod's.
pub(super) struct Network {
    pod: OwnedFd,
    /// Where listeners of Services are; the error is why they are in the pod's namespace.
    services: io::Result<OwnedFd>,
}

fn current() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/self/ns/net")?.into())
}

impl Network {
    /// Creates and configures the network namespaces, or stays in that of the node.
    pub(super) fn set_up(setup: &SandboxSetup) -> io::Result<Self> {
        if setup.host_network {
            return Ok(Self {
                pod: current()?,
                services: Err(io::ErrorKind::Unsupported.into()),
            });
        }
        unshare(CloneFlags::CLONE_NEWNET)?;
        let connected = if setup.ip.is_ipv4() {
            Self::with_service_namespace(setup)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        let error = match connected {
            Ok(network) => return Ok(network),
            Err(error) => error,
        };
        let netlink = Netlink::open()?;
        netlink.set_up(LOOPBACK)?;
        netlink.add_address(LOOPBACK, setup.ip)?;
        for range in &setup.local_ranges {
            netlink.add_local_range(*range)?;
        }
        Ok(Self {
            pod: current()?,
            services: Err(error),
        })
    }

    /// Why listeners of Services are in the pod's namespace; `None` if they are not.
    pub(super) fn services_error(&self) -> Option<&io::Error> {
        self.services.as_ref().err()
    }

    fn with_service_namespace(setup: &SandboxSetup) -> io::Result<Self> {
        let services = current()?;
        let service_links = Netlink::open()?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        let result = connect(setup.ip, &services, &service_links, &setup.local_ranges);
        if let Err(error) = result {
            setns(&services, CloneFlags::CLONE_NEWNET)?;
            return Err(error);
        }
        Ok(Self {
            pod: current()?,
            services: Ok(services),
        })
    }

    /// Creates a socket. With a source address, the peer is reached as from another pod.
    pub(super) fn socket(
        &self,
        transport: Transport,
        source: Option<SocketAddr>,
        ipv6: bool,
    ) -> io::Result<OwnedFd> {
        match source {
            None => new_socket(transport, ipv6),
            Some(source) => self.in_service_namespace(|| {
                let socket = new_socket(transport, ipv6)?;
                rustix::net::bind(&socket, &source)?;
                Ok(socket)
            }),
        }
    }

    /// Creates a listening socket for an address that is not the pod's.
    pub(super) fn listen(&self, transport: Transport, address: SocketAddr) -> io::Result<OwnedFd> {
        self.in_service_namespace(|| {
            let socket = new_socket(transport, address.is_ipv6())?;
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &address)?;
            if transport == Transport::Tcp {
                rustix::net::listen(&socket, BACKLOG)?;
            }
            Ok(socket)
        })
    }

    fn in_service_namespace<T>(&self, f: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Ok(services) = &self.services else {
            return f();
        };
        setns(services.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let result = f();
        setns(self.pod.as_fd(), CloneFlags::CLONE_NEWNET)?;
        result
    }
}

/// Connects the current namespace, the pod's, with that of Services.
fn connect(
    ip: IpAddr,
    services: &OwnedFd,
    service_links: &Netlink,
    local_ranges: &[(IpAddr, u8)],
) -> io::Result<()> {
    let pod_links = Netlink::open()?;
    pod_links.set_up(LOOPBACK)?;
    pod_links.add_veth(LINK_NAME, LINK, services.as_fd())?;
    pod_links.set_up(LINK)?;
    pod_links.add_address(LINK, ip)?;
    service_links.set_up(LOOPBACK)?;
    service_links.set_up(LINK)?;
    for range in local_ranges {
        service_links.add_local_range(*range)?;
    }
    service_links.add_host_route(ip, LINK)?;
    pod_links.add_default_route(LINK, ip)
}

fn new_socket(transport: Transport, ipv6: bool) -> io::Result<OwnedFd> {
    let socket_type = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let family = if ipv6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, socket_type, flags, None)?)
}
