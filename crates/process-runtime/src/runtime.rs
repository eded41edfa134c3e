//! The runtime of a node: tier, capabilities, sandboxes by their addresses.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::net::TcpStream;

use crate::config::{SandboxConfig, SandboxNetwork};
use crate::error::Error;
use crate::options::RuntimeOptions;
use crate::sandbox::{Sandbox, SandboxInner};
use crate::shared::{Capabilities, Shared};
use crate::tier::Tier;

/// Addresses of tier B: 127.64.0.0 to 127.127.255.255.
const LOOPBACK_FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const LOOPBACK_COUNT: u32 = 64 << 16;

/// A container runtime. Clones share it. When the last clone and all sandboxes are dropped, every
/// process is killed.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
    sandboxes: Arc<Mutex<Sandboxes>>,
}

#[derive(Default)]
struct Sandboxes {
    by_ip: HashMap<IpAddr, Weak<SandboxInner>>,
    /// Those with the network of this machine, by the address of their node and their ports.
    by_host_port: HashMap<SocketAddr, Weak<SandboxInner>>,
    /// The number of addresses that were allocated in tier B.
    allocated: u32,
}

impl Runtime {
    /// Starts a runtime: detects the tier, and kills what is left of an earlier runtime with the
    /// same data directory. Raises the soft limit of open files to the hard limit, because a pod
    /// needs five files or more.
    pub async fn start(options: RuntimeOptions) -> Result<Self, Error> {
        Ok(Self {
            shared: Arc::new(Shared::start(options).await?),
            sandboxes: Arc::default(),
        })
    }

    /// What this runtime can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// The directory of the node.
    pub fn data_dir(&self) -> &Path {
        &self.shared.options.data_dir
    }

    /// The tier of this runtime.
    pub fn tier(&self) -> Tier {
        self.shared.tier()
    }

    /// An unused loopback address for a pod or Service of tier B. Runtimes with different data directories
    /// begin at different addresses.
    pub fn allocate_ip(&self) -> IpAddr {
        let mut hasher = DefaultHasher::new();
        self.shared.node_marker.hash(&mut hasher);
        let first = hasher.finish() as u32;
        let mut sandboxes = self.sandboxes();
        loop {
            let offset = first.wrapping_add(sandboxes.allocated) % LOOPBACK_COUNT;
            sandboxes.allocated += 1;
            let ip = Ipv4Addr::from(LOOPBACK_FIRST + offset);
            let last_octet = ip.octets()[3];
            let is_used = sandboxes.find(&ip.into()).is_some();
            if !is_used && last_octet != 0 && last_octet != 255 {
                return ip.into();
            }
        }
    }

    /// Creates a sandbox (`RunPodSandbox`).
    pub async fn create_sandbox(&self, config: SandboxConfig) -> Result<Sandbox, Error> {
        let ip = config.ip;
        let network = config.network.clone();
        let has_own_ip = self.tier() == Tier::A || ip.is_loopback();
        let listen_ip = match &network {
            SandboxNetwork::Host { .. } => Ipv4Addr::LOCALHOST.into(),
            SandboxNetwork::Pod if has_own_ip => ip,
            SandboxNetwork::Pod => self.allocate_ip(),
        };
        let sandbox = Sandbox::create(self.shared.clone(), config, listen_ip).await?;
        let mut sandboxes = self.sandboxes();
        sandboxes.retain_existing();
        match network {
            SandboxNetwork::Host { ports } => {
                let addresses = ports.into_iter().map(|port| SocketAddr::new(ip, port));
                let entries = addresses.map(|address| (address, sandbox.downgrade()));
                sandboxes.by_host_port.extend(entries);
            }
            SandboxNetwork::Pod => {
                sandboxes.by_ip.insert(ip, sandbox.downgrade());
                sandboxes.by_ip.insert(listen_ip, sandbox.downgrade());
            }
        }
        drop(sandboxes);
        Ok(sandbox)
    }

    /// The sandbox that is reached at an address: of a pod, or of a port of a node that is one of a
    /// pod with the network of this machine.
    pub fn sandbox_at(&self, address: SocketAddr) -> Option<Sandbox> {
        let sandboxes = self.sandboxes();
        let on_host = || sandboxes.by_host_port.get(&address)?.upgrade();
        let found = sandboxes.find(&address.ip());
        found.or_else(|| on_host().map(Sandbox::from_inner))
    }

    /// The sandbox with that address as its own.
    pub fn sandbox_by_ip(&self, ip: IpAddr) -> Option<Sandbox> {
        self.sandboxes().find(&ip)
    }

    /// Connects to an address: in the network of the pod if it is the address of a pod, otherwise
    /// in that of the node.
    pub async fn dial(&self, address: SocketAddr) -> Result<TcpStream, Error> {
        match self.sandbox_at(address) {
            Some(sandbox) => sandbox.dial(address, None).await,
            None => Ok(TcpStream::connect(address).await?),
        }
    }

    fn sandboxes(&self) -> MutexGuard<'_, Sandboxes> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sandboxes {
    fn retain_existing(&mut self) {
        let exists = |sandbox: &Weak<SandboxInner>| sandbox.strong_count() > 0;
        self.by_ip.retain(|_, sandbox| exists(sandbox));
        self.by_host_port.retain(|_, sandbox| exists(sandbox));
    }

    fn find(&self, ip: &IpAddr) -> Option<Sandbox> {
        let inner = self.by_ip.get(ip)?.upgrade()?;
        Some(Sandbox::from_inner(inner))
    }
}
