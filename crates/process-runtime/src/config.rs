//! The configuration of sandboxes, containers and commands in containers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A pod sandbox, as in the CRI's `PodSandboxConfig`.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// The UID of the pod; unique on the node.
    pub id: String,
    /// The host name in the sandbox (tier A).
    pub hostname: String,
    /// The IP address of the pod. In tier B, no socket has it unless it is one of 127.0.0.0/8;
    /// see [`Sandbox::listen_ip`](crate::Sandbox::listen_ip).
    pub ip: IpAddr,
    /// Whether it has a network namespace, or the network of this machine.
    pub network: SandboxNetwork,
}

/// The network of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// Its own.
    Pod,
    /// That of this machine, at 127.0.0.1. Sandboxes of one node have the same `ip`, and are found
    /// by these ports; other ports of the machine are not reached through the node.
    Host {
        /// The TCP ports of the containers.
        ports: BTreeSet<u16>,
    },
}

/// User and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `runAsUser`.
    pub uid: u32,
    /// `runAsGroup`.
    pub gid: u32,
}

/// A volume mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The name of the volume.
    pub name: String,
    /// The file or directory on the node.
    pub source: PathBuf,
    /// The absolute path in the container (`mountPath`).
    pub target: PathBuf,
    /// A path below `source`; it cannot leave `source`, neither by `..` nor by a symbolic link.
    pub sub_path: Option<PathBuf>,
    /// Whether the container cannot write to it (tier A).
    pub read_only: bool,
    /// Whether a `sub_path` that does not exist is created as a directory, in the namespaces of the
    /// sandbox (tier A).
    pub create_sub_path: bool,
}

/// Limits of a container. They have an effect only where a cgroup is delegated; see
/// [`Capabilities`](crate::Capabilities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
}

/// The standard streams of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Whether it has a stdin; otherwise it reads from `/dev/null`.
    pub stdin: bool,
    /// Whether stdin is closed when the first attached client ends its stream.
    pub stdin_once: bool,
    /// Whether its streams are a terminal. A terminal has no separate stderr.
    pub tty: bool,
}

/// A running container whose processes another one sees; see
/// [`ContainerConfig::target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetContainer(pub(crate) u64);

/// A container, as in the CRI's `ContainerConfig`. Command, args and environment are already
/// expanded; see [`expansion`](crate::expansion).
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// The name of the container.
    pub name: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The environment. The runtime adds `PATH`, `HOSTNAME` and `HOME` where they are missing.
    pub env: Vec<(String, String)>,
    /// The working directory; default: `/` (tier A), or that of the node (tier B).
    pub working_dir: Option<PathBuf>,
    /// The user; default: root of the sandbox (tier A), the user of the node (tier B).
    pub user: Option<User>,
    /// The standard streams.
    pub streams: Streams,
    /// The volumes.
    pub mounts: Vec<Mount>,
    /// The log file. Rotated files have the same path with a suffix.
    pub log_path: PathBuf,
    /// Whether the root file system cannot be written (tier A). Volumes, `/dev` and `/proc` can.
    pub read_only_root: bool,
    /// The limits.
    pub limits: Limits,
    /// The container of the same sandbox whose PID namespace it joins (tier A), with which it ends.
    /// Without namespaces, it sees the processes of all containers.
    pub target: Option<TargetContainer>,
}

/// A command in a running container.
#[derive(Clone, Debug)]
pub struct ExecConfig {
    /// The program and its arguments. The environment is that of the container.
    pub argv: Vec<String>,
    /// The standard streams.
    pub streams: Streams,
}
