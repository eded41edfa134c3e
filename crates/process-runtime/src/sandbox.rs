//! A pod sandbox.
//!
//! Tier A: one shim, PID 1 of the pod's namespaces. Tier B: one shim per container, and an address.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::client::ShimClient;
use crate::config::{ContainerConfig, Mount, SandboxConfig, SandboxNetwork};
use crate::container::Container;
use crate::error::Error;
use crate::marker::{CONTAINER_MARKER, NODE_MARKER, POD_MARKER, sweep};
use crate::protocol::{Request, SandboxSetup, Transport};
use crate::shared::Shared;
use crate::sys::listening_ports;
use crate::tier::Tier;

/// The `PATH` of containers without one, as of most images.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A pod sandbox. Clones share it. When the last clone is dropped, all processes of the pod are
/// killed.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<SandboxInner>,
}

pub(crate) struct SandboxInner {
    config: SandboxConfig,
    listen_ip: IpAddr,
    shared: Arc<Shared>,
    /// Tier A.
    shim: Option<Arc<ShimClient>>,
    /// Tier B: the shims of containers that may be running.
    container_shims: Mutex<Vec<Weak<ShimClient>>>,
}

impl Sandbox {
    pub(crate) async fn create(
        shared: Arc<Shared>,
        config: SandboxConfig,
        listen_ip: IpAddr,
    ) -> Result<Self, Error> {
        let mut inner = SandboxInner {
            config,
            listen_ip,
            shared,
            shim: None,
            container_shims: Mutex::default(),
        };
        if inner.shared.tier() == Tier::A {
            let shim = inner.launch().await?;
            let setup = SandboxSetup {
                hostname: inner.config.hostname.clone(),
                ip: inner.config.ip,
                host_network: inner.config.network != SandboxNetwork::Pod,
                local_ranges: inner.shared.options.cluster_ranges.clone(),
            };
            shim.call(Request::Setup(setup), Vec::new()).await?;
            inner.shim = Some(shim);
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(crate) fn from_inner(inner: Arc<SandboxInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<SandboxInner> {
        Arc::downgrade(&self.inner)
    }

    /// The address of the pod.
    pub fn ip(&self) -> IpAddr {
        self.inner.config.ip
    }

    /// The address on which programs of the pod listen: that of the pod (tier A), one of
    /// 127.0.0.0/8 (tier B), or 127.0.0.1 with the network of this machine.
    pub fn listen_ip(&self) -> IpAddr {
        self.inner.listen_ip
    }

    /// Whether it has the network of this machine.
    pub fn has_host_network(&self) -> bool {
        self.inner.config.network != SandboxNetwork::Pod
    }

    /// The shim in whose network the pod is; `None` if it is in that of this machine.
    fn network_shim(&self) -> Option<&Arc<ShimClient>> {
        self.inner
            .shim
            .as_ref()
            .filter(|_| !self.has_host_network())
    }

    /// The process ID of the shim (tier A).
    pub fn shim_pid(&self) -> Option<i32> {
        self.inner.shim.as_ref().map(|shim| shim.pid())
    }

    /// The TCP ports of the pod's network on which its programs listen for other pods (tier A).
    /// Without a veth pair, Services listen in that network, and none is found.
    pub fn listening_ports(&self) -> io::Result<BTreeSet<u16>> {
        let has_veth = self.inner.shared.has_veth();
        match self.network_shim() {
            Some(shim) if has_veth => listening_ports(shim.pid()),
            _ => Ok(BTreeSet::new()),
        }
    }

    /// Starts a container (`CreateContainer` and `StartContainer`). It is running when this
    /// returns.
    pub async fn start_container(&self, config: ContainerConfig) -> Result<Container, Error> {
        let shim = match &self.inner.shim {
            Some(shim) => shim.clone(),
            None => self.inner.launch_for_container().await?,
        };
        let mut env = self.inner.environment(&config)?;
        if self.inner.shim.is_none() {
            // The number of a shim is its own as long as its container has a process.
            let marker = format!("{}/{}", self.inner.pod_marker(), shim.pid());
            env.push((CONTAINER_MARKER.to_owned(), marker));
        }
        Container::start(&self.inner.shared, shim, config, env).await
    }

    /// Connects to an address in the pod: a port of the pod's address, or of 127.0.0.1 (tier A).
    /// With a source address (tier A), the pod sees it as its peer.
    pub async fn dial(
        &self,
        address: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<TcpStream, Error> {
        let Some(shim) = self.network_shim() else {
            let listened = SocketAddr::new(self.listen_ip(), address.port());
            return Ok(TcpStream::connect(listened).await?);
        };
        // The pod itself connects without a detour.
        let source = source.filter(|source| *source != self.ip());
        let request = Request::Socket {
            transport: Transport::Tcp,
            source: source.map(|ip| SocketAddr::new(ip, 0)),
            ipv6: address.is_ipv6(),
        };
        let socket = descriptor(shim.call(request, Vec::new()).await?)?;
        // A socket stays in the network namespace in which it was created.
        let socket = TcpSocket::from_std_stream(socket.into());
        Ok(socket.connect(address).await?)
    }

    /// A UDP socket that is connected to an address in the pod. With a source address (tier A), the
    /// pod sees it as its peer.
    pub async fn dial_udp(
        &self,
        address: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<UdpSocket, Error> {
        let Some(shim) = self.network_shim() else {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let listened = SocketAddr::new(self.listen_ip(), address.port());
            socket.connect(listened).await?;
            return Ok(socket);
        };
        let source = source.filter(|source| *source != self.ip());
        let request = Request::Socket {
            transport: Transport::Udp,
            source: source.map(|ip| SocketAddr::new(ip, 0)),
            ipv6: address.is_ipv6(),
        };
        let socket = descriptor(shim.call(request, Vec::new()).await?)?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.connect(address).await?;
        Ok(socket)
    }

    /// Receives datagrams to an address of a Service from this pod (tier A). The address must be in
    /// the cluster ranges of the runtime.
    pub async fn listen_udp(&self, address: SocketAddr) -> Result<UdpSocket, Error> {
        let socket = self.listen_socket(Transport::Udp, address).await?;
        Ok(UdpSocket::from_std(socket.into())?)
    }

    /// Listens on an address of a Service or of another pod, for connections from this pod
    /// (tier A). The address must be in the cluster ranges of the runtime.
    pub async fn listen(&self, address: SocketAddr) -> Result<TcpListener, Error> {
        let socket = self.listen_socket(Transport::Tcp, address).await?;
        let listener = std::net::TcpListener::from(socket);
        Ok(TcpListener::from_std(listener)?)
    }

    async fn listen_socket(
        &self,
        transport: Transport,
        address: SocketAddr,
    ) -> Result<OwnedFd, Error> {
        let Some(shim) = self.network_shim() else {
            let message = "without a network of the pod, Services listen once per node";
            return Err(Error::Sandbox(message.to_owned()));
        };
        let request = Request::Listen { transport, address };
        descriptor(shim.call(request, Vec::new()).await?)
    }

    /// Mounts a tmpfs on a directory of the node (tier A): containers that start later see its files
    /// there, the node and other pods do not. It ends with the sandbox.
    pub async fn mount_tmpfs(&self, path: PathBuf, size_bytes: Option<u64>) -> Result<(), Error> {
        let Some(shim) = &self.inner.shim else {
            let message = "without namespaces, nothing can be mounted";
            return Err(Error::Sandbox(message.to_owned()));
        };
        let request = Request::MountTmpfs { path, size_bytes };
        shim.call(request, Vec::new()).await.map(drop)
    }

    /// Waits until the sandbox has ended unexpectedly (tier A). In tier B it never does.
    pub async fn ended(&self) {
        match &self.inner.shim {
            Some(shim) => shim.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Kills all processes of the pod and waits until they have ended (`StopPodSandbox`).
    pub async fn stop(&self) -> Result<(), Error> {
        if let Some(shim) = &self.inner.shim {
            return Ok(shim.shut_down().await?);
        }
        let shims: Vec<_> = self.inner.container_shims().drain(..).collect();
        for shim in shims.iter().filter_map(Weak::upgrade) {
            shim.shut_down().await?;
        }
        // Processes whose shim was killed by others.
        sweep(POD_MARKER, &self.inner.pod_marker()).await
    }
}

fn descriptor(fds: Vec<OwnedFd>) -> Result<OwnedFd, Error> {
    let fd = fds.into_iter().next();
    fd.ok_or_else(|| Error::Sandbox("the shim sent no socket".to_owned()))
}

impl SandboxInner {
    fn pod_marker(&self) -> String {
        format!("{}/{}", self.shared.node_marker, self.config.id)
    }

    async fn launch(&self) -> Result<Arc<ShimClient>, Error> {
        let env = [(POD_MARKER.to_owned(), self.pod_marker())];
        let (process, socket, receiver) = self.shared.launcher.launch(&env).await?;
        Ok(Arc::new(ShimClient::new(process, socket, receiver)))
    }

    async fn launch_for_container(&self) -> Result<Arc<ShimClient>, Error> {
        let shim = self.launch().await?;
        let mut shims = self.container_shims();
        shims.retain(|shim| shim.strong_count() > 0);
        shims.push(Arc::downgrade(&shim));
        drop(shims);
        Ok(shim)
    }

    fn container_shims(&self) -> MutexGuard<'_, Vec<Weak<ShimClient>>> {
        self.container_shims
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The environment of a container: its own variables, and what runtimes add.
    fn environment(&self, config: &ContainerConfig) -> Result<Vec<(String, String)>, Error> {
        let mut env = config.env.clone();
        let mut add = |name: String, value: String| {
            if !env.iter().any(|(existing, _)| *existing == name) {
                env.push((name, value));
            }
        };
        add("PATH".to_owned(), DEFAULT_PATH.to_owned());
        add("HOSTNAME".to_owned(), self.config.hostname.clone());
        if let Ok(home) = std::env::var("HOME") {
            add("HOME".to_owned(), home);
        }
        if config.streams.tty {
            add("TERM".to_owned(), "xterm".to_owned());
        }
        if self.shared.tier() == Tier::B {
            for mount in &config.mounts {
                add(mount_variable(&mount.name), mount_source(mount)?);
            }
        }
        // The markers cannot be overridden.
        let markers = [NODE_MARKER, POD_MARKER, CONTAINER_MARKER];
        env.retain(|(name, _)| !markers.contains(&name.as_str()));
        env.push((NODE_MARKER.to_owned(), self.shared.node_marker.clone()));
        env.push((POD_MARKER.to_owned(), self.pod_marker()));
        Ok(env)
    }
}

/// The variable with the path of a volume in tier B.
fn mount_variable(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    let name = upper.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("KUBERNETES_MOUNT_{name}")
}

/// The path of a volume on the node. A `subPath` cannot leave it.
fn mount_source(mount: &Mount) -> io::Result<String> {
    let volume = mount.source.canonicalize()?;
    let source = match &mount.sub_path {
        // Not resolved: the file that a link names is replaced when the volume is updated.
        Some(sub_path) => volume.join(sub_path),
        None => volume.clone(),
    };
    if !source.canonicalize()?.starts_with(&volume) {
        let message = format!("subPath of volume {} leaves the volume", mount.name);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(source.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_variables_are_valid_names() {
        let cases = [
            ("data", "KUBERNETES_MOUNT_DATA"),
            ("kube-api-access-x7", "KUBERNETES_MOUNT_KUBE_API_ACCESS_X7"),
        ];
        for (name, expected) in cases {
            assert_eq!(mount_variable(name), expected);
        }
    }
}
