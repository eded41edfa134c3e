//! The runtime of a node: tier, capabilities, sandboxes by their addresses.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::process::Resource;
use tokio::net::TcpStream;

use crate::cgroup::{CgroupParent, Cgroups};
use crate::clock::{Clock, system_clock};
use crate::config::{SandboxConfig, SandboxNetwork};
use crate::error::Error;
use crate::logs::RotationOptions;
use crate::sandbox::{Sandbox, SandboxInner};
use crate::sys::{Launcher, kill_with_environment, with_environment};
use crate::tier::{Tier, TierReport, detect};

/// The environment variable that marks all processes of a node.
pub(crate) const NODE_MARKER: &str = "BELLEROPHON_NODE";
/// The environment variable that marks all processes of a pod.
pub(crate) const POD_MARKER: &str = "BELLEROPHON_POD";
/// The environment variable that marks all processes of a container of tier B.
pub(crate) const CONTAINER_MARKER: &str = "BELLEROPHON_CONTAINER";

/// How long processes of an earlier node are waited for after they are killed.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

/// Addresses of tier B: 127.64.0.0 to 127.127.255.255.
const LOOPBACK_FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const LOOPBACK_COUNT: u32 = 64 << 16;

/// The default ranges of the cluster: pods and Services, nodes.
const CLUSTER_RANGES: [(Ipv4Addr, u8); 2] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
];

/// Settings of a [`Runtime`].
#[derive(Clone)]
pub struct RuntimeOptions {
    /// The directory of the node. One runtime at a time can use it.
    pub data_dir: PathBuf,
    /// The program that calls [`shim::main`](crate::shim::main); default: this program.
    pub shim: PathBuf,
    /// Uses tier B even where tier A is possible.
    pub force_tier_b: bool,
    /// The address ranges of pods, Services and nodes: a pod of tier A reaches them through listeners of
    /// the node ([`Sandbox::listen`]).
    pub cluster_ranges: Vec<(IpAddr, u8)>,
    /// Rotation of container logs.
    pub rotation: RotationOptions,
    /// Where cgroups of containers are created.
    pub cgroup_parent: CgroupParent,
    /// The clock of time stamps.
    pub clock: Clock,
}

impl RuntimeOptions {
    /// The defaults, with that data directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            shim: "/proc/self/exe".into(),
            force_tier_b: false,
            cluster_ranges: CLUSTER_RANGES.map(|(ip, bits)| (ip.into(), bits)).to_vec(),
            rotation: RotationOptions::default(),
            cgroup_parent: CgroupParent::default(),
            clock: system_clock(),
        }
    }
}

/// What this runtime can do on this system; the node reports it as conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The tier, and why it is not tier A.
    pub tier: TierReport,
    /// Whether limits are enforced; otherwise the reason, with the remedy.
    pub limits: Result<(), String>,
}

/// A container runtime. Clones share it. When the last clone and all sandboxes are dropped, every
/// process is killed.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

/// What sandboxes share.
pub(crate) struct Shared {
    pub(crate) options: RuntimeOptions,
    pub(crate) launcher: Launcher,
    pub(crate) cgroups: Option<Cgroups>,
    pub(crate) node_marker: String,
    capabilities: Capabilities,
    sandboxes: Mutex<Sandboxes>,
    /// Held as long as the runtime lives.
    _lock: File,
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
        raise_open_files_limit()?;
        let _lock = lock_data_dir(&options.data_dir)?;
        let node_marker = fs::canonicalize(&options.data_dir)?
            .to_string_lossy()
            .into_owned();
        sweep(NODE_MARKER, &node_marker).await?;
        let tier = if options.force_tier_b {
            TierReport::without_namespaces("tier B was requested".to_owned())
        } else {
            detect(&options.shim).await
        };
        let env = vec![(NODE_MARKER.to_owned(), node_marker.clone())];
        let launcher = Launcher::new(options.shim.clone(), tier.tier, env)
            .map_err(|error| Error::Unsupported(error.to_string()))?;
        let cgroups = Cgroups::find(&options.cgroup_parent);
        let capabilities = Capabilities {
            tier,
            limits: cgroups.as_ref().map(drop).map_err(Clone::clone),
        };
        let shared = Shared {
            options,
            launcher,
            cgroups: cgroups.ok(),
            node_marker,
            capabilities,
            sandboxes: Mutex::default(),
            _lock,
        };
        Ok(Self {
            shared: Arc::new(shared),
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
        let mut sandboxes = self.shared.sandboxes();
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
        let mut sandboxes = self.shared.sandboxes();
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
        let sandboxes = self.shared.sandboxes();
        let on_host = || sandboxes.by_host_port.get(&address)?.upgrade();
        let found = sandboxes.find(&address.ip());
        found.or_else(|| on_host().map(Sandbox::from_inner))
    }

    /// The sandbox with that address as its own.
    pub fn sandbox_by_ip(&self, ip: IpAddr) -> Option<Sandbox> {
        self.shared.sandboxes().find(&ip)
    }

    /// Connects to an address: in the network of the pod if it is the address of a pod, otherwise
    /// in that of the node.
    pub async fn dial(&self, address: SocketAddr) -> Result<TcpStream, Error> {
        match self.sandbox_at(address) {
            Some(sandbox) => sandbox.dial(address, None).await,
            None => Ok(TcpStream::connect(address).await?),
        }
    }
}

impl Shared {
    pub(crate) fn tier(&self) -> Tier {
        self.capabilities.tier.tier
    }

    /// Whether Services listen in a network of their own (tier A).
    pub(crate) fn has_veth(&self) -> bool {
        self.capabilities.tier.veth_error.is_none()
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

/// Sets the soft limit of open files to the hard limit.
pub(crate) fn raise_open_files_limit() -> io::Result<()> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

fn lock_data_dir(data_dir: &std::path::Path) -> Result<File, Error> {
    fs::create_dir_all(data_dir)?;
    let file = File::create(data_dir.join("lock"))?;
    file.try_lock().map_err(|_| {
        let dir = data_dir.display();
        let message = format!("another node uses {dir}; stop it or choose another directory");
        io::Error::new(io::ErrorKind::AddrInUse, message)
    })?;
    Ok(file)
}

/// Kills all processes with a marker and waits until they have ended.
pub(crate) async fn sweep(marker: &str, value: &str) -> Result<(), Error> {
    let killed = kill_with_environment(marker, value)?;
    if killed == 0 {
        return Ok(());
    }
    tracing::info!(
        killed,
        marker,
        "killed processes whose shim or node was killed"
    );
    let swept = tokio::time::timeout(SWEEP_TIMEOUT, async {
        while !with_environment(marker, value)?.is_empty() {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            kill_with_environment(marker, value)?;
        }
        Ok::<_, Error>(())
    });
    swept.await.unwrap_or_else(|_| {
        let message = format!("processes with {marker}={value} cannot be killed");
        Err(Error::Sandbox(message))
    })
}
