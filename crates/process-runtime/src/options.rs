//! Settings of a runtime.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::cgroup::CgroupParent;
use crate::clock::{Clock, system_clock};
use crate::logs::RotationOptions;

/// The default ranges of the cluster: pods and Services, nodes.
const CLUSTER_RANGES: [(Ipv4Addr, u8); 2] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
];

/// Settings of a [`Runtime`](crate::Runtime).
#[derive(Clone)]
pub struct RuntimeOptions {
    /// The directory of the node. One runtime at a time can use it.
    pub data_dir: PathBuf,
    /// The program that calls [`shim::main`](crate::shim::main); default: this program.
    pub shim: PathBuf,
    /// Uses tier B even where tier A is possible.
    pub force_tier_b: bool,
    /// The address ranges of pods, Services and nodes: a pod of tier A reaches them through listeners of
    /// the node ([`Sandbox::listen`](crate::Sandbox::listen)).
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
